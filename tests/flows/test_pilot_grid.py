"""A run whose pilot chooses the posterior's grid: what it reads, and that the manifest holds it."""

import asyncio
import json

from stepward.flows import pilot
from stepward.flows.config import LabelConfig
from stepward.flows.label import label
from stepward.labeling.changepoint.choice import ChosenGrid
from stepward.labeling.changepoint.grid import FINE_POINTS
from stepward.labeling.constants import from_json
from stepward.labeling.plan import Engines
from stepward.labeling.policies.scripted import scripted_policy
from stepward.prm.dataset.store import open_dataset
from stepward.verifiers.answer import Grader


def test_the_pilot_reads_eight_rollouts_at_every_prefix_and_its_grid_stands_in_the_manifest(
    tmp_path, monkeypatch
):
    rows = [{"id": f"p{i}", "question": f"What is {i} + 1?", "answer": "6"} for i in range(4)]
    (tmp_path / "problems.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    texts = [f"We add.\n{i} + 1 = {i + 1}\nThe answer is {a}." for i in (4, 5) for a in (6, 7)]
    policy = scripted_policy(
        lambda problem_id, so_far, seed: texts if not so_far else ["The answer is 6.", "The answer is 7."]
    )
    hands = Engines(policy, policy, lambda p: policy.tokenizer.encode(p.text + "\n"), Grader())
    seen = []

    def chosen(problems):
        seen.extend(problems)
        return ChosenGrid(dict(FINE_POINTS), {}, 9.0)

    monkeypatch.setattr(pilot, "choose_grid", chosen)
    config = LabelConfig(
        problems=str(tmp_path / "problems.jsonl"),
        out=tmp_path / "out",
        num_solutions=2,
        pilot_problems=2,
        grid="pilot",
    )
    asyncio.run(label(config, engines=hands))
    assert len(seen) == 2
    for solution in (s for solutions in seen for s in solutions):
        assert [len(d) for d in solution.draws[1:-1]] == [8] * (solution.num_steps - 1)
        assert solution.nodes[0] == 0
        assert solution.on_policy
    constants = open_dataset(config.out).manifest.constants
    assert from_json(constants).axis_points == FINE_POINTS


def test_a_run_of_the_default_grid_is_the_run_that_it_was_before_a_grid_could_be_named(tmp_path):
    config = LabelConfig(problems="generator:3", out=tmp_path)
    assert "grid" not in config.row_settings()
    assert LabelConfig(problems="generator:3", out=tmp_path, grid="pilot").row_settings()["grid"] == "pilot"
