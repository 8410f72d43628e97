"""What runs in a worker process. Standard library only; started by path, so that nothing else is imported.

A *template* process imports one module, once, and then forks a worker for every request of the supervisor. A
worker answers batches of calls over its own socket until it is told to end, is killed, or has grown too far.
Nothing here reads a pickle, and nothing is printed: standard input, output and error are ``/dev/null``.

Wire format: a frame is a 4-byte little-endian length and that many bytes of ASCII JSON. On the control socket
a request is 9 bytes, ``<BQ``: operation and process id; ``FORK`` carries the worker's socket as ancillary data.
"""

import contextlib
import ctypes
import gc
import importlib
import json
import os
import resource
import select
import signal
import socket
import struct
import sys
import time
from typing import Any

FORK, REAP = 1, 2
OUT_OF_MEMORY = 86  # exit status of a worker that could not even report that it ran out of memory

_LENGTH = struct.Struct("<I")
_REQUEST = struct.Struct("<BQ")
_PR_SET_PDEATHSIG = 1
_MESSAGE_CHARS = 400


def read_exactly(sock: socket.socket, count: int) -> bytes:
    """Read ``count`` bytes. Raises EOFError where the peer is gone."""
    parts = bytearray()
    while len(parts) < count:
        part = sock.recv(min(count - len(parts), 1 << 20))
        if not part:
            raise EOFError("the peer closed the socket")
        parts += part
    return bytes(parts)


def read_frame(sock: socket.socket) -> Any:
    """Read one frame. Raises EOFError where the peer is gone."""
    (length,) = _LENGTH.unpack(read_exactly(sock, _LENGTH.size))
    return json.loads(read_exactly(sock, length))


def frame(text: str) -> bytes:
    """One frame of ASCII JSON text."""
    body = text.encode("ascii")
    return _LENGTH.pack(len(body)) + body


def die_with_parent(parent: int) -> None:
    """Ask the kernel (Linux) to kill this process when its parent ends, and end where it already has."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def address_space_bytes() -> int:
    """Size of this process's address space (Linux), 0 where it is not known."""
    try:
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[0]) * resource.getpagesize()
    except OSError:
        return 0


def resident_bytes() -> int:
    """Largest resident size that this process has had."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def call(module: Any, name: str, args: list[Any], cpu_s: float) -> tuple[str, str]:
    """Call one function under a CPU limit.

    The timer's signal keeps its default action, so the kernel ends the process even inside C code.

    Returns:
        The kind (``value``, ``error``, ``memory``) and the JSON text of the value or of the message.
    """
    signal.setitimer(signal.ITIMER_PROF, cpu_s)
    try:
        return "value", json.dumps(getattr(module, name)(*args))
    except MemoryError:
        return "memory", '"the memory cap was reached"'
    except BaseException as error:
        text = f"{type(error).__name__}: {str(error)[:_MESSAGE_CHARS]}"
        return "error", json.dumps(text)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)


def serve(sock: socket.socket, module: Any, setup: dict[str, Any]) -> None:
    """Answer batches of calls ``[[index, function, args, cpu_s], ...]``, one reply frame a call."""
    start = resident_bytes()
    while True:
        for index, name, args, cpu_s in read_frame(sock):
            began = time.process_time()
            kind, body = call(module, name, args, cpu_s)
            if len(body) > setup["reply_bytes"]:
                kind, body = (
                    "error",
                    f'"the reply has {len(body)} bytes; the limit is {setup["reply_bytes"]}"',
                )
            spent = time.process_time() - began
            grown = kind == "memory" or resident_bytes() - start > setup["growth_bytes"]
            sock.sendall(frame(f'[{index},"{kind}",{body},{spent:.6f},{int(grown)}]'))
            del args, body  # what one call was told is not in memory while the next one runs


def run_worker(sock: socket.socket, module: Any, setup: dict[str, Any], template: int) -> None:
    """Become a worker: own process group, limits, then serve until the supervisor hangs up. Never returns."""
    status = 1
    try:
        os.setpgid(0, 0)
        die_with_parent(template)
        cap = setup["memory_bytes"]
        resource.setrlimit(resource.RLIMIT_AS, (cap, cap))
        serve(sock, module, setup)
    except EOFError:
        status = 0
    except MemoryError:
        status = OUT_OF_MEMORY
    finally:
        os._exit(status)


def reap(pid: int) -> dict[str, Any]:
    """Kill a worker and its group, wait for it, and say how it ended and what it cost."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    try:
        os.kill(pid, signal.SIGKILL)
        _, status, usage = os.wait4(pid, 0)
    except (ProcessLookupError, ChildProcessError):
        return {"status": 1, "cpu_s": 0.0}
    return {"status": os.waitstatus_to_exitcode(status), "cpu_s": usage.ru_utime + usage.ru_stime}


def run_template(control: socket.socket) -> None:
    """Import the module, then fork workers on request until the supervisor is gone."""
    parent, me = os.getppid(), os.getpid()
    setup = read_frame(control)
    sys.path[:] = setup["path"]
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        for name in setup["preload"]:
            importlib.import_module(name)
        module = importlib.import_module(setup["module"])
    except BaseException as error:
        fault = f"{type(error).__name__}: {str(error)[:_MESSAGE_CHARS]}"
        control.sendall(frame(json.dumps({"fault": fault})))
        return
    gc.collect()
    gc.freeze()  # pages of the module stay shared with the workers
    control.sendall(frame(json.dumps({"fault": "", "address_space": address_space_bytes()})))
    workers: set[int] = set()
    poller = select.poll()
    poller.register(control, select.POLLIN)
    try:
        while os.getppid() == parent:  # a forked copy of the supervisor may keep the socket open
            if not poller.poll(1000):
                continue
            request, sockets, _, _ = socket.recv_fds(control, _REQUEST.size, 1)
            if len(request) < _REQUEST.size:
                return
            operation, pid = _REQUEST.unpack(request)
            if operation == REAP:
                workers.discard(pid)
                control.sendall(frame(json.dumps(reap(pid))))
                continue
            pid = os.fork()
            if pid == 0:
                control.close()
                run_worker(socket.socket(fileno=sockets[0]), module, setup, me)
            os.close(sockets[0])
            workers.add(pid)
            control.sendall(frame(json.dumps({"pid": pid})))
    finally:
        for pid in workers:
            reap(pid)


if __name__ == "__main__":
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        run_template(socket.socket(fileno=int(sys.argv[1])))
