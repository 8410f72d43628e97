"""Writing, reading, relabelling and verifying a dataset: rows a second and memory.

Usage::

    python benchmarks/dataset.py [--steps 2000000] [--folder FOLDER] [--repeats 5]

Four figures, each measured in this process or in a child of its own (memory):

* write: rows a second of ``ShardStore.write_tables`` (checks, checksum, fsync, rename, receipt) against a bare
  ``pyarrow.parquet.ParquetWriter`` with the same settings on the same tables, alternating, median of repeats; once
  by CPU seconds and once by the clock. Writing from records is given apart: it is what a labelling run does.
* memory: a child writes ``--steps`` steps shard by shard, a second child reads them all back as records; the peak
  resident size of each.
* relabel: CPU seconds for a million steps, for every rule.
* verify: bytes a second against hashing the same files alone.
"""

import argparse
import hashlib
import json
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq

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


def tables(num_steps: int) -> Iterator[list[LabeledSolution]]:
    """Shards of records. They repeat after 4, so that neither making nor keeping them dominates."""
    shards = max(1, num_steps // STEPS_PER_SOLUTION // SOLUTIONS_PER_SHARD)
    kept: list[list[LabeledSolution]] = []
    for shard in range(shards):
        if shard < 4:
            first = shard * SOLUTIONS_PER_SHARD
            kept.append([solution(first + i) for i in range(SOLUTIONS_PER_SHARD)])
        yield kept[shard % 4]


def write_figures(folder: Path, repeats: int) -> dict[str, float]:
    """Store against bare writer, by CPU seconds and by the clock; medians over alternating repeats."""
    records = list(tables(8 * SOLUTIONS_PER_SHARD * STEPS_PER_SOLUTION))
    made = [solutions_table(r) for r in records]
    rows = sum(len(t) for t in made)
    cpu: dict[str, list[float]] = {"bare": [], "store": [], "records": []}
    clock: dict[str, list[float]] = {"bare": [], "store": [], "records": []}

    def timed(name: str, work: object) -> None:
        began, began_cpu = time.perf_counter(), time.process_time()
        work()  # type: ignore[operator]
        clock[name].append(time.perf_counter() - began)
        cpu[name].append(time.process_time() - began_cpu)

    for repeat in range(repeats):
        bare, store = folder / f"bare-{repeat}", folder / f"store-{repeat}"
        bare.mkdir()

        def write_bare(bare: Path = bare) -> None:
            for i, table in enumerate(made):
                path = bare / f"{i}.parquet"
                with pq.ParquetWriter(
                    path, SOLUTIONS_SCHEMA, version="2.6", compression="zstd", compression_level=1
                ) as writer:
                    writer.write_table(table, row_group_size=1 << 16)

        def write_store(store: Path = store) -> None:
            with ShardStore.create_or_resume(store, MANIFEST) as target:
                for i, table in enumerate(made):
                    target.write_tables(i, table)
                target.seal()

        def write_records(store: Path = store) -> None:
            with ShardStore.create_or_resume(store, MANIFEST, overwrite=True) as target:
                for i, part in enumerate(records):
                    target.write_shard(i, part)
                target.seal()

        timed("bare", write_bare)
        timed("store", write_store)
        timed("records", write_records)
        shutil.rmtree(bare)
        shutil.rmtree(store)
    figures: dict[str, float] = {}
    for name in ("bare", "store", "records"):
        figures[f"write.{name}.rows_per_cpu_s"] = rows / statistics.median(cpu[name])
        figures[f"write.{name}.rows_per_s"] = rows / statistics.median(clock[name])
    figures["write.store_over_bare.cpu"] = statistics.median(cpu["bare"]) / statistics.median(cpu["store"])
    figures["write.store_over_bare.clock"] = statistics.median(clock["bare"]) / statistics.median(
        clock["store"]
    )
    return figures


def peak_mib() -> float:
    """Peak resident size of this process in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def child(folder: Path, what: str, num_steps: int) -> None:
    """Run in a process of its own, so that its peak memory is its own."""
    began = time.process_time()
    steps = 0
    if what == "write":
        with ShardStore.create_or_resume(folder, MANIFEST) as store:
            for i, records in enumerate(tables(num_steps)):
                store.write_shard(i, records)
                steps += sum(len(r.labels) for r in records)
            store.seal()
    else:
        steps = sum(len(r.labels) for r in open_dataset(folder).solutions())
    print(json.dumps({"steps": steps, "peak_mib": peak_mib(), "cpu_s": time.process_time() - began}))


def memory_figures(folder: Path, num_steps: int) -> dict[str, float]:
    """Peak memory of writing and of reading ``num_steps`` steps."""
    figures: dict[str, float] = {}
    for what in ("write", "read"):
        command = [
            sys.executable,
            __file__,
            "--child",
            what,
            "--folder",
            str(folder),
            "--steps",
            str(num_steps),
        ]
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        for name, value in found.items():
            figures[f"memory.{what}.{name}"] = value
    return figures


def relabel_figures() -> dict[str, float]:
    """CPU seconds of every rule for a million steps, ten tables of 100,000."""
    table = solutions_table([solution(i) for i in range(12_500)])
    figures: dict[str, float] = {}
    for rule in RULES:
        began = time.process_time()
        steps = 0
        for _ in range(10):
            again, _ = relabel_table(table, Relabeling(rule))
            steps += 12_500 * STEPS_PER_SOLUTION
        assert len(again) == 12_500
        figures[f"relabel.{rule}.cpu_s_per_million_steps"] = (time.process_time() - began) * 1e6 / steps
    return figures


def verify_figures(folder: Path) -> dict[str, float]:
    """Verify against hashing the same files alone, both with the files in the page cache."""
    files = [p for table in ("solutions", "rollouts") for p in sorted((folder / table).iterdir())]
    began = time.perf_counter()
    for path in files:
        with path.open("rb") as file:
            hashlib.file_digest(file, "sha256")
    hashing = time.perf_counter() - began
    began = time.perf_counter()
    found = verify(folder)
    verifying = time.perf_counter() - began
    assert found.ok, found.faults
    return {
        "verify.gib": found.num_bytes / 2**30,
        "verify.mib_per_s": found.num_bytes / 2**20 / verifying,
        "verify.over_hashing_alone": hashing / verifying,
    }


def main() -> None:
    """Print all figures as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=2_000_000)
    parser.add_argument("--folder", type=Path, default=None)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--child", choices=["write", "read"], default=None)
    arguments = parser.parse_args()
    if arguments.child:
        child(arguments.folder, arguments.child, arguments.steps)
        return
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        folder = Path(name)
        figures = write_figures(folder, arguments.repeats)
        figures |= memory_figures(folder / "large", arguments.steps)
        figures |= verify_figures(folder / "large")
        figures |= relabel_figures()
    print(json.dumps({k: round(v, 3) for k, v in figures.items()}, indent=1))


if __name__ == "__main__":
    main()
