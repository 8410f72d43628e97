"""What the outcomes of a problem rest on: its reference answer, the votes of its solutions, or a judge's consensus.

Without a reference the majority answer of the solutions (Zuo et al. 2025, TTRL; DARE keeps the shares as soft
outcomes), or the answer of the solutions that a judge's reviews call right at every step (SPARK, Rahman et al.
2025), takes the reference's place: rollouts are compared with it. Every row says so (``outcome_from``). Majority and
consensus can be wrong together: such outcomes are relative to the policy or to the judge, never truth.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from stepward.prm.evaluation.best_of_n import classes_by_test
from stepward.prm.types import CheckKind, FinishReason, Outcome, Problem, Verdict, VerdictKind
from stepward.verifiers.answer import equivalent
from stepward.verifiers.critiques import StepVotes
from stepward.verifiers.extraction import FoundBy

OutcomesFrom = Literal["answers", "votes", "spark"]

MIN_VOTES = 2
"""Solutions that an answer needs to stand in for a reference: one solution agrees with itself always."""


class Graded(Protocol):
    """What grading gives back (``verifiers.answer.Grade``)."""

    @property
    def outcome(self) -> Outcome: ...

    @property
    def answer(self) -> str | None: ...

    @property
    def found_by(self) -> FoundBy | None: ...


class Grader(Protocol):
    """Decides the outcome of a whole solution text (``verifiers.answer.Grader``)."""

    async def grade(self, problem: Problem, text: str, finish_reason: FinishReason) -> Graded: ...


Reviews = Callable[[Problem, Sequence[str]], Awaitable[tuple[Sequence[StepVotes], list[tuple[Verdict, ...]]]]]
"""A judge's votes on each step of a solution (empty after a fault) and the verdicts that they give."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A solution before it has an outcome.

    Attributes:
        text: Whole text.
        finish_reason: Why the engine stopped.
        steps: Step texts.
    """

    text: str
    finish_reason: FinishReason
    steps: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Found:
    """One solution's outcome.

    Attributes:
        outcome: Of the solution.
        answer: Its final answer, or None.
        share: Soft outcome: share of votes or reviews; None with a reference, or where there is none.
        verdicts: The judge's on each step, where it was asked.
    """

    outcome: Outcome
    answer: str | None
    share: float | None = None
    verdicts: tuple[tuple[Verdict, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Basis:
    """What the rollouts of a problem are graded by.

    Attributes:
        reference: The problem with the answers to compare with; without answers nothing can be graded.
        found: One a solution.
    """

    reference: Problem
    found: tuple[Found, ...]


async def from_answers(problem: Problem, drafts: Sequence[Draft], grader: Grader) -> Basis:
    """Outcomes by the problem's own answers."""
    grades = [await grader.grade(problem, d.text, d.finish_reason) for d in drafts]
    return Basis(problem, tuple(Found(g.outcome, g.answer) for g in grades))


async def from_votes(problem: Problem, drafts: Sequence[Draft], grader: Grader) -> Basis:
    """Outcomes by the majority of the solutions' answers, with the share of each one's votes.

    An answer wins with MIN_VOTES votes or more than any other; else there is no reference and every outcome is
    ``NO_GOLD``. The problem's own answers are not looked at.
    """
    answers = await _answers(problem, drafts, grader)
    classes = _classes(problem, answers)
    tally = Counter(c for c in classes if c is not None)
    valid = sum(tally.values())
    shares = [None if c is None else tally[c] / valid for c in classes]
    winner = _winner(tally)
    if winner is None:
        bare = replace(problem, answers=())
        return Basis(bare, tuple(Found(Outcome.NO_GOLD, a, s) for a, s in zip(answers, shares, strict=True)))
    reference = replace(problem, answers=(str(answers[classes.index(winner)]),))
    grades = [await grader.grade(reference, d.text, d.finish_reason) for d in drafts]
    return Basis(reference, tuple(Found(g.outcome, g.answer, s) for g, s in zip(grades, shares, strict=True)))


async def from_consensus(
    problem: Problem, drafts: Sequence[Draft], grader: Grader, reviews: Reviews
) -> Basis:
    """Outcomes by a judge's step consistency (SPARK): right where every step is supported, wrong where one is refuted.

    The share is the least share of reviews, over the steps, that call a step right. The reference for rollouts is
    the answer that most right solutions give; a right solution with another answer contradicts it and is
    ``UNDECIDED``. Without a single winner there is no reference. Where the judge abstains the outcome is
    ``UNDECIDED``, never wrong.
    """
    answers = await _answers(problem, drafts, grader)
    said = await asyncio.gather(*(reviews(problem, d.steps) for d in drafts))
    outcomes = [_by_steps(verdicts) for _, verdicts in said]
    shares = [_least_share(votes) for votes, _ in said]
    classes = _classes(problem, answers)
    tally = Counter(c for c, o in zip(classes, outcomes, strict=True) if c is not None and o is Outcome.RIGHT)
    winner = _winner(tally, at_least=1)
    reference = replace(problem, answers=() if winner is None else (str(answers[classes.index(winner)]),))
    found: list[Found] = []
    for c, outcome, answer, share, (_, verdicts) in zip(
        classes, outcomes, answers, shares, said, strict=True
    ):
        contradicts = outcome is Outcome.RIGHT and c != winner
        found.append(Found(Outcome.UNDECIDED if contradicts else outcome, answer, share, tuple(verdicts)))
    return Basis(reference, tuple(found))


async def _answers(problem: Problem, drafts: Sequence[Draft], grader: Grader) -> list[str | None]:
    if problem.check.kind is CheckKind.UNIT_TESTS:
        return [None] * len(drafts)
    bare = replace(problem, answers=())
    return [(await grader.grade(bare, d.text, d.finish_reason)).answer for d in drafts]


def _classes(problem: Problem, answers: Sequence[str | None]) -> tuple[int | None, ...]:
    def same(a: str, b: str) -> bool:
        return equivalent(gold=a, answer=b, check=problem.check).kind is VerdictKind.SUPPORTED

    return classes_by_test(answers, same)


def _winner(tally: Counter[int], at_least: int = MIN_VOTES) -> int | None:
    """The class with strictly most votes, or None."""
    ranked = tally.most_common(2)
    if not ranked or ranked[0][1] < at_least or (len(ranked) > 1 and ranked[0][1] == ranked[1][1]):
        return None
    return ranked[0][0]


def _by_steps(verdicts: Sequence[tuple[Verdict, ...]]) -> Outcome:
    kinds = [{v.kind for v in at_step} for at_step in verdicts]
    if any(VerdictKind.REFUTED in k for k in kinds):
        return Outcome.WRONG
    return Outcome.RIGHT if kinds and all(k == {VerdictKind.SUPPORTED} for k in kinds) else Outcome.UNDECIDED


def _least_share(votes: Sequence[StepVotes]) -> float | None:
    said = [v.correct + v.incorrect for v in votes]
    if not said or not all(said):
        return None
    return min(v.correct / n for v, n in zip(votes, said, strict=True))
