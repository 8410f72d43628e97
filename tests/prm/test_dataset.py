"""The dataset folder: one writer, whole files, the same bytes again, and nothing lost to a kill or a full disk."""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest

from stepward.prm.dataset.folder import encode
from stepward.prm.dataset.manifest import SCRUBBED, config_hash, scrub
from stepward.prm.dataset.schema import SOLUTIONS_SCHEMA, solutions_table
from stepward.prm.dataset.store import Manifest, ShardStore, open_dataset, verify
from stepward.prm.errors import StoreError
from stepward.prm.types import (
    Allocation,
    Counts,
    Estimate,
    FinishReason,
    LabeledSolution,
    LabelerInfo,
    Outcome,
    PolicyInfo,
    Problem,
    Rollout,
    Solution,
    Step,
    StepLabel,
)

POLICY = PolicyInfo("tiny", "abc", "scripted")
LABELER = LabelerInfo("monte_carlo", "1", "cafe")
MANIFEST = Manifest({"k": 4}, "0.1.0", Allocation.FIXED_K, LABELER, seeds={"run": 7}, policy=POLICY)


def row(number: int, labels: tuple[int | None, ...] = (1, 0)) -> LabeledSolution:
    problem = Problem(f"p{number}", f"What is {number}?", (str(number),), source="made", licence="MIT")
    steps = tuple(Step(f"step {i}", (i, 5)) for i in range(len(labels)))
    return LabeledSolution(
        problem,
        Solution(f"p{number}-0", problem.id, steps, 3, Outcome.WRONG, "0"),
        tuple(Estimate(Counts(right=1, wrong=2, truncated=1), 0.4, 0.1, 0.7) for _ in range(len(labels) + 1)),
        tuple(StepLabel(label, decided_by="returns") for label in labels),
        labels.index(0) if 0 in labels else None,
        POLICY, POLICY, "tok", 7, Allocation.FIXED_K, 10, 100, LABELER,
    )  # fmt: skip


def rollout(number: int) -> tuple[str, Rollout]:
    drawn = Rollout(
        f"p{number}", 1, 0, 11, (4, 2), "so 4", FinishReason.STOP, (-0.5, -0.25), Outcome.RIGHT, "4"
    )
    return f"p{number}-0", drawn


def make(folder: Path, shards: int = 3, manifest: Manifest = MANIFEST) -> Manifest:
    with ShardStore.create_or_resume(folder, manifest) as store:
        for i in range(shards):
            store.write_shard(i, [row(2 * i), row(2 * i + 1)], [rollout(2 * i)], {"seconds": time.time()})
        return store.seal()


def contents(folder: Path) -> dict[str, bytes]:
    """All files but those that say when and where."""
    files = (p for p in folder.rglob("*") if p.is_file())
    names = {p.relative_to(folder).as_posix(): p.read_bytes() for p in files}
    return {n: b for n, b in names.items() if not n.startswith((".metrics", ".lock", "run_metrics"))}


def test_what_is_written_is_read_back_in_order(tmp_path):
    make(tmp_path / "d")
    dataset = open_dataset(tmp_path / "d")
    assert list(dataset.solutions()) == [row(i) for i in range(6)]
    assert list(dataset.rollouts()) == [rollout(i) for i in (0, 2, 4)]
    assert len(dataset) == 6


def test_the_same_run_gives_the_same_bytes_in_any_order_of_shards(tmp_path):
    make(tmp_path / "a")
    with ShardStore.create_or_resume(tmp_path / "b", MANIFEST) as store:
        for i in (2, 0, 1):
            store.write_shard(i, [row(2 * i), row(2 * i + 1)], [rollout(2 * i)], {"seconds": 1.0})
        store.seal()
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    assert verify(tmp_path / "b").ok


def test_bytes_do_not_depend_on_how_a_table_was_chunked():
    table = solutions_table([row(i) for i in range(6)])
    pieces = pa.concat_tables([table.slice(0, 1), table.slice(1, 4), table.slice(5)])
    assert bytes(encode(pieces)) == bytes(encode(table))


