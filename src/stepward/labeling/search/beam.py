"""Step-level greedy and beam search by a step's value: AlphaMath (Chen et al. 2024, arXiv 2405.03553).

B1 beams, B2 samples each; of all B1 B2 next steps the B1 of highest value V(s_t) stay. An ended solution takes its
beam with it.
"""

from stepward.labeling.search.exploration import Exploration
from stepward.labeling.search.registry import SearchMethod, at_least, register_search
from stepward.labeling.tree import ROOT


@register_search("greedy")
def greedy(*, samples: int = 4) -> SearchMethod:
    """The best of ``samples`` next steps, step by step: beam search with one beam."""
    return beam(beams=1, samples=samples)


@register_search("beam")
def beam(*, beams: int = 2, samples: int = 4) -> SearchMethod:
    """Step-level beam search.

    Args:
        beams: B1.
        samples: B2.
    """
    at_least(1, beams=beams, samples=samples)

    async def one_pass(x: Exploration) -> None:
        x.frontier = [ROOT]
        room = beams
        # The root has one beam's samples for each beam, so that the first choice is as wide as the others.
        wanted = [(ROOT, beams * samples)]
        while room and x.frontier:
            drawn = await x.expand(wanted)
            children = [n for of_node in drawn for n in of_node]
            kept = await x.best(children, room)
            ended = [n for n in kept if x.tree.terminal[n]]
            x.found += ended
            room -= len(ended)
            x.frontier = [n for n in kept if not x.tree.terminal[n]]
            wanted = [(n, samples) for n in x.frontier if x.is_open(n)]
            if not wanted:
                break

    return one_pass
