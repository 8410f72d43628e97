"""What orchestration costs and survives: python -m benchmarks.flows [PART ...]; all parts without a name.

* overhead: 20 shards of one minute each under Prefect and without, two in flight as in every run. Twelve minutes.
* resume: the command on a finished folder of 1,000 shards: no server, no run.
* soak: 200 kills at seeded moments, 30 of them under Prefect; half an hour.
* schedule: 50 runs at a short interval by a real server; the size of its database, and what vacuuming leaves of it.
* router: four stand-in servers behind vllm-router (needs ``pip install vllm-router``).
"""

import asyncio
import os
import resource
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.report import Row, write
from benchmarks.soak import soak, write_inputs
from stepward.flows.config import LabelConfig
from stepward.flows.label import label
from stepward.flows.orchestration.prefect_server import lasting_server, set_quiet_defaults
from stepward.prm.dataset.store import open_dataset

SHARD_S, NUM_SHARDS = 60.0, 20
RESUME_SHARDS = 1000
KILLS, PREFECT_KILLS = 200, 30
SCHEDULED_RUNS, EVERY_S = 50, 15


def overhead() -> list[Row]:
    """Wall seconds of a run whose shards take a minute each, under Prefect and without, side by side."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        os.environ["PREFECT_HOME"] = str(folder / "prefect")
        write_inputs(folder)
        config = LabelConfig(
            problems=str(folder / "problems.jsonl"), out=folder / "out", policy=f"replay:{folder / 'log.jsonl'}",
            num_solutions=2, allocation="fixed_k", num_rollouts=2, labeler="math_shepherd",
            shard_problems=120 // NUM_SHARDS,
        )  # fmt: skip
        set_quiet_defaults()
        with lasting_server():
            from stepward.flows.orchestration.orchestrate import as_flow, label_in_flow

            async def minute(stage, work):
                began = time.monotonic()
                await work()
                await asyncio.sleep(max(0.0, SHARD_S - (time.monotonic() - began)))

            async def plain() -> tuple[float, float]:
                began, cpu = time.monotonic(), time.process_time()
                other = config.model_copy(update={"out": folder / "plain"})
                await label(other, through=minute)
                return time.monotonic() - began, time.process_time() - cpu

            async def under_prefect() -> tuple[float, float]:
                took: list[tuple[float, float]] = []

                async def body(through):
                    async def task(stage, work):
                        await through(stage, lambda: minute(stage, work))

                    began, cpu = time.monotonic(), time.process_time()
                    await label_in_flow(config, task, resume=True)
                    took.append((time.monotonic() - began, time.process_time() - cpu))

                await as_flow("label", {}, body)
                return took[0]

            async def both():
                return await asyncio.gather(plain(), under_prefect())

            (plain_s, _), (prefect_s, _) = asyncio.run(both())
    return [
        Row(f"overhead of Prefect, share of a run of {NUM_SHARDS} shards of {SHARD_S:.0f} s",
            prefect_s / plain_s - 1, goal=0.03, lower_is_better=True),
        Row("wall seconds of that run", prefect_s, peer=plain_s),
    ]  # fmt: skip


def resume() -> list[Row]:
    """Seconds of ``stepward label --resume`` where 1,000 shards are finished."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        problems, log = [], []
        for i in range(RESUME_SHARDS):
            problems.append(f'{{"id": "p{i}", "question": "What is {i} + 1?", "answer": "{i + 1}"}}')
            log.append(f'{{"problem_id": "p{i}", "text": "{i} + 1 = {i + 1}.\\nThe answer is {i + 1}."}}')
        (folder / "problems.jsonl").write_text("\n".join(problems) + "\n")
        (folder / "log.jsonl").write_text("\n".join(log) + "\n")
        words = [
            sys.executable, "-m", "stepward", "label", str(folder / "problems.jsonl"), "--out", str(folder / "out"),
            "--resume", "--policy", f"replay:{folder / 'log.jsonl'}", "--num-solutions", "1", "--allocation", "none",
            "--labeler", "math_shepherd", "--shard-problems", "1",
        ]  # fmt: skip
        subprocess.run([*words, "--no-prefect"], check=True, capture_output=True)
        assert len(open_dataset(folder / "out").manifest.shards) == RESUME_SHARDS
        wall, cpu = [], []
        for _ in range(3):
            before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
            said = subprocess.run(words, check=True, capture_output=True, text=True).stdout
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            assert "nothing left to do" in said
            wall.append(time.monotonic() - began)
            cpu.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return [
        Row(
            f"resume that finds {RESUME_SHARDS:,} shards done, CPU s", min(cpu), goal=5, lower_is_better=True
        ),
        Row(
            f"resume that finds {RESUME_SHARDS:,} shards done, wall s",
            min(wall),
            goal=5,
            lower_is_better=True,
        ),
    ]