def test_totals_count_every_outcome_and_unknown_labels(tmp_path):
    with ShardStore.create_or_resume(tmp_path / "d", MANIFEST) as store:
        store.write_shard(0, [row(0, (1, 0)), row(1, (1, 1)), row(2, (None,)), row(3, ())], [rollout(0)])
        totals = store.seal().totals
    assert totals is not None
    # steps 2+2+1+0; prefixes 3+3+2+1 = 9, each with 1 right, 2 wrong, 1 truncated
    assert totals.labels == {"right": 3, "wrong": 1, "unknown": 1}
    assert totals.draws == {"right": 9, "wrong": 18, "truncated": 9}
    assert totals.first_errors == {"some": 1, "none": 2, "unknown": 1}
    assert (totals.problems, totals.solutions, totals.steps, totals.rollouts) == (4, 4, 5, 1)
    assert (totals.prompt_tokens, totals.generated_tokens) == (40, 400)


def test_a_second_writer_is_refused_while_the_first_lives(tmp_path):
    first = ShardStore.create_or_resume(tmp_path / "d", MANIFEST)
    with pytest.raises(StoreError, match=f"process {os.getpid()}"):
        ShardStore.create_or_resume(tmp_path / "d", MANIFEST, resume=True)
    first.close()
    ShardStore.create_or_resume(tmp_path / "d", MANIFEST, resume=True).close()


def test_a_forked_child_does_not_keep_the_folder_locked(tmp_path):
    program = f"""
        import os, sys, time
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        from pathlib import Path
        from stepward.prm.dataset.store import Manifest, ShardStore
        from stepward.prm.types import Allocation, LabelerInfo
        manifest = Manifest({{"k": 4}}, "0.1.0", Allocation.FIXED_K, LabelerInfo("a", "1", "c"))
        store = ShardStore.create_or_resume({str(tmp_path / "d")!r}, manifest)
        if os.fork() == 0:
            print("locked", flush=True)  # from the child: it has run what it does at a fork
            time.sleep(30)
            os._exit(0)
        time.sleep(30)
    """
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, start_new_session=True
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"locked\n"
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        manifest = Manifest({"k": 4}, "0.1.0", Allocation.FIXED_K, LabelerInfo("a", "1", "c"))
        ShardStore.create_or_resume(tmp_path / "d", manifest, resume=True).close()
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.stdout.close()


def test_a_folder_of_this_run_asks_for_resume_or_overwrite(tmp_path):
    make(tmp_path / "d")
    with pytest.raises(StoreError, match=r"--resume .*--overwrite"):
        ShardStore.create_or_resume(tmp_path / "d", MANIFEST)


def test_a_folder_of_another_run_is_refused_and_the_difference_is_named(tmp_path):
    make(tmp_path / "d")
    other = replace(MANIFEST, config={"k": 8}, seeds={"run": 8})
    with pytest.raises(StoreError, match=r"config\.k, seeds\.run"):
        ShardStore.create_or_resume(tmp_path / "d", other, resume=True)


def test_overwrite_starts_anew_and_resume_goes_on(tmp_path):
    make(tmp_path / "d")
    other = replace(MANIFEST, config={"k": 8})
    with ShardStore.create_or_resume(tmp_path / "d", other, overwrite=True) as store:
        assert store.finished() == frozenset()
        store.write_shard(0, [row(9)])
    with ShardStore.create_or_resume(tmp_path / "d", other, resume=True) as store:
        assert store.finished() == {0}
        store.write_shard(1, [row(10)])
        store.seal()
    assert [r.problem.id for r in open_dataset(tmp_path / "d").solutions()] == ["p9", "p10"]


