"""Diverse verifier tree search: independent subtrees, each keeps its best step (DVTS; Beeching et al. 2024).

N / M subtrees of width M: the budget of a beam search, without one good-looking beam taking over all places.
"""

from stepward.labeling.search.exploration import Exploration
from stepward.labeling.search.registry import SearchMethod, at_least, register_search
from stepward.labeling.tree import ROOT


@register_search("dvts")
def dvts(*, subtrees: int = 2, width: int = 4) -> SearchMethod:
    """Independent greedy searches.

    Args:
        subtrees: N / M.
        width: M, next steps drawn for each subtree.
    """
    at_least(1, subtrees=subtrees, width=width)

    async def one_pass(x: Exploration) -> None:
        await search_subtrees(x, subtrees, width)

    return one_pass


async def search_subtrees(x: Exploration, subtrees: int, width: int, block_tokens: int = 0) -> None:
    """One pass of all subtrees side by side, by steps or by blocks of tokens."""
    x.frontier = [ROOT] * subtrees
    while x.frontier:
        drawn = await x.expand([(n, width) for n in x.frontier], block_tokens=block_tokens)
        # One call scores what all subtrees have to choose between.
        await x.score([n for children in drawn if len(set(children)) > 1 for n in children])
        best = [(await x.best(children, 1))[0] if children else None for children in drawn]
        x.found += [n for n in best if n is not None and x.tree.terminal[n]]
        moved = [(old if new is None else new) for old, new in zip(x.frontier, best, strict=True)]
        x.frontier = [n for n in moved if not x.tree.terminal[n]]
        if not any(drawn):
            break
