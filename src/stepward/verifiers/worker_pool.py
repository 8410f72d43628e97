"""Template processes and the workers forked from them, seen from the supervisor's side.

A template is one process per module; only it forks, kills and reaps that module's workers, so that a process id
is never used after it was given to someone else. ``workers`` is the way in; nothing else uses this file.
"""

import contextlib
import json
import os
import socket
import struct
import subprocess
import sys
import threading
from dataclasses import dataclass, field

from stepward.prm.errors import ConfigError, StepwardError
from stepward.verifiers import worker_main


@dataclass(frozen=True, slots=True)
class Limits:
    """What one call and one worker may use.

    Attributes:
        cpu_s: CPU seconds a call. Reaching it is final.
        wall_s: Wall seconds a try; a call has at most two tries.
        memory_bytes: Address space of a worker (RLIMIT_AS), the imported module included.
        reply_bytes: Longest JSON text of a value.
        recycle_calls: A worker ends after this many calls.
        growth_bytes: A worker ends when its resident size has grown by this much.
        batch_calls: Most calls that a worker is told of at a time. One, where a call must not see another's
            arguments; more is faster.
    """

    cpu_s: float = 5.0
    wall_s: float = 20.0
    memory_bytes: int = 512 << 20
    reply_bytes: int = 16 << 20
    recycle_calls: int = 5_000
    growth_bytes: int = 128 << 20
    batch_calls: int = 32


@dataclass(frozen=True, slots=True)
class Launch:
    """How a template is started; the sandbox puts a jail before the interpreter.

    Attributes:
        command: Program and arguments; the number of the control descriptor is appended. Empty = this
            interpreter on ``worker_main``.
        path: ``sys.path`` of the template. Empty = the caller's.
        preload: Modules to import before the one that has the functions.
    """

    command: tuple[str, ...] = ()
    path: tuple[str, ...] = ()
    preload: tuple[str, ...] = ()


@dataclass(slots=True)
class Worker:
    """The supervisor's end of one worker.

    Attributes:
        pid: Known to the template only; never signalled from here.
        sock: Where batches go and replies come from.
        served: Calls answered in its life.
        sent: Calls answered of the present batch.
        cpu_s: CPU seconds of the calls answered.
        worn: To be ended when the batch is over.
        received: Bytes of a reply that is not complete.
    """

    pid: int
    sock: socket.socket
    served: int = 0
    sent: int = 0
    cpu_s: float = 0.0
    worn: bool = False
    received: bytearray = field(default_factory=bytearray)


_REQUEST = struct.Struct("<BQ")
_START_S = 120.0
# Nothing of the caller's environment reaches a worker: it may hold tokens. A fixed hash seed makes the order
# of sets, and with it the answers of symbolic algebra, the same in every process.
_ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "PYTHONHASHSEED": "0",
    "PYTHONDONTWRITEBYTECODE": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}


