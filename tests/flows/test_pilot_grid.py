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
from stepward.labeling.relabel import Relabeling, relabel_dataset
from stepward.prm.dataset.store import open_dataset
from stepward.verifiers.answer import Grader


def run_of(tmp_path, problems=4, **settings):
    """A run over scripted solutions, two a problem, that go apart in their second step; and its engines."""
    rows = [{"id": f"p{i}", "question": f"What is {i} + 1?", "answer": "6"} for i in range(problems)]
    (tmp_path / "problems.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    texts = [f"We add.\n{i} + 1 = {i + 1}\nThe answer is {a}." for i in (4, 5) for a in (6, 7)]
    policy = scripted_policy(
        lambda problem_id, so_far, seed: texts if not so_far else ["The answer is 6.", "The answer is 7."]
    )
    engines = Engines(policy, policy, lambda p: policy.tokenizer.encode(p.text + "\n"), Grader())
    config = LabelConfig(
        problems=str(tmp_path / "problems.jsonl"),
        out=tmp_path / "out",
        num_solutions=2,
        pilot_problems=2,
        **settings,
    )
    return config, engines


def choosing(monkeypatch, choice):
    """Let the pilot choose that; what it was shown is collected."""
    seen = []

    def chosen(problems):
        seen.extend(problems)
        return choice

    monkeypatch.setattr(pilot, "choose_grid", chosen)
    return seen


FINE = ChosenGrid(dict(FINE_POINTS), {"rho": (1 / 3, 1 / 3, 1 / 6, 1 / 12, 1 / 12)}, 9.0)


def test_the_pilot_draws_eight_rollouts_at_every_state_once_and_its_grid_stands_in_the_manifest(
    tmp_path, monkeypatch
):
    seen = choosing(monkeypatch, FINE)
    config, engines = run_of(tmp_path, grid="pilot")
    progress = asyncio.run(label(config, engines=engines))
    assert len(seen) == 2
    for solutions in seen:
        states = {}
        for s in solutions:
            assert s.on_policy
            for node, draws in zip(s.nodes[1:-1], s.draws[1:-1], strict=True):
                states[node] = states.get(node, 0) + len(draws)
        assert set(states.values()) == {8}
        # both solutions begin with the same step
        assert solutions[0].nodes[1] == solutions[1].nodes[1]
        assert solutions[1].draws[1] == ()
    constants = open_dataset(config.out).manifest.constants
    assert from_json(constants).axis_points == FINE_POINTS
    assert from_json(constants).axis_weights["rho"][0] == 0.33333333
    told = constants["pilot"]["grid"]
    assert (told["chosen"], told["problems"], told["solutions"]) == ("fine, fitted", 2, 4)
    assert progress.notes == [
        f"the posterior's grid (fine, fitted) was chosen by 4 solutions of a pilot, {told['tokens']} tokens"
    ]


def test_labels_again_from_the_rows_are_those_of_the_chosen_grid(tmp_path, monkeypatch):
    choosing(monkeypatch, FINE)
    config, engines = run_of(tmp_path, grid="pilot", price=1e-3)
    asyncio.run(label(config, engines=engines))
    source = open_dataset(config.out)
    relabel_dataset(source, tmp_path / "again", Relabeling("changepoint"))
    other = from_json({})
    relabel_dataset(source, tmp_path / "default", Relabeling("changepoint"), constants=other)

    def probabilities(folder):
        return [x.p_first_error for row in open_dataset(folder).solutions() for x in row.labels]

    assert probabilities(tmp_path / "again") == probabilities(config.out)
    assert probabilities(tmp_path / "default") != probabilities(config.out)


def test_a_run_too_small_for_a_pilot_keeps_the_default_grid_and_says_so(tmp_path, monkeypatch):
    seen = choosing(monkeypatch, FINE)
    config, engines = run_of(tmp_path)
    progress = asyncio.run(label(config, engines=engines))
    assert seen == []
    constants = open_dataset(config.out).manifest.constants
    assert "axis_points" not in constants
    why = "4 problems are too few for a pilot of 2 to choose it"
    assert constants["pilot"]["grid"] == {"chosen": "default", "why": why}
    assert progress.notes == [f"the posterior's grid is the default: {why}"]


def test_a_run_of_fifty_times_its_pilot_lets_it_choose_and_goes_on_with_the_choice_that_is_stored(
    tmp_path, monkeypatch
):
    seen = choosing(monkeypatch, FINE)
    config, engines = run_of(tmp_path, problems=100)
    stopped = config.model_copy(update={"budget_hours": 1e-9})
    assert asyncio.run(label(stopped, engines=engines)).stopped is not None
    assert len(seen) == 2
    asyncio.run(label(config, engines=engines, resume=True))
    assert len(seen) == 2, "a resumed run takes the grid from its manifest"
    assert from_json(open_dataset(config.out).manifest.constants).axis_points == FINE_POINTS


def test_a_pilot_that_would_take_more_than_a_tenth_of_the_budget_leaves_the_default(tmp_path, monkeypatch):
    seen = choosing(monkeypatch, FINE)
    config, engines = run_of(tmp_path, problems=100, budget_tokens=4000)
    asyncio.run(label(config, engines=engines))
    assert seen == []
    told = open_dataset(config.out, partial=True).manifest.constants["pilot"]["grid"]
    assert told["chosen"] == "default"
    assert "of a budget of 4,000" in told["why"]


def test_a_run_that_reads_no_posterior_asks_no_pilot_for_a_grid(tmp_path, monkeypatch):
    seen = choosing(monkeypatch, FINE)
    config, engines = run_of(tmp_path, problems=100, allocation="fixed_k", labeler="math_shepherd")
    progress = asyncio.run(label(config, engines=engines))
    assert (seen, progress.notes) == ([], [])
    assert "pilot" not in open_dataset(config.out).manifest.constants


def test_a_run_that_names_no_grid_is_the_run_that_it_was_before_one_could_be_named(tmp_path):
    config = LabelConfig(problems="generator:3", out=tmp_path)
    added = {"grid", "search", "search_options", "search_tokens", "judge_meta_critique"}
    assert not added & config.row_settings().keys()
    assert LabelConfig(problems="generator:3", out=tmp_path, grid="pilot").row_settings()["grid"] == "pilot"
