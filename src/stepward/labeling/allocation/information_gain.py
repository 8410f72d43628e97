"""Rollouts where they tell most about the first error, per token, until none is worth the price.

At prefix t a rollout tells about the event A = {no error in the first t steps}: the mutual information of its
outcome and A under the change-point posterior, in nats, over the tokens it is expected to cost. Each solution
gets the best of its prefixes once a round while that is worth ``price``; solutions are never batched within. Where
solutions begin with the same tokens a prefix is one state of them all: its gain is the sum over them, it is drawn
once (for the first of them), and no other prefix of theirs is drawn in that round.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec

import numpy as np

from stepward.labeling.changepoint.grid import Array, Grid, make_grid
from stepward.labeling.changepoint.layout import Layout, layout_of
from stepward.labeling.changepoint.problem import posteriors
from stepward.labeling.changepoint.sharing import Ints
from stepward.labeling.evidence import Draw, LabelingConstants, SolutionEvidence
from stepward.prm.types import Allocation

NATS_PER_SOLUTION_LENGTH = 0.025
"""The default price, scale-free: a rollout as long as a solution has to tell this much."""
_CLOSE = 1e-9
"""Scores this close (relative) are equal and the earlier prefix wins: no rounding of sums decides between two."""

ROUNDS_BEFORE_COMPILING = 500
"""A round in numpy costs some milliseconds, compiling some seconds (once a machine: the result is kept on disk)."""
_rounds = 0


@dataclass(frozen=True, slots=True)
class InformationGain:
    """Information gain per token with one price for the whole run.

    Attributes:
        constants: ``price`` in nats a token; grid weights, precision and recall.
        pool: Let the solutions of a problem inform each other.
        overhead_tokens: What a rollout costs beside its own tokens (prefill, queueing), in tokens.
        truncated_as_wrong: Read draws without an answer as wrong; False leaves them out of the likelihood.
        max_rollouts: Most rollouts a solution gets; None = max(200, 20 T).
        compiled: Use the compiled recursions: some seconds to start, fifteen times faster after that; the choices
            are the same. None: where numba is installed, once a process has had some hundred rounds, so that a
            short run never waits for the compiler. True needs numba.
    """

    constants: LabelingConstants = field(default_factory=LabelingConstants)
    pool: bool = True
    overhead_tokens: float = 0.0
    truncated_as_wrong: bool = False
    max_rollouts: int | None = None
    compiled: bool | None = None

    def __post_init__(self) -> None:
        if self.constants.price <= 0:
            raise ValueError(
                f"allocating by information gain: the price is {self.constants.price} nats a token; give a "
                f"positive one, such as scale_free_price(mean solution tokens)"
            )
        if self.overhead_tokens < 0:
            raise ValueError(
                f"allocating by information gain: overhead_tokens is {self.overhead_tokens}; give 0 or more"
            )

    @property
    def kind(self) -> Allocation:
        """``information_gain``."""
        return Allocation.INFORMATION_GAIN

    def next_draws(self, solutions: Sequence[SolutionEvidence]) -> list[Draw]:
        """At most one draw on a solution's path: its best prefix, where that is worth the price."""
        if all(s.num_steps < 2 for s in solutions):
            return []
        layout = layout_of(solutions)
        grid = make_grid(
            self.constants.axis_weights,
            on_policy=all(s.on_policy for s in solutions),
            axis_points=self.constants.axis_points,
        )
        scores = self._scores(layout, self._gains(solutions, grid))
        if layout.shared:
            scores[[not self._has_room(s) for s in solutions]] = -1.0
        top = scores.max(axis=1)
        best: list[int] = (scores >= (top * (1 - _CLOSE))[:, None]).argmax(axis=1).tolist()
        worth: Ints = (top >= self.constants.price * (1 - _CLOSE)).nonzero()[0]
        if layout.shared:
            order: list[int] = worth[np.argsort(-top[worth], kind="stable")].tolist()
            return _one_a_path(order, best, scores, layout.nodes)
        rows: list[int] = worth.tolist()
        return [Draw(row, best[row]) for row in rows if self._has_room(solutions[row])]

    def _gains(self, solutions: Sequence[SolutionEvidence], grid: Grid) -> list[Array]:
        if self.compiled or (self.compiled is None and _worth_compiling()):
            from stepward.labeling.changepoint.fast import information_gains

            return information_gains(
                solutions,
                grid,
                pool=self.pool,
                unfinished_as_wrong=self.truncated_as_wrong,
                precision=self.constants.precision,
                recall=self.constants.recall,
            )
        known = posteriors(
            solutions,
            grid,
            pool=self.pool,
            unfinished_as_wrong=self.truncated_as_wrong,
            precision=self.constants.precision,
            recall=self.constants.recall,
        )
        return [posterior.gain for posterior in known]

    def _scores(self, layout: Layout, gains: Sequence[Array]) -> Array:
        """Nats a token of a rollout at each prefix, [solutions, prefixes]; -1 where none is drawn (0, T, beyond)."""
        nats = np.full(layout.nodes.shape, -1.0)
        for row, gain in zip(nats, gains, strict=True):
            row[1 : len(gain) - 1] = gain[1:-1]
        if layout.shared:
            # A rollout from a state that solutions share tells all of them the same, and is paid once.
            at = (layout.nodes >= 0) & layout.inner
            nats[at] = np.bincount(layout.nodes[at], nats[at])[layout.nodes[at]]
        return nats / np.maximum(layout.rest + self.overhead_tokens, 1.0)

    def _has_room(self, evidence: SolutionEvidence) -> bool:
        limit = max(200, 20 * evidence.num_steps) if self.max_rollouts is None else self.max_rollouts
        return sum(map(len, evidence.draws)) < limit


