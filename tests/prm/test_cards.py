"""Cards and the documentation page: made from the manifest and the columns, and read by their consumers."""

import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from huggingface_hub import DatasetCard

from stepward.prm.dataset.schema import SOLUTIONS_SCHEMA
from stepward.prm.dataset.store import Manifest, ShardStore, open_dataset
from stepward.prm.durable import write_durably
from stepward.prm.publishing.cards import dataset_card, first_errors, labels_by_step, write_card
from stepward.prm.publishing.data_page import page
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

POLICY = PolicyInfo("org/policy", "abc123", "vllm")
MANIFEST = Manifest(
    {"k": 4}, "0.1.0", Allocation.INFORMATION_GAIN, LabelerInfo("changepoint", "2", "c"), seeds={"run": 7},
    policy=POLICY, completer=POLICY,
)  # fmt: skip
ROLLOUT = Rollout("p0", 1, 0, 3, (1, 2), "so 1", FinishReason.STOP, None, Outcome.RIGHT, "1")


def row(number: int, source: str = "gsm8k_train", licence: str = "MIT") -> LabeledSolution:
    return LabeledSolution(
        Problem(f"p{number}", "?", ("1",), source=source, licence=licence),
        Solution(f"p{number}-0", f"p{number}", (Step("a"), Step("b")), outcome=Outcome.WRONG),
        (Estimate(), Estimate(Counts(right=1, truncated=3)), Estimate(Counts(wrong=4, timeout=1))),
        (StepLabel(1), StepLabel(None)), None, POLICY, POLICY, "t", 7, Allocation.INFORMATION_GAIN, 5, 100,
        LabelerInfo("changepoint", "2", "c"),
    )  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with ShardStore.create_or_resume(tmp_path / "d", MANIFEST) as store:
        store.write_shard(0, [row(0), row(1, "math500", "")], [("p0-0", ROLLOUT)])
        store.write_shard(1, [])
        store.seal()
    return tmp_path / "d"


def front(card: str) -> dict:
    return yaml.safe_load(card.split("---\n")[1])


def test_a_card_says_who_sampled_what_it_cost_and_what_became_of_it(folder):
    card = dataset_card(open_dataset(folder), repo="me/steps")
    for said in (
        "`org/policy` at `abc123`", "`changepoint`, version 2", "run = 7", "200 generated", "| truncated | 6 |",
        "| timeout | 2 |", "| unknown | 2 | 50.0% |",
    ):  # fmt: skip
        assert said in card, said
    # draws: 1 right, 3 truncated, 4 wrong, 1 timeout in each of two rows: 6 of 18
    assert "33.3% of all draws were cut" in card
    assert 'load_dataset("me/steps", "solutions", split="train")' in card
    assert "k/n of a prefix is biased" in card


def test_a_card_names_unknown_licences_and_disputed_rights(folder):
    card = dataset_card(open_dataset(folder), repo="me/steps")
    assert "| unknown | 1 | 50.0% |" in card
    assert "Art of Problem Solving" in card
    assert front(card)["license"] == "other"


def test_a_card_of_one_known_licence_states_it_to_the_hub_and_disputes_nothing(tmp_path):
    with ShardStore.create_or_resume(tmp_path / "d", MANIFEST) as store:
        store.write_shard(0, [row(0)])
        store.seal()
    card = dataset_card(open_dataset(tmp_path / "d"), repo="me/steps")
    assert front(card)["license"] == "mit"
    assert "No source of this dataset is known to us to be disputed" in card


def test_the_front_matter_describes_both_tables_as_the_hub_wants_it(folder):
    import datasets

    head = front(dataset_card(open_dataset(folder), repo="me/steps"))
    assert [c["config_name"] for c in head["configs"]] == ["solutions", "rollouts"]
    assert head["configs"][0]["data_files"] == [{"split": "train", "path": "solutions/*.parquet"}]
    assert head["size_categories"] == ["n<1K"]
    info = head["dataset_info"][0]
    assert info["splits"][0]["num_examples"] == 2
    features = datasets.Features._from_yaml_list(info["features"])
    assert features.arrow_schema.remove_metadata().equals(SOLUTIONS_SCHEMA.remove_metadata())


def test_datasets_loads_a_folder_with_its_card_by_configuration(folder, tmp_path):
    import datasets

    write_card(folder, repo="me/steps")
    loaded = datasets.load_dataset(str(folder), "solutions", split="train", cache_dir=str(tmp_path / "c"))
    assert loaded["problem_id"] == ["p0", "p1"]
    rollouts = datasets.load_dataset(str(folder), "rollouts", split="train", cache_dir=str(tmp_path / "c"))
    assert rollouts["text"] == ["so 1"]


def test_a_table_without_rows_is_no_configuration_on_the_hub(tmp_path):
    with ShardStore.create_or_resume(tmp_path / "d", MANIFEST) as store:
        store.write_shard(0, [row(0)])
        store.seal()
    head = front(dataset_card(open_dataset(tmp_path / "d"), repo="me/steps"))
    assert [c["config_name"] for c in head["configs"]] == ["solutions"]


