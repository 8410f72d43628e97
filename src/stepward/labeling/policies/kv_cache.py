"""Keys and values of attention: a row a sequence, left-aligned, so that rows of different lengths share a batch.

Row r holds positions 0..len-1 at the same places in every layer; what lies behind is garbage that the mask
hides and the next token overwrites. ``PrefixStore`` keeps rows of prompts and solutions, so that the rollouts
of all prefixes of a solution start from one computed row.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from stepward.prm.types import TokenIds


@dataclass(frozen=True, slots=True, eq=False)
class StoredRow:
    """Keys and values of one sequence.

    Attributes:
        ids: The ids behind them.
        keys: A layer, [heads, len(ids), key width].
        values: A layer, [heads, len(ids), value width].
    """

    ids: TokenIds
    keys: tuple[torch.Tensor, ...]
    values: tuple[torch.Tensor, ...]

    @property
    def num_bytes(self) -> int:
        """Memory of the tensors."""
        return sum(t.numel() * t.element_size() for t in (*self.keys, *self.values))


class RowCache:
    """What a transformers model is handed as its cache: the layers call ``update``.

    Args:
        num_rows: Rows that it can hold.
    """

    is_compileable = False

    def __init__(self, num_rows: int) -> None:
        self.num_rows = num_rows
        self.keys: list[torch.Tensor] = []
        self.values: list[torch.Tensor] = []
        self._positions = torch.empty(0, dtype=torch.long)
        self._rows = torch.empty(0, dtype=torch.long)
        self._length = 0

    def begin(self, positions: torch.Tensor) -> int:
        """Say which positions the next forward pass computes, for the first rows.

        Args:
            positions: [rows, new tokens].

        Returns:
            Positions that attention looks at: one more than the highest.
        """
        self._positions = positions
        self._rows = torch.arange(positions.shape[0], device=positions.device)
        self._length = int(positions.max()) + 1
        return self._length

    def update(self, keys: torch.Tensor, values: torch.Tensor, layer: int, *_: Any, **__: Any) -> Any:
        """Write the new keys and values, [rows, heads, new tokens, width], and give back all of them."""
        return self._write(self.keys, keys, layer), self._write(self.values, values, layer)

    def get_seq_length(self, *_: Any, **__: Any) -> int:
        """0: the position of a token is handed in, never derived."""
        return 0

    def fill(self, rows: Sequence[int], stored: StoredRow, length: int) -> None:
        """Copy the first ``length`` positions of a stored row into rows."""
        for own, other in ((self.keys, stored.keys), (self.values, stored.values)):
            for layer, part in enumerate(other):
                pool = self._grown(own, layer, part.unsqueeze(0), length)
                for row in rows:
                    pool[row, :, :length] = part[:, :length]

    def move(self, source: int, target: int, length: int) -> None:
        """Copy a row's first ``length`` positions onto another."""
        for pool in (*self.keys, *self.values):
            pool[target, :, :length] = pool[source, :, :length]

    def stored(self, row: int, ids: TokenIds) -> StoredRow:
        """A copy of a row that computed ``ids``."""
        n = len(ids)
        return StoredRow(
            ids,
            tuple(k[row, :, :n].clone() for k in self.keys),
            tuple(v[row, :, :n].clone() for v in self.values),
        )

    def _write(self, pools: list[torch.Tensor], new: torch.Tensor, layer: int) -> torch.Tensor:
        pool = self._grown(pools, layer, new, self._length)
        if self._positions.shape[1] == 1:
            pool[self._rows, :, self._positions[:, 0]] = new[:, :, 0]
        else:
            pool[self._rows[:, None], :, self._positions] = new.transpose(1, 2)
        return pool[: len(self._rows), :, : self._length]

    def _grown(self, pools: list[torch.Tensor], layer: int, like: torch.Tensor, length: int) -> torch.Tensor:
        """The layer's pool with room for ``length`` positions; grows by half, so seldom."""
        if layer == len(pools):
            pools.append(like.new_zeros(self.num_rows, like.shape[1], -(-length // 32) * 32, like.shape[3]))
        pool = pools[layer]
        if pool.shape[2] < length:
            room = -(-max(length, pool.shape[2] * 3 // 2) // 32) * 32
            pools[layer] = pool.new_zeros(self.num_rows, pool.shape[1], room, pool.shape[3])
            pools[layer][:, :, : pool.shape[2]] = pool
        return pools[layer]


class CopiedPrefixes:
    """The cache of a decode batch in which every rollout has its own copy of its prefix.

    For models whose attention is more than scaled dot products; others share, see ``shared_prefixes``.

    Args:
        num_rows: Most rollouts at once.
    """

    def __init__(self, num_rows: int) -> None:
        self.rows = RowCache(num_rows)
        self._lengths: list[int] = []

    def enter(self, prefixes: Iterable[tuple[StoredRow | None, int]]) -> None:
        """Append rollouts: the stored row that begins with their context, and the context's length."""
        for source, context in prefixes:
            if source is not None:
                self.rows.fill([len(self._lengths)], source, context)
            self._lengths.append(context)

    def keep(self, moves: Sequence[tuple[int, int]], count: int) -> None:
        """Move rows (from, to) over rows that left, then keep the first ``count``."""
        for source, target in moves:
            self._lengths[target] = self._lengths[source]
            self.rows.move(source, target, self._lengths[source])
        del self._lengths[count:]

    def begin(self, device: torch.device) -> torch.Tensor:
        """Positions of the next step's tokens, [rows, 1]."""
        positions = torch.tensor(self._lengths, device=device).unsqueeze(1)
        self._lengths = [n + 1 for n in self._lengths]
        return positions

    def stored(self, row: int, ids: TokenIds) -> StoredRow:
        """A copy of what a rollout computed."""
        return self.rows.stored(row, ids)


MOST_DROPPED = 1 << 14
"""Prompts of which a store remembers the ids of dropped rows."""


def _shared(a: TokenIds, b: TokenIds) -> int:
    """Leading ids that two sequences share."""
    n = min(len(a), len(b))
    return n if a[:n] == b[:n] else next(i for i in range(n) if a[i] != b[i])


class PrefixStore:
    """Computed rows, the least recently used dropped first.

    Args:
        max_bytes: Most memory that the rows may take.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.num_bytes = 0
        self._rows: OrderedDict[TokenIds, tuple[TokenIds, StoredRow]] = OrderedDict()
        self._by_start: dict[TokenIds, list[StoredRow]] = {}
        self._dropped: OrderedDict[TokenIds, set[TokenIds]] = OrderedDict()

    def add(self, start: TokenIds, row: StoredRow) -> None:
        """Keep a row; ``start`` is the prompt, by which it is found again."""
        if row.ids in self._rows or row.num_bytes > self.max_bytes:
            return
        self._rows[row.ids] = (start, row)
        self._by_start.setdefault(start, []).append(row)
        self.num_bytes += row.num_bytes
        while self.num_bytes > self.max_bytes:
            _, (key, oldest) = self._rows.popitem(last=False)
            self.num_bytes -= oldest.num_bytes
            self._by_start[key].remove(oldest)
            if not self._by_start[key]:
                del self._by_start[key]
            self._dropped.setdefault(key, set()).add(oldest.ids)
            if len(self._dropped) > MOST_DROPPED:
                self._dropped.popitem(last=False)

    def dropped(self, start: TokenIds, ids: TokenIds) -> int:
        """Most leading ids that a row had which was dropped for want of room: what a larger store would hold."""
        return max((_shared(ids, gone) for gone in self._dropped.get(start, ())), default=0)

    def longest(self, start: TokenIds, ids: TokenIds) -> tuple[StoredRow | None, int]:
        """The row that shares most leading ids, and how many it shares."""
        best: StoredRow | None = None
        shared = 0
        for row in self._by_start.get(start, ()):
            if min(len(row.ids), len(ids)) <= shared:
                continue
            if (n := _shared(row.ids, ids)) > shared:
                best, shared = row, n
        if best is not None:
            self._rows.move_to_end(best.ids)
        return best, shared
