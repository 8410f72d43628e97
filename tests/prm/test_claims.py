"""Several processes write one dataset folder: each shard once, the same bytes, nothing held by the dead."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from stepward.prm.dataset.manifest import Manifest
from stepward.prm.dataset.store import ShardStore, open_dataset, verify
from stepward.prm.errors import StoreError
from stepward.prm.locks import KernelLock, Lease, holders
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
)

POLICY, LABELER = PolicyInfo("tiny", "abc", "scripted"), LabelerInfo("monte_carlo", "1", "cafe")
MANIFEST = Manifest({"k": 4}, "0.1.0", Allocation.FIXED_K, LABELER, seeds={"run": 7}, policy=POLICY)
NUM_SHARDS = 12


def row(number: int) -> LabeledSolution:
    problem = Problem(f"p{number}", f"What is {number}?", (str(number),), source="made", licence="MIT")
    return LabeledSolution(
        problem, Solution(f"p{number}-0", problem.id, (Step("a step", (0, 6)),), 3, Outcome.WRONG, "0"),
        tuple(Estimate(Counts(right=1, wrong=2), 0.4, 0.1, 0.7) for _ in range(2)),
        (StepLabel(0, decided_by="returns"),), 0,
        POLICY, POLICY, "tok", 7, Allocation.FIXED_K, 10, 100, LABELER,
    )  # fmt: skip


def alone(folder: Path) -> Manifest:
    with ShardStore.create_or_resume(folder, MANIFEST) as store:
        for index in range(NUM_SHARDS):
            store.write_shard(index, [row(index)])
        return store.seal()


# A writer of its own process: claims what is free, copies it from a finished folder, and seals what is whole.
WRITER = """
import sys, time
from pathlib import Path
from stepward.prm.dataset.store import ShardStore, open_dataset
from dataclasses import replace
source, out, lease, slow = open_dataset(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3]) or None, float(sys.argv[4])
blank = type(source.manifest.totals)()
manifest = replace(source.manifest, shards=(), fingerprint=None, totals=blank)
wrote = []
with ShardStore.create_or_resume(out, manifest, together=True, lease_s=lease) as store:
    print("in", flush=True)
    for index in range(12):
        if store.claim(index):
            time.sleep(slow)
            store.write_tables(index, source.shard("solutions", index), source.shard("rollouts", index))
            wrote.append(index)
    if len(store.finished()) == 12:
        store.seal()