class Template:
    """The process that imported one module and forks workers from itself."""

    def __init__(self, module: str, limits: Limits, launch: Launch) -> None:
        self.module, self.limits, self.launch = module, limits, launch
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._closed = False

    def fork(self) -> Worker:
        """Fork a worker, starting the template where it does not run. Raises ConfigError, StepwardError."""
        with self._lock:
            if self._closed:  # a call that was in flight when its supervisor was closed
                raise StepwardError("this supervisor of workers is closed; make a new one")
            control = self._control or self._start()
            ours, theirs = socket.socketpair()
            try:
                socket.send_fds(control, [_REQUEST.pack(worker_main.FORK, 0)], [theirs.fileno()])
                reply = worker_main.read_frame(control)
            except (OSError, EOFError):
                ours.close()
                self._end()
                raise
            finally:
                theirs.close()
            return Worker(pid=reply["pid"], sock=ours)

    def reap(self, worker: Worker) -> tuple[int, float]:
        """Kill a worker with its process group.

        Returns:
            Its exit status (negative: the signal that ended it) and its CPU seconds.
        """
        with self._lock:
            worker.sock.close()
            if self._control is None:
                return 1, 0.0
            try:
                self._control.sendall(_REQUEST.pack(worker_main.REAP, worker.pid))
                reply = worker_main.read_frame(self._control)
            except (OSError, EOFError):
                self._end()
                return 1, 0.0
            return reply["status"], reply["cpu_s"]

    def close(self) -> None:
        """End the template for good; it kills its workers."""
        with self._lock:
            self._closed = True
            self._end()

    def abandon(self) -> None:
        """Forget the template without ending it: it belongs to the process that this one was forked from."""
        if self._control is not None:
            self._control.close()
        self._lock, self._process, self._control = threading.Lock(), None, None

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        with theirs:
            command = self.launch.command or (sys.executable, "-s", "-P", worker_main.__file__)
            self._process = subprocess.Popen(
                [*command, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env=_ENVIRONMENT,
                start_new_session=True,
            )
        setup = {
            "module": self.module,
            "preload": list(self.launch.preload),
            "path": list(self.launch.path) or [os.path.abspath(p) for p in sys.path],
            "memory_bytes": self.limits.memory_bytes,
            "reply_bytes": self.limits.reply_bytes,
            "growth_bytes": self.limits.growth_bytes,
        }
        self._control = ours
        ours.settimeout(_START_S)
        try:
            ours.sendall(worker_main.frame(json.dumps(setup)))
            ready = worker_main.read_frame(ours)
        except (OSError, EOFError) as error:
            self._end()
            raise ConfigError(
                [
                    f"worker module {self.module!r} ended its process while being imported ({error}); import it by hand"
                ]
            ) from error
        fault = ready["fault"]
        if fault:
            self._end()
            raise ConfigError([f"worker module {self.module!r} cannot be imported: {fault}"])
        if ready["address_space"] > 0.9 * self.limits.memory_bytes:
            self._end()
            raise ConfigError(
                [
                    f"worker module {self.module!r} takes {ready['address_space'] >> 20} MiB of address space once "
                    f"imported; memory_bytes is {self.limits.memory_bytes >> 20} MiB: raise it"
                ]
            )
        return ours

    def _end(self) -> None:
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=2.0)
            self._process.kill()
            self._process.wait()
            self._process = None


class Pool:
    """The workers of one module: at most ``size`` at a time, the idle ones kept."""

    def __init__(self, module: str, size: int, limits: Limits, launch: Launch) -> None:
        self._template = Template(module, limits, launch)
        self._limits = limits
        self._idle: list[Worker] = []
        self._free = size
        self._changed = threading.Condition()

    def take(self, *, wait: bool = True, fresh: bool = False) -> Worker | None:
        """A worker for the caller alone; None where all are taken and ``wait`` is False."""
        with self._changed:
            while self._free == 0:
                if not wait:
                    return None
                self._changed.wait()
            self._free -= 1
            worker = self._idle.pop() if self._idle else None
        try:
            if worker is not None and fresh:
                self._template.reap(worker)
                worker = None
            return worker or self._fork()
        except BaseException:
            self._give_place()
            raise

    def give(self, worker: Worker) -> None:
        """Hand a worker back; a worn one is ended."""
        if worker.worn or worker.served >= self._limits.recycle_calls:
            self._template.reap(worker)
        else:
            with self._changed:
                self._idle.append(worker)
        self._give_place()

    def kill(self, worker: Worker) -> tuple[int, float]:
        """End a worker. Returns its exit status and CPU seconds."""
        try:
            return self._template.reap(worker)
        finally:
            self._give_place()

    def close(self) -> None:
        """End all workers."""
        with self._changed:
            for worker in self._idle:
                worker.sock.close()
            self._idle.clear()
        self._template.close()

    def abandon(self) -> None:
        """Close this process's copies of another process's sockets."""
        for worker in self._idle:
            worker.sock.close()
        self._template.abandon()

    def _fork(self) -> Worker:
        try:
            return self._template.fork()
        except (OSError, EOFError):
            return self._template.fork()  # the template was killed from outside: it is started again

    def _give_place(self) -> None:
        with self._changed:
            self._free += 1
            self._changed.notify()
