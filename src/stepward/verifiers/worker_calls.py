"""Calls on their way through workers: how batches are sent, watched and taken apart. Used by ``workers`` only."""

import contextlib
import enum
import json
import select
import signal
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

from stepward.prm.types import Reason
from stepward.verifiers import worker_main
from stepward.verifiers.worker_pool import Limits, Pool, Worker


class CallKind(enum.StrEnum):
    """How a call ended. Only ``VALUE`` carries a value."""

    VALUE = "value"
    ERROR = "error"
    TIMEOUT = "timeout"
    MEMORY = "memory"
    CRASH = "crash"


@dataclass(frozen=True, slots=True)
class CallResult:
    """What became of one call.

    Attributes:
        key: The caller's name for the call; results are never matched by position.
        kind: How it ended.
        value: JSON data (tuples come back as lists); None unless ``kind`` is ``VALUE``.
        message: What a person needs to know where there is no value.
        seconds: CPU seconds spent, all attempts together; 0 from the cache.
        attempts: How often it was tried; 0 from the cache.
    """

    key: str
    kind: CallKind
    value: Any = None
    message: str = ""
    seconds: float = 0.0
    attempts: int = 0

    @property
    def ok(self) -> bool:
        """True where there is a value."""
        return self.kind is CallKind.VALUE

    @property
    def reason(self) -> Reason:
        """The verdict reason that the kind amounts to; ``NONE`` for a value."""
        if self.kind is CallKind.VALUE:
            return Reason.NONE
        return Reason.TIMEOUT if self.kind is CallKind.TIMEOUT else Reason.CRASH


@dataclass(slots=True)
class Call:
    """A call on its way.

    ``args`` is JSON text, ``digest`` the cache key or None, ``alone`` that nothing else may run meanwhile.
    """

    key: str
    module: str
    function: str
    args: str
    limits: Limits
    digest: bytes | None
    alone: bool = False
    seconds: float = 0.0
    attempts: int = 0


_LENGTH = struct.Struct("<I")
_CHUNK_CHARS = 1 << 20


