r"""Faults that users of other checkers reported, which have no place in the other tests; each names its case."""

import time

import pytest

from stepward.prm.types import Outcome, Problem, VerdictKind
from stepward.verifiers import algebra, arithmetic
from stepward.verifiers.answer import Grader, equivalent

SUPPORTED = VerdictKind.SUPPORTED


def test_an_interval_and_its_inequality_agree_in_both_roles():
    # P103: swapping the arguments of a comparison changed its verdict; here the roles are named.
    inequality, interval = r"2 \le x < 5", "[2,5)"
    assert equivalent(gold=inequality, answer=interval).kind is SUPPORTED
    assert equivalent(gold=interval, answer=inequality).kind is SUPPORTED
    assert equivalent(gold=interval, answer="(2,5]").kind is VerdictKind.REFUTED
    assert equivalent(gold="(2,5]", answer=interval).kind is VerdictKind.REFUTED


@pytest.mark.parametrize("text", ["1" * 10_000, "10^{10^{10}}", '__import__("os").system("id")'])
def test_an_answer_outside_the_grammar_is_refused_at_once(text: str):
    # P115: a scorer could run code of a model; a 10,000-character answer and a 10^10^10 power are not computed.
    began = time.process_time()
    outcome = Grader().grade_exactly(Problem("p", "", ("5",)), rf"\boxed{{{text}}}").outcome
    assert outcome is not Outcome.RIGHT
    assert arithmetic.verify_step(f"{text} = 5").kind is not SUPPORTED
    assert algebra.verify_step(f"x = {text}, so x = 5").kind is not SUPPORTED
    assert time.process_time() - began < 1.5


def test_no_text_reaches_a_parser_of_sympy_that_evaluates(monkeypatch: pytest.MonkeyPatch):
    # P116: a raw string reached a second evaluating function behind the one that had been mended.
    from sympy.parsing import sympy_parser

    from stepward.verifiers.claims import symbolic

    reached: list[object] = []

    def caught(text: object, *_: object, **__: object) -> None:
        reached.append(text)
        raise AssertionError("text reached a parser that evaluates")

    for name in ("parse_expr", "eval_expr"):
        monkeypatch.setattr(sympy_parser, name, caught)  # sympify imports them when it is given text
    assert symbolic.derivative("x ^ 2", "x", "2 x") == "true"
    assert symbolic.antiderivative("\\cos x", "x", "\\sin x") == "true"
    assert symbolic.definite("x", "x", "0", "1", "\\frac{1}{2}") == "true"
    proved = "true" if symbolic.z3 is not None else "unknown"  # z3 is an extra
    assert symbolic.implies(["2 x", "<", "4"], ["x", "<", "2"]) == proved
    assert reached == []
