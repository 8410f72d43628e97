"""Settings of a run that say who decides: fusion, verifier quality, votes, and a budget that finds its price."""

import asyncio
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from stepward.flows.config import LabelConfig, parse
from stepward.flows.label import label
from stepward.flows.show import render
from stepward.labeling.changepoint.hints import HintModel
from stepward.labeling.constants import from_json, to_json
from stepward.labeling.evidence import LabelingConstants
from stepward.labeling.plan import Engines
from stepward.labeling.policies.scripted import scripted_policy
from stepward.prm.audit.hygiene import statistics
from stepward.prm.dataset.folder import stored_manifest
from stepward.prm.dataset.store import open_dataset
from stepward.prm.errors import BudgetSpent, ConfigError, InputError
from stepward.prm.seeds import derive_seed
from stepward.prm.types import Allocation, Outcome, Reason, Verdict, VerdictKind
from stepward.verifiers.answer import Grader
from stepward.verifiers.judge import Judge

NUM_STEPS = 5


def chain(problem_id, so_far, seed):
    """Five sums; each goes wrong with 1 in 8, is then off by one, and says so to nobody."""
    lines = so_far.split("\n")[:-1]
    off = any("!" in line for line in lines)
    out = []
    for t in range(len(lines), NUM_STEPS):
        off_now = derive_seed(seed, t) % 8 == 0
        off = off or off_now
        out.append(f"line {t} is {t + off}{'!' if off_now else ''}\n")
    return "".join(out) + f"The answer is {10 + off}."


def tool():
    async def verify(problem, steps):
        return [
            (Verdict(VerdictKind.REFUTED if "!" in s else VerdictKind.SUPPORTED, "tool", "1", Reason.NONE),)
            for s in steps
        ]

    return verify


class Scores:
    name = "scores"

    def score(self, problems, solutions):
        return [tuple(0.2 if "!" in s else 0.9 for s in steps) for steps in solutions]


@pytest.fixture
def config(tmp_path) -> LabelConfig:
    rows = [{"id": f"p{i}", "question": f"Chain {i}?", "answer": "10"} for i in range(40)]
    (tmp_path / "problems.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    return LabelConfig(
        problems=str(tmp_path / "problems.jsonl"), out=tmp_path / "out", num_solutions=2, pilot_problems=16
    )


def run(config, policy=None, **engines):
    options = {k: engines.pop(k) for k in ("resume", "overwrite") if k in engines}
    policy = policy or scripted_policy(chain)
    hands = Engines(policy, policy, lambda p: policy.tokenizer.encode(p.text + "\n"), Grader(), **engines)
    return asyncio.run(label(config, engines=hands, **options)), policy


def with_(config, **changes):
    return LabelConfig.model_validate({**config.model_dump(), **changes})


@pytest.mark.slow
def test_a_budget_finds_its_price_on_the_pilot_is_nearly_spent_and_stands_in_the_manifest(config, tmp_path):
    free, _ = run(config)
    prices = [open_dataset(config.out).manifest.constants["price"]]
    for share in (1.3, 0.8):
        budget = round(free.tokens * share)
        settings = with_(config, out=tmp_path / f"{share}", budget_tokens=budget, pilot_problems=8)
        done, _ = run(settings)
        # what the pilot drew is charged too, so that the run may end one problem early
        assert 0.55 * budget < done.tokens <= budget
        manifest = stored_manifest(settings.out)
        assert manifest.constants["pilot"]["budget_tokens"] == budget
        assert manifest.constants["pilot"]["expected_tokens"] <= 0.95 * budget
        prices.append(manifest.constants["price"])
    assert prices[1] < prices[0] < prices[2], "a larger budget buys dearer information, a smaller one less"


def test_a_resumed_run_keeps_the_price_of_its_first_budget_and_gives_the_same_rows(config, tmp_path):
    config = with_(config, limit=8, pilot_problems=2, num_solutions=1, shard_problems=4)
    free, _ = run(config)
    first = with_(config, out=tmp_path / "r", budget_tokens=round(free.tokens * 0.9))
    done, _ = run(first)
    assert done.stopped is not None
    rest, _ = run(with_(first, budget_tokens=None), resume=True)
    assert rest.stopped is None
    price = open_dataset(tmp_path / "r").manifest.constants["price"]
    assert price > open_dataset(config.out).manifest.constants["price"]
    again, _ = run(with_(first, out=tmp_path / "whole", budget_tokens=None, price=price))
    resumed, whole = ([r.labels for r in open_dataset(tmp_path / n).solutions()] for n in ("r", "whole"))
    assert resumed == whole
    assert again.tokens == rest.tokens + done.tokens


