"""No rollouts at all: solutions are sampled and graded, and nothing else."""

from collections.abc import Sequence
from dataclasses import dataclass

from stepward.labeling.evidence import Draw, SolutionEvidence
from stepward.prm.types import Allocation


@dataclass(frozen=True, slots=True)
class NoRollouts:
    """K = 0: for logged solutions, for held-out samples, for labels by tools alone."""

    @property
    def kind(self) -> Allocation:
        """``fixed_k``, with no trial anywhere: a rule that needs trials says that it does not know."""
        return Allocation.FIXED_K

    def next_draws(self, solutions: Sequence[SolutionEvidence]) -> list[Draw]:
        """None, ever."""
        return []
