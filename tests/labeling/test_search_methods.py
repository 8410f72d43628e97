"""Searches on a small script: golden trees, refinement, entropy branches, and a rule that is one file."""

import asyncio
import importlib.util
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from stepward.labeling import selection
from stepward.labeling.estimators.registry import make_estimator
from stepward.labeling.evidence import SolutionEvidence
from stepward.labeling.policies.scripted import scripted_policy
from stepward.labeling.search import entropy_tree
from stepward.labeling.search.entropy_tree import EntropyTree
from stepward.labeling.search.growth import Grower, TokenMeter, new_tree
from stepward.labeling.search.omegaprm import OmegaPRM, build
from stepward.labeling.search.refinement import Refinement, by_least_score, refine
from stepward.labeling.search.scoring import ScoreQueue
from stepward.labeling.search.tree_search import (
    TreeSearch,
    ab_mcts,
    alphamath,
    best_path,
    grounded,
    rest_mcts,
    rstar,
    search,
    tree_plv,
)
from stepward.labeling.signatures import expressions, normalised_text
from stepward.labeling.tree import ROOT, Tree
from stepward.prm.errors import EngineError
from stepward.prm.steps import StepFormat
from stepward.prm.tokenizer import ByteTokenizer
from stepward.prm.types import Allocation, Counts, Outcome, Problem, Sampler

PROBLEM = Problem("p", "Which way?", ("L",))
GOLDEN = Path(__file__).with_name("golden")


def script(problem_id, so_far, seed):
    """Left is right three times in four, right never; a second step "up" keeps what is, "down" spoils it."""
    if not so_far:
        return ["left\nup\nanswer L", "left\ndown\nanswer X", "right\nup\nanswer X"]
    if so_far == "left\n":
        return ["up\nanswer L", "up\nanswer L", "up\nanswer L", "down\nanswer X"]
    return ["answer L" if so_far == "left\nup\n" else "up\nanswer X" if so_far == "right\n" else "answer X"]


class Likes:
    """A reward model that likes left and dislikes down."""

    name = "likes"

    def score(self, problems, solutions):
        likes = {"left": 0.8, "right": 0.2, "up": 0.7, "down": 0.1}
        return [tuple(likes.get(s, 0.5) for s in steps) for steps in solutions]


async def grade(problem, text, reason):
    return Outcome.RIGHT if text.endswith("L") else Outcome.WRONG


def grower(policy=None, *, seed=0, budget=None, signature=None) -> Grower:
    policy = policy or scripted_policy(script)
    tree = new_tree(PROBLEM, policy.tokenizer.encode("Which way?\n"), signature)
    return Grower(
        PROBLEM, tree, policy, Sampler(max_tokens=40), StepFormat(), grade, seed, TokenMeter(budget), 40
    )


def shown(g: Grower) -> list[list[object]]:
    """The tree as a person reads it: parent, text, visits, summed value, (right, all) of rollouts from the node."""
    tree = g.tree
    return [
        [int(tree.parent[n]), g.text(n), int(tree.visits[n]), round(float(tree.value_sum[n]), 6),
         list(tree.trials(n, pooled=False))]
        for n in range(len(tree))
    ]  # fmt: skip


SEARCHES = {
    "alphamath": alphamath(6, 6),
    "rstar": rstar(6, 6),
    "rest_mcts": rest_mcts(5, 6),
    "grounded": grounded(5, 6),
    "best_path": best_path(5, 6),
    "tree_plv": tree_plv(5, 6),
    "ab_mcts": ab_mcts(12),
}


def grown(name: str) -> list[list[object]]:
    g = grower()
    if name == "omegaprm":
        asyncio.run(build(g, OmegaPRM(num_rollouts=4, searches=4, pieces=3)))
    else:
        scorer = ScoreQueue(Likes()) if SEARCHES[name].rollout_share < 1 else None
        asyncio.run(search(g, SEARCHES[name], scorer))
    return shown(g)


