r"""From a model's text to an outcome: what counts for the policy, what against it, and what is our own fault."""

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from stepward.prm.types import Check, CheckKind, FinishReason, Outcome, Problem, Reason, VerdictKind
from stepward.verifiers import answer as answer_module
from stepward.verifiers.answer import Grade, Grader, golds_that_fail, make_answer_verifier, usable_golds
from stepward.verifiers.answers.finding import Finding
from stepward.verifiers.answers.members import Members, joined
from stepward.verifiers.extraction import FoundBy
from stepward.verifiers.workers import CallKind, CallResult


def problem(*golds: str, kind: CheckKind = CheckKind.MATH, payload: str | None = None) -> Problem:
    return Problem("p1", "What is 2 + 2? Box it, like \\boxed{4}.", golds, Check(kind, payload=payload))


def graded(text: str, *golds: str, finish: FinishReason = FinishReason.STOP) -> Grade:
    return Grader().grade_exactly(problem(*golds), text, finish)


def test_one_verdict_for_each_rollout_keyed_and_not_shifted() -> None:
    # P107: a failed extraction shifted all later scores and cut the answer to its first character.
    texts = [r"\boxed{4}", "I don't know.", r"\boxed{4}", "", r"\boxed{137}"]
    grades = [graded(text, "4") for text in texts]
    assert [g.outcome for g in grades] == [
        Outcome.RIGHT, Outcome.NO_ANSWER, Outcome.RIGHT, Outcome.NO_ANSWER, Outcome.WRONG,
    ]  # fmt: skip
    assert [g.answer for g in grades] == ["4", None, "4", None, "137"]


@pytest.mark.parametrize(
    "gold", ["", "see figure", "See the diagram above.", "n/a", "answers may vary", " - "]
)
def test_a_gold_that_is_none_is_neither_right_nor_wrong(gold: str) -> None:
    # P110: an unparsable reference scored 1.
    for text in (r"\boxed{4}", gold, "nothing", rf"\boxed{{{gold}}}"):
        assert graded(text, gold).outcome is Outcome.NO_GOLD
    assert graded(r"\boxed{4}").outcome is Outcome.NO_GOLD


def test_truncated_texts_are_a_class_of_their_own() -> None:
    # P091: length-cut rollouts counted as finished.
    cut = FinishReason.LENGTH
    assert graded("so \\boxed{4", "4", finish=cut).outcome is Outcome.TRUNCATED
    assert graded("2 + 2 = 4", "4", finish=cut).outcome is Outcome.TRUNCATED
    assert graded("so \\boxed{4}. To check", "4", finish=cut).outcome is Outcome.RIGHT
    assert graded("so \\boxed{5}. To check", "4", finish=cut).outcome is Outcome.WRONG


def test_an_aborted_text_is_our_fault_whatever_it_says() -> None:
    grade = graded(r"\boxed{5}", "4", finish=FinishReason.ABORT)
    assert grade.outcome is Outcome.ERROR
    assert grade.outcome.is_fault


def test_any_of_several_golds_will_do_and_all_must_differ() -> None:
    assert graded(r"\boxed{0.5}", "7", "1/2").outcome is Outcome.RIGHT
    assert graded(r"\boxed{0.6}", "7", "1/2").outcome is Outcome.WRONG
    assert graded(r"\boxed{0.33}", "7", "1/3").outcome is Outcome.UNDECIDED


def test_a_guess_is_marked() -> None:
    grade = graded("So she has 4 left.", "4")
    assert (grade.outcome, grade.found_by) == (Outcome.RIGHT, FoundBy.LAST_NUMBER)
    assert (
        Grader(fallback=False).grade_exactly(problem("4"), "So she has 4 left.").outcome is Outcome.NO_ANSWER
    )


def test_the_prompt_is_never_read() -> None:
    # The statement boxes the right answer; the text does not.
    assert graded("I cannot say.", "4").outcome is Outcome.NO_ANSWER


def test_a_gold_is_read_by_the_rules_for_answers() -> None:
    # P113: golds were extracted by other rules than model answers.
    assert usable_golds(problem("so 2 + 2 = <<2+2=4>>4\n#### 4", r"thus $\boxed{4}$")) == ("4", "4")


def test_the_self_check_lists_every_gold_that_does_not_verify() -> None:
    problems = [
        problem("4"),
        problem(),
        problem("see figure"),
        problem(r"\frac{1}{"),
        problem(r"x \in (0, 1]"),
    ]
    assert [(f.gold, f.fault.split(":")[0]) for f in golds_that_fail(problems)] == [
        ("", "no gold answer"),
        ("see figure", "not an answer"),
        (r"\frac{1}{", "no_answer"),
    ]


def test_a_checker_that_raises_gives_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    # P100: an exception became "not equal".
    def crash(**_: object) -> Finding:
        raise RuntimeError("a bug")

    monkeypatch.setattr(answer_module, "compare_answers", crash)
    grade = graded(r"\boxed{1234567 x}", "4 x")
    assert grade.outcome is Outcome.ERROR
    assert grade.verdict.reason is Reason.CRASH
    assert "a bug" in grade.verdict.evidence