def test_contamination_is_told_or_said_not_to_have_been_checked(folder):
    dataset = open_dataset(folder)
    assert "Not checked against any benchmark" in dataset_card(dataset, repo="me/steps")
    note = {
        "checked": 2, "benchmarks": {"gsm8k_test": 1319}, "ngram": 8, "min_overlap": 0.5,
        "exact": {"gsm8k_test": 1}, "near": {}, "matches": [],
    }  # fmt: skip
    checked = replace(dataset, manifest=replace(dataset.manifest, contamination=note))
    assert "| gsm8k_test | 1,319 | 1 | 0 |" in dataset_card(checked, repo="me/steps")
    replayed = {"by_construction": "solutions were replayed from a log"}
    known = replace(dataset, manifest=replace(dataset.manifest, contamination=replayed))
    assert "solutions were replayed from a log" in dataset_card(known, repo="me/steps")


def test_plots_are_well_formed_and_their_bars_add_up():
    stacked = ET.fromstring(labels_by_step({0: {"right": 3, "wrong": 1}, 1: {"unknown": 4}}))
    heights = [float(r.get("height", 0)) for r in stacked.iter("{http://www.w3.org/2000/svg}rect")]
    assert sum(heights) == pytest.approx(320, abs=0.5)  # two full bars of 160
    ET.fromstring(first_errors({}))


def test_solutions_without_a_wrong_step_and_those_of_which_nothing_is_known_have_a_bar_each():
    plot = ET.fromstring(first_errors({None: 3, 2: 4, 0: 1}, unknown=1))
    # the highest bar, of 4, is 160 high: 1 -> 40, 2 without an error -> 80, 1 unknown -> 40
    bars = [
        (float(r.get("height")), r.find("{http://www.w3.org/2000/svg}title").text)
        for r in plot.iter("{http://www.w3.org/2000/svg}rect")
    ]
    assert bars == [(40, "0: 1 wrong"), (160, "2: 4 wrong"), (80, "none: 2 right"), (40, "?: 1 unknown")]
    assert "the highest bar is 4" in plot.find("{http://www.w3.org/2000/svg}title").text
    certain = first_errors({None: 3, 0: 1})
    assert "none: 3 right" in certain
    assert "unknown" not in certain


def test_the_hubs_own_reader_takes_the_front_matter(folder, tmp_path):
    card = DatasetCard.load(write_card(folder, repo="me/steps"))
    data = card.data
    assert (data.license, data.pretty_name) == ("other", "steps")
    assert data.size_categories == ["n<1K"]
    assert data.task_categories == ["text-generation"]
    assert "monte-carlo" in data.tags
    assert data.to_dict()["license_name"] == "see-sources"
    # the Hub takes an address or the name of a file, no place on the page
    assert data.to_dict()["license_link"].startswith("https://huggingface.co/datasets/me/steps#")
    assert [c["config_name"] for c in data.to_dict()["configs"]] == ["solutions", "rollouts"]
    # what it writes again is what was there
    assert DatasetCard(str(card)).data.to_dict() == front(card.content) == data.to_dict()
    assert card.text.strip().startswith("# steps")


def test_a_card_of_brought_labels_speaks_of_no_rollouts(tmp_path):
    brought = Manifest(
        {"import": "prmbench"}, "1", Allocation.FIXED_K, LabelerInfo("imported:prmbench", "1", "")
    )
    bare = replace(row(0), prefixes=(Estimate(),) * 3, allocation=Allocation.FIXED_K)
    with ShardStore.create_or_resume(tmp_path / "d", brought) as store:
        store.write_shard(0, [bare])
        store.seal()
    card = write_card(tmp_path / "d", repo="me/steps").read_text()
    assert "monte-carlo" not in front(card)["tags"]
    assert 'load_dataset("me/steps", "solutions"' in card
    assert 'load_dataset("me/steps", "rollouts"' not in card
    assert "The labels were brought with the solutions" in card
    assert "this completer" not in card
    assert "brought from elsewhere" in card


def test_a_name_with_a_dollar_sign_or_markup_does_not_break_a_card(folder):
    card = dataset_card(open_dataset(folder), repo="me/steps", name="a $name: [x] # y")
    assert front(card)["pretty_name"] == "a $name: [x] # y"


def test_the_page_in_docs_is_the_one_that_the_columns_give():
    path = Path(__file__).resolve().parents[2] / "docs" / "dataset.md"
    assert path.read_text(encoding="utf-8") == page(), (
        "run python -m stepward.prm.publishing.data_page docs/dataset.md"
    )


def test_a_card_is_whole_or_absent(tmp_path):
    write_durably(tmp_path / "README.md", b"one")
    write_durably(tmp_path / "README.md", b"two")
    assert (tmp_path / "README.md").read_bytes() == b"two"
    assert [p.name for p in tmp_path.iterdir()] == ["README.md"]
