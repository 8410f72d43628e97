r"""Is the final answer right? Extraction, exact typed comparison, and further members where that cannot decide.

``equivalent`` compares two answers in this process: its grammar is the project's own and bounded by work.
``Grader`` grades a model's text against a problem, and asks parsers of others, each in a worker that can be
killed, only where the exact comparison is open. A gold answer is read by the same rules as a model's.
"""

import json
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

from stepward.prm.types import (
    Check,
    CheckKind,
    FinishReason,
    Outcome,
    Problem,
    Reason,
    Verdict,
    VerdictKind,
)
from stepward.verifiers.answers.compare import compare_answers
from stepward.verifiers.answers.finding import Finding, ambiguous, different, equal
from stepward.verifiers.answers.members import Members
from stepward.verifiers.answers.reader import plain_words, read
from stepward.verifiers.base import register_verifier
from stepward.verifiers.extraction import FoundBy, extract_answer

NAME = "answer"
VERSION = "1"

_LONGEST_CACHED = 400
# A gold that points at what is not there, or says that there is none.
_NO_GOLD = re.compile(
    r"(?:please\s+)?(?:see|refer\s+to|as\s+shown\s+in|shown\s+in|given\s+in|look\s+at)\s+(?:the\s+|attached\s+)*"
    r"(?:figure|diagram|graph|table|picture|image|solution|proof|text|book|explanation|above|below)\b.*"
    r"|(?:the\s+)?answers?\s+(?:may|will|can)\s+vary.*|(?:proof|graph|figure|diagram|omitted|unknown|n/?a|null|nan|tbd|todo)"
    r"|[-–—?.\s]*",
    re.I | re.S,
)


@dataclass(frozen=True, slots=True)
class Grade:
    """What became of one text.

    Attributes:
        outcome: ``RIGHT`` or ``WRONG`` only where the comparison was clean.
        answer: The final answer as the text has it, or None.
        verdict: The comparison, or why there is none.
        found_by: How the answer was found; ``LAST_NUMBER`` is a guess. None without an answer.
    """

    outcome: Outcome
    answer: str | None
    verdict: Verdict
    found_by: FoundBy | None = None


@dataclass(frozen=True, slots=True)
class GoldFault:
    """A gold answer that the checker cannot use.

    Attributes:
        problem_id: The problem.
        gold: The gold as it stands there; empty where the problem has none.
        fault: What is wrong with it.
    """

    problem_id: str
    gold: str
    fault: str


def equivalent(
    *, gold: str, answer: str, check: Check | None = None, tolerance: float | None = None
) -> Verdict:
    r"""Whether an answer says the same as the gold. Arguments are named because their order matters.

    Args:
        gold: The reference answer, bare or in ``\boxed{}``.
        answer: The answer to judge, bare or in ``\boxed{}``; untrusted.
        check: How to compare; mathematically by default.
        tolerance: Relative tolerance for numbers, where ``check`` does not bring one.

    Returns:
        Supported, refuted, or unknown with a reason. Nothing leaves this process.
    """
    began = time.perf_counter()
    check = check or Check(tolerance=tolerance)
    finding = _compare(check, _bare(gold), _bare(answer))
    evidence = f"{_shown(answer)} against {_shown(gold)}: {finding.why}"
    return Verdict(finding.kind, NAME, VERSION, finding.reason, evidence, seconds=time.perf_counter() - began)


