"""The card of a reward model: every number from its files, front matter as the Hub wants it, what is missing said."""

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
import yaml
from huggingface_hub import ModelCard

from stepward.prm.dataset.schema import solutions_table
from stepward.prm.dataset.store import Manifest, ShardStore
from stepward.prm.errors import ModelError
from stepward.prm.formats.foreign import contract_row, foreign_problem
from stepward.prm.publishing.model_card import write_model_card
from stepward.prm.types import Allocation, LabelerInfo, PolicyInfo

HISTORY = [
    {"epoch": 0, "step": 10, "loss": 0.75, "f1": 0.5},
    {"epoch": 1, "step": 20, "loss": 0.5, "f1": 0.625, "threshold": 0.25},
]


def described(fingerprint: str = "", base: str = "org/base-7b") -> dict:
    return {
        "head": {"kind": "scalar", "outputs": 1}, "causal": True, "reference": False, "max_tokens": 512,
        "step_format": {"delimiter": "newline"}, "prompt": {"name": "plain"}, "history": HISTORY,
        "training": {
            "base": base, "loss": "bce", "labelling": {"target": "label"}, "seed": 3, "run": "cafe",
            "tokenizer_hash": "t",
            "rows": {"kept": 90, "rows": 100, "labelled": 350, "steps": 400, "steps_cut": 7},
            "schedule": {"epochs": 2, "batch_size": 8, "learning_rate": 0.001},
            "trained": {"lora_rank": 16, "lora_alpha": 32, "frozen_backbone": False},
            "dataset": {"fingerprint": fingerprint, "labeler": "changepoint"},
        },
    }  # fmt: skip


def measure(value: float | None, note: str = "") -> dict:
    low, high = (None, None) if value is None else (value - 0.125, value + 0.125)
    return {"value": value, "low": low, "high": high, "n": 40, "note": note}


def results(*, oracle: bool = False) -> dict:
    def run(scorer: str, f1: float | None) -> dict:
        named = {
            "f1": measure(f1, "no correct items"),
            "error_accuracy": measure(0.5),
            "correct_accuracy": measure(0.75),
        }
        threshold = {"value": 0.25, "source": "tuning.jsonl"}
        return {
            "result": {"scorer": scorer, "macro": named, "subsets": [{"name": "gsm8k", **named}], "oracle": oracle,
                       "threshold": threshold},
            "calibration": {"auroc": measure(0.875), "brier": measure(0.125), "ece": measure(0.25)},
        }  # fmt: skip

    points = [
        {"method": "majority", "cut": 4, "accuracy": measure(0.5), "over_majority": measure(0.0)},
        {"method": "best_of_n[min]", "cut": 8, "accuracy": measure(0.625), "over_majority": measure(0.125)},
    ]
    return {
        "runs": [run("position and length", 0.25), run("prm (scalar)", 0.5625)],
        "best_of_n": [{"cut_by": "samples", "points": points, "num_problems": 20}],
        "manifest": {"prm": "prm (scalar)"},
    }


@pytest.fixture
def data(tmp_path: Path) -> tuple[Path, str]:
    policy, completer = PolicyInfo("org/policy", "1", "vllm"), PolicyInfo("org/completer", "1", "vllm")
    manifest = Manifest(
        {}, "1", Allocation.FIXED_K, LabelerInfo("changepoint", "1", ""), policy=policy, completer=completer
    )
    row = contract_row(
        foreign_problem("What?", source="math_train"),
        ["a", "b"],
        [1, 0],
        labeler="x",
        decided_by="x",
        solution_id="1",
    )
    note = {"checked": 1, "benchmarks": {"math500": 500}, "exact": {"math500": 1}, "near": {}}
    with ShardStore.create_or_resume(tmp_path / "data", manifest) as store:
        store.write_tables(0, solutions_table([row]))
        sealed = store.seal(contamination=note)
    return tmp_path / "data", str(sealed.fingerprint)


def model(folder: Path, description: dict) -> Path:
    folder.mkdir()
    (folder / "prm.json").write_text(json.dumps(description))
    return folder


def card_of(tmp_path: Path, description: dict, found: dict | None = None, **kwargs) -> str:
    evaluation = None
    if found is not None:
        evaluation = tmp_path / "results.json"
        evaluation.write_text(json.dumps(found))
    folder = model(tmp_path / "prm", description)
    settings = {"repo": "me/prm", "licence": "Apache-2.0", **kwargs}
    return write_model_card(folder, evaluation=evaluation, **settings).read_text(encoding="utf-8")