@pytest.mark.parametrize("allocation", ["information_gain", "fixed_k"])
def test_a_budget_below_one_rollout_is_spent_at_once_and_says_so(config, allocation):
    policy = scripted_policy(chain)
    with pytest.raises(BudgetSpent, match="does not hold one rollout"):
        run(with_(config, budget_tokens=20, allocation=allocation), policy)
    assert len(policy.calls) == 1, "one solution was drawn to learn what a rollout costs"
    assert not config.out.exists()


def test_quality_and_hints_are_learned_on_the_pilot_and_a_resumed_run_reads_them_from_the_manifest(config):
    settings = with_(config, pilot_problems=40, verifiers=("arithmetic",), verifier_quality="learned")
    run(settings, verify_steps=tool(), reward_model=Scores())
    dataset = open_dataset(config.out)
    constants = dataset.manifest.constants
    assert constants["precision"]["tool"] > 0.9
    assert constants["recall"]["tool"] > 0.6
    assert constants["hint"]["mean_right"] > constants["hint"]["mean_wrong"]
    rows = list(dataset.solutions())
    wrong = [r for r in rows if r.solution.outcome is Outcome.WRONG]
    hits = sum("!" in r.solution.steps[r.first_error].text for r in wrong if r.first_error is not None)
    assert hits == len(wrong)
    assert {x.decided_by for r in rows for x in r.labels if x.label is not None} == {"posterior+tool+hint"}
    assert {x.hint for r in rows for x in r.labels} == {0.2, 0.9}
    stored = from_json(constants)
    assert stored.hint is not None
    assert to_json(stored, Allocation.INFORMATION_GAIN) == {
        k: v for k, v in constants.items() if k != "pilot"
    }


def test_constants_survive_the_manifest():
    constants = LabelingConstants(
        price=1e-4,
        axis_weights={"rho": (0.5, 0.5)},
        axis_points={"rho": (0.01, 0.2)},
        precision={"a": 0.9},
        recall={"a": 0.5},
        hint=HintModel(1.0, -1.0, 0.5),
    )
    assert from_json(json.loads(json.dumps(to_json(constants, Allocation.INFORMATION_GAIN)))) == constants
    assert "price" not in to_json(constants, Allocation.FIXED_K)


def test_too_few_sources_to_learn_from_is_said_before_the_run_begins(config):
    with pytest.raises(InputError, match="needs three sources"):
        run(with_(config, verifiers=("arithmetic",), verifier_quality="learned"), verify_steps=tool())
    assert not config.out.exists()


def test_quality_is_measured_on_a_labelled_file(config, tmp_path):
    steps = ["line 0 is 0", "line 1 is 2!", "The answer is 11."]
    rows = [
        {
            "id": f"i{n}",
            "problem": "?",
            "steps": steps,
            "label": 1,
            "final_answer_correct": False,
            "generator": "g",
        }
        for n in range(16)
    ]
    (tmp_path / "labelled.json").write_text("\n".join(map(json.dumps, rows)))
    settings = with_(config, verifiers=("arithmetic",), verifier_quality=str(tmp_path / "labelled.json"))
    with pytest.raises(ConfigError, match="name verifiers too"):
        run(settings)
    run(settings, verify_steps=tool())
    # 16 flags, all right: (16 + 4 * .9) / 20 = .98; (16 + 4 * .6) / 20 = .92
    assert open_dataset(config.out).manifest.constants["precision"] == {"tool": 0.98}
    assert open_dataset(config.out).manifest.constants["recall"] == {"tool": 0.92}


def test_votes_label_problems_without_answers_and_every_stored_row_says_so(config):
    rows = [{"id": f"q{i}", "question": f"Chain {i}?"} for i in range(12)]
    Path(config.problems).write_text("\n".join(map(json.dumps, rows)) + "\n")
    run(with_(config, outcomes="votes", num_solutions=5))
    stored = list(open_dataset(config.out).solutions())
    assert {r.solution.outcome_from for r in stored} == {"votes"}
    assert {r.solution.outcome for r in stored} <= {Outcome.RIGHT, Outcome.WRONG, Outcome.NO_GOLD}
    assert sum(r.solution.outcome is Outcome.RIGHT for r in stored) > 10
    assert all((r.solution.outcome is Outcome.NO_GOLD) == ("no_majority" in r.marks) for r in stored)
    assert any(x.label is not None for r in stored for x in r.labels)
    found = statistics(open_dataset(config.out))
    assert found["outcome_from"] == {"votes": 60}
    assert found["marks"].get("no_majority", 0) == sum("no_majority" in r.marks for r in stored)
    shares = {r.solution.outcome_share for r in stored}
    assert shares <= {0.2, 0.4, 0.6, 0.8, 1.0}


