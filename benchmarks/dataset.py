"""Writing, reading, relabelling and verifying a dataset: rows a second, memory, CPU seconds.

Usage: ``make bench-dataset`` or ``python -m benchmarks.dataset [--only PART ...] [--steps 2000000] [--folder FOLDER]``.

* Write: ``ShardStore.write_tables`` (contract checks, totals, checksum, receipt, fsync, rename, manifest) against
  ``pyarrow.parquet.ParquetWriter`` with the same settings on the same tables, one file a table, alternating, median of
  repeats. By CPU seconds against the bare writer, which flushes nothing to the disk; by the clock against the same
  writer with fsync and rename, since waiting for the disk is the price of durability and not of the store. Writing
  from records is given apart: it is what a labelling run does.
* Memory: a child writes ``--steps`` steps shard by shard from records, a second child reads them all back as records;
  the peak resident size of each whole process.
* Relabel: CPU seconds of all threads for a million steps by every rule on columns, ten tables of 100,000. The
  change-point posterior, which is computed problem by problem, from 8,000 steps.
* Verify: bytes a second against reading and hashing the same files with the same hash, both from the page cache,
  alternating, median of repeats.
* Import, only when asked for (``--only import``; minutes): a child reads a JSON-lines file of a million small rows into
  a dataset (hiyouga/LlamaFactory#7526); its peak resident size.
"""

import argparse
import hashlib
import json
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow.parquet as pq

from benchmarks.report import Row, write
from stepward.flows.foreign import import_dataset
from stepward.labeling.label_rules import RULES
from stepward.labeling.relabel import Relabeling, relabel_table
from stepward.prm.dataset.schema import SOLUTIONS_SCHEMA, solutions_table
from stepward.prm.dataset.store import Manifest, ShardStore, open_dataset, verify
from stepward.prm.types import (
    Allocation,
    Counts,
    Estimate,
    LabeledSolution,
    LabelerInfo,
    Outcome,
    PolicyInfo,
    Problem,
    Sampler,
    Solution,
    Step,
    StepLabel,
    Verdict,
    VerdictKind,
)

STEPS_PER_SOLUTION = 8
TOKENS_PER_STEP = 40
SOLUTIONS_PER_SHARD = 1000
WORDS = [f"word{i}" for i in range(2000)]
POLICY = PolicyInfo("policy", "0" * 40, "vllm", Sampler(stop=("\n\n",)), "abcd")
MANIFEST = Manifest({"benchmark": 1}, "0", Allocation.FIXED_K, LabelerInfo("math_shepherd", "1", "0"))


def solution(number: int) -> LabeledSolution:
    """A row of plausible size: 8 steps of 40 tokens with log-probabilities, counts of 8 draws, a verdict a step."""
    rng = random.Random(number)
    problem = Problem(
        f"p{number // 8}", " ".join(rng.choices(WORDS, k=60)), ("42",), source="made", licence="MIT"
    )
    steps = tuple(
        Step(
            " ".join(rng.choices(WORDS, k=30)),
            tuple(rng.choices(range(150_000), k=TOKENS_PER_STEP)),
            token_logprobs=tuple(round(-rng.expovariate(2), 4) for _ in range(TOKENS_PER_STEP)),
        )
        for _ in range(STEPS_PER_SOLUTION)
    )
    rights = [rng.randint(0, 8) for _ in range(STEPS_PER_SOLUTION + 1)]
    verdict = Verdict(VerdictKind.SUPPORTED, "arithmetic", "1", evidence="12 * 3 = 36", span=(3, 14))
    return LabeledSolution(
        problem,
        Solution(f"{problem.id}-{number % 8}", problem.id, steps, number, rng.choice([Outcome.RIGHT, Outcome.WRONG])),
        tuple(Estimate(Counts(right=k, wrong=8 - k, n_unique=8), k / 8, 0.1, 0.9) for k in rights),
        tuple(StepLabel(int(k > 0), None, "returns", (verdict,)) for k in rights[1:]),
        None, POLICY, POLICY, "tokenizer", 0, Allocation.FIXED_K, 120, 320, LabelerInfo("math_shepherd", "1", "0"),
    )  # fmt: skip