@pytest.mark.parametrize("name", [*SEARCHES, "omegaprm"])
def test_the_tree_of_every_search_is_the_stored_one(name):
    assert grown(name) == json.loads((GOLDEN / f"{name}.json").read_text())


@pytest.mark.parametrize("name", ["alphamath", "rest_mcts", "tree_plv", "ab_mcts"])
def test_in_every_stored_tree_each_visit_of_a_child_is_one_of_its_parent(name):
    nodes = json.loads((GOLDEN / f"{name}.json").read_text())
    for number, (_, _, visits, _, _) in enumerate(nodes):
        below = sum(n[2] for n in nodes if n[0] == number)
        assert visits >= below
        if number == ROOT:
            assert visits == below, "the root is never valued itself"


def test_best_first_opens_the_better_branch_and_leaves_the_other_closed():
    g = grower()
    asyncio.run(search(g, tree_plv(8, 2)))
    by_text = {g.text(n): n for n in range(len(g.tree))}
    opened = {t for t, n in by_text.items() if g.tree.num_children[n]}
    assert opened == {"", "left\n"}


def test_adaptive_branching_widens_and_deepens_and_the_same_seed_does_the_same():
    first, again, other = grower(), grower(), grower(seed=1)
    for g in (first, again, other):
        asyncio.run(search(g, ab_mcts(20)))
    assert shown(first) == shown(again)
    assert shown(first) != shown(other)
    assert first.tree.num_children[ROOT] == 2
    assert max(first.tree.depth[: len(first.tree)]) >= 2


# --- entropy ------------------------------------------------------------------------------------------------


class WithLogprobs:
    """The script with log-probabilities: the first token of a line is a coin, the others are sure."""

    def __init__(self, inner):
        self.inner = inner

    def __getattr__(self, name):
        return getattr(self.inner, name)

    async def sample(self, request):
        rollout = await self.inner.sample(request)
        text = self.inner.tokenizer.decode(rollout.token_ids)
        starts = {0, *(i + 1 for i, c in enumerate(text) if c == "\n")}
        return replace(
            rollout, logprobs=tuple(-0.7 if i in starts else -0.01 for i in range(len(rollout.token_ids)))
        )


def test_entropy_branches_part_where_the_policy_is_unsure_and_every_chain_is_a_leaf():
    g = grower(WithLogprobs(scripted_policy(script)))
    tree = asyncio.run(entropy_tree.build(g, EntropyTree(chains=3, branches=2, draws=2, rounds=1)))
    # 3 chains, each cut before its two coins (its first token and its second line), 2 draws from each cut: 3 + 12
    assert int(tree.counts[: len(tree)].sum()) == 15
    inner = {g.text(n) for n in range(1, len(tree)) if not tree.terminal[n]}
    assert inner <= {"left\n", "right\n"}
    assert inner
    leaves = [g.text(n) for n in range(len(tree)) if tree.terminal[n]]
    assert all(text.endswith(("L", "X")) for text in leaves)
    seeds = [c.seed for c in g.policy.calls]
    assert len(set(seeds)) == len(seeds), "no draw is a replay of another"


def test_entropy_without_logprobs_is_refused_and_a_budget_keeps_what_was_drawn():
    with pytest.raises(EngineError, match="no log-probabilities"):
        asyncio.run(entropy_tree.build(grower(), EntropyTree(chains=1)))
    g = grower(WithLogprobs(scripted_policy(script)), budget=130)
    tree = asyncio.run(entropy_tree.build(g, EntropyTree(chains=3, branches=2, draws=2)))
    assert g.meter.generated <= 130
    assert int(tree.counts[: len(tree)].sum()) == 3


# --- refinement ---------------------------------------------------------------------------------------------


def refiner(problem_id, so_far, seed):
    return ["one\nanswer X"]


