"""``stepward train`` from a dataset to a folder that says where it comes from."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from stepward.flows.config import TrainConfig, parse
from stepward.prm.errors import ConfigError


def test_settings_of_a_run_are_checked_and_the_defaults_train_all_weights_on_the_cpu(tmp_path: Path):
    config = parse(TrainConfig, "quickstart-train", data=tmp_path, out=tmp_path / "prm")
    assert (config.device, config.lora_rank, config.trackers, config.row_tokens) == ("cpu", 0, (), 0)
    with pytest.raises(ConfigError, match="lora_rank"):
        parse(TrainConfig, data=tmp_path, out=tmp_path / "prm", lora_rank=-1)


@pytest.mark.slow
def test_one_command_trains_saves_everything_and_writes_the_card(tmp_path: Path):
    from stepward.flows.cli.main import app

    run = CliRunner()
    data, out = tmp_path / "data", tmp_path / "prm"
    labelled = run.invoke(
        app,
        [
            "label",
            "generator:12?split=label&level=easy",
            "--recipe",
            "quickstart",
            "--out",
            str(data),
            "--no-prefect",
        ],
    )
    assert labelled.exit_code == 0, labelled.output
    trained = run.invoke(
        app,
        ["train", str(data), "--out", str(out), "--epochs", "2", "--share-prompts", "--validation-share", "0.25",
         "--save-every-steps", "1"],
    )  # fmt: skip
    assert trained.exit_code == 0, trained.output
    assert "rows" in trained.output
    described = json.loads((out / "prm.json").read_text())
    facts = described["training"]
    assert facts["schedule"]["share_prompts"] is True
    assert facts["dataset"]["labeler"] == "math_shepherd"
    assert facts["dataset"]["labeler_config"]
    assert facts["dataset_fingerprint"]
    assert described["step_format"]["delimiter"] == "newline"
    assert [epoch["epoch"] for epoch in described["history"]] == [0, 1]
    card = (out / "README.md").read_text()
    assert facts["dataset"]["fingerprint"] in card
    scored = tmp_path / "solutions.jsonl"
    scored.write_text(json.dumps({"problem": "What is 2+2?", "steps": ["2+2=4.", "So it is 4."]}) + "\n")
    said = run.invoke(app, ["score", str(out), str(scored)])
    assert said.exit_code == 0, said.output
    scores = json.loads(said.output.splitlines()[-1])["scores"]
    assert len(scores) == 2
    assert all(0 < s < 1 for s in scores)
    by_outcome = tmp_path / "by-outcome"
    told = run.invoke(
        app,
        ["train", str(data), "--out", str(by_outcome), "--epochs", "1", "--loss", "outcome_classes", "--block-tokens",
         "1", "--rollouts-per-problem", "5", "--validation-share", "0.25"],
    )  # fmt: skip
    assert told.exit_code == 0, told.output
    rows = [json.loads((folder / "prm.json").read_text())["training"]["rows"] for folder in (out, by_outcome)]
    # The solutions of nine problems or so, and no more than five rollouts of each beside them.
    assert rows[0]["rows"] < rows[1]["rows"] <= rows[0]["rows"] * (4 + 5) / 4
