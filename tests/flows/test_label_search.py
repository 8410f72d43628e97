"""``stepward label --search``: solutions and first rollouts from a tree search, as rows."""

import asyncio
import json
from dataclasses import replace

import pytest

from stepward.flows.config import LabelConfig, parse
from stepward.flows.label import label
from stepward.labeling.plan import Engines
from stepward.labeling.policies.scripted import scripted_policy
from stepward.labeling.relabel import Relabeling, relabel_dataset
from stepward.labeling.search.tree_sources import trees
from stepward.prm.dataset.store import open_dataset
from stepward.prm.errors import ConfigError
from stepward.prm.types import Allocation, Outcome
from stepward.verifiers.answer import Grader

SMALL = {
    "omegaprm": {"num_rollouts": 4, "searches": 3},
    "alphamath": {"width": 3, "iterations": 4},
    "rstar": {"width": 3, "iterations": 4},
    "rest_mcts": {"iterations": 4},
    "grounded": {"iterations": 4},
    "best_path": {"width": 3, "iterations": 4},
    "tree_plv": {"width": 3, "iterations": 4},
    "ab_mcts": {"iterations": 6},
    "entropy_tree": {"chains": 4},
    "mctsr": {"iterations": 3},
}


def script(problem_id, so_far, seed):
    """Going left is right three times in four, going right one in four; a detour keeps what is."""
    if not so_far:
        return [
            "We go left.\nOn we go.\nThe answer is 6.",
            "We go left.\nA detour.\nThe answer is 7.",
            "We go right.\nOn we go.\nThe answer is 7.",
        ]
    good, bad = ["On we go.\nThe answer is 6."], ["On we go.\nThe answer is 7."]
    if so_far == "We go left.\n":
        return good * 3 + bad
    if so_far == "We go right.\n":
        return good + bad * 3
    return ["The answer is 6.", "The answer is 7."]


class WithLogprobs:
    """A policy that is unsure of the fourth character of every line."""

    def __init__(self, inner):
        self.inner = inner

    def __getattr__(self, name):
        return getattr(self.inner, name)

    async def sample(self, request):
        rollout = await self.inner.sample(request)
        lines = self.inner.tokenizer.decode(rollout.token_ids).split("\n")
        logprobs = [-0.7 if i == 3 else -0.01 for line in lines for i in range(len(line) + 1)]
        return replace(rollout, logprobs=(*logprobs, -0.01)[: len(rollout.token_ids)])


class Likes:
    """A reward model that likes left."""

    name = "likes"

    def score(self, problems, solutions):
        return [tuple(0.8 if "left" in s or "6" in s else 0.3 for s in steps) for steps in solutions]