class Improves:
    """Answers to prompts: a critique, then a rewrite that is a line longer each time."""

    def __init__(self):
        self.inner = scripted_policy(refiner, context_length=10_000)
        self.prompts = []

    def __getattr__(self, name):
        return getattr(self.inner, name)

    async def sample(self, request):
        rollout = await self.inner.sample(request)
        prompt = self.inner.tokenizer.decode(request.prefix.prompt_ids)
        self.prompts.append(prompt)
        if "Look for the first step" in prompt:
            text = "<think>hm</think>The last step is wrong."
        elif "improved solution" in prompt:
            text = "\n".join(["one"] * (prompt.count("\none\n") + 1)) + "\nanswer L"
        else:
            return rollout
        return replace(rollout, token_ids=self.inner.tokenizer.encode(text), text=text)


async def by_length(steps):
    return min(1.0, 0.2 * len(steps))


def test_a_rewrite_is_a_child_and_q_goes_up_as_the_equations_say():
    g = grower(Improves())
    tree = asyncio.run(refine(g, Refinement(by_length, iterations=1)))
    # solution 1 of two steps: R = .4. Its rewrite has three: R = .6, Q = .6. The parent is rewarded again: Q = .4,
    # then (.4 + .6)/2 = .5
    assert len(tree) == 3
    assert tree.parent[:3].tolist() == [-1, 0, 1]
    assert tree.mean(2) == pytest.approx(0.6)
    assert tree.mean(1) == pytest.approx(0.5)
    assert tree.visits[1] == 2
    assert [tree.trials(n) for n in (1, 2)] == [(0, 1), (1, 1)]
    assert "<critique>\nThe last step is wrong.\n</critique>" in g.policy.prompts[-1]


def test_the_next_to_refine_is_the_open_solution_of_highest_uct():
    g = grower(Improves())
    tree = asyncio.run(refine(g, Refinement(by_length, iterations=3, exploration=0.0)))
    # without exploration the best is always refined: a chain, each a line longer
    assert tree.parent[: len(tree)].tolist() == [-1, 0, 1, 2, 3]


def test_a_critique_that_cannot_be_made_is_no_child_and_the_search_ends():
    class Fails(Improves):
        async def sample(self, request):
            rollout = await super().sample(request)
            failed = "Look for" in self.prompts[-1]
            return replace(rollout, outcome=Outcome.ERROR, token_ids=()) if failed else rollout

    tree = asyncio.run(refine(grower(Fails()), Refinement(by_length, iterations=50)))
    assert len(tree) == 2


def test_refinement_keeps_to_its_tokens():
    g = grower(Improves(), budget=100)
    tree = asyncio.run(refine(g, Refinement(by_length, iterations=5, max_critique_tokens=64)))
    assert g.meter.generated <= 100
    assert len(tree) >= 2


def test_the_least_score_of_the_steps_is_the_reward():
    async def score(steps):
        return [0.9, 0.3]

    assert asyncio.run(by_least_score(score)(["a", "b"])) == 0.3
    assert asyncio.run(by_least_score(score)([])) == 0.0


# --- equal states -------------------------------------------------------------------------------------------


def test_states_with_the_same_words_or_the_same_expressions_pool_their_evidence():
    tokenizer = ByteTokenizer()

    def states(signature, *texts):
        tree = Tree("p", (0,), signature)
        nodes = [tree.add_child(ROOT, tokenizer.encode(t), seed=i)[0] for i, t in enumerate(texts)]
        for node in nodes:
            tree.add_outcome(node, Outcome.RIGHT)
        return [tree.trials(n) for n in nodes]

    words = ("We add  2 + 2.\n", "we add 2 + 2\n", "We add 2 + 3.\n")
    assert states(normalised_text(tokenizer), *words) == [(2, 2), (2, 2), (1, 1)]
    ways = ("First 2 + 2 = 4, then 4*3=12.", "12 comes from 4 * 3 = 12, and 2+2 = 4", "2 + 2 = 4")
    assert states(expressions(tokenizer), *ways) == [(2, 2), (2, 2), (1, 1)]
    assert states(expressions(tokenizer), "No sums here", "no sums here.", "other") == [
        (2, 2),
        (2, 2),
        (1, 1),
    ]
    assert states(None, *words) == [(1, 1)] * 3


