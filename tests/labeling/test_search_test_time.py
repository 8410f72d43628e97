"""Searches over many problems: budgets, determinism, votes, and faults that must not look like answers."""

import asyncio
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepward.labeling.policies.scripted import scripted_policy
from stepward.labeling.search.answers import Candidate, best_of, vote
from stepward.labeling.search.exploration import Exploration
from stepward.labeling.search.growth import TokenMeter, new_tree
from stepward.labeling.search.registry import make_search, search_names
from stepward.labeling.search.scoring import ScoreQueue
from stepward.labeling.search.test_time import SearchPlan, search_all, search_problem
from stepward.labeling.tree import Tree
from stepward.prm.errors import EngineError, ModelError
from stepward.prm.evaluation.aggregation import minimum, product
from stepward.prm.seeds import derive_seed
from stepward.prm.steps import StepFormat
from stepward.prm.types import FinishReason, Problem, Sampler

PROBLEMS = [Problem(f"p{i}", f"Problem {i}", ("7",)) for i in range(6)]
SMALL = {
    "vgs": {"block_tokens": 9, "subtrees": 2},
    "aca": {"first": 2, "more": 2, "total": 6},
    "rest_mcts": {"width": 2, "iterations": 6},
}


def walk(problem_id, so_far, seed):
    """One to four steps of varying length, then an answer; whole completions begin like that too."""
    lines = so_far.count("\n")
    if lines >= 3:
        return [f"The answer is {n}" for n in (7, 7, 8, 9)]
    return [f"add {n}\nmore {n}\nThe answer is {n % 10}" for n in (3, 17, 7)] + [
        "The answer is 7",
        "x = 12345\n",
    ]


class Hash:
    """A reward model whose scores are a hash of the text: they depend on nothing else."""

    name = "hash"

    def score(self, problems, solutions):
        return [
            tuple(derive_seed(0, problem.id, *steps[: t + 1]) % 1000 / 999 for t in range(len(steps)))
            for problem, steps in zip(problems, solutions, strict=True)
        ]


def plan_of(name, budget, seed=0, **given) -> SearchPlan:
    method = make_search(name, **{**SMALL.get(name, {}), **given})
    return SearchPlan(method, Sampler(max_tokens=80), StepFormat(), product, budget, 40, seed)


def run(name, budget, *, policy=None, model=None, in_flight=64, problems=PROBLEMS, seed=0, **given):
    policy = policy or scripted_policy(walk)

    async def collect():
        prompts = [(p, policy.tokenizer.encode(p.text + "\n")) for p in problems]
        found = search_all(
            prompts, plan_of(name, budget, seed, **given), policy, model or Hash(), in_flight=in_flight
        )
        return [r async for r in found]

    return asyncio.run(collect())


@pytest.mark.parametrize("name", search_names())
@given(budget=st.integers(1, 700), seed=st.integers(0, 50))
@settings(max_examples=12, deadline=None)
def test_no_method_ever_spends_more_than_its_budget(name, budget, seed):
    read = []

    class Counting(Hash):
        def score(self, problems, solutions):
            # What a reward model reads, counted here and not by the search: steps and their newlines.
            read.extend((p.id, len("\n".join(s))) for p, s in zip(problems, solutions, strict=True))
            return super().score(problems, solutions)

    policy = scripted_policy(walk)
    for result in run(name, budget, policy=policy, model=Counting(), problems=PROBLEMS[:2], seed=seed):
        assert result.generated_tokens + result.scored_tokens <= budget
        assert sum(n for i, n in read if i == result.problem_id) <= result.scored_tokens
        assert result.num_draws == sum(c.prefix.problem_id == result.problem_id for c in policy.calls)


@pytest.mark.parametrize("name", search_names())
def test_the_same_seed_gives_the_same_search_whatever_is_in_flight_and_whatever_ends_first(name):
    class Slow:
        """The scripted policy with answers that come in a random order."""

        def __init__(self):
            self.inner, self.chance = scripted_policy(walk), random.Random()
            self.info, self.tokenizer, self.context_length = self.inner.info, self.inner.tokenizer, 1 << 20

        async def sample(self, request):
            for _ in range(self.chance.randrange(4)):
                await asyncio.sleep(0)
            return await self.inner.sample(request)

    plain = run(name, 600, in_flight=1)
    assert run(name, 600, policy=Slow(), in_flight=3) == plain
    assert run(name, 600, policy=Slow(), in_flight=64) == plain
    assert run(name, 600, seed=1) != plain
    assert [r.problem_id for r in plain] == [p.id for p in PROBLEMS]


