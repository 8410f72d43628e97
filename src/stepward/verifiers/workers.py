"""One supervisor of processes that can be killed.

Untrusted text is only handed to a parser inside a worker. A call names a function as ``"module:function"``;
arguments and value are plain JSON data (no pickle is ever read). A worker that is too slow, too large or dead
gives a result of a kind of its own and never a value, so that a fault cannot be taken for "wrong".

What a call costs and how it ends depends on nothing that was called before it: a call that ran out of memory
or crashed in a used worker is repeated in a fresh one, and a call that met its wall deadline (which a busy
machine can cause) is tried once more alone. A call that spent its CPU seconds is not tried again.

Workers are forked from a template process, one per module, that imported that module and nothing of the
caller's: they hold none of its locks, threads, descriptors or environment variables.
"""

import asyncio
import atexit
import contextlib
import hashlib
import json
import os
import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from stepward.prm.errors import ConfigError, StepwardError
from stepward.verifiers.worker_calls import (
    Call,
    CallKind,
    CallResult,
    Gate,
    result_of,
    run_fresh,
    run_together,
)
from stepward.verifiers.worker_pool import Launch, Limits, Pool

__all__ = ["CallKind", "CallResult", "Json", "Launch", "Limits", "Supervisor", "shared"]

Json = None | bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"]

_ALIVE: "weakref.WeakSet[Supervisor]" = weakref.WeakSet()