def test_settings_that_do_not_fit_each_other_are_all_named(tmp_path):
    def faults(**settings):
        with pytest.raises(ConfigError) as caught:
            parse(LabelConfig, problems="generator:5", out=tmp_path, **settings)
        return str(caught.value)

    assert "needs verdicts" in faults(fusion="veto")
    assert "one of returns, posterior" in faults(fusion="vote")
    assert "needs a judge" in faults(fusion="consensus", verifiers=("arithmetic",))
    assert "needs labeler 'changepoint'" in faults(
        fusion="posterior", labeler="scan", verifiers=("arithmetic",)
    )
    assert "give judge, a policy" in faults(judge_meta_critique=True)
    both = faults(outcomes="spark", verifier_quality="learned")
    assert "'spark' rest on a judge's reviews" in both
    assert "needs verifiers or a judge" in both
    assert "no file nowhere.json" in faults(verifier_quality="nowhere.json", verifiers=("arithmetic",))


def test_every_allocation_can_be_named_and_an_option_that_it_has_not_is_refused(config):
    for name in ("difficulty_k", "variance_rounds", "two_fidelity", "binary_search", "stop_at_first_right"):
        options = {"hard": 2, "medium": 2, "easy": 2, "probe": 2} if name == "difficulty_k" else {}
        settings = with_(
            config, limit=2, allocation=name, allocation_options=options, out=config.out.with_name(name)
        )
        done, _ = run(settings)
        assert done.problems == 2
    with pytest.raises(ConfigError, match="binary_search has no 'probe'; it has num_rollouts"):
        run(with_(config, allocation="binary_search", allocation_options={"probe": 2}))
    with pytest.raises(ConfigError, match="give pass rates"):
        run(with_(config, allocation="difficulty_k", allocation_options={"hard_below": 2.0}))


class ChangesItsMind:
    """Calls every step incorrect at first and correct once it has criticised itself."""

    def __init__(self):
        self.inner = scripted_policy(lambda *a: "")

    def __getattr__(self, name):
        return getattr(self.inner, name)

    async def sample(self, request):
        prompt = self.inner.tokenizer.decode(request.prefix.prompt_ids)
        word = "correct" if "REMARKS" in prompt else "incorrect"
        said = "REMARKS" if "FIRST LOOK" in prompt and "REMARKS" not in prompt else "FIRST LOOK"
        lines = [
            f"step {i} ({mark}): {word}" for i, mark in re.findall(r"<step (\d+) ([0-9a-f]{4})>", prompt)
        ]
        text = "\n".join([said, *lines])
        rollout = await self.inner.sample(request)
        return replace(rollout, token_ids=self.inner.tokenizer.encode(text), text=text)


@pytest.mark.parametrize(("meta_critique", "outcome"), [(False, Outcome.WRONG), (True, Outcome.RIGHT)])
def test_sparks_meta_critique_is_a_setting_of_the_judge_that_decides_outcomes(
    config, monkeypatch, meta_critique, outcome
):
    from stepward.flows import build

    policy = scripted_policy(lambda *a: "One line.\nThe answer is 10.")
    loaded = {"writer": policy, "critic": ChangesItsMind()}
    monkeypatch.setattr(build, "load_policy_for", lambda name, config=None: loaded[name])
    settings = with_(
        config, limit=1, policy="writer", judge="critic", judge_samples=2, outcomes="spark", allocation="none",
        judge_meta_critique=meta_critique, price=1e-3,
    )  # fmt: skip
    asyncio.run(label(settings))
    stored = open_dataset(settings.out)
    assert {r.solution.outcome for r in stored.solutions()} == {outcome}
    mode = "meta2" if meta_critique else "vote2"
    versions = {v.version for r in stored.solutions() for x in r.labels for v in x.verdicts}
    assert all(mode in version for version in versions)
    assert versions
    assert ("judge_meta_critique" in stored.manifest.config) == meta_critique


def test_a_judge_that_cannot_review_leaves_everything_undecided(config):
    closed = []

    class Judging:
        def __getattr__(self, name):
            return getattr(self.inner, name)

        def __init__(self):
            self.inner = scripted_policy(lambda *a: "no verdict line", context_length=100)

        async def close(self):
            closed.append(self)

    judge = Judge(Judging(), num_samples=2)

    async def reviews(problem, steps):
        votes = await judge.votes(problem, steps)
        return votes.steps, judge.verdicts(votes, len(steps))

    settings = with_(config, limit=3, outcomes="spark", judge="embedded")
    run(settings, reviews=reviews, others=(judge.policy,))
    stored = list(open_dataset(config.out).solutions())
    assert {r.solution.outcome for r in stored} == {Outcome.UNDECIDED}
    assert {x.label for r in stored for x in r.labels} == {None}
    assert {v.reason for r in stored for x in r.labels for v in x.verdicts} == {Reason.UNSUPPORTED}
    assert closed == [], "engines that were handed in are left open"
    console = Console(record=True, width=200)
    console.print(render(stored[0]))
    assert "undecided by spark; no_majority" in console.export_text()