def shards(num_steps: int) -> Iterator[list[LabeledSolution]]:
    """Shards of records. They repeat after 4, so that neither making nor keeping them dominates."""
    number = max(1, num_steps // STEPS_PER_SOLUTION // SOLUTIONS_PER_SHARD)
    kept: list[list[LabeledSolution]] = []
    for shard in range(number):
        if shard < 4:
            first = shard * SOLUTIONS_PER_SHARD
            kept.append([solution(first + i) for i in range(SOLUTIONS_PER_SHARD)])
        yield kept[shard % 4]


def write_rows(folder: Path, repeats: int) -> list[Row]:
    """Store against bare writer."""
    records = list(shards(8 * SOLUTIONS_PER_SHARD * STEPS_PER_SOLUTION))
    made = [solutions_table(r) for r in records]
    num_rows = sum(len(t) for t in made)
    cpu: dict[str, list[float]] = {}
    clock: dict[str, list[float]] = {}

    def bare(place: Path, *, durable: bool) -> None:
        place.mkdir()
        for i, table in enumerate(made):
            path = place / f"{i}.parquet"
            beside = place / f".writing-{i}" if durable else path
            with pq.ParquetWriter(
                beside, SOLUTIONS_SCHEMA, version="2.6", compression="zstd", compression_level=1
            ) as writer:
                writer.write_table(table, row_group_size=1 << 16)
            if durable:
                with beside.open("rb+") as file:
                    os.fsync(file.fileno())
                beside.rename(path)

    def store(place: Path, write: Callable[[ShardStore, int], object]) -> None:
        with ShardStore.create_or_resume(place, MANIFEST) as target:
            for i in range(len(made)):
                write(target, i)
            target.seal()

    ways: dict[str, Callable[[Path], None]] = {
        "bare": lambda place: bare(place, durable=False),
        "durable": lambda place: bare(place, durable=True),
        "store": lambda place: store(place, lambda target, i: target.write_tables(i, made[i])),
        "records": lambda place: store(place, lambda target, i: target.write_shard(i, records[i])),
    }
    for repeat in range(repeats):
        for name, way in ways.items():
            place = folder / f"{name}-{repeat}"
            began, began_cpu = time.perf_counter(), time.process_time()
            way(place)
            clock.setdefault(name, []).append(time.perf_counter() - began)
            cpu.setdefault(name, []).append(time.process_time() - began_cpu)
            shutil.rmtree(place)
    by_cpu = {name: num_rows / statistics.median(seconds) for name, seconds in cpu.items()}
    by_clock = {name: num_rows / statistics.median(seconds) for name, seconds in clock.items()}
    return [
        Row("write: rows a CPU second, against ParquetWriter", by_cpu["store"], by_cpu["bare"], 0.8, of_ratio=True),
        Row("write: rows a second, against ParquetWriter with fsync and rename", by_clock["store"],
            by_clock["durable"], 0.8, of_ratio=True),
        Row("write: rows a second, against ParquetWriter without", by_clock["store"], by_clock["bare"]),
        Row("write from records: rows a CPU second", by_cpu["records"], by_cpu["bare"]),
    ]  # fmt: skip


def peak_mib() -> float:
    """Peak resident size of this process in MiB; ``ru_maxrss`` would begin with that of the process that started it."""
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) / 1024


def child(folder: Path, what: str, num_steps: int) -> None:
    """Run in a process of its own, so that its peak memory is its own."""
    began = time.process_time()
    steps = 0
    if what == "write":
        with ShardStore.create_or_resume(folder, MANIFEST) as store:
            for i, records in enumerate(shards(num_steps)):
                store.write_shard(i, records)
                steps += sum(len(r.labels) for r in records)
            store.seal()
    elif what == "import":
        steps = 2 * import_dataset("trl_stepwise", str(folder / "rows.jsonl"), folder / "imported").kept
    else:
        steps = sum(len(r.labels) for r in open_dataset(folder).solutions())
    print(json.dumps({"steps": steps, "peak_mib": peak_mib(), "cpu_s": time.process_time() - began}))


def memory_rows(folder: Path, num_steps: int) -> list[Row]:
    """Peak memory of writing and of reading ``num_steps`` steps."""
    rows: list[Row] = []
    for what in ("write", "read"):
        found = in_child(folder, what, num_steps)
        rows += [
            Row(f"memory: peak MiB to {what} {found['steps']:,} steps", found["peak_mib"], goal=1500,
                lower_is_better=True),
            Row(f"{what} {found['steps']:,} steps as records: CPU s", found["cpu_s"]),
        ]  # fmt: skip
    return rows