def test_an_overwrite_that_was_killed_takes_no_shard_of_the_run_before(tmp_path):
    make(tmp_path / "d")
    other = replace(MANIFEST, config={"k": 8})
    # the state after the new run was named and before anything was deleted
    (tmp_path / "d" / "manifest.partial.json").write_text(other.to_json())
    (tmp_path / "d" / "manifest.json").unlink()
    with ShardStore.create_or_resume(tmp_path / "d", other, resume=True) as store:
        assert store.finished() == frozenset()


def test_files_that_are_no_dataset_are_never_deleted(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(StoreError, match=r"thesis\.txt"):
        ShardStore.create_or_resume(tmp_path, MANIFEST, overwrite=True)
    assert (tmp_path / "thesis.txt").read_text() == "years of work"
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_shard_without_its_receipt_does_not_exist(tmp_path):
    make(tmp_path / "d")
    (tmp_path / "d" / "receipts" / "shard-00001.json").unlink()
    with ShardStore.create_or_resume(tmp_path / "d", MANIFEST, resume=True) as store:
        assert store.finished() == {0, 2}


def test_a_finished_shard_is_not_written_again(tmp_path):
    with ShardStore.create_or_resume(tmp_path / "d", MANIFEST) as store:
        store.write_shard(0, [row(0)])
        with pytest.raises(StoreError, match="shard 0"):
            store.write_shard(0, [row(1)])


def test_a_dataset_with_a_gap_or_without_shards_is_not_sealed(tmp_path):
    with ShardStore.create_or_resume(tmp_path / "d", MANIFEST) as store:
        with pytest.raises(StoreError, match="at least one"):
            store.seal()
        store.write_shard(1, [row(0)])
        with pytest.raises(StoreError, match="gap"):
            store.seal()


def test_an_unfinished_dataset_is_read_only_on_request(tmp_path):
    with ShardStore.create_or_resume(tmp_path / "d", MANIFEST) as store:
        store.write_shard(0, [row(0)])
    with pytest.raises(StoreError, match="not finished"):
        open_dataset(tmp_path / "d")
    assert list(open_dataset(tmp_path / "d", partial=True).solutions()) == [row(0)]
    assert not verify(tmp_path / "d").sealed


def test_a_thousand_shards_are_looked_through_in_well_under_a_second(tmp_path):
    with ShardStore.create_or_resume(tmp_path / "d", MANIFEST) as store:
        store.write_shard(0, [row(0)])
        receipt = json.loads((tmp_path / "d" / "receipts" / "shard-00000.json").read_text())
        for i in range(1, 1000):
            files = [{**f, "path": f["path"].replace("00000", f"{i:05d}")} for f in receipt["files"]]
            text = json.dumps({**receipt, "index": i, "files": files})
            (tmp_path / "d" / "receipts" / f"shard-{i:05d}.json").write_text(text)
            for old, new in zip(receipt["files"], files, strict=True):
                os.link(tmp_path / "d" / old["path"], tmp_path / "d" / new["path"])
        began = time.process_time()
        assert len(store.finished()) == 1000
        assert time.process_time() - began < 0.5


DAMAGES = {
    "cut": lambda d: os.truncate(d / "solutions/shard-00001.parquet", 100),
    "edited": lambda d: flip_byte(d / "rollouts/shard-00000.parquet"),
    "swapped": lambda d: swap(d / "solutions/shard-00000.parquet", d / "solutions/shard-00001.parquet"),
    "missing": lambda d: (d / "solutions/shard-00002.parquet").unlink(),
    "a folder": lambda d: folder_for(d / "solutions/shard-00002.parquet"),
    "added": lambda d: shutil.copy(d / "solutions/shard-00000.parquet", d / "solutions/shard-00003.parquet"),
    "manifest edited": lambda d: edit(d / "manifest.json", '"k": 4', '"k": 5'),
    "checksum edited": lambda d: edit(d / "manifest.json", '"num_rows": 1,', '"num_rows": 3,'),
    "totals edited": lambda d: edit(d / "manifest.json", '"generated_tokens": 600', '"generated_tokens": 60'),
    "receipt edited": lambda d: edit(d / "receipts/shard-00001.json", '"wrong":12', '"wrong":2'),
    "manifest cut": lambda d: os.truncate(d / "manifest.json", 300),
}


def flip_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def folder_for(path: Path) -> None:
    path.unlink()
    path.mkdir()


def swap(a: Path, b: Path) -> None:
    first, second = a.read_bytes(), b.read_bytes()
    a.write_bytes(second)
    b.write_bytes(first)


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


@pytest.mark.parametrize("damage", DAMAGES)
def test_verify_finds_a_damaged_dataset(tmp_path, damage):
    make(tmp_path / "d")
    assert verify(tmp_path / "d").ok
    DAMAGES[damage](tmp_path / "d")
    found = verify(tmp_path / "d")
    assert not found.ok
    assert found.faults


WRITER = """
import sys, time
sys.path.insert(0, sys.argv[2])
from test_dataset import MANIFEST, row, rollout
from stepward.prm.dataset.store import ShardStore
with ShardStore.create_or_resume(sys.argv[1], MANIFEST, resume=True) as store:
    for i in sorted(set(range(60)) - store.finished()):
        store.write_shard(i, [row(2 * i), row(2 * i + 1)] * 20, [rollout(2 * i)], {"seconds": time.time()})
        print(i, flush=True)
    store.seal()
"""


def writer(folder: Path, **kwargs) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", WRITER, str(folder), str(Path(__file__).parent)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **kwargs)


@pytest.mark.slow
def test_kill_9_at_any_moment_leaves_a_folder_that_resumes_to_the_same_bytes(tmp_path):
    writer(tmp_path / "calm").communicate()
    kills = 0
    while True:
        process = writer(tmp_path / "killed")
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(0.013 * (kills % 7))
        process.kill()
        process.communicate()
        kills += 1
        if (tmp_path / "killed" / "manifest.json").exists() or kills == 10:
            break
        for path in (tmp_path / "killed").rglob("shard-*.parquet"):
            pq.read_metadata(path)  # every file with its name is whole
    writer(tmp_path / "killed").communicate()
    assert kills > 3
    assert contents(tmp_path / "calm") == contents(tmp_path / "killed")
    assert verify(tmp_path / "killed").ok


@pytest.mark.slow
def test_a_full_disk_says_so_and_leaves_a_folder_that_resumes(tmp_path):
    def small_files() -> None:
        # what a full disk does to a write: it fails part of the way
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    _, errors = writer(tmp_path / "d", preexec_fn=small_files).communicate()
    assert b"StoreError" in errors
    assert b"--resume" in errors
    assert not list((tmp_path / "d").rglob(".writing-*"))
    writer(tmp_path / "d").communicate()
    assert verify(tmp_path / "d").ok


def test_what_a_killed_writer_left_half_written_is_swept(tmp_path):
    ShardStore.create_or_resume(tmp_path / "d", MANIFEST).close()
    leftover = tmp_path / "d" / "solutions" / ".writing-shard-00000.parquet"
    leftover.write_bytes(b"PAR1 half")
    ShardStore.create_or_resume(tmp_path / "d", MANIFEST, resume=True).close()
    assert not leftover.exists()


def test_the_arrow_ipc_format_holds_the_same_rows(tmp_path):
    make(tmp_path / "d", manifest=replace(MANIFEST, file_format="arrow"))
    dataset = open_dataset(tmp_path / "d")
    assert dataset.files()[0].suffix == ".arrow"
    assert list(dataset.solutions()) == [row(i) for i in range(6)]
    assert dataset.scan().collect().height == 6
    assert verify(tmp_path / "d").ok


def test_every_common_reader_opens_the_folder_as_it_is(tmp_path):
    import datasets

    make(tmp_path / "d")
    folder = str(tmp_path / "d" / "solutions")
    query = f"select problem_id, unnest(steps).label from '{folder}/*.parquet' limit 2"
    assert duckdb.sql(query).fetchall() == [("p0", 1), ("p0", 0)]
    assert (
        pl.scan_parquet(f"{folder}/*.parquet").select(pl.col("steps").list.len().sum()).collect().item() == 12
    )
    assert pads.dataset(folder).to_table().schema.equals(SOLUTIONS_SCHEMA)
    assert len(pd.read_parquet(folder)) == 6
    loaded = datasets.load_dataset(folder, split="train", cache_dir=str(tmp_path / "cache"))
    assert loaded[5]["steps"][1]["label"] == 0
    rollouts = datasets.load_dataset(
        str(tmp_path / "d" / "rollouts"), split="train", cache_dir=str(tmp_path / "cache")
    )
    assert rollouts[0]["logprobs"] == [-0.5, -0.25]


def test_a_shard_without_rollouts_does_not_stop_the_datasets_reader(tmp_path):
    import datasets

    with ShardStore.create_or_resume(tmp_path / "d", MANIFEST) as store:
        store.write_shard(0, [])
        store.write_shard(1, [row(1)], [rollout(1)])
        store.write_shard(2, [row(2)])
        store.seal()
    for table, count in (("solutions", 2), ("rollouts", 1)):
        folder = str(tmp_path / "d" / table)
        loaded = datasets.load_dataset(folder, split="train", cache_dir=str(tmp_path / "cache"))
        assert len(loaded) == count


def test_a_scan_of_chosen_columns_reads_only_those(tmp_path):
    make(tmp_path / "d")
    (batch,) = list(open_dataset(tmp_path / "d").batches(columns=["solution_id"], batch_rows=10))[:1]
    assert batch.schema.names == ["solution_id"]


def test_a_table_of_other_types_is_refused(tmp_path):
    table = solutions_table([row(0)])
    with (
        ShardStore.create_or_resume(tmp_path / "d", MANIFEST) as store,
        pytest.raises(StoreError, match="conform"),
    ):
        store.write_tables(0, table.drop(["source"]))


def test_a_shard_without_rows_is_a_shard(tmp_path):
    with ShardStore.create_or_resume(tmp_path / "d", MANIFEST) as store:
        store.write_shard(0, [])
        store.write_shard(1, [row(1)])
        store.seal()
    assert list(open_dataset(tmp_path / "d").solutions()) == [row(1)]
    assert verify(tmp_path / "d").ok


def test_metrics_are_gathered_outside_the_fingerprint(tmp_path):
    sealed = make(tmp_path / "d")
    metrics = pq.read_table(tmp_path / "d" / "run_metrics.parquet").to_pylist()
    assert [(m["shard"], m["name"]) for m in metrics] == [(0, "seconds"), (1, "seconds"), (2, "seconds")]
    assert make(tmp_path / "e").fingerprint == sealed.fingerprint


def test_a_manifest_gives_itself_back_and_notices_an_edit(tmp_path):
    sealed = make(tmp_path / "d")
    assert Manifest.from_json(sealed.to_json()) == sealed
    with pytest.raises(StoreError, match="edited"):
        Manifest.from_json(sealed.to_json().replace('"run": 7', '"run": 8'))
    with pytest.raises(StoreError, match="no manifest"):
        Manifest.from_json("[]")


def test_tokens_and_keys_never_reach_a_manifest(tmp_path):
    secrets = {
        "api_key": "opensesame", "hub": {"hf_token": "x"}, "note": "use hf_abcdefghijklmnopqrstuvwx",
        "url": "https://me:pass@host/v1", "max_tokens": 5, "stop_token": "\n",
    }  # fmt: skip
    text = make(tmp_path / "d", manifest=replace(MANIFEST, config=secrets)).to_json()
    for secret in ("opensesame", "hf_abcdef", "me:pass"):
        assert secret not in text
    cleaned = scrub(secrets)
    assert cleaned["api_key"] == cleaned["hub"]["hf_token"] == SCRUBBED
    assert (cleaned["max_tokens"], cleaned["stop_token"]) == (5, "\n")
    assert config_hash(secrets) == config_hash({**secrets, "api_key": "another"})