def run_of(tmp_path, name, folder="out", **settings):
    rows = [{"id": f"p{i}", "question": f"Which way, {i}?", "answer": "6"} for i in range(3)]
    (tmp_path / "problems.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    policy = WithLogprobs(scripted_policy(script))
    likes = Likes() if trees()[name].needs_scores else None
    engines = Engines(
        policy, policy, lambda p: policy.tokenizer.encode(p.text + "\n"), Grader(), reward_model=likes
    )
    config = LabelConfig(
        problems=str(tmp_path / "problems.jsonl"), out=tmp_path / folder, num_solutions=2, search=name,
        search_options=SMALL[name], hint="likes" if likes else None, price=1e-3, fusion="returns", **settings,
    )  # fmt: skip
    return config, engines


def test_every_search_that_there_is_is_among_those_that_are_tried_here():
    assert SMALL.keys() == trees().keys()


@pytest.mark.parametrize("name", SMALL)
def test_the_rows_of_a_tree_hold_every_token_and_say_where_they_are_from(tmp_path, name):
    config, engines = run_of(tmp_path, name, allocation="none")
    progress = asyncio.run(label(config, engines=engines))
    dataset = open_dataset(config.out)
    rows, rollouts = list(dataset.solutions()), list(dataset.rollouts())
    assert rows
    assert dataset.manifest.allocation is Allocation.TREE_SEARCH
    assert dataset.manifest.config["search"] == name
    assert {r.solution.ids_from for r in rows} == {"searched"}
    assert all("off_policy" in r.marks for r in rows)
    assert sum(r.generated_tokens for r in rows) == progress.tokens
    by_solution = {r.solution.id: r for r in rows}
    for row in rows:
        drawn = [r for solution, r in rollouts if solution == row.solution.id]
        for t, estimate in enumerate(row.prefixes[:-1]):
            assert estimate.counts.total == sum(r.num_steps == t for r in drawn)
        # a rollout tells what its text says
        assert all((r.outcome is Outcome.RIGHT) == r.text.endswith("6.") for r in drawn)
        assert (row.solution.outcome is Outcome.RIGHT) == row.solution.steps[-1].text.endswith("6.")
    # Whatever was drawn is there: as a row's end, or as a rollout.
    assert {solution for solution, _ in rollouts} <= by_solution.keys()


def stored(config):
    return open_dataset(config.out).manifest.fingerprint


def test_entropy_branches_begin_at_steps_so_that_their_draws_are_rollouts_of_rows(tmp_path):
    config, engines = run_of(tmp_path, "entropy_tree", allocation="none")
    asyncio.run(label(config, engines=engines))
    rollouts = list(open_dataset(config.out).rollouts())
    assert any(r.num_steps > 0 for _, r in rollouts)
    assert all(r.text.startswith(("On we go", "A detour", "The answer", "We go")) for _, r in rollouts)


def test_the_same_seed_gives_the_same_rows_and_another_one_others(tmp_path):
    prints = []
    for folder, seed in (("a", 0), ("b", 0), ("c", 1)):
        config, engines = run_of(tmp_path, "omegaprm", folder, seed=seed, problems_in_flight=1 + len(prints))
        asyncio.run(label(config, engines=engines))
        prints.append(stored(config))
    assert prints[0] == prints[1] != prints[2]


def test_information_gain_goes_on_from_the_tree_and_labels_again_are_the_same(tmp_path):
    config, engines = run_of(tmp_path, "omegaprm", allocation="none")
    asyncio.run(label(config, engines=engines))
    more, engines = run_of(tmp_path, "omegaprm", "more")
    asyncio.run(label(more, engines=engines))
    alone, further = open_dataset(config.out), open_dataset(more.out)
    before = {(s, r.num_steps, r.seed) for s, r in alone.rollouts()}
    after = {(s, r.num_steps, r.seed) for s, r in further.rollouts()}
    assert before < after
    relabel_dataset(further, tmp_path / "again", Relabeling("changepoint"))

    def told(dataset):
        return [(r.first_error, [x.p_first_error for x in r.labels]) for r in dataset.solutions()]

    assert told(open_dataset(tmp_path / "again")) == told(further)


def test_a_rule_of_counts_says_nothing_of_a_tree_whose_search_followed_outcomes(tmp_path):
    config, engines = run_of(tmp_path, "alphamath", allocation="none", labeler="math_shepherd")
    asyncio.run(label(config, engines=engines))
    assert all(x.label is None for r in open_dataset(config.out).solutions() for x in r.labels)


def test_a_search_keeps_within_its_tokens(tmp_path):
    config, engines = run_of(
        tmp_path, "alphamath", allocation="none", search_tokens=400, sampler={"max_tokens": 60}
    )
    asyncio.run(label(config, engines=engines))
    spent = {}
    for row in open_dataset(config.out).solutions():
        spent[row.problem.id] = spent.get(row.problem.id, 0) + row.generated_tokens
    assert all(tokens <= 400 for tokens in spent.values())


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"search": "alphazero"}, "search 'alphazero' is unknown; one of ab_mcts"),
        (
            {"search": "omegaprm", "search_options": {"width": 3}},
            "omegaprm has no 'width'; it has num_rollouts",
        ),
        ({"search": "rest_mcts"}, "give hint"),
        ({"search": "omegaprm", "outcomes": "votes"}, "need reference answers"),
        ({"search": "omegaprm", "completer": "other"}, "leave completer and rollout_sampler out"),
        ({"search": "omegaprm", "policy": "replay:x.jsonl"}, "a replay log cannot serve it"),
        ({"search_options": {"width": 3}}, "name one"),
    ],
)
def test_what_does_not_fit_a_search_is_refused_before_anything_is_drawn(tmp_path, settings, said):
    with pytest.raises(ConfigError, match=said):
        parse(LabelConfig, problems="generator:3", out=tmp_path, **settings)
