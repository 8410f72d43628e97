"""The cache of a decode batch in which rollouts of one prefix read its keys and values once.

A decode step reads the whole cache from memory, and most of it is prefixes that many rollouts share. Here a
prefix lies in a block that serves up to ``MAX_MEMBERS`` rollouts, whose queries form one matrix product with
it; each rollout keeps only what it sampled. The softmax runs over both parts together, so the result is that of
plain attention (Juravsky et al. 2024, "Hydragen"; Ye et al. 2024, "Cascade inference").
"""

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from stepward.labeling.policies.kv_cache import RowCache, StoredRow

MAX_MEMBERS = 16
ATTENTION_NAME = "stepward_shared_prefixes"

_active = threading.local()


@dataclass(slots=True, eq=False)
class _Block:
    """A prefix in the batch: its place in the pool and the number of rollouts that read it."""

    place: int
    source: StoredRow
    members: int = 0


@dataclass(slots=True, eq=False)
class _Member:
    """A rollout: the block it reads, how much of it, and how many positions of its own it has."""

    block: _Block | None
    context: int
    own: int = 0


class SharedPrefixes:
    """Keys and values of a decode batch; rows are dense from 0.

    Args:
        num_rows: Most rollouts at once.
    """

    is_compileable = False

    def __init__(self, num_rows: int) -> None:
        self._blocks = RowCache(num_rows)
        self._own = RowCache(num_rows)
        self._members: list[_Member] = []
        self._by_source: dict[int, list[_Block]] = {}
        self._free: list[int] = list(range(num_rows))
        self._layout: _Layout | None = None

    def enter(self, prefixes: Iterable[tuple[StoredRow | None, int]]) -> None:
        """Append rollouts: the stored row that begins with their context, and the context's length."""
        self._layout = None
        for source, context in prefixes:
            block = None if source is None else self._block_of(source)
            if block is not None:
                block.members += 1
            self._members.append(_Member(block, context))

    def keep(self, moves: Sequence[tuple[int, int]], count: int) -> None:
        """Move rows (from, to) over rows that left, then keep the first ``count``."""
        self._layout = None
        gone = [self._members[target] for _, target in moves]
        for source, target in moves:
            self._own.move(source, target, self._members[source].own)
            self._members[target] = self._members[source]
        moved = {source for source, _ in moves}
        gone += [m for i, m in enumerate(self._members[count:], count) if i not in moved]
        del self._members[count:]
        for member in gone:
            self._leave(member)

    def begin(self, device: torch.device) -> torch.Tensor:
        """Prepare a step of one token a row; gives back the positions, [rows, 1]."""
        if self._layout is None:
            self._layout = _Layout(self._members, device)
        own = torch.tensor([[m.own] for m in self._members], device=device)
        self._layout.begin(own, self._own.begin(own))
        for member in self._members:
            member.own += 1
        _active.cache = self
        return own + self._layout.context

    def update(self, keys: torch.Tensor, values: torch.Tensor, layer: int, *_: Any, **__: Any) -> Any:
        """Write a token's keys and values, [rows, heads, 1, width]; ``attend`` reads them."""
        self._current = layer
        return self._own.update(keys, values, layer)

    def get_seq_length(self, *_: Any, **__: Any) -> int:
        """0: the position of a token is handed in, never derived."""
        return 0

    def stored(self, row: int, ids: tuple[int, ...]) -> StoredRow:
        """A copy of what a rollout computed: prefix and own positions joined, ``len(ids)`` of them."""
        member = self._members[row]
        own = self._own.stored(row, ids[member.context :])
        if member.block is None:
            return own
        source, n = member.block.source, member.context
        return StoredRow(
            ids,
            tuple(torch.cat((a[:, :n], b), 1) for a, b in zip(source.keys, own.keys, strict=True)),
            tuple(torch.cat((a[:, :n], b), 1) for a, b in zip(source.values, own.values, strict=True)),
        )

    def attend(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scaling: float
    ) -> torch.Tensor:
        """Attention of one new token a row.

        Args:
            query: [rows, query heads, 1, width].
            keys: [rows, heads, own positions, width].
            values: [rows, heads, own positions, value width].
            scaling: Multiplies the scores.

        Returns:
            [rows, 1, query heads, value width].
        """
        layout = self._layout
        assert layout is not None
        rows, query_heads, _, width = query.shape
        heads = keys.shape[1]
        query = (query * scaling).view(rows, heads, query_heads // heads, width)
        own_scores = torch.matmul(query, keys.transpose(2, 3))
        own_scores.masked_fill_(layout.own_hidden, -torch.inf)
        if not layout.num_blocks:
            out = torch.matmul(_softmax(own_scores), values)
            return out.reshape(rows, 1, query_heads, -1)
        block_keys = self._blocks.keys[self._current][: layout.num_blocks, :, : layout.longest]
        block_values = self._blocks.values[self._current][: layout.num_blocks, :, : layout.longest]
        scores = layout.to_rows(
            torch.matmul(layout.to_blocks(query), block_keys.transpose(2, 3)), query.shape[2]
        )
        scores.masked_fill_(layout.context_hidden, -torch.inf)
        weights = _softmax(torch.cat((scores, own_scores), dim=-1))
        shared, own = weights[..., : layout.longest], weights[..., layout.longest :]
        out = torch.matmul(own, values)
        out += layout.to_rows(torch.matmul(layout.to_blocks(shared), block_values), query.shape[2])
        return out.reshape(rows, 1, query_heads, -1)

    def _block_of(self, source: StoredRow) -> _Block:
        blocks = self._by_source.setdefault(id(source), [])
        for block in blocks:
            if block.members < MAX_MEMBERS:
                return block
        place = min(self._free)
        self._free.remove(place)
        block = _Block(place, source)
        blocks.append(block)
        self._blocks.fill([place], source, len(source.ids))
        return block

    def _leave(self, member: _Member) -> None:
        block = member.block
        if block is None:
            return
        block.members -= 1
        if block.members == 0:
            self._free.append(block.place)
            blocks = self._by_source[id(block.source)]
            blocks.remove(block)
            if not blocks:
                del self._by_source[id(block.source)]


class _Layout:
    """Where the rows of a batch stand in the blocks, as index tensors; made anew when rows come or go.

    Attributes:
        num_blocks: Places of the pool that are looked at.
        longest: The longest context.
        context: [rows, 1], context lengths.
        context_hidden: [rows, 1, 1, longest], what a row must not see of its block.
        own_hidden: [rows, 1, 1, own], what it must not see of its own part.
    """

    def __init__(self, members: Sequence[_Member], device: torch.device) -> None:
        self.context = torch.tensor([[m.context] for m in members], device=device)
        self.longest = max(m.context for m in members)
        self.num_blocks = 1 + max((m.block.place for m in members if m.block is not None), default=-1)
        seats = [0] * max(1, self.num_blocks)
        blocks: list[int] = []
        places: list[int] = []
        for member in members:
            # A row without a prefix sits in block 0 and sees nothing of it.
            block = 0 if member.block is None else member.block.place
            blocks.append(block)
            places.append(seats[block])
            seats[block] += 1
        width = max(1, *seats)
        index = [0] * (max(1, self.num_blocks) * width)
        for row, (block, place) in enumerate(zip(blocks, places, strict=True)):
            index[block * width + place] = row
        self._seats = torch.tensor(index, device=device)
        self._seat_of = torch.tensor(
            [b * width + p for b, p in zip(blocks, places, strict=True)], device=device
        )
        self._width = width
        reach = torch.arange(self.longest, device=device)
        self.context_hidden = (reach >= self.context)[:, None, None]
        self.own_hidden = torch.empty(0, dtype=torch.bool)

    def begin(self, own: torch.Tensor, length: int) -> None:
        """Set how far each row sees of its own part, [rows, 1]."""
        self.own_hidden = (torch.arange(length, device=own.device) > own)[:, None, None]

    def to_blocks(self, x: torch.Tensor) -> torch.Tensor:
        """[rows, heads, queries, d] -> [blocks, heads, seats * queries, d]; empty seats repeat row 0."""
        heads, queries, d = x.shape[1:]
        seated = x[self._seats].view(self.num_blocks, self._width, heads, queries, d)
        return seated.transpose(1, 2).reshape(self.num_blocks, heads, self._width * queries, d)

    def to_rows(self, x: torch.Tensor, queries: int) -> torch.Tensor:
        """The way back."""
        heads, d = x.shape[1], x.shape[3]
        seated = x.view(self.num_blocks, heads, self._width, queries, d).transpose(1, 2)
        return seated.reshape(self.num_blocks * self._width, heads, queries, d)[self._seat_of]


def attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """What transformers calls as attention: shared prefixes in a decode step, its own sdpa everywhere else.

    Raises:
        NotImplementedError: The model asks for more than scaled dot products (a soft cap, sinks, a window).
    """
    cache: SharedPrefixes | None = getattr(_active, "cache", None)
    if cache is None:
        from transformers.integrations import sdpa_attention

        own: Any = sdpa_attention
        return own.sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **options
        )
    asked = [k for k in ("softcap", "s_aux", "sliding_window", "position_bias") if options.get(k) is not None]
    if asked:
        raise NotImplementedError(f"attention with {', '.join(asked)}")
    return cache.attend(query, key, value, query.shape[-1] ** -0.5 if scaling is None else scaling), None


def end_step() -> None:
    """After the model's call: attention is transformers' own again."""
    _active.cache = None


def _softmax(scores: torch.Tensor) -> torch.Tensor:
    if scores.dtype in (torch.float32, torch.float64):
        return scores.softmax(dim=-1)
    return scores.softmax(dim=-1, dtype=torch.float32).to(scores.dtype)
