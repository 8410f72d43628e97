"""The flows that schedules run, on a real Prefect server: artifacts, names and tags, retries, and the Hub's token."""

import asyncio
import importlib.util
import json
import sys
import threading
from pathlib import Path
from types import ModuleType

import huggingface_hub.constants
import pytest
from benchmarks.soak import write_inputs

from stepward.flows.orchestration.prefect_server import set_quiet_defaults
from stepward.prm.dataset.store import open_dataset
from stepward.prm.errors import PublishError

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("prefect")]


@pytest.fixture(scope="module")
def prefect():
    set_quiet_defaults()
    from prefect.testing.utilities import prefect_test_harness

    with prefect_test_harness(server_startup_timeout=180):
        yield


def loopback() -> ModuleType:
    name = "stepward_tests_loopback_hub"
    if name not in sys.modules:
        place = Path(__file__).parents[1] / "prm" / "loopback_hub.py"
        spec = importlib.util.spec_from_file_location(name, place)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


@pytest.fixture
def hub(monkeypatch):
    server = loopback().Hub()
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", server.url)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


SETTINGS = {
    "policy": "replay:log.jsonl", "num_solutions": 2, "allocation": "fixed_k", "num_rollouts": 2,
    "labeler": "math_shepherd", "shard_problems": 5, "limit": 20,
}  # fmt: skip


@pytest.fixture
def labelled(tmp_path, monkeypatch) -> Path:
    """A working directory with problems, a log and a labelled folder, made by the flow itself."""
    from stepward.flows.orchestration.deployed import label

    monkeypatch.chdir(tmp_path)
    write_inputs(tmp_path)
    (tmp_path / "recipe.yaml").write_text(
        json.dumps({"problems": "problems.jsonl", "out": "labels"} | SETTINGS)
    )
    done = asyncio.run(label("recipe.yaml", folder=str(tmp_path)))
    assert done["state"] == "finished"
    assert done["problems"] == 20
    return tmp_path


def artifacts() -> dict[str, list]:
    """Artifacts by key, oldest first."""
    from prefect import get_client

    async def read():
        async with get_client() as client:
            return await client.read_artifacts()

    found: dict[str, list] = {}
    for artifact in sorted(asyncio.run(read()), key=lambda a: a.created):
        found.setdefault(artifact.key, []).append(artifact)
    return found


def test_a_labelling_run_shows_progress_a_table_and_a_report_and_goes_on_or_says_that_nothing_is_left(
    labelled,
):
    from stepward.flows.orchestration.deployed import label

    shown = artifacts()
    assert shown["labelling-progress"][-1].data == 100
    table = {row["what"]: row["number"] for row in json.loads(shown["labels"][-1].data)}
    assert table["problems"] == 20
    assert table["solutions"] == 40
    # Of each problem's two logged solutions one is right and one is off by one.
    assert table["problems solved up to 60 %"] == 20
    assert "finished, fingerprint" in shown["labelling-report"][-1].data
    again = asyncio.run(label("recipe.yaml", folder=str(labelled)))
    assert again["state"].startswith("nothing left to do")


def test_relabel_train_and_evaluate_run_as_flows(labelled):
    from stepward.flows.orchestration.deployed import evaluate, relabel, train

    done = asyncio.run(relabel("labels", "relabelled", rule="hard"))
    assert done["fingerprint"] == open_dataset(labelled / "relabelled").manifest.fingerprint
    (labelled / "train.yaml").write_text(
        json.dumps({"data": "relabelled", "out": "prm-{date}", "epochs": 1, "validation_share": 0.0})
    )
    made = asyncio.run(train("train.yaml", settings={"out": "prm-{date}"}))
    prm = Path(made["prm"])
    assert "{date}" not in made["prm"]
    assert (labelled / prm).is_dir()
    rows = [
        {"id": f"x{i}", "generator": "g", "problem": f"What is {i} + {i}?", "steps": [f"{i} + {i} = {2 * i + i % 2}."],
         "final_answer_correct": i % 2 == 0, "label": -1 if i % 2 == 0 else 0}
        for i in range(300, 308)
    ]  # fmt: skip
    (labelled / "bench.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    (labelled / "evaluate.yaml").write_text(
        json.dumps(
            {
                "prm": str(prm),
                "out": "results",
                "processbench": ["bench.jsonl"],
                "threshold": 0.5,
                "bootstrap": 100,
            }
        )
    )
    report = asyncio.run(evaluate("evaluate.yaml"))
    assert (labelled / "results" / "results.json").is_file()
    assert [name.startswith(prm.name) for name in report["f1"]] == [True]


def test_publishing_waits_for_a_hub_that_is_down_and_takes_its_token_from_the_block(
    labelled, hub, monkeypatch
):
    from prefect.blocks.system import Secret

    from stepward.flows.orchestration import deployed
    from stepward.prm.publishing import hub as hub_module
    from stepward.prm.publishing.cards import write_card

    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr(huggingface_hub.constants, "HF_TOKEN_PATH", str(labelled / "no-token"))
    monkeypatch.setattr(deployed, "_PUBLISH_DELAYS_S", [0.0, 0.0, 0.0])
    Secret(value=loopback().TOKEN).save("hf-token", overwrite=True)
    write_card(labelled / "labels", repo="me/labels")
    real, calls = hub_module.publish, []

    def down_at_first(*args, **kwargs):
        calls.append(args)
        hub.break_after_uploads = len(hub.uploads) + 1 if len(calls) < 3 else None
        return real(*args, **kwargs)

    monkeypatch.setattr(hub_module, "publish", down_at_first)
    done = asyncio.run(deployed.publish("labels", "me/labels", allow=["licence", "contamination"]))
    assert len(calls) == 3
    assert hub.repos["me/labels"].tags == {done["tag"]: done["commit"]}
    assert done["tag"] in artifacts()["published-revision"][-1].data
    monkeypatch.delenv("HF_TOKEN", raising=False)


def test_a_refused_publication_is_not_tried_again(labelled, hub, monkeypatch):
    from stepward.flows.orchestration import deployed
    from stepward.prm.publishing import hub as hub_module

    monkeypatch.setenv("HF_TOKEN", "wrong")
    monkeypatch.setattr(deployed, "_PUBLISH_DELAYS_S", [0.0, 0.0, 0.0])
    real, calls = hub_module.publish, []
    monkeypatch.setattr(hub_module, "publish", lambda *a, **k: (calls.append(a), real(*a, **k))[1])
    with pytest.raises(PublishError, match="refused"):
        asyncio.run(deployed.publish("labels", "me/labels"))
    assert len(calls) == 1
