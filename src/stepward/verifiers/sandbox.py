"""Runs untrusted Python where it can do no harm.

Two modes, found by trying, the stronger first:

* ``bubblewrap``: an interpreter inside bubblewrap (new user, mount, process, network, IPC and host-name
  namespaces; a read-only file system that holds the interpreter and its libraries and nothing else). It forks
  a process for every job, in a process and a mount namespace of its own, with an empty ``/tmp``, without
  ``/proc``, under seccomp and resource limits. Killing the job's first process kills all that belongs to it.
* ``landlock``: the same worker and the same seccomp filter on the host, with Landlock in place of the
  namespaces: only the standard library can be read and nothing written.

Where neither works, nothing is run: SandboxUnavailable says what to install. No text is ever compiled or run in
the calling process.
"""

import asyncio
import json
import os
import sys
import threading
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from stepward.prm.errors import StepwardError
from stepward.prm.policy import Execution
from stepward.verifiers import sandbox_cells, sandbox_exam, sandbox_job
from stepward.verifiers.sandbox_jail import bubblewrap, readable
from stepward.verifiers.sandbox_results import (
    CellRun,
    Examination,
    JobLimits,
    Mode,
    Run,
    cells_of,
    examination_of,
    run_of,
)
from stepward.verifiers.workers import Launch, Limits, Supervisor

__all__ = ["CellRun", "Examination", "JobLimits", "Mode", "Run", "Sandbox", "SandboxUnavailable"]

VERSION = "1"
"""Changes when the same program could end otherwise."""

_PRELOADED = """
abc argparse array ast base64 bisect calendar cmath collections contextlib copy csv ctypes dataclasses datetime
decimal difflib enum fractions functools hashlib heapq io itertools json math numbers operator pprint queue random
re statistics string struct textwrap threading time traceback types typing unicodedata warnings zlib
"""
PRELOADED = tuple(_PRELOADED.split())
"""Imported once, before jobs are forked."""

_GRACE_S = 10.0  # the worker ends a job at its deadline; only a worker that hangs meets this one


class SandboxUnavailable(StepwardError):
    """Neither namespaces nor Landlock can be had, so no code is run."""