class Grader:
    """Grades final answers. Safe to share between tasks and threads.

    Args:
        members: Further parsers, asked where the exact comparison is open; None = none are asked.
        fallback: Whether the last number of an unmarked text counts as its answer (marked in the grade).
    """

    def __init__(self, *, members: Members | None = None, fallback: bool = True) -> None:
        self.members = members
        self.fallback = fallback

    @property
    def version(self) -> str:
        """Changes when the same text could get another grade."""
        return VERSION if self.members is None else f"{VERSION}+{self.members.version}"

    async def grade(
        self, problem: Problem, text: str, finish_reason: FinishReason = FinishReason.STOP
    ) -> Grade:
        """Grade a model's text.

        Args:
            problem: Brings the golds and how to compare.
            text: What the model wrote after the prompt; untrusted.
            finish_reason: ``LENGTH`` without a whole final answer is ``TRUNCATED``; ``ABORT`` is ``ERROR``.
        """
        grade, golds = self._exactly(problem, text, finish_reason)
        if self.members is None or grade.outcome is not Outcome.UNDECIDED or grade.answer is None:
            return grade
        if problem.check.kind is not CheckKind.MATH or grade.verdict.reason is Reason.AMBIGUOUS:
            return grade
        findings = [await self.members.ask(gold=g, answer=_bare(grade.answer)) for g in golds]
        verdict = _verdict(_best(findings), grade.answer, golds, grade.verdict.seconds)
        return Grade(_outcome(verdict), grade.answer, verdict, grade.found_by)

    def grade_exactly(
        self, problem: Problem, text: str, finish_reason: FinishReason = FinishReason.STOP
    ) -> Grade:
        """``grade`` without the members: no event loop, no other process."""
        return self._exactly(problem, text, finish_reason)[0]

    def _exactly(
        self, problem: Problem, text: str, finish_reason: FinishReason
    ) -> tuple[Grade, tuple[str, ...]]:
        began = time.perf_counter()
        golds = usable_golds(problem)
        check = problem.check
        extraction = extract_answer(
            text, finish_reason=finish_reason, kind=check.kind, fallback=self.fallback
        )
        found = extraction.answer
        answer, found_by = (found.text, found.found_by) if found else (None, None)
        if finish_reason is FinishReason.ABORT:
            return _without(
                Outcome.ERROR, answer, Reason.CRASH, "the engine aborted this text", found_by
            ), golds
        if check.kind is CheckKind.UNIT_TESTS:
            why = "unit tests are run by the verifier python_code, not by comparing answers"
            return _without(Outcome.UNDECIDED, answer, Reason.UNSUPPORTED, why, found_by), golds
        if not golds:
            why = f"problem {problem.id} has no usable gold answer: {problem.answers!r}"[:200]
            return _without(Outcome.NO_GOLD, answer, Reason.UNSUPPORTED, why, found_by), golds
        if found is None:
            if extraction.cut and finish_reason is FinishReason.LENGTH:
                why = "the text ends at the token limit before its final answer"
                return _without(Outcome.TRUNCATED, None, Reason.NO_CLAIM, why, None), golds
            why = "the final box is not closed" if extraction.cut else "the text has no final answer"
            return _without(Outcome.NO_ANSWER, None, Reason.NO_CLAIM, why, None), golds
        findings = [_compare(check, gold, _bare(found.text)) for gold in golds]
        verdict = _verdict(_best(findings), found.text, golds, time.perf_counter() - began)
        return Grade(_outcome(verdict), answer, verdict, found_by), golds


def usable_golds(problem: Problem) -> tuple[str, ...]:
    """The golds of a problem that can be compared with, read by the rules for model answers."""
    return tuple(gold for gold in map(_bare, problem.answers) if not _NO_GOLD.fullmatch(gold))


def golds_that_fail(problems: Iterable[Problem]) -> list[GoldFault]:
    """List the golds that are missing, unusable or not equal to themselves, before a run starts.

    Every gold goes, boxed, through the path of model answers.
    """
    faults: list[GoldFault] = []
    grader = Grader()
    for problem in problems:
        if problem.check.kind is CheckKind.UNIT_TESTS:
            continue
        if not problem.answers:
            faults.append(GoldFault(problem.id, "", "no gold answer"))
        for gold in problem.answers:
            bare = _bare(gold)
            if _NO_GOLD.fullmatch(bare):
                faults.append(GoldFault(problem.id, gold, "not an answer"))
                continue
            alone = Problem(problem.id, "", (gold,), problem.check)
            grade = grader.grade_exactly(alone, f"\\boxed{{{bare}}}")
            if grade.outcome is not Outcome.RIGHT:
                faults.append(GoldFault(problem.id, gold, f"{grade.outcome}: {grade.verdict.evidence}"))
            elif check_fault := _check_fault(problem.check, bare):
                faults.append(GoldFault(problem.id, gold, check_fault))
    return faults


def _check_fault(check: Check, gold: str) -> str:
    """Why a gold can be compared with nothing but its own text, or empty."""
    if check.kind is not CheckKind.MATH:
        return ""
    reading = read(gold)
    return (
        ""
        if reading.values or reading.wordy or reading.letter
        else f"only comparable as text: {reading.fault}"
    )


@dataclass(frozen=True, slots=True)
class AnswerVerifier:
    """The final answer as a verifier of steps: it speaks of the last step alone."""

    grader: Grader

    @property
    def name(self) -> str:
        """Registry name."""
        return NAME

    @property
    def version(self) -> str:
        """Version of the grader."""
        return self.grader.version

    async def verify(self, problem: Problem, steps: Sequence[str]) -> list[tuple[Verdict, ...]]:
        """One verdict on the last step; the others get none."""
        if not steps:
            return []
        grade = await self.grader.grade(problem, "\n\n".join(steps))
        return [*(() for _ in steps[:-1]), (grade.verdict,)]


