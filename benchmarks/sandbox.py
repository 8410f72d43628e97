"""What workers and sandbox cost, and how hostile programs end.

    python benchmarks/sandbox.py [--parts workers executions canonical hostile] [--modes bubblewrap landlock]
                                 [--data DIR] [--out results.json] [--hostile-timeout 1.0]

CPU seconds are those of the calling process, of the worker, and of the job's processes, added up; kernel work after
a process has ended is not in them. Wall time is not reported but for hostile programs: there it is what is asked for.
"""

import argparse
import gzip
import json
import os
import resource
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.report import Row
from stepward.prm.types import Check, CheckKind, Problem
from stepward.verifiers import sandbox
from stepward.verifiers.programs import program_of, unit_tests_of
from stepward.verifiers.sandbox import Mode, Sandbox, SandboxUnavailable
from stepward.verifiers.workers import Supervisor

_HOSTILE = Path(__file__).parents[1] / "tests" / "verifiers" / "hostile" / "programs.jsonl"
_PROGRAM = "total = 0\nfor i in range({n}, {n} + 100):\n    total += i * i\nprint(total)"


def _cpu_s(action: Callable[[], float]) -> float:
    """CPU seconds of this process during an action, and those of other processes that the action returns."""
    began = time.process_time()
    other = action()
    return time.process_time() - began + other


def _counted(box: Sandbox) -> dict[str, float]:
    """Makes a sandbox count its workers' CPU seconds: jobs report their own, workers through each call."""
    spent = {"worker": 0.0}
    supervisor = box._start()[1]
    run = supervisor.run

    def counting(*args: Any, **kwargs: Any) -> Any:
        result = run(*args, **kwargs)
        spent["worker"] += result.seconds
        return result

    supervisor.run = counting  # type: ignore[method-assign]
    return spent


