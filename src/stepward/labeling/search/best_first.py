"""Best-first search by Q*'s score: Q* (Wang et al. 2024, arXiv 2406.14283).

f(s_t) = g(s_t) + lambda h(s_t): g aggregates the utilities of the path, Agg(R(s_1), ..., R(s_t)), h is the value of its
end. Both come from one reward model: R(s_i) is its score of step i and h its score of the last step. The open state of
highest f is expanded next; an ended solution is found when its turn comes.
"""

import heapq
from collections.abc import Callable, Sequence

from stepward.labeling.search.exploration import UNSCORED, Exploration
from stepward.labeling.search.registry import SearchMethod, at_least, register_search
from stepward.labeling.tree import ROOT

_AGGREGATES: dict[str, Callable[[Sequence[float]], float]] = {
    "min": min,
    "max": max,
    "sum": sum,
    "mean": lambda s: sum(s) / len(s),
    "last": lambda s: s[-1],
}


@register_search("best_first")
def best_first(*, samples: int = 3, weight: float = 1.0, aggregate: str = "min") -> SearchMethod:
    """A* with a learned heuristic.

    Args:
        samples: Next steps drawn when a state is expanded.
        weight: lambda.
        aggregate: Agg: min, max, sum, mean or last.
    """
    at_least(1, samples=samples)
    if aggregate not in _AGGREGATES:
        raise ValueError(f"aggregate {aggregate!r} is unknown; one of {', '.join(_AGGREGATES)}")
    agg = _AGGREGATES[aggregate]

    def utility(scores: Sequence[float]) -> float:
        return agg(scores) + weight * scores[-1] if scores else (1 + weight) * UNSCORED

    async def one_pass(x: Exploration) -> None:
        order = 0
        heap: list[tuple[float, int, int]] = [(0.0, order, ROOT)]
        x.frontier = [ROOT]
        while heap:
            _, _, node = heapq.heappop(heap)
            if x.tree.terminal[node]:
                x.found.append(node)
                return
            x.frontier = [node, *(n for _, _, n in sorted(heap))]
            children = list(dict.fromkeys((await x.expand([(node, samples)]))[0]))
            for child, scores in zip(children, await x.score(children), strict=True):
                order += 1
                # Ties go to the state that was drawn first.
                heapq.heappush(heap, (-utility(scores), order, child))
            x.frontier = [n for _, _, n in sorted(heap)]

    return one_pass
