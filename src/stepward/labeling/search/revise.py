"""Verify, then revise: StepCo (Wu et al. 2024, arXiv 2410.12934).

A whole solution is drawn and its steps are scored; the first step whose score lies under the threshold is cut with all
that follows and drawn again, until no step lies under it or ``revisions`` are spent. The last version is the answer.
"""

from stepward.labeling.search.exploration import Exploration
from stepward.labeling.search.registry import SearchMethod, at_least, register_search
from stepward.labeling.tree import ROOT


@register_search("stepco")
def stepco(*, threshold: float = 0.5, revisions: int = 5) -> SearchMethod:
    """Stepwise correction without a critique.

    Args:
        threshold: A step with a lower score is wrong.
        revisions: Most revisions of one solution.
    """
    at_least(0, revisions=revisions)

    async def one_pass(x: Exploration) -> None:
        x.frontier = []
        drawn = await x.complete([ROOT])
        for _ in range(revisions):
            x.frontier = drawn
            if not drawn:
                return
            scores = (await x.score(drawn))[0]
            wrong = first_under(scores, threshold)
            if wrong is None:
                break
            # Where it cannot be revised any more it stands as it is.
            drawn = await x.complete([step_start(x, drawn[0], wrong)]) or drawn
        x.frontier = drawn
        await x.score(drawn)
        x.frontier = []
        x.found += [n for n in drawn if x.tree.terminal[n]]

    return one_pass


def first_under(scores: tuple[float, ...], threshold: float) -> int | None:
    """Index of the first score under the threshold, or None."""
    return next((i for i, s in enumerate(scores) if s < threshold), None)


def step_start(x: Exploration, node: int, step: int) -> int:
    """The state before a step of the solution that ends at a node."""
    path = x.tree.path(node)
    return path[min(step, len(path) - 2)]
