"""Answers are compared, programs are run, and what is neither is nobody's fault."""

import asyncio

import pytest

from stepward.flows.grading import make_grader
from stepward.prm.types import Check, CheckKind, FinishReason, Outcome, Problem
from stepward.verifiers.sandbox import SandboxUnavailable

TESTS = "def check(candidate):\n    assert candidate(2) == 4\n    assert candidate(-1) == 1\ncheck(square)\n"
CODE = Problem(
    "square", "Write square(x).", ("def square(x): ...",), Check(CheckKind.UNIT_TESTS, payload=TESTS)
)
SUM = Problem("sum", "2 + 2?", ("4",))


def grade(problem, text, reason=FinishReason.STOP):
    try:
        return asyncio.run(make_grader().grade(problem, text, reason)).outcome
    except SandboxUnavailable as fault:
        pytest.skip(str(fault))


def test_a_final_answer_is_compared():
    assert grade(SUM, "The answer is 4.") is Outcome.RIGHT
    assert grade(SUM, "The answer is 5.") is Outcome.WRONG
    assert grade(SUM, "The answer is", FinishReason.LENGTH) is Outcome.TRUNCATED


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "reason", "outcome"),
    [
        ("```python\ndef square(x):\n    return x * x\n```", FinishReason.STOP, Outcome.RIGHT),
        ("```python\ndef square(x):\n    return x + x\n```", FinishReason.STOP, Outcome.WRONG),
        ("I would square it.", FinishReason.STOP, Outcome.NO_ANSWER),
        ("```python\ndef square(x):\n    ret", FinishReason.LENGTH, Outcome.TRUNCATED),
    ],
)
def test_a_program_is_run_against_its_tests(text, reason, outcome):
    assert grade(CODE, text, reason) is outcome
