"""The decode loop: rows enter with a prefix, gain a token a step, and leave when they end.

Prefixes are computed once and shared (all prefixes of one solution lie in one row), finished rows are taken
out of the batch at once, and free places are refilled from the queue: continuous batching (Yu et al. 2022,
"Orca") on a plain transformers model.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from stepward.labeling.policies.kv_cache import CopiedPrefixes, PrefixStore, RowCache, StoredRow
from stepward.labeling.policies.model_call import CausalModel
from stepward.labeling.policies.sampling import Warp, draw, floats, integers, logprobs_of, rounded
from stepward.labeling.policies.shared_prefixes import SharedPrefixes
from stepward.prm.errors import EngineError
from stepward.prm.policy import SampleRequest
from stepward.prm.tokenizer import JsonTokenizer
from stepward.prm.types import FinishReason, Rollout, TokenIds

_MAX_PREFILL_TOKENS = 8192


@dataclass(slots=True, eq=False)
class Row:
    """A rollout being sampled.

    Attributes:
        request: What was asked.
        limit: Most tokens: the sampler's, or what the context leaves.
        stops: Stop strings as UTF-8, in which a character is found where its bytes are.
        tokens: Sampled so far.
        logprobs: Of each, where asked for.
        text: Bytes sampled so far, kept where there are stop strings.
        cancelled: Set when nobody waits any more.
    """

    request: SampleRequest
    limit: int
    stops: tuple[bytes, ...]
    tokens: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])
    text: bytearray = field(default_factory=bytearray)
    cancelled: bool = False

    def restart(self) -> None:
        """Forget what was sampled: the same seed samples it again."""
        self.tokens, self.logprobs, self.text = [], [], bytearray()


def new_row(request: SampleRequest, context_length: int) -> Row:
    """A row for a checked request."""
    limit = min(request.sampler.max_tokens, context_length - request.prefix.num_tokens)
    return Row(request, limit, tuple(s.encode() for s in request.sampler.stop))


class Decoder:
    """The batch.

    Args:
        model: What computes logits.
        tokenizer: Its tokenizer.
        batch_size: Most rows at once.
        prefix_cache_bytes: Memory for computed prefixes.
    """

    def __init__(
        self, model: CausalModel, tokenizer: JsonTokenizer, batch_size: int, prefix_cache_bytes: int
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.batch_size = batch_size
        self.rows: list[Row] = []
        self.prefilled_tokens = 0
        self.prefilled_again = 0  # of those, tokens whose keys and values were dropped for want of room
        self.decoded_tokens = 0
        self._store = PrefixStore(prefix_cache_bytes)
        self._cache = self._new_cache()
        self._batch: tuple[Warp, torch.Tensor, bool] | None = None

    def reset(self) -> list[Row]:
        """Empty the batch after a fault; gives back its rows, to be sampled again from their seeds."""
        rows, self.rows, self._batch = self.rows, [], None
        self._cache = self._new_cache()
        self._store = PrefixStore(self._store.max_bytes)
        for row in rows:
            row.restart()
        return rows

    @torch.inference_mode()
    def admit(self, rows: Sequence[Row]) -> None:
        """Take rows into the batch, at most as many as there are free places."""
        # The last id of a prefix is the first decode step's input, so logits come from one place only.
        entering = [row.request.prefix.token_ids[:-1] for row in rows]
        sources = self._prefill(
            dict(zip(entering, (row.request.prefix.prompt_ids for row in rows), strict=True))
        )
        self.rows.extend(rows)
        self._batch = None
        self._cache.enter([(sources.get(context), len(context)) for context in entering])

    @torch.inference_mode()
    def step(self) -> list[tuple[Row, Rollout | EngineError]]:
        """One token for every row; gives back the rows that ended."""
        self._drop([i for i, row in enumerate(self.rows) if row.cancelled])
        if not self.rows:
            return []
        device = self.model.device
        inputs = [row.tokens[-1] if row.tokens else row.request.prefix.token_ids[-1] for row in self.rows]
        logits = self.model.next_logits(torch.tensor(inputs, device=device).unsqueeze(1), self._cache)
        logits = logits.to(torch.float64)
        self.decoded_tokens += len(self.rows)
        if self._batch is None:
            self._batch = (
                Warp([row.request.sampler for row in self.rows], device),
                torch.tensor([row.request.seed for row in self.rows], dtype=torch.int64, device=device),
                any(row.request.want_logprobs for row in self.rows),
            )
        warp, seeds, want_logprobs = self._batch
        sampled = torch.tensor([len(row.tokens) for row in self.rows], dtype=torch.int64, device=device)
        tokens = draw(logits, warp, seeds, sampled)
        logprobs = floats(logprobs_of(logits, tokens)) if want_logprobs else None
        peaks = floats(logits.amax(dim=-1))
        return self._advance(integers(tokens), logprobs, peaks)

    @torch.inference_mode()
    def loglikelihoods(self, items: Sequence[tuple[TokenIds, TokenIds]]) -> list[tuple[float, ...]]:
        """Log-probability (natural log, temperature 1, 4 decimals) of each continuation's ids.

        Args:
            items: (context, continuation), both not empty.
        """
        device = self.model.device
        longest = max(len(a) + len(b) for a, b in items)
        ids = torch.zeros(len(items), longest, dtype=torch.long, device=device)
        for i, (context, continuation) in enumerate(items):
            ids[i, : len(context) + len(continuation)] = torch.tensor(context + continuation, device=device)
        start = min(len(a) for a, _ in items) - 1
        positions = torch.arange(longest, device=device).expand(len(items), longest)
        logits = self.model.logits(ids, positions, RowCache(len(items)), keep=longest - start)
        scores: list[tuple[float, ...]] = []
        for i, (context, continuation) in enumerate(items):
            rows = logits[i, len(context) - 1 - start :][: len(continuation)].to(torch.float64)
            scored = logprobs_of(rows, torch.tensor(continuation, device=device))
            scores.append(tuple(rounded(x) for x in floats(scored)))
        return scores

    def _new_cache(self) -> SharedPrefixes | CopiedPrefixes:
        return (SharedPrefixes if self.model.shares_prefixes else CopiedPrefixes)(self.batch_size)

    def _advance(
        self, tokens: list[int], logprobs: list[float] | None, peaks: list[float]
    ) -> list[tuple[Row, Rollout | EngineError]]:
        ended: list[tuple[Row, Rollout | EngineError]] = []
        leaving: list[int] = []
        for i, (row, token) in enumerate(zip(self.rows, tokens, strict=True)):
            if not abs(peaks[i]) < float("inf"):
                leaving.append(i)
                ended.append((row, _not_finite(row, peaks[i])))
                continue
            row.tokens.append(token)
            if logprobs is not None and row.request.want_logprobs:
                row.logprobs.append(rounded(logprobs[i]))
            reason = self._reason(row, token)
            if reason is not None:
                leaving.append(i)
                ended.append((row, self._rollout(row, reason)))
        self._keep_solutions(leaving)
        self._drop(leaving)
        return ended

    def _reason(self, row: Row, token: int) -> FinishReason | None:
        if token in self.tokenizer.eos_ids:
            return FinishReason.STOP
        if row.stops:
            seen = len(row.text)
            row.text += self.tokenizer.piece(token)
            if any(row.text.find(stop, max(0, seen - len(stop) + 1)) >= 0 for stop in row.stops):
                return FinishReason.STOP
        return FinishReason.LENGTH if len(row.tokens) >= row.limit else None

    def _rollout(self, row: Row, reason: FinishReason) -> Rollout:
        request = row.request
        return Rollout(
            problem_id=request.prefix.problem_id,
            num_steps=request.prefix.num_steps,
            index=request.index,
            seed=request.seed,
            token_ids=tuple(row.tokens),
            text=self.tokenizer.decode(row.tokens),
            finish_reason=reason,
            logprobs=tuple(row.logprobs) if request.want_logprobs else None,
        )

    def _keep_solutions(self, leaving: Sequence[int]) -> None:
        """A rollout from the bare problem is a solution: its prefixes will be asked for next."""
        for i in leaving:
            prefix = self.rows[i].request.prefix
            if not prefix.solution_ids and len(self.rows[i].tokens) > 1:
                ids = prefix.prompt_ids + tuple(self.rows[i].tokens[:-1])
                self._store.add(prefix.prompt_ids, self._cache.stored(i, ids))

    def _drop(self, leaving: Sequence[int]) -> None:
        """Take rows out; the last rows move into their places, so that the batch stays dense."""
        if not leaving:
            return
        gone = set(leaving)
        kept = len(self.rows) - len(gone)
        movers = [i for i in range(kept, len(self.rows)) if i not in gone]
        moves = list(zip(movers, [i for i in sorted(gone) if i < kept], strict=True))
        for mover, hole in moves:
            self.rows[hole] = self.rows[mover]
        del self.rows[kept:]
        self._cache.keep(moves, kept)
        self._batch = None

    def _prefill(self, contexts: dict[TokenIds, TokenIds]) -> dict[TokenIds, StoredRow]:
        """A stored row for every context; those that are prefixes of one another share the longest's."""
        sources: dict[TokenIds, StoredRow] = {}
        missing: list[tuple[TokenIds, StoredRow | None, int]] = []
        longest: TokenIds | None = None
        # Sorted backwards, a context comes right after the longer ones that begin with it.
        shares: dict[TokenIds, TokenIds] = {}
        for context in sorted(contexts, reverse=True):
            if not context:
                continue
            if longest is not None and longest[: len(context)] == context:
                shares[context] = longest
                continue
            longest = context
            row, shared = self._store.longest(contexts[context], context)
            if row is not None and shared == len(context):
                sources[context] = row
            else:
                missing.append((context, row, shared))
                self.prefilled_again += max(0, self._store.dropped(contexts[context], context) - shared)
        missing.sort(key=lambda m: len(m[0]) - m[2])
        chunk: list[tuple[TokenIds, StoredRow | None, int]] = []
        for item in missing:
            width = len(item[0]) - item[2]
            if chunk and width * (len(chunk) + 1) > _MAX_PREFILL_TOKENS:
                sources.update(self._compute(chunk, contexts))
                chunk = []
            chunk.append(item)
        if chunk:
            sources.update(self._compute(chunk, contexts))
        for context, other in shares.items():
            sources[context] = sources[other]
        return sources

    def _compute(
        self, chunk: Sequence[tuple[TokenIds, StoredRow | None, int]], contexts: dict[TokenIds, TokenIds]
    ) -> dict[TokenIds, StoredRow]:
        device = self.model.device
        cache = RowCache(len(chunk))
        width = max(len(context) - shared for context, _, shared in chunk)
        ids = torch.zeros(len(chunk), width, dtype=torch.long)
        offsets = torch.tensor([[shared] for _, _, shared in chunk])
        for i, (context, row, shared) in enumerate(chunk):
            ids[i, : len(context) - shared] = torch.tensor(context[shared:])
            if row is not None:
                cache.fill([i], row, shared)
        positions = (offsets + torch.arange(width)).clamp_(max=self.model.context_length - 1)
        self.model.logits(ids.to(device), positions.to(device), cache)
        self.prefilled_tokens += sum(len(context) - shared for context, _, shared in chunk)
        computed: dict[TokenIds, StoredRow] = {}
        for i, (context, _, _) in enumerate(chunk):
            computed[context] = cache.stored(i, context)
            self._store.add(contexts[context], computed[context])
        return computed


def _not_finite(row: Row, peak: Any) -> EngineError:
    prefix = row.request.prefix
    return EngineError(
        f"sampling rollout {row.request.index} at prefix {prefix.num_steps} of problem {prefix.problem_id}: the "
        f"highest logit after {len(row.tokens)} tokens is {peak}; the checkpoint is broken or its numbers overflow "
        "in this dtype; load it in float32 or float64"
    )
