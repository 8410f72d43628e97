"""``stepward runs``: what a run is doing, read from its folder."""

import json
from datetime import UTC, datetime, timedelta

from stepward.flows.watching.runs import list_runs, run_line, runs_table
from stepward.prm.dataset.manifest import Manifest
from stepward.prm.dataset.store import ShardStore
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


def row(number: int) -> LabeledSolution:
    problem = Problem(f"p{number}", f"What is {number}?", (str(number),), source="made", licence="MIT")
    return LabeledSolution(
        problem, Solution(f"p{number}-0", problem.id, (Step("a step", (0, 6)),), 3, Outcome.WRONG, "0"),
        tuple(Estimate(Counts(right=1, wrong=2), 0.4, 0.1, 0.7) for _ in range(2)),
        (StepLabel(0, decided_by="returns"),), 0,
        POLICY, POLICY, "tok", 7, Allocation.FIXED_K, 10, 100, LABELER,
    )  # fmt: skip


def test_runs_below_a_folder_are_listed_with_state_shards_labels_and_tokens(tmp_path):
    with ShardStore.create_or_resume(tmp_path / "a" / "done", MANIFEST) as store:
        for index in range(2):
            store.write_shard(index, [row(index)], metrics={"seconds": 9.0, "tokens": 100.0})
        store.seal()
    with ShardStore.create_or_resume(tmp_path / "b", MANIFEST) as store:
        store.write_shard(0, [row(0)], metrics={"seconds": 4.0})
        running = list_runs(tmp_path)
    stopped = list_runs(tmp_path, tmp_path / "b")
    assert [(r.folder.name, r.state) for r in running] == [("done", "finished"), ("b", "running")]
    assert [(r.folder.name, r.state, r.owner) for r in stopped] == [
        ("done", "finished", ""),
        ("b", "stopped", ""),
    ]
    done, half = stopped
    # Two rows of one wrong step each in 18 s: 400 labels an hour; 100 generated tokens a row.
    assert (done.shards, done.shards_total, done.problems, done.labels, done.labels_per_hour) == (
        2,
        2,
        2,
        2,
        400.0,
    )
    assert (half.shards, half.shards_total, half.labels, half.labels_per_hour) == (1, None, 1, 900.0)
    assert done.tokens == 2 * half.tokens > 0
    assert runs_table(stopped).row_count == 2


def test_how_much_there_is_to_do_comes_from_what_the_process_says(tmp_path):
    with ShardStore.create_or_resume(tmp_path, MANIFEST) as store:
        store.write_shard(0, [row(0)])
        state = {"run": MANIFEST.run_id, "part": None, "problems_total": 7, "warnings": ["faults"]}
        (tmp_path / "run_metrics.json").write_text(json.dumps(state))
        (tmp_path / "run_metrics.1of2.json").write_text("{half")
        line = run_line(tmp_path)
        assert (line.problems, line.problems_total, line.warnings) == (1, 7, ("faults",))
    assert run_line(tmp_path).warnings == ()  # of a process that is gone


def test_a_run_of_another_machine_is_told_by_what_it_wrote_last(tmp_path):
    with ShardStore.create_or_resume(tmp_path, MANIFEST) as store:
        store.write_shard(0, [row(0)])
    for seconds, state in ((5, "active elsewhere"), (60, "stopped")):
        time = (datetime.now(UTC) - timedelta(seconds=seconds)).isoformat(timespec="milliseconds")
        (tmp_path / "run_metrics.json").write_text(json.dumps({"run": MANIFEST.run_id, "time": time}))
        assert run_line(tmp_path).state == state


def test_a_folder_whose_manifest_was_cut_is_named_broken(tmp_path):
    with ShardStore.create_or_resume(tmp_path, MANIFEST) as store:
        store.write_shard(0, [row(0)])
        store.seal()
    path = tmp_path / "manifest.json"
    path.write_text(path.read_text()[:100])
    assert run_line(tmp_path).state.startswith("broken: ")
