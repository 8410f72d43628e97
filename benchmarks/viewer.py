"""The viewer at 100,000 solutions: CPU seconds to the first page and of each filter, sort and search.

Usage::

    python -m benchmarks.viewer [--solutions 100000] [--folder FOLDER]

A dataset of plausible size is written (8 steps of 40 tokens, counts, verdicts, 60-word problems), then served by a
child process of its own. The first page is what a browser asks for: the page itself, its scripts, the folders and the
first 50 rows. CPU seconds are the child's, the interpreter's start and imports included; filters are timed by the
clock and by CPU. ``GOALS`` are checked and a failure ends with code 1.
"""

import argparse
import http.client
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import urlencode

import psutil

from benchmarks.report import Row
from stepward.prm.dataset.schema import SOLUTIONS_SCHEMA, solutions_table
from stepward.prm.dataset.store import Manifest, ShardStore
from stepward.prm.types import (
    Allocation,
    Counts,
    Estimate,
    LabeledSolution,
    LabelerInfo,
    Outcome,
    PolicyInfo,
    Problem,
    Solution,
    Step,
    StepLabel,
    Verdict,
    VerdictKind,
)

GOALS = {
    "first page, CPU seconds": 1.0,
    "slowest filter or sort, milliseconds by the clock": 300.0,
    "slowest filter, sort or text search, CPU milliseconds": 300.0,
    "text search, milliseconds by the clock": None,
}
STEPS, TOKENS, PER_SHARD = 8, 40, 2000
WORDS = [f"word{i}" for i in range(3000)]
POLICY = PolicyInfo("policy", "0" * 40, "vllm")
LABELER = LabelerInfo("changepoint", "1", "0")
QUERIES = {
    "filter: wrong outcome": {"outcome": "wrong"},
    "filter: has a first error": {"labels": "error"},
    "filter: returns against verdicts": {"conflict": "returns"},
    "filter: refuted, right outcome, by disagreement": {
        "verdicts": "refuted",
        "outcome": "right",
        "sort": "conflict",
    },
    "sort: largest drop": {"sort": "largest_drop"},
    "sort: disagreement, row 40,000": {"sort": "conflict", "offset": "40000"},
    "search: a rare word": {"search": "word17 word1"},
    "page: row 90,000 as stored": {"offset": "90000"},
}


