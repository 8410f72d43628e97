"""Plain sampling under a budget: majority vote and best-of-N, what every search must beat.

Majority: Wang et al. 2023, arXiv 2203.11171. Best-of-N and weighted majority: Li et al. 2023, arXiv 2206.02336.
"""

from stepward.labeling.search.exploration import Exploration
from stepward.labeling.search.registry import SearchMethod, at_least, register_search
from stepward.labeling.tree import ROOT


@register_search("majority")
def majority(*, samples: int = 8) -> SearchMethod:
    """Whole solutions that nobody scores: each has one vote."""
    return _sampling(samples, scored=False)


@register_search("best_of_n")
def best_of_n(*, samples: int = 8) -> SearchMethod:
    """Whole solutions, scored: ``best`` is best-of-N, the vote weighted majority."""
    return _sampling(samples, scored=True)


def _sampling(samples: int, *, scored: bool) -> SearchMethod:
    at_least(1, samples=samples)

    async def one_pass(x: Exploration) -> None:
        x.frontier = []
        ends = await x.complete([ROOT] * samples, scored=scored)
        x.frontier = ends
        if scored:
            await x.score(ends)
        x.frontier = []
        x.found += ends

    return one_pass