def survive() -> list[Row]:
    """Kills until the same bytes."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        os.environ["PREFECT_HOME"] = str(folder / "prefect")
        (folder / "soak").mkdir()
        with lasting_server() as url:
            done = soak(folder / "soak", kills=KILLS, prefect_kills=PREFECT_KILLS, seed=1, api_url=url)
    for hit, number in done.kills.most_common():
        print(f"  {number:>4} kills {hit}")
    for fault in done.faults:
        print(f"  FAULT {fault}")
    return [
        Row("kills at random moments", done.kills.total(), goal=KILLS),
        Row("of them under Prefect", sum(n for hit, n in done.kills.items() if "Prefect" in hit)),
        Row("runs brought to their end between kills", done.finished),
        Row("runs whose bytes differ from a quiet run's", len(done.faults), goal=0, lower_is_better=True),
    ]


def schedule() -> list[Row]:
    """A real schedule: runs executed, bytes of the server's database a run, and what vacuuming leaves."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        home = folder / "prefect"
        write_inputs(folder)
        words = [
            sys.executable, "-m", "stepward", "schedule", "label", "quickstart", "--every", f"{EVERY_S}s",
            "--set", f"problems={folder / 'problems.jsonl'}", "--set", f"policy=replay:{folder / 'log.jsonl'}",
            "--set", "num_solutions=2", "--set", "num_rollouts=2", "--set", "limit=6",
            "--set", "out=labels/{date}-{time}",
        ]  # fmt: skip
        process = subprocess.Popen(words, cwd=folder, env=os.environ | {"PREFECT_HOME": str(home)})
        sizes: dict[int, int] = {}
        try:
            while (done := _completed(home / "prefect.db")) < SCHEDULED_RUNS:
                if process.poll() is not None:
                    raise RuntimeError("the schedule ended by itself")
                if done and done % 10 == 0 and done not in sizes:
                    sizes[done] = _used_bytes(home / "prefect.db")
                time.sleep(1)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(120)
        full = _used_bytes(home / "prefect.db")
        first, last = min(sizes), max(sizes)
        per_run = (sizes[last] - sizes[first]) / (last - first) if last > first else full / SCHEDULED_RUNS
        _age(home / "prefect.db", days=15)
        left = _vacuum(home)
    week = 7 * 24 * 4
    return [
        Row("runs executed by the schedule", done, goal=SCHEDULED_RUNS),
        Row("bytes of database a run", per_run),
        Row(f"MB of database after a week of a run every 15 minutes ({week} runs), extrapolated", per_run * week / 1e6),
        Row("flow runs older than the retention that vacuuming leaves", left, peer=done,
            goal=0, lower_is_better=True),
    ]  # fmt: skip


def router() -> list[Row]:
    """Share of prompt tokens that the servers had in their caches, by the router's policy."""
    from tests.labeling import test_cluster_router as cluster
    from tests.labeling.conftest import write_tokenizer

    with tempfile.TemporaryDirectory() as place:
        tokenizer = Path(place)
        write_tokenizer(tokenizer)
        sticky, loads = asyncio.run(cluster.through_router("sticky_least_loaded", tokenizer))
        spread, _ = asyncio.run(cluster.through_router("round_robin", tokenizer))
    counts = [served.total() for served in loads]
    return [
        Row("prefix hits behind vllm-router, sticky_least_loaded against round_robin", sticky, peer=spread),
        Row("least loaded of four servers against the most loaded", min(counts) / max(counts)),
    ]


def _completed(database: Path) -> int:
    tables = "select count(*) from sqlite_master where name = 'flow_run'"
    if not database.is_file() or not _count(database, tables):
        return 0  # the server is still making them
    return _count(database, "select count(*) from flow_run where state_type = 'COMPLETED'")


def _count(database: Path, query: str) -> int:
    with sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=30) as connection:
        return int(connection.execute(query).fetchone()[0])


def _used_bytes(database: Path) -> int:
    return _count(database, "select (page_count - freelist_count) * page_size from pragma_page_count(), "
                  "pragma_freelist_count(), pragma_page_size()")  # fmt: skip


def _age(database: Path, *, days: int) -> None:
    """Put the finished runs into the past: a simulated clock for the vacuum."""
    with sqlite3.connect(database) as connection:
        connection.execute(
            f"update flow_run set end_time = datetime(end_time, '-{days} days') where end_time is not null"
        )


def _vacuum(home: Path) -> int:
    """Run the server's own vacuum of flow runs with the settings of our schedules; finished runs that it leaves."""
    code = (
        "import asyncio\n"
        "from stepward.flows.orchestration.prefect_server import set_bounds\n"
        "set_bounds()\n"
        "from prefect.server.database import provide_database_interface\n"
        "from prefect.server.services.db_vacuum import vacuum_old_flow_runs\n"
        "asyncio.run(vacuum_old_flow_runs(db=provide_database_interface()))\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ | {"PREFECT_HOME": str(home)})
    return _completed(home / "prefect.db")


PARTS: dict[str, Callable[[], list[Row]]] = {
    "resume": resume,
    "router": router,
    "overhead": overhead,
    "schedule": schedule,
    "soak": survive,
}


def main(names: list[str]) -> None:
    """Run parts and keep the stored rows of the others."""
    for name in names or list(PARTS):
        write("flows", PARTS[name](), keep_others=True)


if __name__ == "__main__":
    main(sys.argv[1:])