@register_verifier(NAME)
def make_answer_verifier(*, members: bool = True, fallback: bool = True) -> AnswerVerifier:
    """The answer verifier, with or without further members in workers."""
    return AnswerVerifier(Grader(members=Members() if members else None, fallback=fallback))


def _bare(text: str) -> str:
    """An answer without its box, dollar signs kept; a text without a box as it is."""
    text = text.strip()
    whole_solution = len(text) > _LONGEST_CACHED
    if whole_solution or "boxed" in text or "####" in text:
        found = extract_answer(text, fallback=False).answer
        if found is not None and (whole_solution or found.found_by in (FoundBy.BOX, FoundBy.HASHES)):
            return found.text
    return text


def _compare(check: Check, gold: str, answer: str) -> Finding:
    try:
        return _compared(check, gold, answer)
    except Exception as fault:  # A bug of ours must not become a verdict on the policy.
        return Finding(VerdictKind.UNKNOWN, Reason.CRASH, f"the comparison failed: {fault!r}"[:200])


def _compared(check: Check, gold: str, answer: str) -> Finding:
    match check.kind:
        case CheckKind.TEXT:
            return (
                equal("the same words")
                if plain_words(gold) == plain_words(answer)
                else different("other words")
            )
        case CheckKind.CHOICE:
            return _compare_choice(check, gold, answer)
        case _:
            if len(gold) + len(answer) > _LONGEST_CACHED:
                return compare_answers(gold=gold, answer=answer, tolerance=check.tolerance)
            return _compare_math(gold, answer, check.tolerance)


@lru_cache(maxsize=1 << 16)
def _compare_math(gold: str, answer: str, tolerance: float | None) -> Finding:
    return compare_answers(gold=gold, answer=answer, tolerance=tolerance)


def _compare_choice(check: Check, gold: str, answer: str) -> Finding:
    """Option against option; the text of an option stands for it."""
    options = _options(check.payload)
    left, right = _option(gold, options), _option(answer, options)
    if left and right:
        return equal("the same option") if left == right else different(f"option {right}, not {left}")
    if plain_words(gold) == plain_words(answer):
        return equal("the same words")
    return ambiguous("no option is named") if not right else ambiguous("the gold names no option")


@lru_cache(maxsize=1024)
def _options(payload: str | None) -> dict[str, str]:
    """Label -> text of the options, from a JSON list or object."""
    try:
        found: Any = json.loads(payload) if payload else {}
    except ValueError:
        return {}
    if isinstance(found, list):
        texts = cast("list[object]", found)
        return {chr(ord("A") + i): str(text) for i, text in enumerate(texts[:26])}
    if not isinstance(found, dict):
        return {}
    return {k.strip("() ").upper(): str(v) for k, v in cast("dict[str, object]", found).items()}


def _option(text: str, options: dict[str, str]) -> str:
    label = text.strip().strip("().: ").upper()
    if (len(label) == 1 and label.isalpha()) or label in options:
        return label
    named = [k for k, v in options.items() if compare_answers(gold=v, answer=text).equal]
    return read(text).letter or (named[0] if len(named) == 1 else "")


def _best(findings: Sequence[Finding]) -> Finding:
    """Right by any gold; wrong by all; else open."""
    for finding in findings:
        if finding.equal:
            return finding
    return next((f for f in findings if not f.different), findings[0])


def _verdict(finding: Finding, answer: str, golds: Sequence[str], seconds: float) -> Verdict:
    shown = " or ".join(map(_shown, golds[:3]))
    evidence = f"{_shown(answer)} against {shown}: {finding.why}"
    return Verdict(finding.kind, NAME, VERSION, finding.reason, evidence, seconds=seconds)


def _outcome(verdict: Verdict) -> Outcome:
    if verdict.kind is VerdictKind.SUPPORTED:
        return Outcome.RIGHT
    if verdict.kind is VerdictKind.REFUTED:
        return Outcome.WRONG
    return {Reason.TIMEOUT: Outcome.TIMEOUT, Reason.CRASH: Outcome.ERROR}.get(
        verdict.reason, Outcome.UNDECIDED
    )


def _without(
    outcome: Outcome, answer: str | None, reason: Reason, why: str, found_by: FoundBy | None
) -> Grade:
    return Grade(outcome, answer, Verdict(VerdictKind.UNKNOWN, NAME, VERSION, reason, why), found_by)


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:40]}...{text[-15:]}")
