"""Runs one job of untrusted Python: inside the sandbox, in a process of its own, killed at its deadline.

This file is imported by a worker of ``sandbox.Sandbox`` (which lives inside bubblewrap, or under this file's
Landlock rules), never by the calling process. The worker forks a job process, which gives up all that
``confinement`` lists and only then compiles the text. What a job prints goes to files in memory whose size the
kernel limits; nothing of a job's output is read before the job and every process under it are dead.

Standard library only. The interpreter is warm: what jobs commonly import was imported before the worker was
forked (``sandbox.PRELOADED``).
"""

import io
import linecache
import math
import os
import random
import select
import signal
import sys
import time
import traceback
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from stepward.verifiers import confinement

PROGRAM = "<program>"
OUT_OF_MEMORY = 86
NOT_CONFINED = 71
SCRATCH = "/tmp"

_own_pid_namespace: int | None = None
_ruleset: int | None = None
_own_modules: list[str] = []


@dataclass(frozen=True, slots=True)
class Ended:
    """How a job process ended.

    Attributes:
        status: Exit status; negative: the signal that ended it.
        timed_out: It was killed at its deadline.
        wall_s: Wall seconds.
        cpu_s: CPU seconds.
        waited_s: Seconds it was ready to run and no processor was free (Linux schedstat).
        peak_bytes: Largest resident size.
    """

    status: int
    timed_out: bool
    wall_s: float
    cpu_s: float
    waited_s: float
    peak_bytes: int


def execute(
    job: dict[str, Any], body: Callable[[], int] | None = None, extra: Sequence[int] = ()
) -> dict[str, Any]:
    """Run a program to its end or its deadline.

    Args:
        job: ``program``, ``stdin``, ``mode``, ``readable``, ``timeout_s``, ``memory_bytes``,
            ``output_bytes``, ``scratch_bytes``.
        body: What to run in place of the program.
        extra: Descriptors that the job has as 3, 4, ...

    Returns:
        ``status`` (ok, error, timeout, killed), ``cause`` in words where it is not ok, ``stdout``, ``stderr``,
        ``wall_s``, ``cpu_s``, ``waited_s``, ``peak_bytes``.
    """
    files = [os.memfd_create(name) for name in ("stdin", "stdout", "stderr")]
    try:
        os.write(files[0], job["stdin"].encode("utf-8", "replace"))
        os.lseek(files[0], 0, os.SEEK_SET)
        began = time.monotonic()
        pid = start(job, [*files, *extra], body or (lambda: run_program(job["program"])))
        ended = wait(pid, began, began + job["timeout_s"])
        limit = job["output_bytes"]
        full = any(os.fstat(fd).st_size >= limit for fd in files[1:])
        stdout, stderr = (os.pread(fd, limit, 0).decode("utf-8", "replace") for fd in files[1:])
    finally:
        for fd in files:
            os.close(fd)
    status, cause = outcome(ended, job)
    if full and status != "timeout":
        status, cause = "killed", f"output reached its limit of {limit} bytes"
    return {
        "status": status, "cause": cause, "stdout": stdout, "stderr": stderr,
        "wall_s": ended.wall_s, "cpu_s": ended.cpu_s, "waited_s": ended.waited_s,
        "peak_bytes": ended.peak_bytes,
    }  # fmt: skip


def outcome(ended: Ended, job: dict[str, Any]) -> tuple[str, str]:
    """Status and cause of an ended process."""
    if ended.timed_out or ended.status == -signal.SIGXCPU:
        return "timeout", f"not done after {job['timeout_s']:g} s"
    if ended.status == 0:
        return "ok", ""
    if ended.status == OUT_OF_MEMORY:
        return "killed", f"memory reached its limit of {job['memory_bytes'] >> 20} MiB"
    if ended.status == NOT_CONFINED:
        return "killed", "the process could not be confined"
    if ended.status < 0:
        try:
            return "killed", f"signal {signal.Signals(-ended.status).name}"
        except ValueError:
            return "killed", f"signal {-ended.status}"
    return "error", f"exit status {ended.status}"


def start(job: dict[str, Any], files: Sequence[int], body: Callable[[], int]) -> int:
    """Fork a confined process that has ``files`` as its descriptors 0, 1, 2, ... and no others.

    Returns:
        Its process id, as the worker sees it. Its exit status is what ``body`` returns.
    """
    global _own_pid_namespace, _ruleset
    namespaced = job["mode"] == "bubblewrap"
    if not _own_modules:  # prepared once, in the worker: a page that a job touches is a page copied
        _own_modules.extend(n for n in sys.modules if n.partition(".")[0] == "stepward")
        confinement.seccomp_filter(confinement.MACHINE, 1)
    if namespaced:
        if _own_pid_namespace is None:
            _own_pid_namespace = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        confinement.new_namespaces(confinement.CLONE_NEWPID)
    elif _ruleset is None:
        _ruleset = confinement.landlock_ruleset(job["readable"])
    pid = -1
    try:
        pid = os.fork()
    finally:
        if pid != 0 and namespaced and _own_pid_namespace is not None:
            confinement.return_to(_own_pid_namespace, confinement.CLONE_NEWPID)
    if pid:
        return pid
    status = NOT_CONFINED
    try:
        confine(job, files)
        status = 1
        status = body()
    except MemoryError:
        status = OUT_OF_MEMORY
    finally:
        os._exit(status)


