"""Search as verbs over the tree: what is drawn, valued and backed up, within its tokens."""

import asyncio

import pytest

from stepward.labeling.policies.scripted import scripted_policy
from stepward.labeling.search.growth import Grower, OutOfTokens, TokenMeter, new_tree
from stepward.labeling.search.omegaprm import OmegaPRM, _Candidate, _Run, build
from stepward.labeling.search.scoring import ScoreQueue
from stepward.labeling.search.tree_search import TreeSearch, alphamath, rest_mcts, search
from stepward.labeling.selection import uct
from stepward.labeling.tree import ROOT
from stepward.prm.errors import EngineError, ModelError
from stepward.prm.steps import StepFormat
from stepward.prm.types import Outcome, Problem, Sampler

PROBLEM = Problem("p", "Which way?", ("L",))


def script(problem_id, so_far, seed):
    """First step "left" or "right"; after left the answer is right half the time, after right never."""
    if not so_far:
        return ["left\nanswer L", "left\nanswer X", "right\nanswer X", "right\nanswer X"]
    if so_far == "left\n":
        return ["answer L", "answer X"]
    return ["answer X"]


async def grade(problem, text, reason):
    return Outcome.RIGHT if text.endswith("L") else Outcome.WRONG


def grower(policy=None, *, seed=0, budget=None) -> Grower:
    policy = policy or scripted_policy(script)
    tree = new_tree(PROBLEM, policy.tokenizer.encode("Which way?\n"))
    return Grower(
        PROBLEM, tree, policy, Sampler(max_tokens=40), StepFormat(), grade, seed, TokenMeter(budget), 40
    )


def test_expanding_draws_steps_and_identical_ones_share_a_node_but_count_as_draws():
    g = grower()
    nodes = asyncio.run(g.expand(ROOT, 12))
    texts = {g.text(n) for n in nodes}
    assert texts == {"left\n", "right\n"}
    assert len(g.tree) == 3
    assert sum(g.tree.draws[n] for n in set(nodes)) == 12
    assert len({c.seed for c in g.policy.calls}) == 12


def test_a_search_finds_the_better_branch_and_every_visit_is_backed_up_to_the_root():
    g = grower()
    tree = asyncio.run(search(g, TreeSearch(uct(1.0), width=2, iterations=30)))
    by_text = {g.text(n): n for n in range(1, len(tree))}
    left, right = by_text["left\n"], by_text["right\n"]
    assert tree.mean(left) > tree.mean(right) == 0.0
    assert tree.visits[left] > tree.visits[right]
    assert tree.visits[ROOT] == tree.visits[left] + tree.visits[right]


def test_the_same_seed_grows_the_same_tree_and_another_seed_another():
    trees = [asyncio.run(search(grower(seed=s), alphamath(3, 8))) for s in (0, 0, 1)]
    visits = [t.visits[: len(t)].tolist() for t in trees]
    assert visits[0] == visits[1]
    assert visits[0] != visits[2] or trees[0].counts.tolist() != trees[2].counts.tolist()


def test_a_budget_is_never_exceeded_and_what_was_grown_stands():
    g = grower(budget=200)
    tree = asyncio.run(search(g, TreeSearch(uct(1.0), width=2, iterations=1000)))
    assert g.meter.generated <= 200
    assert g.meter.reserved == 0
    assert len(tree) > 1
    with pytest.raises(OutOfTokens):
        asyncio.run(grower(budget=3).expand(ROOT, 1))


def test_a_draw_that_the_engine_failed_is_no_visit_and_never_wrong():
    def broken(problem_id, so_far, seed):
        if so_far:
            raise EngineError("502", retryable=True)
        return script(problem_id, so_far, seed)

    g = grower(scripted_policy(broken))
    tree = asyncio.run(search(g, TreeSearch(uct(1.0), width=2, iterations=2)))
    assert tree.visits[ROOT] == 0
    assert tree.trials(1) == (0, 0)


class Constant:
    """A reward model that knows that left is right."""

    name = "constant"

    def __init__(self):
        self.batches = []

    def score(self, problems, solutions):
        self.batches.append(len(solutions))
        return [tuple(0.9 if s[0] == "left" else 0.1 for _ in s) for s in solutions]


def test_a_mixed_value_is_part_rollout_and_part_reward_model():
    model = Constant()
    g = grower()
    tree = asyncio.run(
        search(g, TreeSearch(uct(0.0), width=2, iterations=1, rollout_share=0.0), ScoreQueue(model))
    )
    by_text = {g.text(n): n for n in range(1, len(tree))}
    assert tree.mean(by_text["left\n"]) == pytest.approx(0.9)
    assert tree.reward[by_text["left\n"]] == pytest.approx(0.9)
    with pytest.raises(ValueError, match="needs a reward model"):
        asyncio.run(search(grower(), rest_mcts()))


def test_scores_asked_for_at_the_same_time_go_in_one_batch_and_a_fault_reaches_those_who_wait():
    model = Constant()

    async def many():
        queue = ScoreQueue(model)
        return await asyncio.gather(*(queue.score(PROBLEM, ["left"] * n) for n in (1, 2, 3)))

    assert [len(s) for s in asyncio.run(many())] == [1, 2, 3]
    assert model.batches == [3]

    class Broken(Constant):
        def score(self, problems, solutions):
            raise ModelError("a score is not finite")

    async def fails():
        await ScoreQueue(Broken()).score(PROBLEM, ["left"])

    with pytest.raises(ModelError, match="not finite"):
        asyncio.run(fails())


def test_omegaprm_retires_every_pair_that_it_searched_and_finds_the_step_that_spoils():
    g = grower()
    tree = asyncio.run(build(g, OmegaPRM(num_rollouts=16, searches=50, pieces=3)))
    by_text = {g.text(n): n for n in range(len(tree))}
    # every wrong rollout of the root that goes right is spoilt within "right\n": some tested prefix of it has MC 0
    spoilt = [t for t in by_text if t.startswith("r") and tree.trials(by_text[t], pooled=False)[1]]
    assert spoilt
    assert all(tree.trials(by_text[t])[0] == 0 for t in spoilt if t.startswith("right"))
    # a state is sampled once: 16 rollouts at each tested prefix, never more
    assert {tree.counts[n].sum() for n in range(len(tree)) if tree.counts[n].any()} == {16}


def test_three_pairs_of_one_priority_are_taken_in_order_and_the_fourth_pop_reports_exhaustion():
    run = _Run(grower(), OmegaPRM())
    run.estimated[ROOT] = 0.5
    run.pool = [_Candidate(ROOT, (i,), i) for i in range(3)]
    assert [run.pop().order for _ in range(3)] == [0, 1, 2]
    assert run.pop() is None
