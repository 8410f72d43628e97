"""The sandbox: what a program may do, what it may not, and that nothing remains of it."""

import asyncio
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from stepward.prm.policy import Executor
from stepward.verifiers import confinement, sandbox
from stepward.verifiers.sandbox import JobLimits, Mode, Run, Sandbox, SandboxUnavailable
from stepward.verifiers.sandbox_results import run_of
from stepward.verifiers.workers import CallKind, CallResult

_HOSTILE = Path(__file__).parent / "hostile"
_MIB = 1 << 20


def _rows(name: str) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (_HOSTILE / name).read_text().splitlines()]
    for row in rows:
        row.setdefault("source", "".join(part * count for part, count in row.get("parts", ())))
    return rows


PROGRAMS = _rows("programs.jsonl")


def _first_of_each_family(count: int) -> list[dict[str, Any]]:
    families: dict[str, list[dict[str, Any]]] = {}
    for row in PROGRAMS:
        families.setdefault(row["family"], []).append(row)
    return [row for rows in families.values() for row in rows[:count]]


def _works(mode: Mode) -> str:
    try:
        with Sandbox(num_workers=1, mode=mode) as made:
            assert made.mode is mode
    except SandboxUnavailable as error:
        return str(error)
    return ""


@pytest.fixture(scope="module", params=[Mode.BUBBLEWRAP, Mode.LANDLOCK], ids=str)
def box(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    fault = _works(request.param)
    if fault:
        pytest.skip(fault)
    with Sandbox(num_workers=2, mode=request.param) as made:
        yield made


def _run(box: Sandbox, source: str, timeout_s: float = 5.0, stdin: str = "") -> Run:
    return box.execute(source, timeout_s=timeout_s, stdin=stdin)


def test_it_is_an_executor() -> None:
    assert isinstance(Sandbox(), Executor)


def test_a_program_prints_reads_and_exits_as_in_an_interpreter(box: Sandbox) -> None:
    run = _run(box, "import sys\nprint(int(input()) + 1)\nprint('e', file=sys.stderr)", stdin="41\n")
    assert (run.status, run.cause, run.stdout, run.stderr) == ("ok", "", "42\n", "e\n")
    assert run.mode is box.mode
    stopped = _run(box, "print(1)\nraise SystemExit(3)")
    assert (stopped.status, stopped.cause, stopped.stdout) == ("error", "exit status 3", "1\n")
    assert _run(box, "import sys\nsys.exit()").status == "ok"


def test_an_exception_shows_the_program_and_not_the_sandbox(box: Sandbox) -> None:
    run = _run(box, "def f(x):\n    return 1 / x\n\nf(0)")
    assert run.status == "error"
    assert run.stderr == (
        "Traceback (most recent call last):\n"
        '  File "<program>", line 4, in <module>\n    f(0)\n'
        '  File "<program>", line 2, in f\n    return 1 / x\n           ~~^~~\n'
        "ZeroDivisionError: division by zero\n"
    )


def test_main_is_the_program_itself(box: Sandbox) -> None:
    source = (
        "from dataclasses import dataclass\n@dataclass\nclass A:\n    x: int\n"
        "import sys\nif __name__ == '__main__':\n    print(A(1), sys.modules['__main__'].A is A)"
    )
    assert _run(box, source).stdout == "A(x=1) True\n"


def test_the_standard_library_can_be_imported_and_packages_cannot(box: Sandbox) -> None:
    assert _run(box, "import tomllib, statistics, sqlite3, decimal\nprint('ok')").stdout == "ok\n"
    assert "ModuleNotFoundError" in _run(box, "import numpy").stderr
    assert "ModuleNotFoundError" in _run(box, "import stepward.prm").stderr


def test_the_same_program_prints_the_same(box: Sandbox) -> None:
    source = "import random\nprint(random.random(), {'a', 'b', 'c', 'd'}, hash('x'))"
    assert len({_run(box, source).stdout for _ in range(3)}) == 1


def test_a_job_leaves_nothing_for_the_next(box: Sandbox) -> None:
    _run(box, "import builtins, math\nbuiltins.print = None\nmath.pi = 3")
    assert _run(box, "import math\nprint(math.pi > 3)").stdout == "True\n"


@pytest.mark.parametrize(
    ("source", "status", "cause"),
    [
        ("while True: pass", "timeout", "not done after 0.3 s"),
        ("import time\ntime.sleep(60)", "timeout", "not done after 0.3 s"),
        ("x = [0] * 10 ** 10", "killed", "memory reached its limit of 384 MiB"),
        ("print('x' * 2_000_000)", "killed", "output reached its limit of 1048576 bytes"),
        ("import ctypes\nctypes.string_at(0)", "killed", "signal SIGSEGV"),
    ],
)
def test_what_ended_a_program_is_said(box: Sandbox, source: str, status: str, cause: str) -> None:
    run = _run(box, source, timeout_s=0.3 if status == "timeout" else 10.0)
    assert (run.status, run.cause) == (status, cause)


@pytest.mark.parametrize(
    ("status", "cpu_s", "waited_s", "starved"),
    [
        ("timeout", 0.01, 0.0, False),  # it slept
        ("timeout", 0.99, 0.0, False),  # it had a processor all the time
        ("timeout", 0.4, 0.55, True),  # it wanted one and did not get it
        ("timeout", 0.6, 0.35, False),  # it had more than half of the time
        ("error", 0.1, 0.8, False),  # it ended by itself
    ],
)
def test_a_job_is_starved_when_it_waited_for_a_processor(
    status: str, cpu_s: float, waited_s: float, starved: bool
) -> None:
    found = {"status": status, "cause": "", "stdout": "", "stderr": "", "wall_s": 1.0, "peak_bytes": 0}
    result = CallResult("", CallKind.VALUE, {**found, "cpu_s": cpu_s, "waited_s": waited_s})
    assert run_of(result, Mode.LANDLOCK, timeout_s=1.0).starved is starved


def test_a_lost_worker_is_a_fault_of_the_sandbox() -> None:
    run = run_of(CallResult("", CallKind.CRASH, message="gone"), Mode.LANDLOCK, timeout_s=1.0)
    assert (run.status, run.cause) == ("fault", "sandbox worker: crash: gone")


async def test_the_executor_says_what_happened_in_its_own_words(box: Sandbox) -> None:
    done = await box.run("print(input())", stdin="x\n")
    assert (done.status, done.stdout, done.stderr) == ("ok", "x\n", "")
    late = await box.run("while True: pass", timeout_s=0.2)
    assert (late.status, late.stderr) == ("timeout", "not done after 0.2 s")
    big = await box.run("x = [0] * 10 ** 10")
    assert (big.status, big.stderr) == ("killed", "memory reached its limit of 384 MiB")


async def test_many_programs_at_once_keep_their_outputs_apart(box: Sandbox) -> None:
    runs = await asyncio.gather(*(box.aexecute(f"print({i} * {i})") for i in range(40)))
    assert [run.stdout for run in runs] == [f"{i * i}\n" for i in range(40)]


def test_no_token_of_the_environment_is_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    with Sandbox(num_workers=1) as fresh:
        run = _run(fresh, "import os\nprint(dict(os.environ))")
    assert run.status == "ok"
    assert "hf_secret" not in run.stdout


def test_a_namespaced_job_is_alone_in_an_empty_world() -> None:
    if _works(Mode.BUBBLEWRAP):
        pytest.skip(_works(Mode.BUBBLEWRAP))
    source = "import os\nprint(os.getpid(), os.getuid(), os.listdir('/tmp'), os.listdir('/proc'), os.listdir('/dev'))"
    with Sandbox(num_workers=1, mode=Mode.BUBBLEWRAP) as fresh:
        assert _run(fresh, source).stdout == "1 65534 [] [] ['null']\n"
        kept = _run(fresh, "open('x', 'w').write('hi')\nprint(open('/tmp/x').read())")
        assert kept.stdout == "hi\n"
        assert _run(fresh, "import os\nprint(os.listdir('/tmp'))").stdout == "[]\n"


def _check(row: dict[str, Any], run: Run, timeout_s: float) -> str:
    """What is wrong with the end of a hostile program, or nothing."""
    faults: list[str] = []
    if run.status not in row["ends"]:
        faults.append(f"ended {run.status} ({run.cause}), not {'/'.join(row['ends'])}")
    if "never_prints" in row and row["never_prints"] in run.stdout:
        faults.append(f"printed {run.stdout[-80:]!r}")
    if run.wall_s > timeout_s + 0.5:
        faults.append(f"took {run.wall_s:.2f} s")
    if run.peak_bytes > 512 * _MIB:
        faults.append(f"held {run.peak_bytes // _MIB} MiB")
    return f"{row['id']}: {', '.join(faults)}" if faults else ""


def _descendants() -> set[int]:
    return {process.pid for process in psutil.Process().children(recursive=True)}


async def _hostile(box: Sandbox, rows: list[dict[str, Any]], timeout_s: float) -> list[str]:
    """Run hostile programs between harmless ones. Returns all that went wrong."""
    harmless = "import math\nprint(sum(math.isqrt(i) for i in range(2000)))"
    # sum of isqrt over 0..1999: for r < 44 each r occurs 2r + 1 times, and 44 from 1936 to 1999, 64 times:
    # 2 * (43 * 44 * 87 / 6) + 43 * 44 / 2 + 44 * 64 = 54868 + 946 + 2816 = 58630
    if platform.machine() != "x86_64":
        rows = [row for row in rows if row["family"] != "syscall"]
    before = await box.aexecute(harmless, timeout_s=30.0)
    workers = _descendants()
    # On a busy machine a program that should end by itself needs more wall time; its deadline is no part of it.
    deadlines = [timeout_s if "timeout" in row["ends"] else 10.0 for row in rows]
    jobs = [box.aexecute(row["source"], timeout_s=d) for row, d in zip(rows, deadlines, strict=True)]
    between = [box.aexecute(harmless, timeout_s=30.0) for _ in range(len(rows) // 4)]
    runs = await asyncio.gather(*jobs, *between)
    faults: list[str] = []
    for row, run, deadline in zip(rows, runs, deadlines, strict=False):
        fault = _check(row, run, deadline)
        if "took" in fault:
            # A supervisor that got no processor is late; alone it must not be.
            fault = _check(row, await box.aexecute(row["source"], timeout_s=deadline), deadline)
        faults += [fault] if fault else []
    faults += [
        f"a harmless program ended {run.status} {run.cause} {run.stdout!r}"
        for run in (before, *runs[len(rows) :])
        if (run.status, run.stdout) != ("ok", "58630\n")
    ]
    left = _descendants() - workers
    faults += [f"process {pid} was left" for pid in left if _is_foreign(pid)]
    faults += ["the marker file was written"] if os.path.exists("/tmp/stepward-marker") else []
    return faults


def _is_foreign(pid: int) -> bool:
    """Whether a process is neither a template nor a worker of ours."""
    try:
        return "worker_main" not in " ".join(psutil.Process(pid).cmdline())
    except psutil.NoSuchProcess:
        return False


async def test_hostile_programs_end_in_time_run_nothing_and_disturb_nobody(box: Sandbox) -> None:
    assert await _hostile(box, _first_of_each_family(2), 0.25) == []


@pytest.mark.slow
@pytest.mark.alone
async def test_every_hostile_program_ends_in_time_runs_nothing_and_disturbs_nobody(box: Sandbox) -> None:
    assert len(PROGRAMS) > 200
    assert await _hostile(box, PROGRAMS, 1.0) == []


@pytest.mark.slow
@pytest.mark.alone
async def test_no_hostile_program_passes_a_test_or_kills_the_examiner(box: Sandbox) -> None:
    rows = [row for row in PROGRAMS if platform.machine() == "x86_64" or row["family"] != "syscall"]
    jobs = [
        box.aexamine(row["source"], "assert answer() == 42", setup="", timeout_s=1.0, entry_point="answer")
        for row in rows
    ]
    for row, found in zip(rows, await asyncio.gather(*jobs), strict=True):
        assert found.result in ("load_error", "killed", "timeout", "failed", "untransferable"), (
            row["id"],
            found,
        )
        if found.wall_s >= 1.5:
            # A supervisor that got no processor is late; alone it must not be.
            found = await box.aexamine(
                row["source"], "assert answer() == 42", setup="", timeout_s=1.0, entry_point="answer"
            )
        assert found.wall_s < 1.5, row["id"]
        assert found.peak_bytes < 512 * _MIB, row["id"]


@pytest.mark.slow
@pytest.mark.alone
def test_everything_ends_when_the_calling_process_is_killed(box: Sandbox) -> None:
    script = (
        "import sys, time\nfrom stepward.verifiers.sandbox import Mode, Sandbox\n"
        f"box = Sandbox(num_workers=1, mode=Mode({box.mode.value!r}))\n"
        "print(box.mode, flush=True)\n"
        "box.execute('while True: pass', timeout_s=60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == box.mode.value
        time.sleep(0.3)
        family = psutil.Process(process.pid).children(recursive=True)
        assert family
        process.kill()
    _, alive = psutil.wait_procs(family, timeout=5)
    assert not alive


def test_without_any_confinement_nothing_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # no bwrap
    monkeypatch.setattr(sandbox, "_PROBE", "raise OSError('no Landlock')")
    made = Sandbox(num_workers=1)
    with pytest.raises(SandboxUnavailable) as caught:
        made.execute("open('/tmp/stepward-marker', 'w')")
    assert "bwrap is not installed" in str(caught.value)
    assert "no Landlock" in str(caught.value)
    assert "apt-get install bubblewrap" in str(caught.value)
    assert not os.path.exists("/tmp/stepward-marker")


def test_without_bubblewrap_landlock_is_used_and_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if _works(Mode.LANDLOCK):
        pytest.skip(_works(Mode.LANDLOCK))
    monkeypatch.setenv("PATH", str(tmp_path))
    with Sandbox(num_workers=1) as made:
        assert made.execute("print(1)").mode is Mode.LANDLOCK


def test_a_probe_that_gets_out_closes_the_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    leaky = 'print(\'{"pid": 1, "fork": false, "read /etc/passwd": true}\')'
    monkeypatch.setattr(sandbox, "_PROBE", leaky)
    with pytest.raises(SandboxUnavailable, match="a job can read /etc/passwd"):
        _ = Sandbox(num_workers=1).mode


def test_memory_and_output_limits_are_those_asked_for() -> None:
    limits = JobLimits(memory_bytes=128 * _MIB, output_bytes=1000, timeout_s=10.0)
    with Sandbox(num_workers=1, limits=limits) as small:
        assert small.execute("x = bytearray(200 << 20)").cause == "memory reached its limit of 128 MiB"
        assert small.execute("print('x' * 998)").status == "ok"
        assert small.execute("print('x' * 1000)").cause == "output reached its limit of 1000 bytes"


@pytest.mark.slow
@pytest.mark.alone
def test_named_packages_can_be_imported() -> None:
    limits = JobLimits(memory_bytes=512 * _MIB, timeout_s=20.0)
    with Sandbox(num_workers=1, limits=limits, modules=("sympy",)) as made:
        run = made.execute("from sympy import symbols, expand\nx = symbols('x')\nprint(expand((x + 1) ** 2))")
    assert (run.status, run.stdout) == ("ok", "x**2 + 2*x + 1\n"), run


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_filter_allows_what_is_listed_and_nothing_else(machine: str) -> None:
    program = confinement.seccomp_filter(machine, own_pid=7)
    lists = {"x86_64": confinement._X86_64, "aarch64": confinement._AARCH64}
    audit = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}[machine]
    allowed, denied, killed = 0x7FFF0000, 0x00050001, 0x80000000
    listed = set(lists[machine].values()) - {lists[machine][name] for name in confinement._ARGUMENTS}
    for number in range(600):
        expected = allowed if number in listed else denied
        if number not in lists[machine].values():
            assert _filtered(program, audit, number, (0, 0, 0)) == denied
        elif number in listed:
            assert _filtered(program, audit, number, (0, 0, 0)) == expected
    assert _filtered(program, 0x40000003, 0, (0, 0, 0)) == killed  # a 32-bit call
    kill, prlimit, ioctl = (lists[machine][name] for name in ("kill", "prlimit64", "ioctl"))
    assert _filtered(program, audit, kill, (7, 9, 0)) == allowed
    assert _filtered(program, audit, kill, (8, 9, 0)) == denied
    assert _filtered(program, audit, prlimit, (0, 9, 0)) == allowed
    assert _filtered(program, audit, prlimit, (0, 9, 0x7FFF_0000_0000)) == denied
    assert _filtered(program, audit, ioctl, (1, 0x5401, 0)) == allowed
    assert _filtered(program, audit, ioctl, (1, 0x5412, 0)) == denied  # TIOCSTI types into a terminal
    if machine == "x86_64":
        assert _filtered(program, audit, 0x40000000 | 57, (0, 0, 0)) == killed


def _filtered(program: bytes, audit: int, number: int, arguments: tuple[int, ...]) -> int:
    """What the kernel's filter machine would answer: an interpreter for the four instructions that are used."""
    data = number.to_bytes(4, "little") + audit.to_bytes(4, "little") + bytes(8)
    data += b"".join(a.to_bytes(8, "little") for a in (*arguments, 0, 0, 0))
    place = value = 0
    while True:
        code, then, other, k = (
            int.from_bytes(program[place * 8 : place * 8 + 2], "little"),
            program[place * 8 + 2],
            program[place * 8 + 3],
            int.from_bytes(program[place * 8 + 4 : place * 8 + 8], "little"),
        )
        place += 1
        if code == 0x06:
            return k
        if code == 0x20:
            value = int.from_bytes(data[k : k + 4], "little")
        elif code == 0x15:
            place += then if value == k else other
        elif code == 0x35:
            place += then if value >= k else other
        else:
            raise AssertionError(code)


def test_another_architecture_has_no_filter() -> None:
    with pytest.raises(OSError, match="no list of system calls for riscv64"):
        confinement.seccomp_filter("riscv64", 1)