def test_a_search_over_pooled_states_is_grown_and_its_states_are_fewer_than_its_nodes():
    def wordy(problem_id, so_far, seed):
        return (
            ["Add: 1 + 1 = 2\nanswer L", "We add 1 + 1 = 2\nanswer L", "1+1=2\nanswer X"]
            if not so_far
            else ["answer L"]
        )

    g = grower(scripted_policy(wordy), signature=expressions(ByteTokenizer()))
    tree = asyncio.run(search(g, TreeSearch(selection.uct(1.0), width=12, iterations=1)))
    firsts = list(tree.children(ROOT))
    assert len(firsts) == 3
    assert len({int(tree.state[n]) for n in firsts}) == 1
    assert {tree.trials(n) for n in firsts} == {tree.trials(firsts[0])}


# --- one file each ------------------------------------------------------------------------------------------

ESTIMATOR = '''
"""Half of the draws right: a step is right."""

from stepward.labeling.estimators.prefix_value import estimates_with_outcome, from_hard_labels
from stepward.labeling.estimators.registry import register
from stepward.prm.types import Allocation


@register("half_right_of_a_file", version="1", valid_for={Allocation.FIXED_K})
def half_right(solutions, counts, *, allocation, truncated_as, constants):
    labels = []
    for evidence, row in zip(solutions, counts, strict=True):
        hard = [int(2 * c.right >= c.decided) if c.decided else None for c in row[1:]]
        labels.append(from_hard_labels(estimates_with_outcome(evidence, row, truncated_as), hard, "half"))
    return labels
'''

RULE = '''
"""Thompson sampling over children (a selection function)."""

import numpy as np


def thompson(seed):
    rng = np.random.default_rng(seed)

    def rule(tree, parent, children):
        total = np.array([tree.value_sum[c] for c in children])
        visits = np.array([tree.visits[c] for c in children])
        return rng.beta(1 + total, 1 + visits - total)

    return rule
'''


def from_file(path: Path, source: str):
    assert len(source.strip().splitlines()) <= 30
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_an_estimator_is_one_file_of_at_most_thirty_lines(tmp_path):
    from_file(tmp_path / "half_right.py", ESTIMATOR)
    estimator = make_estimator("half_right_of_a_file", allocation=Allocation.FIXED_K)
    known = SolutionEvidence(2, (1, 1), Outcome.WRONG, ((), (Outcome.RIGHT,) * 2, ()))
    counts = [Counts(), Counts(right=2), Counts(wrong=1)]
    (labels,) = estimator.estimate([known], [counts])
    assert [x.label for x in labels.labels] == [1, 0]
    assert labels.first_error == 1
    # and where its counts would be biased it says nothing
    other = make_estimator("half_right_of_a_file", allocation=Allocation.BINARY_SEARCH)
    assert other.estimate([known], [counts])[0].decided is False


def test_a_selection_function_is_one_file_of_at_most_thirty_lines(tmp_path):
    module = from_file(tmp_path / "thompson.py", RULE)
    g = grower()
    tree = asyncio.run(search(g, TreeSearch(module.thompson(0), width=6, iterations=20)))
    by_text = {g.text(n): n for n in range(len(tree))}
    assert tree.visits[by_text["left\n"]] > tree.visits[by_text["right\n"]]
    assert np.isfinite(tree.value_sum[: len(tree)]).all()


def test_identical_steps_count_as_draws_so_that_a_search_goes_on_below_a_node_with_few_different_ones():
    g = grower()
    tree = asyncio.run(search(g, alphamath(6, 8)))
    assert tree.num_children[ROOT] == 2
    assert sum(int(tree.draws[c]) for c in tree.children(ROOT)) == 6, "the root is expanded once"
    assert max(tree.depth[: len(tree)]) >= 2
