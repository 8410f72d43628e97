"""What a prefix cache without limits could have saved: the ceiling that a run's hit rate is held against."""

from collections import OrderedDict

from stepward.prm.types import TokenIds

MOST_BLOCKS = 1 << 18
"""Blocks remembered, those used last: of far more problems than are in flight at once."""


class CacheCeiling:
    """Prompt tokens whose keys and values had been computed before, in whole blocks, as vLLM caches them.

    A question finds the blocks of all earlier questions and of all answers that were complete; its last token is
    always computed, and an answer's last token never was.

    Args:
        block_size: Tokens a block of the engine's cache.
    """

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.possible_tokens = 0
        self._known: OrderedDict[int, None] = OrderedDict()

    def ask(self, ids: TokenIds) -> None:
        """A prompt is sent."""
        usable = (len(ids) - 1) // self.block_size
        hit = True
        for number, block in enumerate(self._blocks(ids, len(ids) // self.block_size)):
            hit = self._seen(block) and hit and number < usable
            self.possible_tokens += self.block_size if hit else 0

    def answer(self, ids: TokenIds) -> None:
        """Prompt and rollout together, when the rollout came back."""
        for block in self._blocks(ids, (len(ids) - 1) // self.block_size):
            self._seen(block)

    def _blocks(self, ids: TokenIds, count: int) -> list[int]:
        """A hash a block, of it and all before it."""
        chain, hashes = 0, list[int]()
        for b in range(count):
            chain = hash((chain, ids[b * self.block_size : (b + 1) * self.block_size]))
            hashes.append(chain)
        return hashes

    def _seen(self, block: int) -> bool:
        """Whether a block was there; it is from now on."""
        there = block in self._known
        self._known[block] = None
        self._known.move_to_end(block)
        if len(self._known) > MOST_BLOCKS:
            self._known.popitem(last=False)
        return there
