"""From a problem to rows: what the sources say reaches the labels, and every row says what decided it."""

import asyncio
import importlib.util
import random
from dataclasses import replace
from pathlib import Path

import pytest

from stepward.labeling.allocation.fixed_k import FixedK
from stepward.labeling.allocation.information_gain import InformationGain
from stepward.labeling.allocation.no_rollouts import NoRollouts
from stepward.labeling.allocation.two_fidelity import TwoFidelity
from stepward.labeling.changepoint.hints import HintModel
from stepward.labeling.evidence import LabelingConstants
from stepward.labeling.plan import GivenSolution
from stepward.labeling.policies.scripted import scripted_policy
from stepward.prm.errors import EngineError
from stepward.prm.types import FinishReason, Outcome, Problem, Sampler, VerdictKind
from stepward.verifiers.answer import Grader
from stepward.verifiers.critiques import StepVotes
from stepward.verifiers.judge import Judge, Votes


def _harness():
    spec = importlib.util.spec_from_file_location("annotating", Path(__file__).with_name("annotating.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


h = _harness()
PROBLEM, RIGHT, WRONG = h.PROBLEM, h.RIGHT, h.WRONG
labelling, run, says, script, finish = h.labelling, h.run, h.says, h.script, h.finish
S, R, U = VerdictKind.SUPPORTED, VerdictKind.REFUTED, VerdictKind.UNKNOWN
FALSE_SUM = says({"2 + 2 = 5": R, "2 + 2 = 4": S, "4 + 2 = 6": S, "5 + 2 = 7": S})


def two() -> object:
    return script([RIGHT, WRONG], finish)


def hard(row):
    return [x.label for x in row.labels]


def test_verdicts_are_kept_in_the_row_by_every_rule_and_change_nothing_under_returns_alone():
    plain = run(two(), labelling(two()))
    told = run(two(), labelling(two()), verify_steps=FALSE_SUM)
    assert [hard(r) for r in told.solutions] == [hard(r) for r in plain.solutions] == [[1, 1, 1], [0, 0, 0]]
    assert told.solutions[1].labels[0].verdicts[0].kind is R
    assert [x.decided_by for x in told.solutions[1].labels] == ["returns"] * 3


def test_a_refuted_step_is_wrong_by_veto_whatever_rollouts_say_and_names_the_tool():
    # every rollout is right: Math-Shepherd sees no error before the last step
    always = script([WRONG, RIGHT], lambda so_far: "The answer is 6.")
    plan = labelling(always, fusion="veto")
    row = run(always, plan, verify_steps=FALSE_SUM).solutions[0]
    assert hard(row) == [0, 1, 0]
    assert row.first_error == 0
    assert [x.decided_by for x in row.labels] == ["tool", "returns", "returns"]


def test_under_intersect_a_contradiction_is_unknown():
    always = script([WRONG, RIGHT], lambda so_far: "The answer is 6.")
    row = run(always, labelling(always, fusion="intersect"), verify_steps=FALSE_SUM).solutions[0]
    assert (hard(row), row.first_error) == ([None, 1, 0], None)


def test_consensus_keeps_what_judge_and_returns_agree_on_and_says_why_not():
    judge = says({"2 + 2 = 5": R, "2 + 2 = 4": S, "4 + 2 = 6": S, "The answer is 6.": S}, "judge")
    found = run(two(), labelling(two(), fusion="consensus"), verify_steps=judge).solutions
    assert [hard(r) for r in found] == [[1, 1, 1], [0, None, None]]
    assert found[1].labels[0].decided_by == "consensus"
    other = says({"2 + 2 = 5": S, "5 + 2 = 7": R}, "judge")
    row = run(two(), labelling(two(), fusion="consensus"), verify_steps=other).solutions[1]
    assert hard(row) == [None] * 3
    assert {x.decided_by for x in row.labels} == {"no consensus"}


def test_verdicts_move_the_posterior_only_under_the_posterior_rule_and_are_weighed_by_their_precision():
    def p_first(fusion, constants=None):
        plan = labelling(
            two(),
            allocation=NoRollouts(),
            estimator="changepoint",
            fusion=fusion,
            constants=constants or LabelingConstants(),
        )
        return run(two(), plan, verify_steps=FALSE_SUM).solutions[1].labels[0].p_first_error

    apart, told = p_first("returns"), p_first("posterior")
    assert told > apart + 0.2
    doubtful = LabelingConstants(precision={"tool": 0.2}, recall={"tool": 0.2})
    assert apart < p_first("posterior", doubtful) < told


def test_a_posterior_label_names_the_posterior_and_the_tool():
    sure = LabelingConstants(precision={"tool": 0.99}, recall={"tool": 0.9})
    plan = labelling(two(), allocation=FixedK(4), estimator="changepoint", fusion="posterior", constants=sure)
    row = run(two(), plan, verify_steps=FALSE_SUM).solutions[1]
    assert (row.first_error, row.labels[0].label, row.labels[0].decided_by) == (0, 0, "posterior+tool")


class Scores:
    """A reward model that dislikes one line."""

    name = "scores"

    def __init__(self, low=0.05, high=0.95):
        self.low, self.high, self.calls = low, high, 0

    def score(self, problems, solutions):
        self.calls += 1
        return [tuple(self.low if s == "2 + 2 = 5" else self.high for s in steps) for steps in solutions]


def test_a_hint_is_stored_read_through_its_model_and_named():
    def row(**changes):
        plan = labelling(
            two(), allocation=NoRollouts(), estimator="changepoint", fusion="posterior", **changes
        )
        return run(two(), plan, reward_model=Scores()).solutions[1]

    told = row()
    assert [x.hint for x in told.labels] == [0.05, 0.95, 0.95]
    blind = row(constants=LabelingConstants(hint=HintModel(2.0, 2.0, 1.0)))
    assert told.labels[0].p_first_error > blind.labels[0].p_first_error + 0.2
    none = run(two(), labelling(two(), allocation=NoRollouts(), estimator="changepoint")).solutions[1]
    assert blind.labels[0].p_first_error == pytest.approx(none.labels[0].p_first_error)
    assert none.labels[0].hint is None


def test_two_fidelity_reads_the_scores_even_where_labels_do_not():
    policy = two()
    plan = labelling(policy, allocation=TwoFidelity(3, 0.1, 0.9))
    run(policy, plan, reward_model=Scores())
    assert len(policy.calls) == 2, "every score is sure: no rollout"
    policy = two()
    run(policy, plan, reward_model=Scores(0.5, 0.95))
    assert len(policy.calls) == 2 + 3, "only the doubted step of the wrong solution gets its three"


class Slow:
    """A policy whose answers come in a random order."""

    def __init__(self, inner, seed):
        self.inner, self.rng = inner, random.Random(seed)

    def __getattr__(self, name):
        return getattr(self.inner, name)

    async def sample(self, request):
        await asyncio.sleep(self.rng.random() * 0.003)
        return await self.inner.sample(request)


def coin(problem_id, so_far, seed):
    """One policy for every order of requests: what is said depends on the seed alone."""
    if not so_far:
        return [RIGHT, WRONG]
    return [finish(so_far), "The answer is 6.", "The answer is 9."]


@pytest.mark.parametrize("outcomes_from", ["answers", "votes"])
def test_the_same_seed_gives_the_same_rows_whatever_finishes_first(outcomes_from):
    def rows(order):
        policy = scripted_policy(coin)
        allocation = InformationGain(LabelingConstants(price=1e-4))
        plan = labelling(
            policy, allocation=allocation, estimator="changepoint", fusion="posterior", num_solutions=5,
            outcomes_from=outcomes_from,
        )  # fmt: skip
        slow = policy if order is None else Slow(policy, order)
        return run(slow, plan, verify_steps=FALSE_SUM, reward_model=Scores())

    first = rows(None)
    assert len(first.rollouts) > 5
    assert rows(1) == rows(2) == first


# --- no reference answer ----------------------------------------------------------------------------------


def test_votes_stand_in_for_the_reference_and_every_row_says_so_with_its_share():
    bare = replace(PROBLEM, answers=())
    policy = script([RIGHT, RIGHT, WRONG], finish)
    found = run(policy, labelling(policy, num_solutions=3, outcomes_from="votes"), bare).solutions
    assert [r.solution.outcome for r in found] == [Outcome.RIGHT, Outcome.RIGHT, Outcome.WRONG]
    # two of three votes, and one of three
    assert [r.solution.outcome_share for r in found] == pytest.approx([2 / 3, 2 / 3, 1 / 3])
    assert {r.solution.outcome_from for r in found} == {"votes"}
    assert {r.problem.answers for r in found} == {()}, "the row's problem still has no answer"
    assert hard(found[2]) == [0, 0, 0], "rollouts are compared with the majority's answer"


def test_a_solution_of_which_nothing_is_known_has_no_hard_label_only_a_probability():
    policy = script([RIGHT, RIGHT, WRONG], finish)
    bare = replace(PROBLEM, answers=())
    plan = labelling(policy, allocation=NoRollouts(), estimator="changepoint", num_solutions=3)
    for row in run(policy, plan, bare).solutions:
        assert hard(row) == [None] * 3
        assert all(x.p_first_error is not None for x in row.labels)
        assert {x.decided_by for x in row.labels} == {""}


def test_votes_do_not_look_at_the_reference_that_is_there():
    lie = replace(PROBLEM, answers=("99",))
    policy = script([RIGHT, RIGHT, WRONG], finish)
    found = run(policy, labelling(policy, num_solutions=3, outcomes_from="votes"), lie).solutions
    assert [r.solution.outcome for r in found] == [Outcome.RIGHT, Outcome.RIGHT, Outcome.WRONG]
    assert found[0].problem.answers == ("99",)


@pytest.mark.parametrize("solutions", [[RIGHT, WRONG], [RIGHT]])
def test_a_tied_or_lonely_vote_is_no_reference_costs_no_rollout_and_is_marked(solutions):
    policy = script(solutions, finish)
    plan = labelling(policy, num_solutions=len(solutions), outcomes_from="votes")
    found = run(policy, plan).solutions
    assert {r.solution.outcome for r in found} == {Outcome.NO_GOLD}
    assert all(hard(r) == [None] * 3 and "no_majority" in r.marks for r in found)
    assert len(policy.calls) == len(solutions)


def spark_judge(wrong_line, abstain=()):
    """Reviews: 3 of 4 call the line wrong, all call the others right; on some lines they are split."""
    judge = Judge(scripted_policy(lambda *a: "x"), num_samples=4)

    async def reviews(problem, steps):
        votes = Votes(
            tuple(
                StepVotes(2, 2, 0)
                if s in abstain
                else StepVotes(1, 3, 0)
                if s == wrong_line
                else StepVotes(4, 0, 0)
                for s in steps
            )
        )
        return votes.steps, judge.verdicts(votes, len(steps))

    return reviews


def test_a_judges_consensus_decides_outcomes_and_the_reference_of_rollouts():
    bare = replace(PROBLEM, answers=())
    policy = two()
    plan = labelling(policy, outcomes_from="spark")
    found = run(policy, plan, bare, reviews=spark_judge("2 + 2 = 5")).solutions
    assert [r.solution.outcome for r in found] == [Outcome.RIGHT, Outcome.WRONG]
    # the least share of reviews over the steps: 4 of 4, and 1 of 4
    assert [r.solution.outcome_share for r in found] == [1.0, 0.25]
    assert {r.solution.outcome_from for r in found} == {"spark"}
    assert [hard(r) for r in found] == [[1, 1, 1], [0, 0, 0]]
    assert found[1].labels[0].verdicts[0].verifier == "judge"


def test_a_judge_that_is_split_leaves_the_outcome_undecided_and_never_wrong():
    policy = script([RIGHT, RIGHT], finish)
    plan = labelling(policy, outcomes_from="spark")
    found = run(policy, plan, reviews=spark_judge("none", abstain=("4 + 2 = 6",))).solutions
    assert {r.solution.outcome for r in found} == {Outcome.UNDECIDED}
    assert all("no_majority" in r.marks for r in found)
    assert len(policy.calls) == 2


def test_solutions_from_elsewhere_and_another_completer_are_marked_off_policy():
    given = [GivenSolution("p", tuple(WRONG.split("\n")), None, "me")]
    policy = two()
    row = run(policy, labelling(policy), given=given).solutions[0]
    assert row.marks == ("off_policy",)
    other = scripted_policy(lambda p, so_far, seed: finish(so_far), name="other")
    plan = replace(labelling(policy), completer_info=replace(other.info, sampler=Sampler(max_tokens=400)))
    rows = run(two(), plan, completer=other).solutions
    assert all("off_policy" in r.marks for r in rows)
    assert rows[0].marks == ("off_policy",)
    on = run(two(), labelling(policy)).solutions
    assert all("off_policy" not in r.marks for r in on)


# --- hard luck --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "mark"), [(RIGHT, "solve_rate_1"), (WRONG, "solve_rate_0")])
def test_a_problem_that_is_always_right_or_always_wrong_gets_no_rollouts_and_is_marked(text, mark):
    policy = script([text] * 8, finish)
    found = run(policy, labelling(policy, num_solutions=8)).solutions
    assert len(policy.calls) == 8
    assert {r.marks for r in found} == {(mark,)}
    policy = script([text] * 4, finish)
    found = run(policy, labelling(policy, num_solutions=4)).solutions
    assert len(policy.calls) > 4, "four draws do not show a solve rate"
    assert {r.marks for r in found} == {(mark,)}, "but the row says that they agree"


def test_undecided_draws_do_not_make_a_problem_look_too_hard():
    class Undecided:
        async def grade(self, problem, text, reason):
            return type("G", (), {"outcome": Outcome.UNDECIDED, "answer": None, "found_by": None})()

    policy = script([WRONG] * 8, finish)
    found = run(policy, labelling(policy, num_solutions=8), grader=Undecided()).solutions
    assert not any("solve_rate_0" in r.marks for r in found)


def test_a_solution_of_one_step_is_labelled_by_its_outcome_and_costs_no_rollout():
    policy = script(["The answer is 6.", "The answer is 7."], finish)
    for allocation in (FixedK(4), InformationGain()):
        policy = script(["The answer is 6.", "The answer is 7."], finish)
        found = run(policy, labelling(policy, allocation=allocation)).solutions
        assert len(policy.calls) == 2
        if allocation.kind == "fixed_k":
            assert [hard(r) for r in found] == [[1], [0]]


def test_a_solution_of_two_hundred_steps_is_labelled_in_bounded_work():
    lines = [f"line {i}" for i in range(199)] + ["The answer is 7."]
    policy = script(
        ["\n".join(lines)],
        lambda so_far: "The answer is 6." if "line 120" not in so_far else "The answer is 7.",
    )
    allocation = InformationGain(LabelingConstants(price=6e-5))
    plan = labelling(
        policy,
        allocation=allocation,
        estimator="changepoint",
        num_solutions=1,
        sampler=Sampler(max_tokens=9000),
    )
    row = run(policy, plan).solutions[0]
    assert (len(row.labels), len(row.prefixes)) == (200, 201)
    # right up to "line 119", wrong from "line 120" on: the error is that step or next to it
    assert abs(row.first_error - 120) <= 2
    assert len(policy.calls) < 100


@pytest.mark.parametrize("tail", ["", "\n", "I do not know."])
def test_empty_rollouts_are_given_up_counted_and_never_wrong(tail):
    policy = script([RIGHT, WRONG], lambda so_far: tail)
    plan = labelling(
        policy, allocation=InformationGain(LabelingConstants(price=1e-7)), estimator="changepoint"
    )
    found = run(policy, plan)
    assert len(policy.calls) <= 2 + 2 * 8
    for row in found.solutions:
        assert "no_verdict" in row.marks
        assert sum(e.counts.wrong for e in row.prefixes[1:-1]) == 0
        assert sum(e.counts.no_answer for e in row.prefixes[1:-1]) == 8


def test_rollouts_that_are_all_truncated_are_given_up_and_give_no_hard_label():
    # each completion has 30 bytes more than the limit lets through
    policy = script([RIGHT, WRONG], lambda so_far: "so we go on and on and on and on and on")
    plan = labelling(
        policy, allocation=FixedK(2), sampler=Sampler(max_tokens=60), rollout_sampler=Sampler(max_tokens=5)
    )
    found = run(policy, plan).solutions
    assert sum(e.counts.truncated for e in found[0].prefixes[1:-1]) == 4
    assert [hard(r)[:2] for r in found] == [[None, None], [None, None]]
    endless = replace(plan, allocation=InformationGain(LabelingConstants(price=1e-7)))
    policy = script([RIGHT, WRONG], lambda so_far: "so we go on and on and on and on and on")
    found = run(policy, endless).solutions
    assert all("no_verdict" in r.marks for r in found)
    assert len(policy.calls) == 2 + 2 * 8


def test_rollouts_that_say_the_same_are_graded_once_and_counted_each():
    class Counting(Grader):
        texts: list[str] = []

        async def grade(self, problem, text, finish_reason=FinishReason.STOP):
            self.texts.append(text)
            return await super().grade(problem, text, finish_reason)

    always = script([RIGHT], lambda so_far: "The answer is 6.")
    grader = Counting()
    row = run(always, labelling(always), grader=grader).solutions[0]
    # Two solutions of three steps, rollouts at the prefixes 1 and 2: four alike at each of them and solution.
    assert [e.counts.right for e in row.prefixes][1:3] == [4, 4]
    # Graded: the two solutions, one rollout from prefix 1, and one from prefix 2, which ends as the solutions do.
    assert sorted(grader.texts) == sorted([RIGHT] * 3 + ["2 + 2 = 4\nThe answer is 6."])


def test_a_rollout_that_the_engine_failed_leaves_the_step_unknown_and_never_wrong():
    def broken(so_far):
        raise EngineError("502", retryable=True)

    policy = script([RIGHT, WRONG], broken)
    found = run(policy, labelling(policy)).solutions
    for row in found:
        assert hard(row)[:2] == [None, None]
        assert [e.counts.error for e in row.prefixes] == [0, 4, 4, 0]
        assert sum(e.counts.wrong for e in row.prefixes[:-1]) <= 1  # the draws at the root are the solutions


def test_a_solution_that_the_engine_failed_is_an_error_row_whatever_the_votes_say():
    calls = []

    def dies(problem_id, so_far, seed):
        calls.append(seed)
        if len(calls) == 2:
            raise EngineError("the engine is gone for a moment", retryable=True)
        return RIGHT if not so_far else finish(so_far)

    policy = scripted_policy(dies)
    found = run(policy, labelling(policy, num_solutions=3, outcomes_from="votes"))
    assert [r.solution.outcome for r in found.solutions] == [Outcome.RIGHT, Outcome.RIGHT]
    assert sum(r.outcome is Outcome.ERROR for _, r in found.rollouts) == 1


def test_an_engine_that_is_gone_ends_the_problem_with_an_error_that_names_it():
    def gone(so_far):
        raise EngineError("connection refused")

    policy = script([RIGHT, WRONG], gone)
    with pytest.raises(EngineError, match="problem p at prefix 1"):
        run(policy, labelling(policy))


def test_a_problem_of_unit_tests_has_no_votes():
    from stepward.prm.types import Check, CheckKind

    problem = Problem("p", "Write f", (), Check(CheckKind.UNIT_TESTS))
    policy = two()
    found = run(policy, labelling(policy, outcomes_from="votes"), problem).solutions
    assert {r.solution.outcome for r in found} == {Outcome.NO_GOLD}
