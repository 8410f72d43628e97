"""OmegaPRM's binary search for the first error (Luo et al. 2024, arXiv 2406.06592, section 3.2)."""

from collections.abc import Sequence
from dataclasses import dataclass

from stepward.labeling.allocation.fixed_k import check_rollouts
from stepward.labeling.evidence import Draw, SolutionEvidence
from stepward.prm.types import Allocation, Outcome


@dataclass(frozen=True, slots=True)
class BinarySearch:
    """Up to K rollouts at the midpoint of what is still possible; about K log2(T) a wrong solution.

    A solution whose answer is right, or whose outcome is unknown, gets none. Where every draw at a midpoint
    met a fault the search cannot go on and ends there.

    Attributes:
        num_rollouts: K a midpoint; the paper uses 8, 2 was best in our simulations.
        stop_at_first_right: Draw one by one and stop at the first right one. False draws all K at once, as
            the paper does.
        truncated_as_wrong: Search solutions that ended without an answer too.
    """

    num_rollouts: int = 8
    stop_at_first_right: bool = True
    truncated_as_wrong: bool = False

    def __post_init__(self) -> None:
        check_rollouts(self.num_rollouts)

    @property
    def kind(self) -> Allocation:
        """``binary_search``."""
        return Allocation.BINARY_SEARCH

    def next_draws(self, solutions: Sequence[SolutionEvidence]) -> list[Draw]:
        """The next draw (or what is missing of K) at each unfinished solution's midpoint."""
        draws: list[Draw] = []
        for number, evidence in enumerate(solutions):
            middle = self.midpoint(evidence)
            if middle is not None:
                missing = self.num_rollouts - len(evidence.draws[middle])
                draws += [Draw(number, middle)] * (1 if self.stop_at_first_right else missing)
        return draws

    def midpoint(self, evidence: SolutionEvidence) -> int | None:
        """The prefix to draw at, or None where the search has ended."""
        unfinished = evidence.outcome in (Outcome.NO_ANSWER, Outcome.TRUNCATED)
        if evidence.outcome is not Outcome.WRONG and not (unfinished and self.truncated_as_wrong):
            return None
        lo, hi = 0, evidence.num_steps
        while hi - lo > 1:
            middle = (lo + hi) // 2
            seen = evidence.draws[middle]
            if Outcome.RIGHT in seen and (self.stop_at_first_right or len(seen) >= self.num_rollouts):
                lo = middle
            elif len(seen) < self.num_rollouts:
                return middle
            elif all(outcome.is_fault for outcome in seen):
                return None
            else:
                hi = middle
        return None