def test_a_card_holds_the_numbers_of_checkpoint_evaluation_and_data(tmp_path, data):
    folder, fingerprint = data
    card = card_of(tmp_path, described(fingerprint), results(), data=folder, datasets=["me/steps"])
    for said in (
        "| solutions | 90 of 100 |", "| labelled steps | 350 of 400 |", "| learning rate | 0.001 |",
        "| LoRA | rank 16, alpha 32 |", "| 1 | 20 | 0.5 | 0.625 | 0.25 |", "| 0 | 10 | 0.75 | 0.5 | - |",
        "| prm (scalar) | 0.562 (0.438 to 0.688) | 0.500 (0.375 to 0.625) | 0.750 (0.625 to 0.875) |",
        "| position and length | 0.250", "Threshold 0.25, chosen on `tuning.jsonl`", "AUROC 0.875 (0.750 to 1.000)",
        "Choosing among 8 samples of 20 problems", "| best_of_n[min] | 0.625", fingerprint, "math_train (1)",
        "1 problems were compared with math500: 1 matches", "Art of Problem Solving", "off-policy",
        "7 steps were cut", 'load("me/prm")',
    ):  # fmt: skip
        assert said in card, said
    assert "majority | 0.500" not in card  # of fewer samples


def test_the_front_matter_is_what_the_hub_reads(tmp_path):
    parsed = ModelCard(card_of(tmp_path, described(), results(), datasets=["me/steps"]))
    head = parsed.data.to_dict()
    assert (head["license"], head["base_model"], head["datasets"]) == (
        "apache-2.0",
        "org/base-7b",
        ["me/steps"],
    )
    assert head["library_name"] == "stepward"
    # F1 of the model itself, not of a baseline
    found = {(r.dataset_name, r.metric_type): r.metric_value for r in parsed.data.eval_results}
    assert found == {
        ("gsm8k", "f1"): 0.5625, ("gsm8k", "error_accuracy"): 0.5, ("gsm8k", "correct_accuracy"): 0.75,
    }  # fmt: skip
    assert parsed.data.model_name == "prm"


def test_what_is_not_at_hand_is_said_to_be_missing(tmp_path):
    bare = {"head": {"kind": "scalar"}}
    card = card_of(tmp_path, bare, licence="see the base model")
    for said in (
        "Not stored in this checkpoint", "holds no metric history", "Not evaluated, as far as this card knows",
        "Its manifest was not at hand",
    ):  # fmt: skip
        assert said in card, said
    head = yaml.safe_load(card.split("---\n")[1])
    assert (head["license"], head["license_name"]) == ("other", "see the base model")
    assert "base_model" not in head
    assert "model-index" not in head
    assert "None" not in card
    assert not (tmp_path / "prm" / "plots").exists()


def test_a_value_that_could_not_be_computed_is_no_number(tmp_path):
    found = results()
    for run in found["runs"]:
        run["result"]["subsets"][0]["f1"] = measure(None, "no correct items")
    card = card_of(tmp_path, described(), found)
    assert "| gsm8k | 40 | no correct items |" in card
    assert {r.metric_type for r in ModelCard(card).data.eval_results} == {
        "error_accuracy",
        "correct_accuracy",
    }


def test_an_oracle_threshold_is_said_to_be_one(tmp_path):
    card = card_of(tmp_path, described(), results(oracle=True))
    assert "(oracle)" in card
    assert "which is not reported" not in card


def test_a_base_that_is_a_folder_is_no_hub_id(tmp_path):
    head = yaml.safe_load(card_of(tmp_path, described(base="embedded_checkpoint")).split("---\n")[1])
    assert "base_model" not in head


def test_the_plot_is_well_formed_and_its_lines_have_a_point_an_epoch(tmp_path):
    card_of(tmp_path, described())
    plot = ET.parse(tmp_path / "prm" / "plots" / "history.svg").getroot()
    lines = plot.findall("{http://www.w3.org/2000/svg}polyline")
    # loss .75 -> .5 on an axis of 150 from 180: 67.5 and 105
    assert lines[0].get("points") == "40.0,67.5 320.0,105.0"
    assert [len(x.get("points").split()) for x in lines] == [2, 2, 0]


def test_data_that_the_model_was_not_trained_on_is_refused(tmp_path, data):
    with pytest.raises(ModelError, match="was trained on other"):
        card_of(tmp_path, described("other"), data=data[0])


def test_a_folder_without_a_model_or_an_evaluation_without_results_is_named(tmp_path):
    with pytest.raises(ModelError, match=r"prm\.json does not describe"):
        write_model_card(tmp_path, repo="me/prm", licence="mit")
    folder = model(tmp_path / "prm", described())
    with pytest.raises(ModelError, match="stepward evaluate"):
        write_model_card(folder, repo="me/prm", licence="mit", evaluation=tmp_path)