def test_choices_are_graded_by_letter() -> None:
    choice = problem("B", kind=CheckKind.CHOICE, payload=json.dumps({"A": "3", "B": "4"}))
    grader = Grader()
    assert grader.grade_exactly(choice, "The answer is (B).").outcome is Outcome.RIGHT
    assert grader.grade_exactly(choice, r"\boxed{4}").outcome is Outcome.RIGHT
    assert grader.grade_exactly(choice, "so it must be A").outcome is Outcome.WRONG


def test_unit_tests_are_not_graded_by_comparison() -> None:
    grade = Grader().grade_exactly(problem("4", kind=CheckKind.UNIT_TESTS), r"\boxed{4}")
    assert grade.outcome is Outcome.UNDECIDED
    assert "python_code" in grade.verdict.evidence


def test_threads_and_event_loops_give_the_same_verdicts() -> None:
    # P099: signal time-outs made a worker thread parse otherwise.
    pairs = [(str(k), rf"\boxed{{\sqrt{{{k * k}}}}}") for k in range(2, 52)]
    grader = Grader()
    here = [grader.grade_exactly(problem(g), t).outcome for g, t in pairs]
    with ThreadPoolExecutor(4) as pool:
        there = list(pool.map(lambda p: grader.grade_exactly(problem(p[0]), p[1]).outcome, pairs))
    assert here == there == [Outcome.RIGHT] * 50

    async def together() -> list[Grade]:
        return await asyncio.gather(*(grader.grade(problem(g), t) for g, t in pairs))

    looped: list[Outcome] = []
    thread = threading.Thread(target=lambda: looped.extend(g.outcome for g in asyncio.run(together())))
    thread.start()
    thread.join()
    assert looped == here


async def test_the_verifier_speaks_of_the_last_step_only() -> None:
    verifier = make_answer_verifier(members=False)
    found = await verifier.verify(problem("4"), ["2 + 2 = 5?", "No: \\boxed{4}"])
    assert [len(v) for v in found] == [0, 1]
    assert found[1][0].kind is VerdictKind.SUPPORTED
    assert await verifier.verify(problem("4"), []) == []


def said(**kinds: str) -> list[CallResult]:
    faults = {"timeout": CallKind.TIMEOUT, "crash": CallKind.CRASH}
    return [
        CallResult(name, faults[kind]) if kind in faults else CallResult(name, CallKind.VALUE, kind)
        for name, kind in kinds.items()
    ]


@pytest.mark.parametrize(
    ("kinds", "verdict", "reason"),
    [
        (("equal", "equal", "unknown"), VerdictKind.SUPPORTED, Reason.NONE),
        (("different", "different", "timeout"), VerdictKind.REFUTED, Reason.NONE),
        (("equal", "different", "equal"), VerdictKind.UNKNOWN, Reason.AMBIGUOUS),
        (("equal", "unknown", "unknown"), VerdictKind.UNKNOWN, Reason.PARSE),
        (("different", "timeout", "unknown"), VerdictKind.UNKNOWN, Reason.TIMEOUT),
        (("unknown", "unknown", "crash"), VerdictKind.UNKNOWN, Reason.CRASH),
    ],
)
def test_two_members_decide_and_any_contradiction_does_not(kinds, verdict, reason) -> None:
    finding = joined(said(a=kinds[0], b=kinds[1], c=kinds[2]))
    assert (finding.kind, finding.reason) == (verdict, reason)


async def test_members_are_asked_only_where_the_exact_comparison_is_open() -> None:
    asked: list[str] = []

    class Spy(Members):
        async def ask(self, *, gold: str, answer: str) -> Finding:
            asked.append(answer)
            return Finding(VerdictKind.UNKNOWN, Reason.TIMEOUT, "slow")

    grader = Grader(members=Spy())
    assert (await grader.grade(problem("1/2"), r"\boxed{0.5}")).outcome is Outcome.RIGHT
    assert (await grader.grade(problem("1/3"), r"\boxed{0.33}")).outcome is Outcome.UNDECIDED
    assert asked == []
    assert (await grader.grade(problem("1/2"), r"\boxed{\int_0^1 x\,dx}")).outcome is Outcome.TIMEOUT
    assert asked == [r"\int_0^1 x\,dx"]


@pytest.mark.slow
async def test_real_members_decide_an_integral_and_run_nothing() -> None:
    grader = Grader(members=Members())
    right = await grader.grade(problem("1/2"), r"\boxed{\int_0^1 x\,dx}")
    assert right.outcome is Outcome.RIGHT
    hostile = await grader.grade(problem("1/2"), r'\boxed{\int __import__("os").system("id")}')
    assert hostile.outcome in (Outcome.UNDECIDED, Outcome.ERROR, Outcome.TIMEOUT)