def _one_a_path(order: Sequence[int], best: Sequence[int], scores: Array, nodes: Ints) -> list[Draw]:
    """The best prefix first, then the best among solutions that it says nothing of.

    Args:
        order: The solutions whose best prefix is worth its price, the best first.
        best: Best prefix of each solution.
        scores: [solutions, prefixes], negative where nothing is drawn.
        nodes: As of ``node_table``.
    """
    draws: list[Draw] = []
    open_rows = np.ones(len(scores), np.bool_)
    for number in order:
        if not open_rows[number]:
            continue
        prefix = best[number]
        rows = [number]
        if (node := nodes[number, prefix]) >= 0:
            rows = np.flatnonzero(nodes[:, prefix] == node).tolist()
        ready = [row for row in rows if open_rows[row]]
        open_rows[rows] = False
        if len(ready) == len(rows):
            draws.append(Draw(next(row for row in rows if scores[row, prefix] >= 0), prefix))
    return sorted(draws, key=lambda d: d.solution)


def _worth_compiling() -> bool:
    """Whether numba is there and this process has had enough rounds for the wait to pay; counts this one."""
    global _rounds
    _rounds += 1
    return _rounds > ROUNDS_BEFORE_COMPILING and _has_numba()


@cache
def _has_numba() -> bool:
    return find_spec("numba") is not None


def scale_free_price(mean_solution_tokens: float) -> float:
    """The default price in nats a token for solutions of this mean length.

    Raises:
        ValueError: The mean is not positive.
    """
    if mean_solution_tokens <= 0:
        raise ValueError(
            f"setting the price: mean solution length is {mean_solution_tokens}; give a positive one"
        )
    return NATS_PER_SOLUTION_LENGTH / mean_solution_tokens


def price_for_budget(
    tokens_at_price: Callable[[float], float], budget_tokens: float, *, low: float = 1e-7, high: float = 1e-2,
    iterations: int = 30,
) -> float:  # fmt: skip
    """The lowest price at which a pilot spends no more than the budget, by bisection in its logarithm.

    Args:
        tokens_at_price: Tokens that the pilot spends at a price; falls as the price rises.
        budget_tokens: Tokens that the pilot may spend.
        low: Lowest price considered, nats a token.
        high: Highest.
        iterations: Halvings.

    Raises:
        ValueError: Even the highest price spends more than the budget.
    """
    if tokens_at_price(low) <= budget_tokens:
        return low
    if (least := tokens_at_price(high)) > budget_tokens:
        raise ValueError(
            f"setting the price: at {high} nats a token the pilot still spends {least:.0f} tokens, over the budget "
            f"of {budget_tokens:.0f}; give a larger budget"
        )
    for _ in range(iterations):
        middle = (low * high) ** 0.5
        if tokens_at_price(middle) > budget_tokens:
            low = middle
        else:
            high = middle
    return high
