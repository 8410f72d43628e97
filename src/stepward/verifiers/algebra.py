"""The step verifier ``algebra``: rewritings, derivations from equations, whole numbers, derivatives and integrals.

Supported means that all claims that were read are true, never that the step is right. Refuted means that a claim is
false in every reading that the text allows. Where a reading is open the verdict is unknown, with the reason. SymPy
and z3 run in killable workers alone and are asked about trees of the project's own parse.
"""

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from stepward.prm.types import Problem, Reason, Verdict
from stepward.verifiers.answers.expressions import Unreadable
from stepward.verifiers.base import register_verifier
from stepward.verifiers.claims.calculus import Question, questions_of
from stepward.verifiers.claims.decisions import MAX_BEYOND_LIMITS, Decision, Truth, shown, verdict_of
from stepward.verifiers.claims.derivations import (
    decide_derivation,
    has_several_roots,
    holds_by,
    in_one_unknown,
    order_question,
    states_value,
)
from stepward.verifiers.claims.identities import decide_identity
from stepward.verifiers.claims.integers import decide_congruences, decide_integers
from stepward.verifiers.claims.operands import Operand
from stepward.verifiers.claims.reading import MAX_CHARS
from stepward.verifiers.claims.statements import TAIL_CHARS, Statement, is_alternative, statements_of
from stepward.verifiers.workers import CallResult, Supervisor, shared

NAME = "algebra"
VERSION = "2"
CPU_S = 1.0
"""CPU seconds that workers may spend on one step but for the last question; none is asked after a fault."""

_NOTHING = "no claim about unknowns was read"
_MODULE = "stepward.verifiers.claims.symbolic"
_STEPS_BACK = 40
_LETTERS = re.compile(r"[^\W\d_]")
_ANOTHER_VALUE = re.compile(r"[\s$\\()\[\],;]*(?:\\text\{\s*)?(?:or|and|,)\s*\}?[\s$\\()\[\],;]*\Z")


@dataclass(frozen=True, slots=True)
class Reading:
    """What was read in one step.

    Attributes:
        decisions: On its claims, in order.
        questions: Claims that a worker is to decide.
    """

    decisions: tuple[Decision, ...]
    questions: tuple[Question, ...]


def read_step(text: str, before: Sequence[str] = (), problem: str = "") -> Reading:
    """Read a step and decide what needs no worker.

    Args:
        text: The step.
        before: The steps before it: it may go on from the last statement of the last one.
        problem: The problem's text: an equation of it may be used.
    """
    last = before[-1][-TAIL_CHARS:] if before else ""
    statements = statements_of(text)
    earlier: tuple[Statement, ...] = statements_of(last) if statements and last else ()
    found: list[Decision] = []
    questions = list(questions_of(text[:MAX_CHARS], "\n".join(before)[-MAX_CHARS:]))
    beyond = 0
    origin: Statement | None = None
    for index, read in enumerate(statements):
        statement = read
        if beyond >= MAX_BEYOND_LIMITS:
            break
        for claim in statement.claims:
            identity = _bounded(partial(decide_identity, claim, text), claim.start, claim.end)
            if not _is_used(identity, (claim.left, claim.right), statements[:index], before, problem):
                beyond += _append(found, identity)
        found.extend(decide_congruences(statement, text))
        if index:
            row, at, whole = statements, index - 1, text
            between = text[row[at].end : statement.start]
        elif earlier:
            row, at, whole = earlier, len(earlier) - 1, last
            between = last[row[at].end :] + "\n" + text[: statement.start]
            if len(row) == 1 and not _LETTERS.search(between) and in_one_unknown(row[at]):
                between = " so "  # A step that is but the next line of a calculation.
        else:
            continue
        first = row[at]
        if (
            origin is not None
            and states_value(statement)
            and states_value(first)
            and _ANOTHER_VALUE.match(between)
        ):
            first, between, statement = origin, " so ", _apart(statement)
        elif is_alternative(row, at, whole):
            origin = None
            continue
        made = _bounded(partial(decide_derivation, first, statement, between), statement.start, statement.end)
        known = [s for s in statements[:index] if s is not first]
        if _is_used(made, statement.parts, known, before[:-1] if row is earlier else before, problem):
            made = None
        beyond += _append(found, made)
        origin = first if made is not None and states_value(statement) and has_several_roots(first) else None
        if made is None and (question := order_question(first, statement, between)) is not None:
            questions.append(question)
    found.extend(decide_integers(text[:MAX_CHARS]))
    return Reading(tuple(sorted(found, key=lambda d: d.start)), tuple(questions))