class Sandbox:
    """An ``Executor`` for untrusted Python, safe to share between threads and event loops.

    Args:
        num_workers: Jobs at a time; 0 = one a CPU.
        limits: What a job may use.
        mode: The one mode to use; None = the strongest that works.
        modules: Installed packages to import before jobs are forked, such as ``sympy``; their site-packages
            become readable. They count towards a job's memory.
    """

    def __init__(
        self,
        *,
        num_workers: int = 0,
        limits: JobLimits | None = None,
        mode: Mode | None = None,
        modules: Sequence[str] = (),
    ) -> None:
        self.limits = limits or JobLimits()
        self.num_workers = num_workers
        self.modules = tuple(modules)
        self._wanted = mode
        self._lock = threading.Lock()
        self._started: tuple[Mode, Supervisor] | None = None

    @property
    def mode(self) -> Mode:
        """What confines jobs here. Starts the sandbox. Raises SandboxUnavailable."""
        return self._start()[0]

    def execute(
        self, program: str, *, stdin: str = "", timeout_s: float | None = None, alone: bool = False
    ) -> Run:
        """Run a program to its end or its deadline, and wait for it.

        Args:
            program: Python source.
            stdin: Standard input.
            timeout_s: Wall seconds.
            alone: Run while no other job of this sandbox does (a second try of a starved one).

        Raises:
            SandboxUnavailable: Nothing can confine it here.
        """
        mode, supervisor = self._start()
        job = self._job(mode, timeout_s, program=program, stdin=stdin)
        result = supervisor.run(_EXECUTE, [job], wall_s=job["timeout_s"] + _GRACE_S, alone=alone)
        return run_of(result, mode, job["timeout_s"])

    async def aexecute(
        self, program: str, *, stdin: str = "", timeout_s: float | None = None, alone: bool = False
    ) -> Run:
        """``execute`` for an event loop."""
        mode, supervisor = await asyncio.to_thread(self._start)
        job = self._job(mode, timeout_s, program=program, stdin=stdin)
        result = await supervisor.arun(_EXECUTE, [job], wall_s=job["timeout_s"] + _GRACE_S, alone=alone)
        return run_of(result, mode, job["timeout_s"])

    async def run(self, code: str, *, stdin: str = "", timeout_s: float = 5.0) -> Execution:
        """The ``Executor`` protocol of ``prm.policy``. A fault of the sandbox has the status ``killed``."""
        ended = await self.aexecute(code, stdin=stdin, timeout_s=timeout_s)
        status = "killed" if ended.status == "fault" else ended.status
        said = ended.cause if status in ("timeout", "killed") else ""
        stderr = "\n".join(part for part in (ended.stderr, said) if part)
        return Execution(status=status, stdout=ended.stdout, stderr=stderr, seconds=ended.cpu_s)

    def examine(
        self,
        program: str,
        tests: str,
        *,
        entry_point: str = "",
        setup: str = "",
        timeout_s: float | None = None,
        alone: bool = False,
    ) -> Examination:
        """Run unit tests against a program, each in a process of its own (see ``sandbox_exam``).

        Args:
            program: Python source that defines functions. Untrusted.
            tests: Python source that calls them: assertions, and a function ``check(candidate)`` if
                ``entry_point`` is given (HumanEval's form). Confined as well.
            entry_point: The one function of the program that the tests may call; empty = any.
            setup: Source that both processes run first: imports and helper functions of the problem.
            timeout_s: Wall seconds for all of it.
            alone: As ``execute``.

        Raises:
            SandboxUnavailable: Nothing can confine it here.
        """
        mode, supervisor = self._start()
        job = self._examination_job(mode, timeout_s, program, tests, entry_point, setup)
        result = supervisor.run(_EXAMINE, [job], wall_s=job["timeout_s"] + _GRACE_S, alone=alone)
        return examination_of(result, mode, job["timeout_s"])

    async def aexamine(
        self,
        program: str,
        tests: str,
        *,
        entry_point: str = "",
        setup: str = "",
        timeout_s: float | None = None,
        alone: bool = False,
    ) -> Examination:
        """``examine`` for an event loop."""
        mode, supervisor = await asyncio.to_thread(self._start)
        job = self._examination_job(mode, timeout_s, program, tests, entry_point, setup)
        result = await supervisor.arun(_EXAMINE, [job], wall_s=job["timeout_s"] + _GRACE_S, alone=alone)
        return examination_of(result, mode, job["timeout_s"])

    async def arun_cells(
        self, cells: Sequence[str], *, timeout_s: float | None = None, alone: bool = False
    ) -> tuple[Run, tuple[CellRun, ...]]:
        """Run cells one after the other in one process, as a notebook does; the first that fails ends it.

        Args:
            cells: Python sources.
            timeout_s: Wall seconds for all of them.
            alone: As ``execute``.

        Returns:
            What became of the whole, and of each cell (none where the sandbox itself failed).

        Raises:
            SandboxUnavailable: Nothing can confine it here.
        """
        mode, supervisor = await asyncio.to_thread(self._start)
        job = self._job(mode, timeout_s, stdin="")
        job["cells"] = list(cells)
        result = await supervisor.arun(_EXECUTE_CELLS, [job], wall_s=job["timeout_s"] + _GRACE_S, alone=alone)
        run = run_of(result, mode, job["timeout_s"])
        return run, cells_of(result)

    def close(self) -> None:
        """End the sandbox and all that runs in it."""
        with self._lock:
            started, self._started = self._started, None
        if started is not None:
            started[1].close()

    def __enter__(self) -> "Sandbox":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _job(self, mode: Mode, timeout_s: float | None, **texts: str) -> dict[str, Any]:
        limits = self.limits if timeout_s is None else replace(self.limits, timeout_s=timeout_s)
        return {**asdict(limits), "mode": mode.value, "readable": list(readable(self.modules)), **texts}

    def _examination_job(
        self, mode: Mode, timeout_s: float | None, program: str, tests: str, entry_point: str, setup: str
    ) -> dict[str, Any]:
        job = self._job(mode, timeout_s, program=program, entry_point=entry_point, setup=setup)
        job["sealed"] = sandbox_exam.seal(tests, os.urandom(16))
        return job

    def _start(self) -> tuple[Mode, Supervisor]:
        with self._lock:
            if self._started is None:
                self._started = self._find_mode()
            return self._started

    def _find_mode(self) -> tuple[Mode, Supervisor]:
        faults: list[str] = []
        for mode in [self._wanted] if self._wanted else list(Mode):
            try:
                supervisor = self._supervise(mode)
            except (StepwardError, OSError) as error:
                faults.append(f"  - {mode.value}: {error}")
                continue
            fault = self._probe(mode, supervisor)
            if not fault:
                return mode, supervisor
            supervisor.close()
            faults.append(f"  - {mode.value}: {fault}")
        raise SandboxUnavailable(
            "model-written code cannot be confined on this machine, so none is run:\n"
            + "\n".join(faults)
            + "\nOn Linux install bubblewrap (apt-get install bubblewrap, dnf install bubblewrap) and allow user "
            "namespaces, in a container by its seccomp profile; or use a kernel of 5.13 or later with Landlock"
        )

    def _supervise(self, mode: Mode) -> Supervisor:
        if not sys.platform.startswith("linux"):
            raise SandboxUnavailable(f"needs Linux, and this is {sys.platform}")
        launch = bubblewrap(self.modules) if mode is Mode.BUBBLEWRAP else Launch()
        limits = Limits(
            cpu_s=3600.0,  # the worker only waits; a job's own time is limited by its deadline
            memory_bytes=self.limits.memory_bytes + (64 << 20),
            batch_calls=1,
            reply_bytes=12 * self.limits.output_bytes + (1 << 20),  # JSON writes a byte as up to six
        )
        return Supervisor(
            num_workers=self.num_workers,
            limits=limits,
            cache_entries=0,
            launch=replace(launch, preload=(*PRELOADED, *self.modules)),
        )

    def _probe(self, mode: Mode, supervisor: Supervisor) -> str:
        """Try the sandbox with a program that tries to get out. Returns what is wrong, or ``""``."""
        job = self._job(mode, 20.0, program=_PROBE, stdin="")
        try:
            run = run_of(supervisor.run(_EXECUTE, [job], wall_s=60.0), mode, 20.0)
        except StepwardError as error:
            return str(error)
        if run.status != "ok":
            return f"{run.cause or run.status} {run.stderr[-300:]}".strip()
        found = json.loads(run.stdout)
        if mode is Mode.BUBBLEWRAP and found.pop("pid") != 1:
            return "a job does not get a process namespace of its own"
        leaks = [name for name, got in found.items() if name != "pid" and got]
        return f"a job can {', '.join(leaks)}" if leaks else ""


_EXECUTE = f"{sandbox_job.__name__}:execute"
_EXECUTE_CELLS = f"{sandbox_cells.__name__}:execute_cells"
_EXAMINE = f"{sandbox_exam.__name__}:examine"

_PROBE = """
import json, os, socket

def can(action):
    try:
        action()
    except OSError:
        return False
    return True

print(json.dumps({
    "pid": os.getpid(),
    "fork": can(os.fork),
    "open a socket": can(socket.socket),
    "read /etc/passwd": can(lambda: open("/etc/passwd")),
    "execute a file": can(lambda: os.execv("/bin/sh", ["sh", "-c", "true"])),
    "signal its parent": can(lambda: os.kill(os.getppid() or 2, 0)),
}))
"""