def solution(number: int) -> LabeledSolution:
    rng = random.Random(number)
    problem = Problem(f"p{number // 8}", " ".join(random.Random(number // 8).choices(WORDS, k=60)), ("42",))
    steps = tuple(
        Step(
            " ".join(rng.choices(WORDS, k=30)),
            tuple(rng.choices(range(150_000), k=TOKENS)),
            token_logprobs=tuple(round(-rng.expovariate(2), 4) for _ in range(TOKENS)),
        )
        for _ in range(STEPS)
    )
    rights = [rng.randint(0, 8) for _ in range(STEPS + 1)]
    error = rng.choice([None, *range(STEPS)])
    labels = tuple(
        StepLabel(
            None if error is not None and t > error else int(t != error),
            round(rng.random(), 4),
            "returns",
            (
                Verdict(
                    rng.choice(list(VerdictKind)), "arithmetic", "1", evidence="12 * 3 = 36", span=(3, 14)
                ),
            ),
        )
        for t in range(STEPS)
    )
    return LabeledSolution(
        problem,
        Solution(f"{problem.id}-{number % 8}", problem.id, steps, number, rng.choice([Outcome.RIGHT, Outcome.WRONG])),
        tuple(Estimate(Counts(right=k, wrong=8 - k, n_unique=8), k / 8, max(0, k / 8 - 0.2), min(1, k / 8 + 0.2))
              for k in rights),
        labels, error, POLICY, POLICY, "tokenizer", 0, Allocation.FIXED_K, 120, 320, LABELER,
    )  # fmt: skip


def write(folder: Path, num_solutions: int) -> None:
    """Shards whose rows differ in id; steps repeat after five shards, so that making them does not take an hour."""
    import pyarrow as pa

    with ShardStore.create_or_resume(
        folder, Manifest({"benchmark": 1}, "0", Allocation.FIXED_K, LABELER)
    ) as store:
        made: list[pa.Table] = []
        for shard in range(num_solutions // PER_SHARD):
            if shard < 5:
                rows = [solution(shard * PER_SHARD + k) for k in range(PER_SHARD)]
                made.append(solutions_table(rows))
            first = shard * PER_SHARD
            table = made[shard % 5]
            for name, values in (
                ("problem_id", [f"p{(first + k) // 8}" for k in range(PER_SHARD)]),
                ("solution_id", [f"p{(first + k) // 8}-{k % 8}" for k in range(PER_SHARD)]),
            ):
                table = table.set_column(table.schema.get_field_index(name), name, pa.array(values))
            store.write_tables(shard, table.cast(SOLUTIONS_SCHEMA))
        store.seal()


class Child:
    """The viewer in a process of its own."""

    def __init__(self, folder: Path) -> None:
        code = (
            "import sys; from pathlib import Path; from stepward.flows.viewer.server import serve\n"
            "serve(Path(sys.argv[1]), ready=lambda url: print(url, flush=True))"
        )
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, str(folder)], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline().rsplit(":", 1)[1].strip().strip("/"))
        self.handle = psutil.Process(self.process.pid)

    def cpu_s(self) -> float:
        times = self.handle.cpu_times()
        return times.user + times.system

    def ask(self, path: str) -> bytes:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        connection.request("GET", path)
        answer = connection.getresponse()
        body = answer.read()
        assert answer.status == 200, (path, body[:200])
        connection.close()
        return body

    def page(self, **given: str) -> dict:
        return json.loads(self.ask("/api/page?" + urlencode({"folder": "dataset", "limit": "50", **given})))


def rows(number: int = 100_000, folder: Path | None = None) -> list[Row]:
    """Write the dataset where it is not there, serve it, measure, and give the figures with their goals."""
    place = folder or Path(tempfile.mkdtemp(prefix="viewer-"))
    dataset = place / "dataset"
    try:
        if not (dataset / "manifest.json").is_file():
            write(dataset, number)
        size = sum(p.stat().st_size for p in dataset.rglob("*.parquet")) / 2**20
        print(f"{number:,} solutions, {size:,.0f} MiB of Parquet\n\n| what | CPU seconds | milliseconds |")
        print("| --- | --- | --- |")
        child = Child(dataset)
        try:
            measured = measure(child)
        finally:
            child.process.terminate()
            child.process.wait()
    finally:
        if folder is None:
            shutil.rmtree(place)
    return [
        Row(f"viewer at {number:,} solutions: {name}", measured[name], None, goal, lower_is_better=True)
        for name, goal in GOALS.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--solutions", type=int, default=100_000)
    parser.add_argument("--folder", type=Path, help="keep the dataset there, and use it where it is there")
    options = parser.parse_args()
    found = rows(options.solutions, options.folder)
    for row in found:
        print(f"\n{row.metric}: {row.ours:.3g} (goal {row.goal})", end="")
    print()
    sys.exit(1 if any(row.met is False for row in found) else 0)


def measure(child: Child) -> dict[str, float]:
    began = time.perf_counter()
    for path in ("/", "/style.css", "/app.js", "/detail.js", "/tree.js", "/api/folders"):
        child.ask(path)
    page = child.page()
    first, clock = child.cpu_s(), time.perf_counter() - began
    assert len(page["rows"]) == 50
    print(
        f"| first page, from the start of the process | {first:.2f} | {1000 * clock:.0f} (after the start) |"
    )
    before, began = child.cpu_s(), time.perf_counter()
    child.page(outcome="right")
    print(
        f"| summaries of all shards, once, beside the first page | {child.cpu_s() - before:.2f} "
        f"| {1000 * (time.perf_counter() - began):.0f} |"
    )
    by_clock: dict[str, float] = {}
    by_cpu: dict[str, float] = {}
    for name, given in QUERIES.items():
        times, before = [], child.cpu_s()
        for _ in range(5):
            began = time.perf_counter()
            answer = child.page(**given)
            times.append(1000 * (time.perf_counter() - began))
        assert answer["total"] > 0, name
        spent = sorted(times)[2]
        by_clock[name], by_cpu[name] = spent, 1000 * (child.cpu_s() - before) / 5
        print(f"| {name} ({answer['total']:,} rows) | {by_cpu[name] / 1000:.3f} | {spent:.0f} |")
    last = child.page(offset="90000")["rows"][7]["id"]
    began = time.perf_counter()
    child.ask("/api/solution?" + urlencode({"folder": "dataset", "id": last}))
    print(f"| one solution | | {1000 * (time.perf_counter() - began):.0f} |")
    print(f"\nResident memory of the server: {child.handle.memory_info().rss / 2**20:.0f} MiB")
    searches = [name for name in by_clock if name.startswith("search")]
    found = (
        first,
        max(ms for name, ms in by_clock.items() if name not in searches),
        max(by_cpu.values()),
        max(by_clock[name] for name in searches),
    )
    return dict(zip(GOALS, found, strict=True))


if __name__ == "__main__":
    main()
