"""The pipeline: rounds of labelling, training and search on problems that no other round and no evaluation sees."""

import asyncio
import json

import pytest

from stepward.flows.config import parse
from stepward.flows.pipeline import PipelineConfig, run_pipeline
from stepward.flows.problems import problems_of
from stepward.prm.dataset.store import open_dataset
from stepward.prm.errors import ConfigError

LABEL = {
    "problems": "generator:24?split=label&level=easy", "policy": "embedded", "num_solutions": 2, "price": 1e-3,
    "sampler": {"max_tokens": 80}, "shard_problems": 6,
}  # fmt: skip


def settings(folder, **changes):
    return {
        "out": folder / "out", "rounds": 2, "label": LABEL,
        "train": {"recipe": "quickstart-train", "epochs": 1, "reference": "embedded"},
        "search": {"budget_tokens": 1500, "options": {"iterations": 4}},
    } | changes  # fmt: skip


def test_every_fault_of_every_stage_is_named_at_once(tmp_path):
    wrong = settings(
        tmp_path,
        label=LABEL | {"policyy": "x", "seed": 4},
        train={"epochs": 0},
        search={"method": "guess", "aggregate": "median"},
    )
    with pytest.raises(ConfigError) as fault:
        parse(PipelineConfig, **wrong)
    told = str(fault.value)
    assert all(
        name in told for name in ("label.policyy", "train.epochs", "search.search method 'guess'", "median")
    )
    with pytest.raises(ConfigError, match=r"label\.seed: the pipeline sets it itself"):
        parse(PipelineConfig, **settings(tmp_path, label=LABEL | {"seed": 4}))


def test_rounds_have_problems_of_their_own(tmp_path):
    config = parse(PipelineConfig, **settings(tmp_path, rounds=3))
    ids = [[p.id for p in problems_of(config.labelling(n))] for n in range(3)]
    assert sorted(i for part in ids for i in part) == sorted(
        p.id for p in problems_of(config.labelling(0).model_copy(update={"fold": None}))
    )
    assert config.training(2).more_data == (config.folder(0) / "dataset", config.folder(1) / "dataset")
    assert [config.labelling(n).solutions is None for n in range(3)] == [True, False, False]


def test_a_problem_that_is_reported_on_is_not_labelled(tmp_path):
    config = parse(PipelineConfig, **settings(tmp_path, rounds=1))
    shared = problems_of(config.labelling(0))[5]
    item = {
        "id": "x",
        "generator": "g",
        "problem": shared.text,
        "steps": ["a"],
        "final_answer_correct": True,
        "label": -1,
    }
    (tmp_path / "bench.jsonl").write_text(json.dumps(item) + "\n")
    evaluate = {"processbench": [str(tmp_path / "bench.jsonl")], "threshold": 0.5}
    config = parse(PipelineConfig, **settings(tmp_path, rounds=1, evaluate=evaluate))
    with pytest.raises(ConfigError, match="1 of the problems to be labelled are reported on"):
        asyncio.run(run_pipeline(config))


@pytest.mark.slow
def test_two_rounds_run_and_what_is_finished_is_not_done_again(tmp_path):
    heldout = [
        {"id": f"h{i}", "generator": "g", "problem": f"Held out {i}: what is {i} plus {i}?",
         "steps": [f"{i} + {i} = {2 * i + i % 2}.", f"The answer is {2 * i + i % 2}."],
         "final_answer_correct": i % 2 == 0, "label": -1 if i % 2 == 0 else 0}
        for i in range(8)
    ]  # fmt: skip
    (tmp_path / "bench.jsonl").write_text("".join(json.dumps(item) + "\n" for item in heldout))
    evaluate = {"processbench": [str(tmp_path / "bench.jsonl")], "threshold": 0.5, "bootstrap": 100}
    config = parse(PipelineConfig, **settings(tmp_path, evaluate=evaluate))
    said, stages = [], []

    async def through(stage, work):
        stages.append(stage)
        await work()

    rounds = asyncio.run(run_pipeline(config, through=through, say=said.append))
    assert [r.number for r in rounds] == [1, 2]
    assert all(r.labelled_steps > 0 and r.f1 is not None for r in rounds)
    assert "round 2 search" in stages
    found = [json.loads(line) for line in (config.folder(1) / "found.jsonl").read_text().splitlines()]
    second = open_dataset(config.folder(1) / "dataset")
    assert len(second) == len(found)
    first_ids = {r.problem.id for r in open_dataset(config.folder(0) / "dataset").solutions()}
    assert first_ids.isdisjoint(r.problem.id for r in second.solutions())
    stages.clear()
    assert asyncio.run(run_pipeline(config, through=through)) == rounds
    assert stages == []
