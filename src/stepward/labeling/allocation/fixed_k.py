"""K rollouts at every prefix (Math-Shepherd), or up to K until one is right."""

from collections.abc import Sequence
from dataclasses import dataclass

from stepward.labeling.evidence import Draw, SolutionEvidence
from stepward.prm.types import Allocation, Outcome


def check_rollouts(num_rollouts: int) -> None:
    """Raise ValueError unless a rule may draw at least one rollout."""
    if num_rollouts < 1:
        raise ValueError(f"allocating rollouts: num_rollouts is {num_rollouts}; give 1 or more")


def inner_prefixes(evidence: SolutionEvidence, include_root: bool) -> range:
    """Prefixes that take rollouts: 1..T-1, and 0 where asked for. Prefix T is decided by the own outcome."""
    return range(0 if include_root else 1, evidence.num_steps)


@dataclass(frozen=True, slots=True)
class FixedK:
    """K rollouts at each of the prefixes 1..T-1, all in one round.

    Attributes:
        num_rollouts: K; Math-Shepherd uses 8.
        include_root: Draw at the bare problem too, which relative rules (GenPRM, PAV) compare with. It is the
            same prefix for all solutions of a problem: it is drawn at once, for the first.
    """

    num_rollouts: int = 8
    include_root: bool = False

    def __post_init__(self) -> None:
        check_rollouts(self.num_rollouts)

    @property
    def kind(self) -> Allocation:
        """``fixed_k``."""
        return Allocation.FIXED_K

    def next_draws(self, solutions: Sequence[SolutionEvidence]) -> list[Draw]:
        """Whatever is missing to K draws a prefix; a draw with a fault counts as drawn."""
        return [
            Draw(number, prefix)
            for number, evidence in enumerate(solutions)
            for prefix in inner_prefixes(evidence, self.include_root and number == 0)
            for _ in range(self.num_rollouts - len(evidence.draws[prefix]))
        ]


@dataclass(frozen=True, slots=True)
class StopAtFirstRight:
    """At each of the prefixes 1..T-1 one rollout a round, until one is right or K are drawn.

    Attributes:
        num_rollouts: K, the most draws a prefix gets.
    """

    num_rollouts: int = 8

    def __post_init__(self) -> None:
        check_rollouts(self.num_rollouts)

    @property
    def kind(self) -> Allocation:
        """``stop_at_first_right``."""
        return Allocation.STOP_AT_FIRST_RIGHT

    def next_draws(self, solutions: Sequence[SolutionEvidence]) -> list[Draw]:
        """One draw at every prefix that has neither a right one nor K."""
        return [
            Draw(number, prefix)
            for number, evidence in enumerate(solutions)
            for prefix in inner_prefixes(evidence, include_root=False)
            if Outcome.RIGHT not in evidence.draws[prefix] and len(evidence.draws[prefix]) < self.num_rollouts
        ]