def test_a_budget_is_used_and_not_only_kept():
    for name in ("beam", "particles", "best_of_n", "dvts"):
        for result in run(name, 2000):
            assert result.generated_tokens + result.scored_tokens > 1600, name


def test_without_a_budget_one_pass_is_made():
    assert [r.num_passes for r in run("best_of_n", None, samples=3)] == [1] * len(PROBLEMS)
    assert all(len(r.candidates) <= 3 for r in run("best_of_n", None, samples=3))


def candidate(answer, score, *, complete=True, votes=1):
    scores = () if score is None else (score,)
    return Candidate(f"... {answer}", ("...",), complete, scores, score, answer, votes, 4)


def test_answers_are_weighted_by_their_scores_and_equal_ones_are_one():
    # 1/2 and 0.5 are one answer: .3 + .4 > .6
    candidates = (candidate("3", 0.6), candidate("1/2", 0.3), candidate("0.5", 0.4))
    assert vote(candidates) == 2
    assert best_of(candidates) == 0
    # three votes of .3 outweigh one of .6
    assert vote((candidate("3", 0.6), candidate("4", 0.3, votes=3))) == 1
    # nothing was scored: votes count evenly
    assert vote((candidate("3", None), candidate("4", None), candidate("4", None))) == 1
    assert vote(()) is None
    assert best_of(()) is None
    assert vote((candidate(None, 0.9),)) is None


def test_p054_unfinished_candidates_are_marked_and_never_vote():
    # One ended and three open beams: 1 complete answer, 3 marked incomplete, voting uses 1.
    candidates = (candidate("8", 0.2), *(candidate("9", 0.9, complete=False) for _ in range(3)))
    assert vote(candidates) == 0
    assert best_of(candidates) == 0
    assert sum(not c.complete for c in candidates) == 3

    def script(problem_id, so_far, seed):
        return (
            ["The answer is 7"]
            if so_far == "stop\n"
            else ["stop\n", "go\n", "on\n", "up\n"]
            if not so_far
            else ["x\n"]
        )

    policy = scripted_policy(script)
    x = Exploration(
        PROBLEMS[0], new_tree(PROBLEMS[0], policy.tokenizer.encode("?")), policy, Sampler(max_tokens=30), StepFormat(),
        0, TokenMeter(None), ScoreQueue(Hash()), None, 20,
    )  # fmt: skip
    plan = SearchPlan(make_search("beam", beams=4, samples=4), x.sampler, x.step_format, minimum)
    result = asyncio.run(search_problem(x, plan))
    complete = [c for c in result.candidates if c.complete]
    assert {c.text for c in complete} == {"stop\nThe answer is 7"}
    assert all(c.answer is None for c in result.candidates if not c.complete)
    assert any(not c.complete for c in result.candidates)
    assert result.answer is not None
    assert result.candidates[result.answer].answer == "7"


def test_p048_a_scoring_fault_is_asked_again_and_is_never_a_score_of_zero():
    class Once(Hash):
        fails = 1

        def score(self, problems, solutions):
            if self.fails:
                self.fails -= 1
                raise EngineError("the server answered 500", retryable=True)
            return super().score(problems, solutions)

    assert run("best_of_n", 500, model=Once(), problems=PROBLEMS[:1]) == run(
        "best_of_n", 500, problems=PROBLEMS[:1]
    )

    class Always(Once):
        fails = 1 << 30

    result = run("best_of_n", 500, model=Always(), problems=PROBLEMS[:1])[0]
    assert result.fault == "the server answered 500"
    assert result.answer is None
    assert result.candidates == ()


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (lambda s: [(0.5,) * 4096 for _ in s], "4096 numbers for"),
        (lambda s: [(0.5,) for _ in s], "gave 1 numbers for"),
        (lambda s: [(0.5,) * len(x) for x in s][1:], "rows of scores for"),
        (lambda s: [(float("nan"),) * len(x) for x in s], "nan as a score"),
        (lambda s: [(-3.2,) * len(x) for x in s], "scores lie in"),
    ],
)
def test_p042_p044_p079_whatever_is_not_one_score_a_step_is_refused(rows, said):
    class Served(Hash):
        def score(self, problems, solutions):
            return rows(solutions)

    with pytest.raises(ModelError, match=said):
        run("best_of_n", 500, model=Served())


