"""OmegaPRM's tree construction (Luo et al. 2024, arXiv 2406.06592, sections 3.2 to 3.4).

A pool holds (state, wrong rollout) pairs of states whose value is neither 0 nor 1. The pair of highest Q + U is
taken out, and the first error of its rollout is located by binary search; every prefix that is tested on the way
becomes a node, and its own wrong rollouts enter the pool.

Where public code (openr) differs and this follows the paper: lengths are in tokens, not words; N(s) is counted when
a state is selected; a pair that was taken out never returns; a prefix that is tested again is looked up, not sampled
again; answers are compared by the grader, not as substrings.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate

from stepward.labeling.search.growth import Grower, OutOfTokens, all_of
from stepward.labeling.selection import omegaprm_priority
from stepward.labeling.tree import ROOT, Tree
from stepward.prm.types import Outcome, TokenIds


@dataclass(frozen=True, slots=True)
class OmegaPRM:
    """Settings, as in the paper.

    Attributes:
        num_rollouts: k at each tested state.
        searches: Binary searches of a problem.
        pieces: A solution is cut into about so many; the search ends within one.
        at_steps: Cut where steps end and search to within one step, in place of ``pieces``: for rows, whose prefixes
            are steps. The paper takes any span of tokens.
        alpha, beta, length, exploration: See ``selection.omegaprm_priority``.
    """

    num_rollouts: int = 8
    searches: int = 100
    pieces: int = 16
    at_steps: bool = False
    alpha: float = 0.5
    beta: float = 0.9
    length: int = 500
    exploration: float = 0.125


@dataclass(slots=True)
class _Candidate:
    state: int
    rollout: TokenIds
    order: int


async def build(grower: Grower, settings: OmegaPRM) -> Tree:
    """Grow one problem's tree by binary searches until they, the pool or the tokens are spent."""
    run = _Run(grower, settings)
    try:
        await run.estimate(ROOT)
        for _ in range(settings.searches):
            candidate = run.pop()
            if candidate is None:
                break
            await run.locate(candidate)
    except OutOfTokens:
        pass
    return grower.tree


class _Run:
    def __init__(self, grower: Grower, settings: OmegaPRM) -> None:
        self.grower, self.tree, self.settings = grower, grower.tree, settings
        self.pool: list[_Candidate] = []
        self.selected: dict[int, int] = {}
        self.lengths: list[int] = []
        self.estimated: dict[int, float | None] = {}

    async def estimate(self, node: int) -> float | None:
        """MC(s) from k rollouts, drawn once; None where none of them has a verdict."""
        if node in self.estimated:
            return self.estimated[node]
        drawn = await all_of(self.grower.complete(node, i) for i in range(self.settings.num_rollouts))
        right, trials = self.tree.trials(node, pooled=False)
        mc = right / trials if trials else None
        self.estimated[node] = mc
        self.lengths += [len(r.token_ids) for r in drawn if r.outcome is not Outcome.ERROR]
        if mc is not None and 0 < mc < 1:
            wrong = dict.fromkeys(r.token_ids for r in drawn if r.outcome is Outcome.WRONG)
            for ids in wrong:
                self.pool.append(_Candidate(node, ids, len(self.pool)))
        return mc

    def pop(self) -> _Candidate | None:
        """Take out the pair of highest Q + U; ties go to the earlier one."""
        if not self.pool:
            return None
        total = sum(self.selected.values())
        best = max(self.pool, key=lambda c: (self._priority(c, total), -c.order))
        self.pool.remove(best)
        self.selected[best.state] = self.selected.get(best.state, 0) + 1
        return best

    def _priority(self, candidate: _Candidate, total: int) -> float:
        s = self.settings
        return omegaprm_priority(
            self.estimated[candidate.state] or 0.0, len(candidate.rollout),
            self.selected.get(candidate.state, 0), total,
            alpha=s.alpha, beta=s.beta, length=s.length, exploration=s.exploration,
        )  # fmt: skip

    async def locate(self, candidate: _Candidate) -> None:
        """Binary search for the first error of a wrong rollout, to within one piece."""
        middle_of = self._at_steps(candidate) if self.settings.at_steps else self._at_pieces()
        low, high = 0, len(candidate.rollout)
        node = candidate.state
        while (middle := middle_of(low, high)) is not None:
            child, _ = self.tree.add_child(
                node, candidate.rollout[low:middle], seed=_span_seed(candidate.order, low, middle)
            )
            mc = await self.estimate(child)
            if mc is None:
                return
            if mc > 0:
                node, low = child, middle
            else:
                high = middle

    def _at_pieces(self) -> Callable[[int, int], int | None]:
        """The middle of what is longer than a piece, else None: the error is located."""
        mean_length = sum(self.lengths) / max(1, len(self.lengths))
        piece = max(1, round(mean_length / self.settings.pieces))
        return lambda low, high: (low + high) // 2 if high - low > piece else None

    def _at_steps(self, candidate: _Candidate) -> Callable[[int, int], int | None]:
        """The step's end nearest to the middle, None where no step ends inside."""
        before = self.tree.prefix(candidate.state).solution_ids
        steps = self.grower.step_format.split_ids(before + candidate.rollout, self.grower.policy.tokenizer)
        ends = [e - len(before) for e in accumulate(len(s.token_ids) for s in steps)]

        def middle_of(low: int, high: int) -> int | None:
            inside = [e for e in ends if low < e < high]
            return min(inside, key=lambda e: (abs(2 * e - low - high), e)) if inside else None

        return middle_of


def _span_seed(order: int, low: int, middle: int) -> int:
    """A span of a rollout is no draw of its own: its "seed" only names it."""
    return -(1 + (order << 40 | low << 20 | middle))