def worker_calls(number: int = 20_000) -> dict[str, float]:
    """Trivial calls a CPU second, in batches and one by one."""
    rates: dict[str, float] = {}
    with Supervisor(num_workers=1) as supervisor:
        supervisor.run("operator:add", [1, 2])

        def batched() -> float:
            calls = {str(i): [i, 1] for i in range(number)}
            results = supervisor.run_many("operator:add", calls)
            assert all(results[str(i)].value == i + 1 for i in range(number))
            return sum(r.seconds for r in results.values())

        def single() -> float:
            return sum(supervisor.run("operator:add", [i, 1]).seconds for i in range(number // 20))

        rates["batched_calls_per_cpu_s"] = number / _cpu_s(batched)
        rates["single_calls_per_cpu_s"] = number // 20 / _cpu_s(single)
    return rates


def executions(box: Sandbox, number: int = 150) -> float:
    """Small programs a CPU second, one after the other."""
    spent = _counted(box)

    def action() -> float:
        spent["worker"] = jobs = 0.0
        for n in range(number):
            run = box.execute(_PROGRAM.format(n=n), timeout_s=60.0)
            assert run.stdout == f"{sum(i * i for i in range(n, n + 100))}\n", run
            jobs += run.cpu_s
        return jobs + spent["worker"]

    return number / _cpu_s(action)


def plain_interpreters(number: int = 25) -> float:
    """The same programs in interpreters of their own, without any confinement: what the sandbox is measured by."""
    began = resource.getrusage(resource.RUSAGE_CHILDREN)
    own = time.process_time()
    for n in range(number):
        subprocess.run([sys.executable, "-I", "-c", _PROGRAM.format(n=n)], check=True, capture_output=True)
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    children = ended.ru_utime + ended.ru_stime - began.ru_utime - began.ru_stime
    return number / (time.process_time() - own + children)


def canonical_solutions(box: Sandbox, folder: Path) -> dict[str, Any]:
    """HumanEval's and MBPP's own solutions under their own tests."""
    with gzip.open(folder / "HumanEval.jsonl.gz", "rt") as file:
        rows = [json.loads(line) for line in file]
    with open(folder / "mbpp_sanitized_codet.jsonl") as file:
        rows += [json.loads(line) for line in file]
    spent = _counted(box)
    results: Counter[str] = Counter()

    def action() -> float:
        spent["worker"] = jobs = 0.0
        for row in rows:
            payload = json.dumps({key: row[key] for key in ("test", "entry_point", "prompt")})
            check = Check(CheckKind.UNIT_TESTS, payload=payload)
            tests = unit_tests_of(Problem(id=row["task_id"], statement="", check=check))
            found = program_of(row["canonical_solution"], tests)
            assert found is not None
            ended = box.examine(
                found[0], tests.tests, entry_point=tests.entry_point, setup=tests.setup, timeout_s=60.0
            )
            results[ended.result] += 1
            jobs += ended.cpu_s
        return jobs + spent["worker"]

    rate = len(rows) / _cpu_s(action)
    return {"programs": len(rows), "results": dict(results), "examinations_per_cpu_s": rate}


def hostile(box: Sandbox, timeout_s: float) -> dict[str, Any]:
    """How every hostile program of the tests ends."""
    latest, peak, escaped, otherwise = 0.0, 0, 0, 0
    ends: Counter[str] = Counter()
    rows = [json.loads(line) for line in _HOSTILE.read_text().splitlines()]
    for row in rows:
        source = row.get("source") or "".join(part * count for part, count in row.get("parts", ()))
        began = time.monotonic()
        run = box.execute(source, timeout_s=timeout_s)
        latest = max(latest, time.monotonic() - began - timeout_s)
        peak = max(peak, run.peak_bytes)
        ends[run.status] += 1
        escaped += "never_prints" in row and row["never_prints"] in run.stdout
        otherwise += run.status not in row["ends"]
    alive = box.execute("print(1)", timeout_s=30.0).stdout == "1\n"
    return {
        "programs": len(rows),
        "ends": dict(ends),
        "escapes": escaped,
        "ended_otherwise_than_listed": otherwise,
        "largest_seconds_over_deadline": round(latest, 3),
        "peak_mib": peak >> 20,
        "harmless_program_after_all": alive,
    }


def _measured(mode: Mode, parts: set[str], data: Path, timeout_s: float) -> dict[str, Any]:
    try:
        with Sandbox(num_workers=1, mode=mode) as box:
            found: dict[str, Any] = {"mode": box.mode.value}
            if "executions" in parts:
                found["executions_per_cpu_s"] = round(executions(box), 1)
                found["plain_interpreters_per_cpu_s"] = round(plain_interpreters(), 1)
            if "canonical" in parts and (data / "code").is_dir():
                found["canonical"] = canonical_solutions(box, data / "code")
            if "hostile" in parts:
                found["hostile"] = hostile(box, timeout_s)
            return found
    except SandboxUnavailable as fault:
        return {"mode": mode.value, "unavailable": str(fault)}


def sandbox_rows() -> list[Row]:
    """Workers, executions and hostile programs in the default mode, as rows."""
    calls = worker_calls()
    with Sandbox(num_workers=1) as box:
        rate, plain = executions(box), plain_interpreters()
        ended = hostile(box, 1.0)
    return [
        Row("workers: batched trivial calls a CPU second", calls["batched_calls_per_cpu_s"]),
        Row("sandbox: executions a CPU second (peer: a plain interpreter)", rate, plain, goal=100),
        Row(f"sandbox, {ended['programs']} hostile programs: escapes", ended["escapes"], goal=0, lower_is_better=True),
        Row("sandbox, hostile programs: seconds over the deadline at most", ended["largest_seconds_over_deadline"],
            goal=0.5, lower_is_better=True),
        Row("sandbox, hostile programs: peak MiB", ended["peak_mib"], goal=512, lower_is_better=True),
    ]  # fmt: skip


def main() -> None:
    """Measure and print."""
    every = ["workers", "executions", "canonical", "hostile"]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path(__file__).resolve().parents[2] / "shared" / "data")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--hostile-timeout", type=float, default=1.0)
    parser.add_argument("--parts", nargs="+", choices=every, default=every)
    parser.add_argument(
        "--modes", nargs="+", choices=[m.value for m in Mode], default=[m.value for m in Mode]
    )
    options = parser.parse_args()
    parts = set(options.parts)
    report: dict[str, Any] = {"version": sandbox.VERSION, "load": os.getloadavg()[0], "modes": []}
    if "workers" in parts:
        report["workers"] = worker_calls()
    for mode in options.modes:
        report["modes"].append(_measured(Mode(mode), parts, options.data, options.hostile_timeout))
    text = json.dumps(report, indent=2)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
