"""Rollouts where they tell most about the first error, per token, until none is worth the price.

At prefix t a rollout tells about the event A = {no error in the first t steps}: the mutual information of its
outcome and A under the change-point posterior, in nats, over the tokens it is expected to cost. Each solution
gets the best of its prefixes once a round while that is worth ``price``; solutions are never batched within.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from stepward.labeling.changepoint.grid import Array, Grid, make_grid
from stepward.labeling.changepoint.problem import posteriors
from stepward.labeling.evidence import Draw, LabelingConstants, SolutionEvidence
from stepward.prm.types import Allocation

NATS_PER_SOLUTION_LENGTH = 0.025
"""The default price, scale-free: a rollout as long as a solution has to tell this much."""
_CLOSE = 1e-9
"""Scores this close (relative) are equal and the earlier prefix wins: no rounding of sums decides between two."""


@dataclass(frozen=True, slots=True)
class InformationGain:
    """Information gain per token with one price for the whole run.

    Attributes:
        constants: ``price`` in nats a token; grid weights, precision and recall.
        pool: Let the solutions of a problem inform each other.
        overhead_tokens: What a rollout costs beside its own tokens (prefill, queueing), in tokens.
        truncated_as_wrong: Read draws without an answer as wrong; False leaves them out of the likelihood.
        max_rollouts: Most rollouts a solution gets; None = max(200, 20 T).
        compiled: Use the compiled recursions: some seconds to start, many times faster after that. Needs numba;
            the choices are the same.
    """

    constants: LabelingConstants = field(default_factory=LabelingConstants)
    pool: bool = True
    overhead_tokens: float = 0.0
    truncated_as_wrong: bool = False
    max_rollouts: int | None = None
    compiled: bool = False

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
        """At most one draw a solution: its best prefix, where that is worth the price."""
        if all(s.num_steps < 2 for s in solutions):
            return []
        grid = make_grid(self.constants.axis_weights, on_policy=all(s.on_policy for s in solutions))
        gains = self._gains(solutions, grid)
        draws: list[Draw] = []
        for number, (evidence, gain) in enumerate(zip(solutions, gains, strict=True)):
            prefix = self._choose(evidence, gain)
            if prefix is not None:
                draws.append(Draw(number, prefix))
        return draws

    def _gains(self, solutions: Sequence[SolutionEvidence], grid: Grid) -> list[Array]:
        if self.compiled:
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

    def _choose(self, evidence: SolutionEvidence, gain: Array) -> int | None:
        steps = evidence.num_steps
        limit = max(200, 20 * steps) if self.max_rollouts is None else self.max_rollouts
        if sum(map(len, evidence.draws)) >= limit:
            return None
        left = sum(evidence.step_tokens)
        best, best_score = None, self.constants.price
        for prefix, nats in enumerate(gain[1:steps].tolist(), start=1):
            left -= evidence.step_tokens[prefix - 1]
            score = nats / max(left + self.overhead_tokens, 1.0)
            if score < best_score * (1 - _CLOSE):
                continue
            if best is None or score > best_score * (1 + _CLOSE):
                best, best_score = prefix, max(score, best_score)
        return best


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