def _is_used(
    made: Decision | None,
    parts: Sequence[Operand],
    beside: Sequence[Statement],
    before: Sequence[str],
    problem: str,
) -> bool:
    """Whether a refuted equation holds all the same at every root of an equation stated earlier: it was used."""
    if made is None or made.truth is not Truth.FALSE or len(parts) != 2:
        return False
    earlier = (statement for text in (*before[-_STEPS_BACK:], problem) for statement in statements_of(text))
    return any(holds_by(parts, statement) for statement in (*beside, *earlier))


def _apart(statement: Statement) -> Statement:
    """The statement without the doubt that it stands behind ``or``: here that joins values of one unknown."""
    claim = statement.claims[0]
    beside = claim.doubt in ("'or' stands beside it", "'and' stands beside it")
    return replace(statement, claims=(replace(claim, doubt=""),)) if beside else statement


def _append(found: list[Decision], made: Decision | None) -> bool:
    if made is not None:
        found.append(made)
    return made is not None and made.beyond


def _bounded(decide: Callable[[], Decision | None], start: int, end: int) -> Decision | None:
    try:
        return decide()
    except Unreadable as fault:
        if not fault.over_limit:
            return None
        return Decision(start, end, Truth.OPEN, Reason.UNSUPPORTED, str(fault), beyond=True)


def verify_step(text: str, before: Sequence[str] = (), problem: str = "") -> Verdict:
    """The verdict on one step without asking workers; arguments as ``read_step``."""
    began = time.process_time()
    return verdict_of(
        read_step(text, before, problem).decisions, NAME, VERSION, began=began, nothing=_NOTHING
    )


def decision_of(question: Question, result: CallResult, text: str) -> Decision:
    """What a worker's answer says of a claim; a fault of the worker is never a refutation."""
    claim = shown(text, question.start, question.end)
    if not result.ok:
        why = f"{claim}: {result.message}"
        return Decision(question.start, question.end, Truth.OPEN, result.reason, why)
    if result.value == "true":
        return Decision(question.start, question.end, Truth.TRUE, evidence=f"{claim} is true")
    if result.value == "false" and not question.doubt:
        return Decision(
            question.start, question.end, Truth.FALSE, evidence=f"{claim} is false ({question.function})"
        )
    reason = Reason.AMBIGUOUS if result.value == "false" else Reason.UNSUPPORTED
    return Decision(
        question.start, question.end, Truth.OPEN, reason, f"{claim}: not decided {question.doubt}".strip()
    )


@register_verifier(NAME)
@dataclass(frozen=True, slots=True)
class Algebra:
    """The verifier ``algebra``: one verdict a step.

    Attributes:
        supervisor: Runs the workers; None = the shared one.
        workers: False leaves open what only SymPy or z3 decide.
    """

    supervisor: Supervisor | None = None
    workers: bool = True
    name: str = field(default=NAME, init=False)
    version: str = field(default=VERSION, init=False)

    async def verify(self, problem: Problem, steps: Sequence[str]) -> list[tuple[Verdict, ...]]:
        """One verdict a step, each with the span of the claim that it rests on."""
        return [(await self._one(text, steps[:i], problem.text),) for i, text in enumerate(steps)]

    async def _one(self, text: str, before: Sequence[str], problem: str) -> Verdict:
        began = time.process_time()
        reading = read_step(text, before, problem)
        local_s = time.process_time() - began
        decisions, spent_s = list(reading.decisions), 0.0
        if self.workers and not any(d.truth is Truth.FALSE for d in decisions):
            for question in reading.questions:
                supervisor = self.supervisor or shared()
                function = f"{_MODULE}:{question.function}"
                result = await supervisor.arun(function, question.arguments, version=VERSION, cpu_s=CPU_S)
                decisions.append(decision_of(question, result, text))
                spent_s += result.seconds
                if not result.ok or spent_s > CPU_S:
                    break
        decisions.sort(key=lambda d: d.start)
        verdict = verdict_of(decisions, NAME, VERSION, began=began, nothing=_NOTHING)
        return replace(verdict, seconds=local_s + spent_s)
