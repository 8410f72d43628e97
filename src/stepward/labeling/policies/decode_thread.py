"""One thread that owns a model: it gathers what tasks ask for at the same time and keeps the batch full.

A fault in a batch costs no rollout: all of it is sampled again from the same seeds in smaller batches, until a
request that fails alone is known to be the poison and is reported.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from stepward.labeling.policies.decoding import Decoder, Row
from stepward.prm.errors import EngineError
from stepward.prm.types import FinishReason, Outcome, Rollout, TokenIds

_GATHER_S = 0.001
_MOST_LONE_FAULTS = 4
_MAX_SCORED_LOGITS = 1 << 25


@dataclass(slots=True, eq=False)
class _Waiting:
    """A task that waits for an answer."""

    loop: asyncio.AbstractEventLoop
    future: "asyncio.Future[Any]"


@dataclass(slots=True, eq=False)
class _Scoring:
    """A log-likelihood that is asked for."""

    context: TokenIds
    continuation: TokenIds
    waiting: _Waiting
    cancelled: bool = False


@dataclass(slots=True)
class _Inbox:
    """What tasks hand to the thread; guarded by ``changed``."""

    rows: deque[Row] = field(default_factory=deque[Row])
    scorings: deque[_Scoring] = field(default_factory=deque[_Scoring])
    closing: bool = False
    changed: threading.Condition = field(default_factory=threading.Condition)


class DecodeThread:
    """Runs a decoder in a thread of its own, from the first request to ``close``.

    Args:
        decoder: The batch; nobody else may step it.
        name: What errors call the engine.
        num_threads: Torch's threads while this one lives; None leaves torch's setting.
    """

    def __init__(self, decoder: Decoder, *, name: str, num_threads: int | None) -> None:
        self._decoder = decoder
        self._batch_size = decoder.batch_size
        self._limit = decoder.batch_size
        self._name = name
        self._num_threads = num_threads
        self._inbox = _Inbox()
        self._waiting: dict[Row, _Waiting] = {}
        self._thread: threading.Thread | None = None
        self._lone_faults = 0
        self._ended: list[tuple[Row, Rollout | EngineError]] = []

    async def sample(self, row: Row) -> Rollout:
        """Wait until a row has ended. Cancelling frees its place at the next token."""
        waiting = self._wait()
        self._waiting[row] = waiting
        self._post(lambda inbox: inbox.rows.append(row))
        try:
            return await waiting.future
        except asyncio.CancelledError:
            row.cancelled = True
            raise
        finally:
            self._waiting.pop(row, None)

    async def loglikelihood(self, context: TokenIds, continuation: TokenIds) -> tuple[float, ...]:
        """Wait for the log-probabilities of a continuation."""
        item = _Scoring(context, continuation, self._wait())
        self._post(lambda inbox: inbox.scorings.append(item))
        try:
            return await item.waiting.future
        except asyncio.CancelledError:
            item.cancelled = True
            raise

    async def close(self) -> None:
        """End the thread; whatever still waits is refused."""
        with self._inbox.changed:
            self._inbox.closing = True
            self._inbox.changed.notify()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)

    def _wait(self) -> _Waiting:
        loop = asyncio.get_running_loop()
        return _Waiting(loop, loop.create_future())

    def _post(self, put: Callable[[_Inbox], None]) -> None:
        with self._inbox.changed:
            if self._inbox.closing:
                raise EngineError(f"sampling with {self._name}: the engine was closed; load the policy again")
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=f"decode {self._name}", daemon=True)
                self._thread.start()
            put(self._inbox)
            self._inbox.changed.notify()

    def _run(self) -> None:
        import torch

        threads_before = torch.get_num_threads()
        try:
            if self._num_threads is not None:
                torch.set_num_threads(self._num_threads)
            decoder = self._decoder
            while self._gather(idle=not decoder.rows and not self._ended):
                self._score(decoder)
                self._decode(decoder)
        except BaseException as fault:
            self._end(
                EngineError(f"sampling with {self._name}: the engine died: {type(fault).__name__}: {fault}")
            )
            return
        finally:
            if self._num_threads is not None:
                torch.set_num_threads(threads_before)
        self._end(EngineError(f"sampling with {self._name}: the engine was closed while requests waited"))

    def _gather(self, *, idle: bool) -> bool:
        """Wait for work where there is none; False when the engine closes."""
        inbox = self._inbox
        with inbox.changed:
            if idle:
                inbox.changed.wait_for(lambda: inbox.rows or inbox.scorings or inbox.closing)
                # The tasks of one burst come within a moment of each other and belong in one wave.
                seen = -1
                while not inbox.closing and seen < len(inbox.rows) < self._batch_size:
                    seen = len(inbox.rows)
                    inbox.changed.wait(_GATHER_S)
            return not inbox.closing

    def _decode(self, decoder: Decoder) -> None:
        arriving = self._arrivals(decoder)
        # While more wait than there is room for, nobody needs to hear of the ended before places are filled again:
        # each time that a loop is woken costs both threads.
        if self._ended and (arriving or not self._inbox.rows):
            self._answer(self._ended)
            self._ended = []
        try:
            if arriving:
                decoder.admit(arriving)
            ended = decoder.step()
        except Exception as fault:
            self._isolate(decoder, arriving, fault)
            return
        if ended:
            self._lone_faults = 0
            self._limit = min(self._batch_size, self._limit * 2)
            self._ended += ended

    def _arrivals(self, decoder: Decoder) -> list[Row]:
        """Rows to admit now: refilling pays when a good part of the batch is free."""
        inbox = self._inbox
        with inbox.changed:
            while inbox.rows and inbox.rows[0].cancelled:
                inbox.rows.popleft()
            free = self._limit - len(decoder.rows)
            worth = min(len(inbox.rows), max(1, self._limit // 8))
            if decoder.rows and free < worth:
                return []
            taken: list[Row] = []
            while inbox.rows and len(taken) < free:
                row = inbox.rows.popleft()
                if not row.cancelled:
                    taken.append(row)
            return taken

    def _isolate(self, decoder: Decoder, arriving: Sequence[Row], fault: Exception) -> None:
        """Sample a failed batch again in halves; a request that fails alone is reported."""
        rows = list(dict.fromkeys([*decoder.reset(), *arriving]))
        if len(rows) == 1:
            self._answer([(rows[0], _failed(rows[0], fault))])
            # A prompt too long for the memory fails alone too; any other fault again and again is the engine's.
            self._lone_faults += "OutOfMemory" not in type(fault).__name__
            if self._lone_faults >= _MOST_LONE_FAULTS:
                raise fault
            return
        self._limit = max(1, len(rows) // 2)
        with self._inbox.changed:
            self._inbox.rows.extendleft(reversed(rows))

    def _score(self, decoder: Decoder) -> None:
        inbox = self._inbox
        with inbox.changed:
            items = [item for item in inbox.scorings if not item.cancelled]
            inbox.scorings.clear()
        # Alike lengths together: a batch is padded to its longest.
        items.sort(key=lambda item: len(item.context) + len(item.continuation))
        while items:
            widest = len(items[-1].context) + len(items[-1].continuation)
            count = max(1, min(self._batch_size, _MAX_SCORED_LOGITS // (widest * decoder.model.vocab_size)))
            batch, items = items[-count:], items[:-count]
            answers: Sequence[Any]
            try:
                answers = decoder.loglikelihoods([(item.context, item.continuation) for item in batch])
            except Exception as fault:
                answers = [EngineError(f"scoring with {self._name}: {type(fault).__name__}: {fault}")] * len(
                    batch
                )
            _deliver([(item.waiting, answer) for item, answer in zip(batch, answers, strict=True)])

    def _answer(self, ended: Sequence[tuple[Row, Rollout | EngineError]]) -> None:
        _deliver([(w, answer) for row, answer in ended if (w := self._waiting.get(row)) is not None])

    def _end(self, fault: EngineError) -> None:
        self._answer(self._ended)
        with self._inbox.changed:
            self._inbox.closing = True
            waiting = [*self._waiting.values(), *(item.waiting for item in self._inbox.scorings)]
        _deliver([(w, fault) for w in waiting])


def _deliver(answers: Sequence[tuple[_Waiting, Any]]) -> None:
    """Hand answers to their loops, one wake-up a loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], Any]]] = {}
    for waiting, answer in answers:
        by_loop.setdefault(waiting.loop, []).append((waiting.future, answer))
    for loop, pairs in by_loop.items():
        if not loop.is_closed():
            loop.call_soon_threadsafe(_resolve, pairs)


def _resolve(pairs: Sequence[tuple["asyncio.Future[Any]", Any]]) -> None:
    for future, answer in pairs:
        if future.done():
            continue
        if isinstance(answer, BaseException):
            future.set_exception(answer)
        else:
            future.set_result(answer)


def _failed(row: Row, fault: Exception) -> Rollout:
    request = row.request
    return Rollout(
        problem_id=request.prefix.problem_id,
        num_steps=request.prefix.num_steps,
        index=request.index,
        seed=request.seed,
        token_ids=(),
        text="",
        finish_reason=FinishReason.ABORT,
        outcome=Outcome.ERROR,
        error=f"{type(fault).__name__}: {fault}",
    )
