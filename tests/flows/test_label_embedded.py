"""The command on the embedded policy: the same bytes for any batch, any number of workers, and after a kill."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stepward.prm.dataset.integrity import verify
from stepward.prm.dataset.store import open_dataset
from stepward.prm.types import VerdictKind

pytestmark = pytest.mark.slow

COMMAND = [sys.executable, "-m", "stepward"]
ARGUMENTS = [
    *("label", "generator:24", "--recipe", "quickstart", "--no-prefect", "--shard-problems", "6"),
    *("--num-solutions", "2", "--num-rollouts", "2"),
]


def stepward(*words: str | Path, check: bool = True) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([*COMMAND, *map(str, words)], capture_output=True, text=True, env=_environment())
    assert not check or done.returncode == 0, done.stderr
    return done


def _environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def content(folder: Path) -> dict[str, bytes]:
    return {
        str(p.relative_to(folder)): p.read_bytes()
        for p in sorted(folder.rglob("*"))
        if p.is_file() and "metrics" not in str(p) and not p.name.startswith(".")
    }


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("whole") / "data"
    stepward(*ARGUMENTS, "--out", out)
    return out


def test_another_batch_size_gives_the_same_bytes(whole, tmp_path):
    stepward(*ARGUMENTS, "--out", tmp_path / "b", "--batch-size", "7")
    assert content(tmp_path / "b") == content(whole)


def test_two_workers_give_the_same_bytes(whole, tmp_path):
    stepward(*ARGUMENTS, "--out", tmp_path / "w", "--workers", "2")
    assert content(tmp_path / "w") == content(whole)


def test_a_killed_run_resumes_to_the_same_bytes(whole, tmp_path):
    out = tmp_path / "killed"
    words = [*COMMAND, *ARGUMENTS, "--out", str(out)]
    run = subprocess.Popen(words, env=_environment(), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 300
    while not list(out.glob("receipts/*.json")) and run.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    run.send_signal(signal.SIGKILL)
    run.wait()
    assert not (out / "manifest.json").exists(), "the run was killed in its middle"
    stepward(*ARGUMENTS, "--out", out, "--resume")
    assert content(out) == content(whole)
    assert verify(out).ok
    again = stepward(*ARGUMENTS, "--out", out, "--resume")
    assert "nothing left to do" in again.stdout


def test_ctrl_c_keeps_what_is_finished_and_says_how_to_go_on(whole, tmp_path):
    out = tmp_path / "stopped"
    words = [*COMMAND, *ARGUMENTS, "--out", str(out)]
    run = subprocess.Popen(
        words, env=_environment(), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    )
    deadline = time.monotonic() + 300
    while not list(out.glob("receipts/*.json")) and run.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    run.send_signal(signal.SIGINT)
    _, said = run.communicate(timeout=60)
    assert run.returncode == 130
    assert "--resume" in said
    assert "Traceback" not in said
    stepward(*ARGUMENTS, "--out", out, "--resume")
    assert content(out) == content(whole)


def test_labels_of_the_embedded_policy_hold_every_kind_of_row(whole):
    rows = list(open_dataset(whole).solutions())
    assert {len(r.prefixes) - len(r.solution.steps) for r in rows} == {1}
    assert all(r.solution.token_ids for r in rows)
    assert all(len(s.token_logprobs) == len(s.token_ids) for r in rows for s in r.solution.steps)
    assert {x.label for r in rows for x in r.labels} >= {0, 1}


def test_a_policy_folder_without_a_tokenizer_is_named(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"model_type": "llama"}')
    done = stepward(
        "label",
        "generator:2",
        "--policy",
        tmp_path / "model",
        "--out",
        tmp_path / "o",
        "--no-prefect",
        check=False,
    )
    assert done.returncode == 2
    assert "tokenizer" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_dry_run_says_what_it_would_spend_and_writes_nothing(tmp_path):
    done = stepward(*ARGUMENTS, "--out", tmp_path / "dry", "--dry-run")
    assert "24 problems" in done.stdout
    assert "tokens" in done.stdout
    assert not (tmp_path / "dry").exists()


def test_the_command_and_the_package_start_quickly():
    script = "import resource, stepward; u = resource.getrusage(resource.RUSAGE_SELF); print(u.ru_utime + u.ru_stime)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 0.2
    heavy = "import sys, stepward.prm.types as t; print({'torch', 'vllm', 'prefect', 'datasets'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", heavy], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_tool_verdicts_of_a_real_run_are_fused_named_and_the_same_for_any_batch(tmp_path):
    words = [
        *("label", "generator:12", "--recipe", "quickstart", "--no-prefect", "--num-solutions", "2"),
        *("--allocation", "information_gain", "--labeler", "changepoint", "--verifiers", "arithmetic"),
    ]
    stepward(*words, "--out", tmp_path / "a")
    stepward(*words, "--out", tmp_path / "b", "--batch-size", "5")
    assert content(tmp_path / "a") == content(tmp_path / "b")
    rows = list(open_dataset(tmp_path / "a").solutions())
    by = {x.decided_by for r in rows for x in r.labels if x.label is not None}
    assert "posterior+arithmetic" in by
    told = {v.kind for r in rows for x in r.labels for v in x.verdicts}
    assert VerdictKind.SUPPORTED in told
    mine = tmp_path / "mine.jsonl"
    solution = {"problem_id": rows[0].problem.id, "steps": ["2 + 2 = 5", "The answer is 5."]}
    mine.write_text(json.dumps(solution) + "\n")
    vetoed = [*words, "--fusion", "veto", "--solutions", mine, "--out", tmp_path / "v"]
    stepward(*vetoed)
    (row,) = open_dataset(tmp_path / "v").solutions()
    assert (row.labels[0].label, row.labels[0].decided_by, row.first_error) == (0, "arithmetic", 0)
    assert "off_policy" in row.marks


def test_problems_without_answers_are_labelled_by_votes_and_compared_with_the_truth(tmp_path):
    out = tmp_path / "votes"
    stepward(
        *("label", "generator:12", "--recipe", "quickstart", "--no-prefect", "--num-solutions", "6"),
        *("--num-rollouts", "2", "--outcomes", "votes", "--out", out),
    )
    rows = list(open_dataset(out).solutions())
    assert {r.solution.outcome_from for r in rows} == {"votes"}
    majority = [r for r in rows if "no_majority" not in r.marks]
    assert majority
    assert all(r.solution.outcome_share is not None for r in majority if r.solution.final_answer)
    audited = stepward("audit", "labels", out)
    assert "against the exact truth" in audited.stdout
