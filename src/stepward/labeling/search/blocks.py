"""Block-wise value-guided search: VGS (Wang et al. 2025, arXiv 2505.17373).

Blocks of a fixed number of tokens take the place of steps: no separator is needed, as in long thinking traces. Of
``width`` blocks drawn the one of highest value stays; independent searches (DVTS) end in a weighted majority.
"""

from stepward.labeling.search.dvts import search_subtrees
from stepward.labeling.search.exploration import Exploration
from stepward.labeling.search.registry import SearchMethod, at_least, register_search


@register_search("vgs")
def vgs(*, block_tokens: int = 4096, subtrees: int = 2, width: int = 2) -> SearchMethod:
    """Block-wise search.

    Args:
        block_tokens: Tokens a block (paper: 4,096 of 32K-token traces).
        subtrees: Independent searches.
        width: Blocks drawn for each, the paper's beam width.
    """
    at_least(1, block_tokens=block_tokens, subtrees=subtrees, width=width)

    async def one_pass(x: Exploration) -> None:
        await search_subtrees(x, subtrees, width, block_tokens)

    return one_pass
