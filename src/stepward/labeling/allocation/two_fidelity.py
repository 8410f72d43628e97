"""Two fidelities: a reward model or judge looks at every step first, rollouts go where it is unsure."""

from collections.abc import Sequence
from dataclasses import dataclass

from stepward.labeling.allocation.fixed_k import check_rollouts, inner_prefixes
from stepward.labeling.evidence import Draw, SolutionEvidence
from stepward.prm.types import Allocation


@dataclass(frozen=True, slots=True)
class TwoFidelity:
    """K rollouts at the prefixes whose last step has a score between ``low`` and ``high``.

    A solution without scores gets K at every inner prefix. Where rollouts go depends on the scores alone, so k/n
    is unbiased where there is any.

    Attributes:
        num_rollouts: K.
        low: A step with P(right) at or below it needs no rollout.
        high: Nor does one at or above it.
    """

    num_rollouts: int = 8
    low: float = 0.1
    high: float = 0.9

    def __post_init__(self) -> None:
        check_rollouts(self.num_rollouts)
        if not 0 <= self.low < self.high <= 1:
            raise ValueError(
                f"allocating at two fidelities: low {self.low}, high {self.high}; give 0 <= low < high <= 1"
            )

    @property
    def kind(self) -> Allocation:
        """``two_fidelity``."""
        return Allocation.TWO_FIDELITY

    def next_draws(self, solutions: Sequence[SolutionEvidence]) -> list[Draw]:
        """Whatever is missing to K where the scores are unsure."""
        return [
            Draw(number, prefix)
            for number, evidence in enumerate(solutions)
            for prefix in inner_prefixes(evidence, include_root=False)
            if not evidence.prm_scores or self.low < evidence.prm_scores[prefix - 1] < self.high
            for _ in range(self.num_rollouts - len(evidence.draws[prefix]))
        ]
