"""``stepward search`` from problems to a results folder, on the embedded policy and a small random reward model."""

import asyncio
import json

import pyarrow.parquet as pq
import pytest

from stepward.flows.cli.search import _pair
from stepward.flows.config import parse
from stepward.flows.search import SearchRunConfig, run_search
from stepward.labeling.policies.embedded import embedded_folder
from stepward.prm.errors import ConfigError

PROBLEMS = "generator:2?split=held_out&level=demo&seed=5"


@pytest.fixture(scope="module")
def prm(tmp_path_factory):
    """The embedded policy's weights under a scalar head that nobody has trained: its scores mean nothing."""
    import torch
    from transformers import AutoModel

    from stepward.prm.models.discriminative import DiscriminativePRM
    from stepward.prm.models.folder import PrmDescription, save_prm
    from stepward.prm.models.heads import HeadSpec, build_head
    from stepward.prm.steps import StepFormat

    torch.manual_seed(0)
    backbone = AutoModel.from_pretrained(embedded_folder())
    spec = HeadSpec("beta")
    model = DiscriminativePRM(backbone, build_head(backbone.config.hidden_size, spec))
    folder = tmp_path_factory.mktemp("prm") / "random"
    save_prm(folder, model, PrmDescription(spec, StepFormat()), tokenizer_from=embedded_folder())
    return folder


def config(prm, out, **given) -> SearchRunConfig:
    settings = {
        "problems": PROBLEMS, "prm": str(prm), "out": out, "sampler": {"max_tokens": 48}, "max_step_tokens": 12,
        "bootstrap": 100, **given,
    }  # fmt: skip
    return parse(SearchRunConfig, **settings)


def test_methods_and_budgets_give_one_run_each_within_its_budget(prm, tmp_path):
    seen = []
    run = config(
        prm,
        tmp_path / "out",
        methods=("majority", "aca"),
        budgets=(100, 200),
        settings={"aca.first": 2},
    )
    results = asyncio.run(run_search(run, lambda name, progress: seen.append((name, progress.done))))
    assert [r.name for r in results.runs] == [
        "majority 100", "aca 100", "majority 200", "aca 200",
    ]  # fmt: skip
    rows = pq.read_table(tmp_path / "out" / "searched.parquet").to_pylist()
    assert len(rows) == 8
    assert all(r["generated_tokens"] + r["scored_tokens"] <= r["budget_tokens"] for r in rows)
    assert all(r["right"] is not None for r in rows)
    assert ("aca 200", 2) in seen
    summary = json.loads((tmp_path / "out" / "results.json").read_text())
    assert summary["manifest"]["problems"] == PROBLEMS
    assert str(tmp_path) not in (tmp_path / "out" / "results.json").read_text()


def test_the_same_seed_gives_the_same_folder_whatever_is_in_flight(prm, tmp_path):
    for name, in_flight in (("a", 1), ("b", 64)):
        asyncio.run(
            run_search(
                config(prm, tmp_path / name, methods=("particles",), budgets=(120,), in_flight=in_flight)
            )
        )
    for file in ("results.json", "searched.parquet", "candidates.parquet", "report.html"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


def test_faults_of_a_search_configuration_are_listed_at_once(prm, tmp_path):
    with pytest.raises(ConfigError) as caught:
        config(
            prm, tmp_path, methods=("beem", "dvts"), settings={"width": 3}, aggregate="median", budgets=(0,)
        )
    said = str(caught.value)
    for part in ("'beem' is unknown", "write METHOD.NAME=VALUE", "median", "at least one token"):
        assert part in said


def test_settings_are_read_as_numbers_where_they_are_numbers():
    assert _pair("beams=2") == ("beams", 2)
    assert _pair("stepco.threshold=.5") == ("stepco.threshold", 0.5)
    assert _pair("aggregate=min") == ("aggregate", "min")
    with pytest.raises(ConfigError, match="write NAME=VALUE"):
        _pair("beams")


def test_problems_without_gold_are_searched_and_their_accuracy_is_unknown(prm, tmp_path):
    path = tmp_path / "problems.jsonl"
    path.write_text(
        json.dumps({"problem": "Tom has 3 apples. He buys 4 apples. How many apples does he have now?"})
        + "\n"
    )
    results = asyncio.run(
        run_search(config(prm, tmp_path / "out", problems=str(path), methods=("greedy",), budgets=(120,)))
    )
    (searched,) = results.runs[0].problems
    assert searched.right is None
    assert searched.num_draws > 0
    assert "no known outcome" in (tmp_path / "out" / "report.html").read_text()
