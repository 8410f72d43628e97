"""A problem's tree -> the solutions and rollouts that rows are made of.

Every completion that a search drew is kept: as a solution with a row of its own, or as a rollout at the prefix, of some
row, that it went on from. Rows are the first completions of the bare problem, all rewrites, and then as few more as it
takes for every other completion to go on from a prefix of one of them.

What a search chose to go on with is no free sample of the policy: the posterior reads such rows in its off-policy
form, and rules that need counts which no outcome steered give none.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from stepward.labeling.drawing import graded, solution_id
from stepward.labeling.plan import Engines, Labeling
from stepward.labeling.search.growth import Completion, Grower, TokenMeter, new_tree
from stepward.prm.types import FinishReason, Outcome, Problem, Rollout, Solution, TokenIds

SEARCHED = "searched"
"""``ids_from`` of solutions that a search found."""


@dataclass(frozen=True, slots=True)
class Searched:
    """What a search gave; lists of equal length.

    Attributes:
        solutions: Without outcomes.
        texts: Their texts, and why each ended.
        draws: For each solution the graded rollouts at its prefixes 0..T.
        own_tokens: What was sampled for each alone: its last completion, and of steps and rollouts that have no
            other place the first one's.
        tokens: Sampled in all.
    """

    solutions: tuple[Solution, ...]
    texts: tuple[tuple[str, FinishReason], ...]
    draws: tuple[tuple[tuple[Rollout, ...], ...], ...]
    own_tokens: tuple[int, ...]
    tokens: int


@dataclass(frozen=True, slots=True)
class _Found:
    """A completion as a whole solution.

    Attributes:
        completion: As drawn.
        start: Ids before what was drawn.
        solution: All ids, cut into steps.
    """

    completion: Completion
    start: TokenIds
    solution: Solution

    @property
    def prefixes(self) -> list[TokenIds]:
        """Ids of the prefixes 0..T-1."""
        ids, steps = self.solution.token_ids, self.solution.steps
        return [ids[:end] for end in accumulate((len(s.token_ids) for s in steps[:-1]), initial=0)]

    @property
    def can_be_row(self) -> bool:
        return self.completion.rollout.outcome is not Outcome.ERROR and bool(self.solution.steps)


async def search_solutions(problem: Problem, prompt: TokenIds, plan: Labeling, engines: Engines) -> Searched:
    """Grow a problem's tree by ``plan.search`` and lay it out in rows.

    Raises:
        EngineError: The engine is gone.
    """
    assert plan.search is not None
    policy = engines.policy

    async def grade(problem: Problem, text: str, reason: FinishReason) -> Outcome:
        return (await engines.grader.grade(problem, text, reason)).outcome

    grower = Grower(
        problem, new_tree(problem, prompt), policy, plan.sampler, plan.step_format, grade, plan.seed,
        TokenMeter(plan.search.max_tokens), plan.step_format.max_step_tokens or plan.sampler.max_tokens,
    )  # fmt: skip
    await plan.search.grow(grower, plan.search.scorer)
    drawn = sorted(grower.completions, key=lambda c: (c.node, c.index, not c.is_draw))
    found = [_found(c, grower, plan) for c in drawn]
    rows, places = laid_out(
        [f.prefixes if f.can_be_row else None for f in found],
        [f.start if f.completion.is_draw else None for f in found],
        plan.num_solutions,
    )
    draws: list[list[list[Rollout]]] = [[[] for _ in (*found[r].solution.steps, 0)] for r in rows]
    for number, (row, prefix) in places.items():
        at = draws[row][prefix]
        rollout = found[number].completion.rollout
        text = policy.tokenizer.decode(found[number].start + rollout.token_ids)
        again = rollout if rollout.outcome is Outcome.ERROR else replace(rollout, outcome=None)
        judged = await graded(problem, again, text, engines.grader)
        at.append(replace(judged, num_steps=prefix, index=len(at), logprobs=None))
    own = [len(found[r].completion.rollout.token_ids) for r in rows]
    if own:
        placed = sum(len(r.token_ids) for at_row in draws for at in at_row for r in at)
        own[0] += grower.meter.generated - placed - sum(own)
    solutions = [replace(found[r].solution, id=solution_id(problem, i)) for i, r in enumerate(rows)]
    texts = [
        (policy.tokenizer.decode(s.token_ids), found[r].completion.rollout.finish_reason)
        for r, s in zip(rows, solutions, strict=True)
    ]
    return Searched(
        tuple(solutions),
        tuple(texts),
        tuple(tuple(map(tuple, at_row)) for at_row in draws),
        tuple(own),
        grower.meter.generated,
    )


def _found(completion: Completion, grower: Grower, plan: Labeling) -> _Found:
    start = grower.tree.prefix(completion.node).solution_ids if completion.is_draw else ()
    rollout = completion.rollout
    steps = plan.step_format.split_ids(start + rollout.token_ids, grower.policy.tokenizer)
    solution = Solution(
        "", grower.problem.id, steps, rollout.seed, finish_reason=rollout.finish_reason, ids_from=SEARCHED
    )
    return _Found(completion, start, solution)


def laid_out(
    prefixes: Sequence[Sequence[TokenIds] | None], starts: Sequence[TokenIds | None], num_solutions: int
) -> tuple[list[int], dict[int, tuple[int, int]]]:
    """Which completions are rows, and where the others go.

    Args:
        prefixes: For each completion the ids of its prefixes 0..T-1; None for one that can be no row.
        starts: For each the ids that it goes on from; None for a rewrite, which goes on from nothing.
        num_solutions: So many of the first completions of the bare problem are rows.

    Returns:
        Numbers of the completions that are rows, and for each other one (number of its row, prefix). One that goes on
        from no prefix of any row, such as from inside a step, is in neither.
    """
    known: dict[TokenIds, int] = {}
    paths = [
        None if p is None else {known.setdefault(ids, len(known)): t for t, ids in enumerate(p)}
        for p in prefixes
    ]
    begins = [None if s is None else known.setdefault(s, len(known)) for s in starts]
    able = {n: path for n, path in enumerate(paths) if path is not None}
    at_root = [n for n in able if starts[n] == ()]
    rows = [*at_root[:num_solutions], *(n for n in able if begins[n] is None)]
    # Completions by the state that they go on from, as long as no row passes through it.
    waiting = Counter(b for n, b in enumerate(begins) if b is not None and n not in rows)
    for row in rows:
        for state in able[row]:
            waiting.pop(state, None)

    def gain(number: int) -> int:
        begin = begins[number]
        outside = begin is not None and begin not in able[number] and waiting[begin] > 0
        return outside + sum(waiting[state] for state in able[number])

    while rest := [n for n in able if n not in rows]:
        best = max(rest, key=lambda n: (gain(n), -n))
        if not gain(best):
            break
        rows.append(best)
        begin = begins[best]
        if begin is not None and begin not in able[best]:
            waiting[begin] -= 1
        for state in able[best]:
            waiting.pop(state, None)
    home: dict[int, tuple[int, int]] = {}
    for row, number in enumerate(rows):
        for state, prefix in able[number].items():
            home.setdefault(state, (row, prefix))
    others = ((n, b) for n, b in enumerate(begins) if n not in rows and b is not None and b in home)
    return rows, {n: home[b] for n, b in others}