print(*wrote)
"""


def start(source: Path, out: Path, *, lease_s: float = 0, slow_s: float = 0.05) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(source), str(out), str(lease_s), str(slow_s)],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.parametrize("lease_s", [0.0, 30.0], ids=["kernel locks", "leases"])
def test_three_processes_write_each_shard_once_and_the_same_bytes(tmp_path, lease_s):
    whole = alone(tmp_path / "alone")
    writers = [start(tmp_path / "alone", tmp_path / "together", lease_s=lease_s) for _ in range(3)]
    wrote = [list(map(int, w.communicate(timeout=60)[0].split()[1:])) for w in writers]
    assert [w.returncode for w in writers] == [0, 0, 0]
    assert sorted(index for indices in wrote for index in indices) == list(range(NUM_SHARDS))
    assert open_dataset(tmp_path / "together").manifest.fingerprint == whole.fingerprint
    assert verify(tmp_path / "together").ok
    assert (tmp_path / "together" / "manifest.json").read_bytes() == (
        tmp_path / "alone" / "manifest.json"
    ).read_bytes()


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.parametrize("lease_s", [0.0, 1.0], ids=["kernel locks", "leases"])
def test_what_a_killed_process_had_claimed_is_written_by_the_next(tmp_path, lease_s):
    whole = alone(tmp_path / "alone")
    killed = start(tmp_path / "alone", tmp_path / "together", lease_s=lease_s, slow_s=30)
    assert killed.stdout is not None
    assert killed.stdout.readline() == "in\n"
    time.sleep(0.5)
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait()
    if lease_s:  # until its time is over the shard of the dead is its own
        time.sleep(lease_s + 0.5)
    wrote, _ = start(tmp_path / "alone", tmp_path / "together", lease_s=lease_s).communicate(timeout=60)
    assert list(map(int, wrote.split()[1:])) == list(range(NUM_SHARDS))
    assert open_dataset(tmp_path / "together").manifest.fingerprint == whole.fingerprint


def test_a_run_that_works_alone_and_one_that_works_with_others_do_not_start_beside_each_other(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("stepward.prm.dataset.claims._JOIN_WITHIN_S", 0.1)
    with (
        ShardStore.create_or_resume(tmp_path, MANIFEST),
        pytest.raises(StoreError, match=r"works alone.*--shards"),
    ):
        ShardStore.create_or_resume(tmp_path, MANIFEST, together=True)
    with ShardStore.create_or_resume(tmp_path, MANIFEST, together=True):
        with pytest.raises(StoreError, match="being written by another run"):
            ShardStore.create_or_resume(tmp_path, MANIFEST, resume=True)
        with ShardStore.create_or_resume(tmp_path, MANIFEST, together=True) as other:
            assert other.finished() == frozenset()


def test_a_shard_is_claimed_by_one_and_free_again_when_it_is_given_back(tmp_path):
    with (
        ShardStore.create_or_resume(tmp_path, MANIFEST, together=True) as one,
        ShardStore.create_or_resume(tmp_path, MANIFEST, together=True) as two,
    ):
        assert one.claim(0)
        assert not two.claim(0)
        one.give_back(0)
        assert two.claim(0)
        two.write_shard(0, [row(0)])
        assert not one.claim(0)  # finished


def test_a_shard_that_was_not_claimed_is_not_made_final(tmp_path):
    with ShardStore.create_or_resume(tmp_path, MANIFEST, together=True) as store:
        with pytest.raises(StoreError, match="not claimed"):
            store.write_shard(0, [row(0)])
        assert store.finished() == frozenset()


def test_a_lease_goes_to_one_of_many_that_reach_for_it_at_once(tmp_path):
    leases = [Lease(tmp_path / "x.lease", settle_s=0.05) for _ in range(16)]
    got: list[bool] = []
    together = threading.Barrier(16)

    def reach(lease: Lease) -> None:
        together.wait()
        got.append(lease.try_acquire())

    threads = [threading.Thread(target=reach, args=(lease,)) for lease in leases]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(got) == 1
    for lease in leases:
        lease.release()
    assert list(tmp_path.iterdir()) == []


def test_a_lease_that_is_over_goes_to_one_of_many_and_its_owner_notices(tmp_path):
    path = tmp_path / "x.lease"
    asleep = Lease(path, ttl_s=60, settle_s=0.2)
    assert asleep.try_acquire()
    os.utime(path, (time.time() - 100, time.time() - 100))
    asleep.check()  # late, but nobody has taken it
    got: list[bool] = []
    threads = [
        threading.Thread(target=lambda: got.append(Lease(path, ttl_s=60, settle_s=0.2).try_acquire()))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(got) == 1
    with pytest.raises(StoreError, match="taken over"):
        asleep.check()


def test_a_lease_is_renewed_while_its_owner_lives(tmp_path):
    path = tmp_path / "x.lease"
    lease = Lease(path, ttl_s=0.4)
    assert lease.try_acquire()
    began = path.stat().st_mtime
    time.sleep(0.5)
    assert path.stat().st_mtime > began
    assert not Lease(path, ttl_s=0.4, settle_s=0.01).try_acquire()
    lease.release()
    assert not path.exists()


def test_a_kernel_lock_is_held_alone_or_shared(tmp_path):
    one, two = KernelLock(tmp_path / "x"), KernelLock(tmp_path / "x")
    assert one.try_acquire(shared=True)
    assert two.try_acquire(shared=True)
    assert not two.try_acquire()  # and what it had is given up
    assert one.try_acquire()
    assert not two.try_acquire(shared=True)
    assert one.owner().startswith(f"process {os.getpid()} on ")
    assert holders(tmp_path / "x") == [os.getpid()]
    one.release()
    one.release()
    assert holders(tmp_path / "x") == []
    assert two.try_acquire()