class Supervisor:
    """Runs named functions in killable workers. Safe to share between threads and event loops.

    Args:
        num_workers: Most workers at a time for each module; 0 = one a CPU.
        limits: What a call and a worker may use.
        cache_entries: Results kept in memory, the least recently used dropped first; 0 = none.
        launch: How processes are started; the default is this interpreter without this process's environment.
    """

    def __init__(
        self,
        *,
        num_workers: int = 0,
        limits: Limits | None = None,
        cache_entries: int = 100_000,
        launch: Launch | None = None,
    ) -> None:
        self._launch = launch or Launch()
        self.limits = limits or Limits()
        self.num_workers = num_workers or os.cpu_count() or 1
        self._cache_entries = cache_entries
        self._reset()
        _ALIVE.add(self)

    def _reset(self) -> None:
        self._pools: dict[str, Pool] = {}
        self._cache: OrderedDict[bytes, CallResult] = OrderedDict()
        self._lock = threading.Lock()
        self._gate = Gate()
        self._threads: ThreadPoolExecutor | None = None
        self._waiting: dict[asyncio.AbstractEventLoop, list[tuple[Call, asyncio.Future[CallResult]]]] = {}
        self._closed = False

    def run(
        self,
        function: str,
        args: Sequence[Json] = (),
        *,
        key: str = "",
        version: str = "",
        cpu_s: float | None = None,
        wall_s: float | None = None,
        alone: bool = False,
    ) -> CallResult:
        """Call ``function(*args)`` in a worker and wait for it.

        Args:
            function: ``"module:function"``.
            args: Plain JSON data.
            key: Comes back in the result.
            version: The verifier's version: results are cached under it, the function and the arguments.
                Empty = not cached.
            cpu_s: CPU seconds, where other than the supervisor's.
            wall_s: Wall seconds a try, where other than the supervisor's.
            alone: Wait until nothing else runs in this supervisor, and keep others out meanwhile.

        Raises:
            ConfigError: The module cannot be imported or does not fit the memory cap.
            StepwardError: The supervisor is closed, or the arguments are no JSON data.
        """
        results: list[CallResult] = []
        call = self._call(key, function, args, version, self._limits_of(cpu_s, wall_s))
        call.alone = alone
        self._serve([call], lambda _, result: results.append(result))
        return results[0]

    def run_many(
        self,
        function: str,
        calls: Mapping[str, Sequence[Json]],
        *,
        version: str = "",
        cpu_s: float | None = None,
        wall_s: float | None = None,
    ) -> dict[str, CallResult]:
        """Call one function with many arguments; one result under each key, in the order of ``calls``.

        Equal arguments are computed once where a ``version`` allows caching. Arguments and Raises as ``run``.
        """
        results: dict[str, CallResult] = {}

        def done(call: Call, result: CallResult) -> None:
            results[call.key] = result

        limits = self._limits_of(cpu_s, wall_s)
        self._serve([self._call(key, function, args, version, limits) for key, args in calls.items()], done)
        return {key: results[key] for key in calls}

    async def arun(
        self,
        function: str,
        args: Sequence[Json] = (),
        *,
        key: str = "",
        version: str = "",
        cpu_s: float | None = None,
        wall_s: float | None = None,
        alone: bool = False,
    ) -> CallResult:
        """``run`` for an event loop. Calls made in the same turn of the loop travel together."""
        loop = asyncio.get_running_loop()
        call = self._call(key, function, args, version, self._limits_of(cpu_s, wall_s))
        call.alone = alone
        future: asyncio.Future[CallResult] = loop.create_future()
        waiting = self._waiting.setdefault(loop, [])
        if not waiting:
            loop.call_soon(self._dispatch, loop)
        waiting.append((call, future))
        return await future

    async def arun_many(
        self,
        function: str,
        calls: Mapping[str, Sequence[Json]],
        *,
        version: str = "",
        cpu_s: float | None = None,
        wall_s: float | None = None,
    ) -> dict[str, CallResult]:
        """``run_many`` for an event loop."""
        results = await asyncio.gather(
            *(
                self.arun(function, args, key=key, version=version, cpu_s=cpu_s, wall_s=wall_s)
                for key, args in calls.items()
            )
        )
        return dict(zip(calls, results, strict=True))

    def close(self) -> None:
        """End all workers. Calls in flight raise StepwardError, and so do later ones."""
        with self._lock:
            self._closed = True
            pools, self._pools = self._pools, {}
            threads, self._threads = self._threads, None
        for pool in pools.values():
            pool.close()
        if threads is not None:
            threads.shutdown(wait=True)

    def __enter__(self) -> "Supervisor":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _limits_of(self, cpu_s: float | None, wall_s: float | None) -> Limits:
        if cpu_s is None and wall_s is None:
            return self.limits
        return replace(
            self.limits,
            cpu_s=self.limits.cpu_s if cpu_s is None else cpu_s,
            wall_s=self.limits.wall_s if wall_s is None else wall_s,
        )

    def _call(self, key: str, function: str, args: Sequence[Json], version: str, limits: Limits) -> Call:
        module, _, name = function.partition(":")
        if not module or not name:
            raise ConfigError([f"worker function {function!r} is not of the form 'module:function'"])
        try:
            text = json.dumps(args)
        except (TypeError, ValueError, RecursionError) as error:
            raise StepwardError(
                f"call {key!r} of {function}: the arguments are no plain JSON data ({error}); "
                "pass None, bool, int, float, str, list and dict only"
            ) from error
        digest = None
        if version and self._cache_entries:
            digest = hashlib.blake2b("\0".join((version, function, text)).encode(), digest_size=16).digest()
        return Call(key, module, name, text, limits, digest)

    def _dispatch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Hand all calls that wait in a loop to threads, those of a module together."""
        waiting = self._waiting.pop(loop, [])
        groups: dict[tuple[str, float], list[tuple[Call, asyncio.Future[CallResult]]]] = {}
        for call, future in waiting:
            groups.setdefault((call.module, call.limits.wall_s), []).append((call, future))
        with self._lock:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(
                    4 * self.num_workers, thread_name_prefix="stepward-workers"
                )
            for group in groups.values():
                self._threads.submit(self._serve_loop, loop, group)

    def _serve_loop(
        self, loop: asyncio.AbstractEventLoop, group: list[tuple[Call, "asyncio.Future[CallResult]"]]
    ) -> None:
        futures = {id(call): future for call, future in group}

        def settle(future: "asyncio.Future[CallResult]", outcome: CallResult | BaseException) -> None:
            if future.done():  # cancelled
                return
            if isinstance(outcome, CallResult):
                future.set_result(outcome)
            else:
                future.set_exception(outcome)

        def done(call: Call, result: CallResult) -> None:
            loop.call_soon_threadsafe(settle, futures.pop(id(call)), result)

        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile: nobody waits
            try:
                self._serve([call for call, _ in group], done)
            except Exception as error:
                for future in list(futures.values()):
                    loop.call_soon_threadsafe(settle, future, error)

    def _serve(self, calls: Sequence[Call], done: Callable[[Call, CallResult], None]) -> None:
        """Serve calls of one module: from the cache, then together, then the starved ones alone."""
        todo: deque[Call] = deque()
        same: dict[bytes, list[Call]] = {}
        for call in calls:
            if call.digest is None:
                todo.append(call)
                continue
            known = self._cached(call.digest)
            if known is not None:
                done(call, replace(known, key=call.key, seconds=0.0, attempts=0))
            elif call.digest in same:
                same[call.digest].append(call)
            else:
                same[call.digest] = []
                todo.append(call)

        def finished(call: Call, result: CallResult) -> None:
            done(call, result)
            if call.digest is not None:
                self._remember(call.digest, result)
                for twin in same.get(call.digest, ()):
                    done(twin, replace(result, key=twin.key, seconds=0.0, attempts=0))

        if not todo:
            return
        pool = self._pool(todo[0].module)
        together = deque(call for call in todo if not call.alone)
        leftover = run_together(pool, self._gate, self.num_workers, together, finished)
        leftover.starved.extend(call for call in todo if call.alone)
        for call in leftover.suspects:
            if run_fresh(pool, self._gate, call, finished):
                leftover.starved.append(call)
        for call in leftover.starved:
            with self._gate.alone():
                met_again = run_fresh(pool, Gate(), call, finished)
            if met_again:
                message = f"no answer within {call.limits.wall_s:g} s, alone"
                finished(call, result_of(call, CallKind.TIMEOUT, message))

    def _pool(self, module: str) -> Pool:
        with self._lock:
            if self._closed:
                raise StepwardError("this supervisor of workers is closed; make a new one")
            if module not in self._pools:
                self._pools[module] = Pool(module, self.num_workers, self.limits, self._launch)
            return self._pools[module]

    def _cached(self, digest: bytes) -> CallResult | None:
        with self._lock:
            known = self._cache.get(digest)
            if known is not None:
                self._cache.move_to_end(digest)
            return known

    def _remember(self, digest: bytes, result: CallResult) -> None:
        # A wall time-out or a crash may be the machine's doing: asked again, the call is made again.
        if result.kind is CallKind.CRASH or (result.kind is CallKind.TIMEOUT and result.attempts > 1):
            return
        with self._lock:
            self._cache[digest] = result
            while len(self._cache) > self._cache_entries:
                self._cache.popitem(last=False)

    def abandon(self) -> None:
        """In a forked child: let go of the parent's workers; new ones are started when needed."""
        pools, closed = self._pools, self._closed
        self._reset()
        self._closed = closed
        for pool in pools.values():
            pool.abandon()


_shared: Supervisor | None = None
_shared_lock = threading.Lock()


def shared() -> Supervisor:
    """The supervisor that verifiers use where they were not given one; started at first use."""
    global _shared
    with _shared_lock:
        if _shared is None:
            _shared = Supervisor()
        return _shared


def _close_all() -> None:
    for supervisor in list(_ALIVE):
        supervisor.close()


def _abandon_all() -> None:
    global _shared_lock
    _shared_lock = threading.Lock()
    for supervisor in list(_ALIVE):
        supervisor.abandon()


atexit.register(_close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_abandon_all)