def test_p047_scoring_the_same_prefix_twice_gives_equal_whole_lists():
    policy = scripted_policy(walk)
    x = Exploration(
        PROBLEMS[0], new_tree(PROBLEMS[0], policy.tokenizer.encode("?")), policy, Sampler(max_tokens=80), StepFormat(),
        0, TokenMeter(None), ScoreQueue(Hash()), None, 40,
    )  # fmt: skip

    async def twice():
        ends = await x.complete([0, 0, 0])
        first = await x.score(ends)
        spent = x.scored_tokens
        assert await x.score(ends) == first
        assert x.scored_tokens == spent
        return first, [x.step_texts(n) for n in ends]

    rows, steps = asyncio.run(twice())
    assert [len(r) for r in rows] == [len(s) for s in steps]


def test_p155_a_search_reports_while_it_runs_stops_on_budget_and_ends_at_a_marker_of_three_tokens():
    seen = []

    def endless(problem_id, so_far, seed):
        return ["go\n", "go on\n", "done|#>never read\n"] if so_far.count("\n") < 4 else ["done|#>never read"]

    policy = scripted_policy(endless)

    async def collect():
        plan = SearchPlan(
            make_search("beam", beams=2, samples=2), Sampler(max_tokens=200, stop=("|#>",)), StepFormat(), minimum,
            900, 40,
        )  # fmt: skip
        prompts = [(p, policy.tokenizer.encode("?")) for p in PROBLEMS]
        watch = lambda p: seen.append((p.done, p.num_nodes, p.num_draws, p.generated_tokens))  # noqa: E731
        return [r async for r in search_all(prompts, plan, policy, Hash(), watch=watch)]

    results = asyncio.run(collect())
    assert len(seen) > 2 * len(PROBLEMS)
    assert seen[-1][0] == len(PROBLEMS)
    assert [s[3] for s in seen] == sorted(s[3] for s in seen)
    assert seen[-1][3] == sum(r.generated_tokens for r in results)
    # "|#>" is three tokens of the byte tokenizer, found in the text: the solution ends there
    texts = [c.text for r in results for c in r.candidates if c.complete]
    assert sum(t.endswith("done|#>") for t in texts) > len(PROBLEMS)
    assert not any("never read" in t for t in texts)


def test_p154_a_chain_of_five_thousand_states_is_grown_saved_and_loaded_without_recursion(tmp_path):
    tree, node = Tree("p", (1, 2)), 0
    for i in range(5000):
        node, new = tree.add_child(node, (i % 7 + 1,), seed=i)
        assert new
        assert node == i + 1
    tree.save(tmp_path / "tree.npz")
    again = Tree.load(tmp_path / "tree.npz")
    assert len(again) == 5001
    assert len(again.path(5000)) == 5001
    assert again.prefix(5000) == tree.prefix(5000)


def test_p058_every_problem_gives_a_record_also_where_the_engine_fails_all_its_draws():
    def broken(problem_id, so_far, seed):
        if problem_id == "p2":
            raise EngineError("502", retryable=True)
        return walk(problem_id, so_far, seed)

    for name in ("beam", "stepco", "particles", "rest_mcts"):
        results = run(name, 400, policy=scripted_policy(broken))
        assert [r.problem_id for r in results] == [p.id for p in PROBLEMS]
        failed = results[2]
        assert failed.num_faults > 0
        assert failed.answer is None
        assert failed.generated_tokens == 0
        assert sum(r.answer is not None for r in results) == 5


def test_a_search_never_looks_at_the_gold_answer():
    other = [Problem(p.id, p.statement, ("1234",)) for p in PROBLEMS]
    for name in search_names():
        assert run(name, 300, problems=other[:2]) == run(name, 300, problems=PROBLEMS[:2])


def test_finish_reasons_other_than_an_end_leave_a_solution_open():
    policy = scripted_policy(lambda problem_id, so_far, seed: ["abcdefgh"])
    x = Exploration(
        PROBLEMS[0], new_tree(PROBLEMS[0], policy.tokenizer.encode("?")), policy, Sampler(max_tokens=5), StepFormat(),
        0, TokenMeter(None), ScoreQueue(Hash()), None, 3,
    )  # fmt: skip
    first = asyncio.run(x.expand([(0, 1)]))[0][0]
    assert x.text(first) == "abc"
    assert not x.tree.terminal[first]
    assert x.room(first) == 2
    assert asyncio.run(x.expand([(first, 1)]))[0]
    assert FinishReason.LENGTH != FinishReason.STOP
