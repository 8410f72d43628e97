"""Variance-guided rounds (VIGOR): a few rollouts everywhere, the next where outcomes vary most, to a budget."""

from collections.abc import Sequence
from dataclasses import dataclass

from stepward.labeling.allocation.fixed_k import check_rollouts, inner_prefixes
from stepward.labeling.evidence import Draw, SolutionEvidence
from stepward.prm.types import Allocation


@dataclass(frozen=True, slots=True)
class VarianceRounds:
    """Rounds over the prefixes of one problem's solutions.

    The variance of a prefix is p (1 - p) with p = (k + 1/2) / (n + 1), so that two equal outcomes do not end its
    turn. k/n of such counts is biased: posterior rules read them, k/n rules give null.

    Attributes:
        first: Rollouts at every prefix 1..T-1 in the first round.
        mean_rollouts: The budget of a problem: this many rollouts a prefix on average.
        share: Share of the prefixes that a later round draws at, one rollout each.
    """

    first: int = 2
    mean_rollouts: int = 8
    share: float = 0.25

    def __post_init__(self) -> None:
        check_rollouts(self.first)
        if self.mean_rollouts < self.first or not 0 < self.share <= 1:
            raise ValueError(
                f"allocating by variance: mean_rollouts {self.mean_rollouts}, first {self.first}, share "
                f"{self.share}; give mean_rollouts >= first and a share in (0, 1]"
            )

    @property
    def kind(self) -> Allocation:
        """``variance_rounds``."""
        return Allocation.VARIANCE_ROUNDS

    def next_draws(self, solutions: Sequence[SolutionEvidence]) -> list[Draw]:
        """The first round, then the share of largest variance; ties go to the earlier solution and prefix."""
        places = [Draw(n, t) for n, s in enumerate(solutions) for t in inner_prefixes(s, include_root=False)]
        drawn = {place: len(solutions[place.solution].draws[place.prefix]) for place in places}
        opening = [place for place in places for _ in range(self.first - drawn[place])]
        if opening:
            return opening
        left = self.mean_rollouts * len(places) - sum(drawn.values())
        if left <= 0:
            return []

        def variance(place: Draw) -> float:
            right, n = solutions[place.solution].trials(place.prefix)
            p = (right + 0.5) / (n + 1)
            return p * (1 - p)

        width = min(left, max(1, int(self.share * len(places))))
        return sorted(places, key=lambda place: -variance(place))[:width]
