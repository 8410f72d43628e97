"""GenPRM's K by difficulty (Zhao et al. 2025, arXiv 2504.00891, section 3.2): hard problems get more rollouts."""

from collections.abc import Sequence
from dataclasses import dataclass

from stepward.labeling.allocation.fixed_k import check_rollouts, inner_prefixes
from stepward.labeling.evidence import Draw, SolutionEvidence
from stepward.prm.types import Allocation, Outcome


@dataclass(frozen=True, slots=True)
class DifficultyK:
    """K from the problem's pass rate, which rollouts from the bare problem measure first.

    K at an inner prefix depends on no outcome there, so that k/n stays unbiased. The bare problem is the same
    prefix for all solutions: its rollouts are drawn once, at the first one.

    Attributes:
        hard: K where the pass rate is below ``hard_below`` (paper: 128 below .1).
        medium: K between (paper: 64).
        easy: K where it is ``easy_from`` or more (paper: 32 from .9).
        hard_below: Pass rate.
        easy_from: Pass rate.
        probe: Rollouts from the bare problem.
    """

    hard: int = 128
    medium: int = 64
    easy: int = 32
    hard_below: float = 0.1
    easy_from: float = 0.9
    probe: int = 32

    def __post_init__(self) -> None:
        for number in (self.hard, self.medium, self.easy, self.probe):
            check_rollouts(number)
        if not 0 <= self.hard_below <= self.easy_from <= 1:
            raise ValueError(
                f"allocating by difficulty: hard_below {self.hard_below} and easy_from {self.easy_from}; give "
                "pass rates with 0 <= hard_below <= easy_from <= 1"
            )

    @property
    def kind(self) -> Allocation:
        """``difficulty_k``."""
        return Allocation.DIFFICULTY_K

    def next_draws(self, solutions: Sequence[SolutionEvidence]) -> list[Draw]:
        """The probe first, then what is missing to K everywhere. Nothing where the probe met only faults."""
        if not solutions:
            return []
        missing = self.probe - sum(len(s.draws[0]) for s in solutions)
        if missing > 0:
            return [Draw(0, 0)] * missing
        seen = [o for s in solutions for o in s.draws[0] if not o.is_fault]
        if not seen:
            return []
        rate = sum(o is Outcome.RIGHT for o in seen) / len(seen)
        k = self.hard if rate < self.hard_below else self.easy if rate >= self.easy_from else self.medium
        return [
            Draw(number, prefix)
            for number, evidence in enumerate(solutions)
            for prefix in inner_prefixes(evidence, include_root=False)
            for _ in range(k - len(evidence.draws[prefix]))
        ]