class Gate:
    """Lets calls run together, or one of them alone."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._running = 0
        self._alone = False

    def enter(self, *, wait: bool) -> bool:
        """Join the calls that run together; False where one is alone and ``wait`` is False."""
        with self._changed:
            if self._alone and not wait:
                return False
            self._changed.wait_for(lambda: not self._alone)
            self._running += 1
            return True

    def leave(self) -> None:
        """Undo ``enter``."""
        with self._changed:
            self._running -= 1
            self._changed.notify_all()

    @contextlib.contextmanager
    def alone(self) -> Generator[None]:
        """Wait until nothing runs and keep others out."""
        with self._changed:
            self._changed.wait_for(lambda: not self._alone)
            self._alone = True
            self._changed.wait_for(lambda: self._running == 0)
        try:
            yield
        finally:
            with self._changed:
                self._alone = False
                self._changed.notify_all()


@dataclass(slots=True)
class _Lane:
    """A worker and the calls it was sent, in order; ``deadline`` is that of the first."""

    worker: Worker
    calls: deque[Call]
    deadline: float


@dataclass(slots=True)
class Leftover:
    """Calls that ran together and have no result yet.

    Attributes:
        starved: Met their wall deadline: to be tried once more, alone.
        suspects: Crashed or ran out of memory in a used worker: to be tried in a fresh one.
    """

    starved: list[Call]
    suspects: list[Call]


Finished = Callable[[Call, CallResult], None]


def result_of(call: Call, kind: CallKind, message: str, value: Any = None) -> CallResult:
    """The result of a call that has ended."""
    return CallResult(call.key, kind, value, message, call.seconds, call.attempts)


def run_together(pool: Pool, gate: Gate, lanes_limit: int, todo: deque[Call], finished: Finished) -> Leftover:
    """Serve calls in as many workers as are free, at most ``lanes_limit``; empties ``todo``."""
    leftover = Leftover([], [])
    lanes: dict[int, _Lane] = {}
    poller = select.poll()
    try:
        while todo or lanes:
            while todo and len(lanes) < lanes_limit:
                share = -(-len(todo) // (lanes_limit - len(lanes)))
                lane = _open(pool, gate, todo, share, wait=not lanes)
                if lane is None:
                    break
                lanes[lane.worker.sock.fileno()] = lane
                poller.register(lane.worker.sock, select.POLLIN)
            nearest = min(lane.deadline for lane in lanes.values())
            ready = {fd for fd, _ in poller.poll(max(0.0, nearest - time.monotonic()) * 1000 + 1)}
            for fd, lane in list(lanes.items()):
                if fd in ready:
                    over = _receive(lane, leftover, finished)
                else:
                    over = "wall" if time.monotonic() >= lane.deadline else ""
                if over:
                    del lanes[fd]
                    poller.unregister(fd)
                    _close(pool, gate, lane, over, todo, leftover, finished)
    finally:
        for lane in lanes.values():  # only when an exception passes through
            pool.kill(lane.worker)
            gate.leave()
    return leftover


def run_fresh(pool: Pool, gate: Gate, call: Call, finished: Finished) -> bool:
    """Serve one call in a new worker.

    Returns:
        True where it met its wall deadline; it has no result then.
    """
    leftover = Leftover([], [])
    todo = deque([call])
    lane = _open(pool, gate, todo, 1, wait=True, fresh=True)
    assert lane is not None
    over = ""
    try:
        while not over:
            left = lane.deadline - time.monotonic()
            readable, _, _ = select.select([lane.worker.sock], [], [], max(0.0, left))
            over = _receive(lane, leftover, finished) if readable else "wall"
    finally:
        _close(pool, gate, lane, over or "dead", todo, leftover, finished)
    return bool(leftover.starved)


def _open(
    pool: Pool, gate: Gate, todo: deque[Call], share: int, *, wait: bool, fresh: bool = False
) -> _Lane | None:
    """Take a worker and send it the next calls; None where nothing is free and ``wait`` is False."""
    if not gate.enter(wait=wait):
        return None
    try:
        worker = pool.take(wait=wait, fresh=fresh)
    except BaseException:
        gate.leave()
        raise
    if worker is None:
        gate.leave()
        return None
    calls: deque[Call] = deque()
    chars = 0
    while todo and len(calls) < min(share, todo[0].limits.batch_calls) and chars < _CHUNK_CHARS:
        calls.append(todo.popleft())
        chars += len(calls[-1].args)
    wall_s = calls[0].limits.wall_s
    body = ",".join(
        f"[{i},{json.dumps(c.function)},{c.args},{c.limits.cpu_s:.6f}]" for i, c in enumerate(calls)
    )
    worker.sent = 0
    with contextlib.suppress(OSError):  # a dead worker is noticed when its reply is read
        worker.sock.settimeout(wall_s)
        worker.sock.sendall(worker_main.frame(f"[{body}]"))
    return _Lane(worker, calls, time.monotonic() + wall_s)


def _receive(lane: _Lane, leftover: Leftover, finished: Finished) -> str:
    """Take what a worker has sent. Returns why the lane is over (``done``, ``spent``, ``dead``) or ``""``."""
    worker = lane.worker
    try:
        data = worker.sock.recv(1 << 20)
    except OSError:
        data = b""
    if not data:
        return "dead"
    worker.received += data
    while len(worker.received) >= _LENGTH.size:
        (length,) = _LENGTH.unpack_from(worker.received)
        if length > lane.calls[0].limits.reply_bytes + 1024:
            return "dead"
        if len(worker.received) < _LENGTH.size + length:
            break
        body = bytes(worker.received[_LENGTH.size : _LENGTH.size + length])
        del worker.received[: _LENGTH.size + length]
        call = lane.calls[0]
        call.attempts += 1
        used = worker.served > 0
        worker.served += 1
        kind, value, seconds, grown = _read(body, worker.sent)
        worker.sent += 1
        call.seconds += seconds
        worker.cpu_s += seconds
        worker.worn = worker.worn or grown
        lane.calls.popleft()
        if kind is CallKind.MEMORY:
            if used:
                leftover.suspects.append(call)
            else:
                finished(call, result_of(call, kind, value))
            return "spent"
        if kind is CallKind.VALUE:
            finished(call, result_of(call, kind, "", value))
        else:
            finished(call, result_of(call, kind, str(value)))
        if not lane.calls:
            return "done"
        lane.deadline = time.monotonic() + lane.calls[0].limits.wall_s
    return ""


def _read(body: bytes, expected: int) -> tuple[CallKind, Any, float, bool]:
    """Read a reply; one that cannot be read is an error of its call, never a value."""
    try:
        index, kind, value, seconds, grown = json.loads(body)
        if index != expected:
            raise ValueError(f"reply {index} where {expected} was due")
        return CallKind(kind), value, float(seconds), bool(grown)
    except (ValueError, TypeError, RecursionError) as error:
        return CallKind.ERROR, f"the worker's reply cannot be read: {error}", 0.0, True


def _close(
    pool: Pool, gate: Gate, lane: _Lane, over: str, todo: deque[Call], leftover: Leftover, finished: Finished
) -> None:
    """End a lane: blame its first call where the worker did not finish, give the others back to ``todo``."""
    worker, calls = lane.worker, lane.calls
    try:
        if over == "done":
            pool.give(worker)
            return
        used = worker.served > 0
        status, spent = pool.kill(worker)
    finally:
        gate.leave()
    if over == "spent":
        todo.extendleft(reversed(calls))
        return
    call = calls.popleft()
    call.attempts += 1
    call.seconds += max(0.0, spent - worker.cpu_s)
    todo.extendleft(reversed(calls))
    if over == "wall":
        if status == -signal.SIGPROF:
            finished(call, result_of(call, CallKind.TIMEOUT, f"{call.limits.cpu_s:g} CPU seconds spent"))
        else:
            leftover.starved.append(call)
    elif status == -signal.SIGPROF:
        finished(call, result_of(call, CallKind.TIMEOUT, f"{call.limits.cpu_s:g} CPU seconds spent"))
    elif used:
        leftover.suspects.append(call)
    elif status == worker_main.OUT_OF_MEMORY:
        finished(call, result_of(call, CallKind.MEMORY, "the memory cap was reached"))
    else:
        finished(call, result_of(call, CallKind.CRASH, f"the worker ended: {_cause(status)}"))


def _cause(status: int) -> str:
    """An exit status in words."""
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"signal {signal.Signals(-status).name}"
    except ValueError:
        return f"signal {-status}"