def in_child(folder: Path, what: str, num_steps: int) -> dict[str, float]:
    """Steps, peak MiB and CPU seconds of ``child``."""
    words = ["--child", what, "--folder", str(folder), "--steps", str(num_steps)]
    ran = subprocess.run(
        [sys.executable, "-m", "benchmarks.dataset", *words], check=True, capture_output=True, text=True
    )
    found = json.loads(ran.stdout)
    assert found["steps"] >= num_steps, found
    return found


def import_rows(folder: Path, num_rows: int = 1_000_000) -> list[Row]:
    """Peak memory of importing many small rows; each is a problem of its own, whose solutions are counted."""
    folder.mkdir()
    with (folder / "rows.jsonl").open("w") as file:
        for i in range(num_rows):
            row = {
                "prompt": f"What is {i} + 1?",
                "completions": [f"{i} + 1 = {i + 1}", "So."],
                "labels": [True, True],
            }
            file.write(json.dumps(row) + "\n")
    found = in_child(folder, "import", 2 * num_rows)
    return [
        Row(
            f"memory: peak MiB to import {num_rows:,} rows", found["peak_mib"], goal=600, lower_is_better=True
        ),
        Row(f"import {num_rows:,} rows: CPU s", found["cpu_s"]),
    ]


def relabel_rows() -> list[Row]:
    """CPU seconds a million steps."""
    table = solutions_table([solution(i) for i in range(12_500)])
    rows: list[Row] = []
    for rule in RULES:
        began = time.process_time()
        for _ in range(10):
            again, report = relabel_table(table, Relabeling(rule))
        seconds = time.process_time() - began
        assert len(again) == 12_500
        assert not report.refused
        rows.append(Row(f"relabel {rule}: CPU s for 1,000,000 steps", seconds, goal=10, lower_is_better=True))
    few = table.slice(0, 1000)
    relabel_table(few.slice(0, 8), Relabeling("changepoint"))  # compiles
    began = time.process_time()
    relabel_table(few, Relabeling("changepoint"))
    seconds = (time.process_time() - began) * 1e6 / (1000 * STEPS_PER_SOLUTION)
    return [*rows, Row("relabel changepoint: CPU s a million steps", seconds)]


def verify_rows(folder: Path, repeats: int) -> list[Row]:
    """Verify against hashing alone."""
    files = [p for table in ("solutions", "rollouts") for p in sorted((folder / table).iterdir())]
    hashing: list[float] = []
    verifying: list[float] = []
    num_bytes = 0
    for _ in range(repeats):
        began = time.process_time()
        for path in files:
            with path.open("rb") as file:
                hashlib.file_digest(file, "sha256")
        hashing.append(time.process_time() - began)
        began = time.process_time()
        found = verify(folder)
        verifying.append(time.process_time() - began)
        assert found.ok, found.faults
        num_bytes = found.num_bytes
    ours, peer = (num_bytes / 2**20 / statistics.median(s) for s in (verifying, hashing))
    name = f"verify {num_bytes / 2**30:.2f} GiB: MiB a CPU second, against reading and hashing alone"
    return [Row(name, ours, peer, 0.9, of_ratio=True)]


def main() -> None:
    """Run all and report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=2_000_000)
    parser.add_argument("--folder", type=Path, default=None)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--only", nargs="+", choices=["write", "memory", "relabel", "import"], default=None)
    parser.add_argument("--child", choices=["write", "read", "import"], default=None)
    arguments = parser.parse_args()
    if arguments.child:
        child(arguments.folder, arguments.child, arguments.steps)
        return
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        folder = Path(name)
        parts: dict[str, Callable[[], list[Row]]] = {
            "write": lambda: write_rows(folder, arguments.repeats),
            "memory": lambda: (
                memory_rows(folder / "large", arguments.steps) + verify_rows(folder / "large", 3)
            ),
            "relabel": relabel_rows,
            "import": lambda: import_rows(folder / "import"),
        }
        for part in arguments.only or ("write", "memory", "relabel"):
            # Each part is kept at once: a run that is stopped has measured what it has.
            write("dataset", parts[part](), keep_others=True)


if __name__ == "__main__":
    main()
