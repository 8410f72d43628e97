"""Publishing, against a loopback server that speaks the Hub's protocol to the real huggingface_hub client."""

import importlib.util
import json
import logging
import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import huggingface_hub.constants
import pytest
from huggingface_hub import ModelCard
from typer.testing import CliRunner

from stepward.flows.cli.main import app
from stepward.prm.dataset.store import Manifest, ShardStore
from stepward.prm.errors import PublishError
from stepward.prm.publishing.cards import write_card
from stepward.prm.publishing.hub import plan_publication, publish
from stepward.prm.publishing.model_card import write_model_card
from stepward.prm.types import (
    Allocation,
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


def _loopback():
    spec = importlib.util.spec_from_file_location("loopback_hub", Path(__file__).with_name("loopback_hub.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


loopback = _loopback()
Hub, TOKEN = loopback.Hub, loopback.TOKEN
CHECKED = {
    "checked": 4, "benchmarks": {"gsm8k_test": 1319}, "ngram": 8, "min_overlap": 0.5, "exact": {}, "near": {},
    "matches": [],
}  # fmt: skip


@pytest.fixture
def hub(monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_XET", True)
    server = Hub()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def row(number: int, text: str = "step") -> LabeledSolution:
    nobody = PolicyInfo("policy", "1", "scripted")
    return LabeledSolution(
        Problem(f"p{number}", f"What is {number}?", ("1",), source="made", licence="MIT"),
        Solution(f"p{number}-0", f"p{number}", (Step(text),), outcome=Outcome.RIGHT),
        (Estimate(), Estimate()), (StepLabel(1),), None, nobody, nobody, "t", 7, Allocation.FIXED_K, 5, 10,
        LabelerInfo("x", "1", "c"),
    )  # fmt: skip


def make(
    folder: Path, text: str = "step", note: dict | None = CHECKED, shards: int = 4, licence: str = "MIT"
) -> Path:
    manifest = Manifest({"text": text}, "1", Allocation.FIXED_K, LabelerInfo("x", "1", "c"))
    with ShardStore.create_or_resume(folder, manifest) as store:
        for i in range(shards):
            solution = row(i, text)
            solution = replace(solution, problem=replace(solution.problem, licence=licence))
            rollout = Rollout(f"p{i}", 0, 0, 1, (1,), "so 1", FinishReason.STOP, None, Outcome.RIGHT, "1")
            store.write_shard(i, [solution], [(f"p{i}-0", rollout)], {"seconds": 1.0})
        store.seal(contamination=note)
    (folder / "README.md").write_text("---\nlicense: mit\n---\n# Steps\n")
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make(tmp_path / "d")


def send(hub, folder: Path, **kwargs):
    return publish(folder, "me/steps", token=kwargs.pop("token", TOKEN), endpoint=hub.url, **kwargs)


def main_tree(hub) -> dict:
    repo = hub.repos["me/steps"]
    return repo.commits[repo.branches["main"]]


def test_a_dataset_reaches_main_and_a_tag_in_one_commit(hub, folder):
    plan = plan_publication(folder, "me/steps")
    done = send(hub, folder)
    repo = hub.repos["me/steps"]
    assert set(main_tree(hub)) == {f.path for f in plan.files}
    assert len(hub.seen_on_main) == 1
    assert repo.tags == {plan.tag: done.commit} == {plan.tag: repo.branches["main"]}
    assert list(repo.branches) == ["main"]
    assert repo.private
    assert done.uploaded == len(plan.files)
    assert len(hub.uploads) == len(set(hub.uploads)) == 8  # no parquet file was sent twice


def test_what_depends_on_time_or_machine_is_not_published(hub, folder):
    send(hub, folder)
    assert not any(p.startswith((".", "run_metrics")) for p in main_tree(hub))
    assert {p.split("/")[0] for p in main_tree(hub)} == {
        "README.md", "manifest.json", "receipts", "rollouts", "solutions",
    }  # fmt: skip


def test_an_upload_that_broke_left_main_as_it_was_and_goes_on_when_called_again(hub, folder, tmp_path):
    # huggingface/datasets#5045: an interrupted push left old and new shards mixed
    first = send(hub, make(tmp_path / "old", "old"))
    before = dict(main_tree(hub))
    hub.break_after_uploads = len(hub.uploads) + 2
    with pytest.raises(PublishError, match=r"(?s)again"):
        send(hub, folder)
    assert main_tree(hub) == before
    assert set(hub.repos["me/steps"].tags.values()) == {first.commit}
    hub.break_after_uploads = None
    sent = len(hub.uploads)
    send(hub, folder)
    # four solutions shards are new, two of them had arrived; the rollouts are the same blobs as before
    assert len(hub.uploads) == sent + 2
    assert len(hub.repos["me/steps"].tags) == 2
    assert [len(tree) for tree in hub.seen_on_main] == [len(before)] * 2


def test_calling_again_after_all_is_there_changes_nothing(hub, folder):
    first = send(hub, folder)
    again = send(hub, folder)
    assert (again.commit, again.uploaded) == (first.commit, 0)
    assert len(hub.seen_on_main) == 1


def test_files_of_an_older_version_do_not_stay_on_main(hub, tmp_path):
    send(hub, make(tmp_path / "old", shards=3))
    send(hub, make(tmp_path / "new", "other", shards=2))
    assert len([p for p in main_tree(hub) if p.startswith("solutions/")]) == 2


def test_a_file_that_arrived_damaged_keeps_main_as_it_was(hub, folder):
    hub.corrupt_uploads = True
    with pytest.raises(PublishError, match="are not those here"):
        send(hub, folder)
    assert main_tree(hub) == {}
    assert hub.repos["me/steps"].tags == {}


def test_someone_elses_commit_in_between_is_not_overwritten(hub, folder):
    def meddle() -> None:
        hub.before_commit_to_main = lambda: None
        hub.repos["me/steps"].commit("main", {"theirs.txt": ("0" * 40, 1, None)})

    hub.before_commit_to_main = meddle
    with pytest.raises(PublishError, match="someone else committed to main"):
        send(hub, folder)
    assert set(main_tree(hub)) == {"theirs.txt"}
    send(hub, folder)
    assert "manifest.json" in main_tree(hub)


def test_a_wrong_token_is_said_and_never_shown(hub, folder):
    wrong = "hf_" + "wrongwrongwrongwrong99"
    with pytest.raises(PublishError, match="token is missing or wrong") as fault:
        send(hub, folder, token=wrong)
    assert wrong not in str(fault.value)
    assert fault.value.__cause__ is None


@pytest.mark.parametrize(
    ("part", "status", "message", "remedy"),
    [
        ("lfs/objects/batch", 403, "Private repository storage limit reached", "storage is full"),
        ("/commit/", 413, "Payload too large", "storage is full"),
        ("/api/repos/create", 403, f"No rights; you sent {TOKEN}", "may not write"),
    ],
)
def test_what_the_hub_refuses_is_said_with_what_to_do(hub, folder, part, status, message, remedy):
    hub.answers[part] = (status, message)
    with pytest.raises(PublishError, match=remedy) as fault:
        send(hub, folder)
    assert str(status) in str(fault.value)
    assert TOKEN not in str(fault.value)


def test_a_hub_that_is_not_there_is_said(folder):
    with pytest.raises(PublishError, match="the upload broke"):
        publish(folder, "me/steps", token=TOKEN, endpoint="http://127.0.0.1:9")


REFUSED = {
    "contamination": {"note": {**CHECKED, "exact": {"gsm8k_test": 2}}},
    "licence": {"licence": ""},
}


@pytest.mark.parametrize("check", REFUSED)
def test_a_check_forbids_publishing_until_it_is_allowed_by_name(hub, tmp_path, check):
    # simplescaling/s1#26: a training problem stood in a popular test set
    folder = make(tmp_path / "d", **REFUSED[check])
    with pytest.raises(PublishError, match=f"{check}: .*"):
        send(hub, folder)
    assert hub.repos == {}
    send(hub, folder, allow=[check])
    assert "manifest.json" in main_tree(hub)


def test_a_damaged_dataset_is_published_only_where_that_is_allowed_by_name(hub, folder):
    shard = folder / "solutions" / "shard-00001.parquet"
    shard.write_bytes(shard.read_bytes()[:-1] + b"x")
    send(hub, folder, allow=["verification"])
    assert "solutions/shard-00001.parquet" in main_tree(hub)


def test_a_dataset_that_nobody_checked_against_benchmarks_is_refused(hub, tmp_path):
    with pytest.raises(PublishError, match="not checked against any benchmark"):
        send(hub, make(tmp_path / "d", note=None))


def test_a_damaged_dataset_is_refused(hub, folder):
    shard = folder / "solutions" / "shard-00001.parquet"
    shard.write_bytes(shard.read_bytes()[:-1] + b"x")
    with pytest.raises(PublishError, match=r"verification: .*shard-00001"):
        send(hub, folder)


def test_a_dataset_without_a_card_is_refused_and_an_unknown_check_is_named(hub, folder):
    (folder / "README.md").unlink()
    with pytest.raises(PublishError, match=r"no README\.md"):
        send(hub, folder)
    with pytest.raises(PublishError, match="'cards'"):
        send(hub, folder, allow=["cards"])


def test_a_dry_run_lists_files_and_card_and_sends_nothing(hub, folder):
    plan = plan_publication(folder, "me/steps")
    assert plan.refusals == {}
    assert "solutions/shard-00000.parquet" in {f.path for f in plan.files}
    assert plan.card.startswith("---\n")
    assert hub.repos == {}


def test_the_command_shows_files_card_and_refusals_and_sends_nothing(hub, folder, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    (folder / "solutions" / "shard-00001.parquet").unlink()
    shown = CliRunner().invoke(app, ["publish", str(folder), "me/steps", "--dry-run"])
    assert shown.exit_code == 0, shown.output
    assert "solutions/shard-00000.parquet" in shown.output
    assert "# Steps" in shown.output
    assert "refused by verification" in shown.output
    assert hub.repos == {}


def test_no_log_of_any_library_holds_the_token(hub, folder, caplog):
    caplog.set_level(logging.DEBUG)
    send(hub, folder)
    hub.answers["/commit/"] = (403, "you may not write")
    with pytest.raises(PublishError) as fault:
        send(hub, make(folder.parent / "other", "other"))
    assert caplog.records  # the client does log its requests
    assert TOKEN not in caplog.text + str(fault.value) + repr(fault.value)
    assert all(TOKEN.encode() not in p.read_bytes() for p in folder.rglob("*") if p.is_file())


def test_the_client_went_through_every_part_of_the_protocol(hub, folder):
    send(hub, folder)
    assert set(hub.asked) >= {"refs", "branch", "preupload", "tree", "commit", "tag", "lfs batch", "create"}
    # one commit on the branch, one on main
    assert hub.asked["commit"] == 2


def model(folder: Path, licence: str = "mit") -> Path:
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"\0" * 3000)
    (folder / "config.json").write_text("{}")
    (folder / "README.md").write_text(
        f"---\nlicense: {licence}\n---\n# A model\n" if licence else "# A model\n"
    )
    return folder


def test_a_model_is_published_the_same_way(hub, tmp_path):
    done = send(hub, model(tmp_path / "m"), kind="model", private=False)
    assert set(main_tree(hub)) == {"README.md", "config.json", "model.safetensors"}
    assert hub.repos["me/steps"].tags == {done.tag: done.commit}
    assert not hub.repos["me/steps"].private


def test_a_model_is_published_with_the_card_that_its_checkpoint_gives(hub, tmp_path):
    folder = model(tmp_path / "m", licence="")
    (folder / "prm.json").write_text(json.dumps({"head": {"kind": "scalar", "outputs": 1}, "history": []}))
    write_model_card(folder, repo="me/steps", licence="apache-2.0")
    send(hub, folder, kind="model")
    published = hub.blobs[main_tree(hub)["README.md"][0]].decode()
    assert ModelCard(published).data.license == "apache-2.0"
    assert 'load("me/steps")' in published


def test_a_model_with_pickled_weights_or_no_licence_is_refused(hub, tmp_path):
    folder = model(tmp_path / "m", licence="")
    (folder / "pytorch_model.bin").write_bytes(b"pickle")
    with pytest.raises(PublishError, match=r"(?s)weights: pytorch_model\.bin.*licence:"):
        send(hub, folder, kind="model")


@pytest.mark.slow
def test_with_xet_a_write_token_is_asked_for_and_its_refusal_is_said(hub, folder, monkeypatch):
    # As far as the token request: the chunks that xet sends after it go to a storage server that is not played here.
    pytest.importorskip("hf_xet")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_XET", False)
    hub.answers["xet-write-token"] = (403, "no rights to write")
    with pytest.raises(PublishError, match=r"the upload broke .*xet-write-token") as fault:
        send(hub, folder)
    assert TOKEN not in str(fault.value)
    assert main_tree(hub) == {}


@pytest.mark.slow
def test_datasets_reads_back_from_the_hub_what_was_published_through_hf_endpoint(hub, folder, tmp_path):
    write_card(folder, repo="me/steps")
    program = """
import sys
from stepward.prm.publishing.hub import publish
import datasets
done = publish(sys.argv[1], "me/steps")
for revision in ("main", done.tag):
    rows = datasets.load_dataset("me/steps", "solutions", split="train", revision=revision)
    assert rows["problem_id"] == ["p0", "p1", "p2", "p3"], rows["problem_id"]
    assert rows[0]["steps"][0]["label"] == 1
    rollouts = datasets.load_dataset("me/steps", "rollouts", split="train", revision=revision)
    assert rollouts["text"] == ["so 1"] * 4
print("read back")
"""
    environment = {
        **os.environ, "HF_ENDPOINT": hub.url, "HF_HUB_DISABLE_XET": "1", "HF_TOKEN": TOKEN,
        "HF_HOME": str(tmp_path / "home"), "HF_HUB_DISABLE_TELEMETRY": "1",
    }  # fmt: skip
    ran = subprocess.run(
        [sys.executable, "-c", program, str(folder)], env=environment, capture_output=True, text=True
    )
    assert ran.stdout.strip().endswith("read back"), ran.stderr[-3000:]
    assert TOKEN not in ran.stdout + ran.stderr
    for file in (tmp_path / "home").rglob("*"):
        assert not file.is_file() or TOKEN.encode() not in file.read_bytes()