def confine(job: dict[str, Any], files: Sequence[int]) -> None:
    """Give up everything that the job must not have; in this order, because each step needs those before it."""
    if job["mode"] == "bubblewrap":
        confinement.new_namespaces(confinement.CLONE_NEWNS)
        confinement.private_mounts(SCRATCH, job["scratch_bytes"])
        os.chdir(SCRATCH)
    else:
        assert _ruleset is not None
        os.chdir("/")
        sys.path[:] = [p for p in sys.path if _is_readable(p, job["readable"])]
        confinement.restrict_to(_ruleset)
    for target, fd in enumerate([os.dup(fd) for fd in files]):
        os.dup2(fd, target)
    os.closerange(len(files), 1 << 16)
    confinement.set_limits(
        memory_bytes=job["memory_bytes"],
        cpu_s=math.ceil(job["timeout_s"]) + 1,
        file_bytes=job["output_bytes"],
    )
    for name in _own_modules:
        del sys.modules[name]  # a program that imports it finds what is installed: nothing
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    confinement.drop_capabilities()
    confinement.install_seccomp()


def _is_readable(folder: str, readable: Sequence[str]) -> bool:
    """Whether modules can be imported from a folder under Landlock: others must be missing, not forbidden."""
    if folder in readable:
        return True
    packages = folder.endswith(("site-packages", "dist-packages"))
    return not packages and any(folder.startswith(f"{top}/") for top in readable)


def wait(pid: int, began: float, deadline: float) -> Ended:
    """Wait for a process, kill it at the deadline, and reap it. In a namespace its children die with it."""
    handle = os.pidfd_open(pid)
    try:
        poller = select.poll()
        poller.register(handle, select.POLLIN)
        ready = poller.poll(max(0.0, deadline - time.monotonic()) * 1000)
    finally:
        os.close(handle)
    waited_s = _waited_s(pid)
    if not ready:
        os.kill(pid, signal.SIGKILL)
    _, status, usage = os.wait4(pid, 0)
    return Ended(
        status=os.waitstatus_to_exitcode(status),
        timed_out=not ready,
        wall_s=time.monotonic() - began,
        cpu_s=usage.ru_utime + usage.ru_stime,
        waited_s=waited_s,
        peak_bytes=usage.ru_maxrss * 1024,
    )


def _waited_s(pid: int) -> float:
    try:
        with open(f"/proc/{pid}/schedstat") as schedstat:
            return int(schedstat.read().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


def fresh_streams() -> None:
    """Text streams on descriptors 0, 1 and 2, whatever the worker's were."""
    sys.stdin = io.TextIOWrapper(io.FileIO(0, "r", closefd=False), encoding="utf-8")
    sys.stdout = _writer(1, "replace")
    sys.stderr = _writer(2, "backslashreplace")
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr


def _writer(fd: int, errors: str) -> io.TextIOWrapper:
    raw = io.BufferedWriter(io.FileIO(fd, "w", closefd=False))
    return io.TextIOWrapper(raw, encoding="utf-8", errors=errors)


def fresh_module(name: str, source: str) -> types.ModuleType:
    """An empty module of that name, known to ``sys.modules``; tracebacks find its source."""
    module = types.ModuleType(name)
    sys.modules[name] = module
    linecache.cache[PROGRAM] = (len(source), None, source.splitlines(keepends=True), PROGRAM)
    return module


def run_program(source: str) -> int:
    """Run a program as ``__main__``. Returns the exit status that a Python interpreter would have."""
    status = 1
    try:
        random.seed(0)  # the same program prints the same
        fresh_streams()
        sys.argv = ["program.py"]
        module = fresh_module("__main__", source)
        exec(compile(source, PROGRAM, "exec", dont_inherit=True), module.__dict__)
        status = 0
    except SystemExit as stop:
        status = _exit_status(stop.code)
    except MemoryError:
        status = OUT_OF_MEMORY
    except BaseException as error:
        sys.stderr.write(program_traceback(error))
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        return status or 1
    return status


def _exit_status(code: object) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    sys.stderr.write(f"{code}\n")
    return 1


def program_traceback(error: BaseException) -> str:
    """A traceback without this file's frames, at most some ten lines for a deep recursion."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != PROGRAM:
        trace = trace.tb_next
    try:
        return "".join(traceback.format_exception(type(error), error, trace, limit=-10))
    except BaseException:  # an exception whose text raises
        return f"{type(error).__name__}\n"
