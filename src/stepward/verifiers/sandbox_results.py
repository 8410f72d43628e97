"""What a sandbox is asked for and what it says: limits, and how programs, cells and examinations ended."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from stepward.verifiers.workers import CallResult


class Mode(StrEnum):
    """What confines a job."""

    BUBBLEWRAP = "bubblewrap"
    LANDLOCK = "landlock"


@dataclass(frozen=True, slots=True)
class JobLimits:
    """What one job may use.

    Attributes:
        timeout_s: Wall seconds, where a call names none.
        memory_bytes: Address space of a job's process.
        output_bytes: Each of standard output, standard error and any file.
        scratch_bytes: All files in ``/tmp`` together (bubblewrap only; nothing can be written elsewhere).
    """

    timeout_s: float = 5.0
    memory_bytes: int = 384 << 20
    output_bytes: int = 1 << 20
    scratch_bytes: int = 16 << 20


@dataclass(frozen=True, slots=True)
class Run:
    """What became of a program.

    Attributes:
        status: ``ok``, ``error`` (an uncaught exception or a non-zero exit), ``timeout``, ``killed`` (memory,
            output, a signal) or ``fault`` (the sandbox itself failed: nothing is known of the program).
        cause: In words, where the status is not ``ok``.
        stdout: What it printed, cut at the limit.
        stderr: The same for standard error; a traceback where there was an exception.
        wall_s: Wall seconds.
        cpu_s: CPU seconds.
        starved: It met its deadline while the machine was busy: running it again alone may end otherwise.
        mode: What confined it.
        peak_bytes: Largest resident size; of an examination, that of both processes together.
    """

    status: str
    cause: str
    stdout: str
    stderr: str
    wall_s: float
    cpu_s: float
    starved: bool
    mode: Mode
    peak_bytes: int = 0


@dataclass(frozen=True, slots=True)
class CellRun:
    """What became of one cell.

    Attributes:
        end: ``ok``, ``error``, or empty where it was not reached or not finished.
        types: Names of the exception's class and its bases, where there was one.
        text: The exception's text, cut.
        output: What the cell printed.
        prints: Line (from 1), output and value of each top-level statement; the value's text is empty for None.
    """

    end: str
    types: tuple[str, ...]
    text: str
    output: str
    prints: tuple[tuple[int, str, str], ...]


@dataclass(frozen=True, slots=True)
class Examination:
    """What became of a program under unit tests.

    Attributes:
        result: ``passed``; ``failed`` (an assertion, or an exception of the program); ``load_error`` (it does
            not compile, or fails before a test); ``timeout``; ``killed``; ``untransferable`` (a value of a
            class of its own); ``test_error`` (the tests themselves); ``fault`` (the sandbox itself).
        detail: In words: the line of the tests and the exception.
        calls: How often the tests called the program.
        wall_s: Wall seconds.
        cpu_s: CPU seconds.
        starved: As in ``Run``.
        mode: What confined it.
        peak_bytes: Largest resident size; of an examination, that of both processes together.
    """

    result: str
    detail: str
    calls: int
    wall_s: float
    cpu_s: float
    starved: bool
    mode: Mode
    peak_bytes: int = 0


def _starved(found: dict[str, Any], timeout_s: float, timed_out: bool) -> bool:
    """Whether a job met its deadline for want of a processor.

    It waited for one for a quarter of its time, and what it had of one was less than half of its time.
    """
    return timed_out and found["waited_s"] > timeout_s / 4 and found["cpu_s"] < timeout_s / 2


def run_of(result: CallResult, mode: Mode, timeout_s: float) -> Run:
    if not result.ok:
        return Run("fault", f"sandbox worker: {result.kind}: {result.message}", "", "", 0.0, 0.0, False, mode)
    found = result.value
    return Run(
        status=found["status"],
        cause=found["cause"],
        stdout=found["stdout"],
        stderr=found["stderr"],
        wall_s=found["wall_s"],
        cpu_s=found["cpu_s"],
        starved=_starved(found, timeout_s, found["status"] == "timeout"),
        mode=mode,
        peak_bytes=found["peak_bytes"],
    )


def examination_of(result: CallResult, mode: Mode, timeout_s: float) -> Examination:
    if not result.ok:
        return Examination(
            "fault", f"sandbox worker: {result.kind}: {result.message}", 0, 0.0, 0.0, False, mode
        )
    found = result.value
    return Examination(
        result=found["result"],
        detail=found["detail"],
        calls=found["calls"],
        wall_s=found["wall_s"],
        cpu_s=found["cpu_s"],
        starved=_starved(found, timeout_s, found["result"] == "timeout"),
        mode=mode,
        peak_bytes=found["peak_bytes"],
    )


def cells_of(result: CallResult) -> tuple[CellRun, ...]:
    """The cell runs that a worker reported; none where it failed."""
    found: list[dict[str, Any]] = result.value["cells"] if result.ok else []
    runs: list[CellRun] = []
    for cell in found:
        prints = tuple((int(line), str(printed), str(echo)) for line, printed, echo in cell["prints"])
        runs.append(CellRun(cell["end"], tuple(cell["types"]), cell["text"], cell["output"], prints))
    return tuple(runs)
