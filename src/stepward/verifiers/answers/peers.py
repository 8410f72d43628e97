"""The members themselves. Imported by workers only: SymPy, latex2sympy2-extended and math-verify read the text.

Every function gets two texts and says ``equal``, ``different`` or ``unknown``. SymPy's own text parsers, which
end in ``eval``, are replaced on import by one that reads numerals and names and refuses all else.
"""

# SymPy, latex2sympy2-extended and math-verify have no types.
# pyright: basic, reportArgumentType=false
# ruff: noqa: SIM905

import re
from typing import Any

import math_verify
import sympy
from latex2sympy2_extended import NormalizationConfig, latex2sympy, normalize_latex
from math_verify import LatexExtractionConfig
from sympy.parsing import sympy_parser

from stepward.verifiers.answers.expressions import (
    EXPRESSION_TYPES,
    Apply,
    Expression,
    Number,
    Power,
    Product,
    Sum,
    Symbol,
)
from stepward.verifiers.answers.reader import read

_FUNCTIONS: dict[str, Any] = {
    **{n: getattr(sympy, n) for n in "sin cos tan cot sec csc sinh cosh tanh coth sech csch gcd lcm".split()},
    **{f"arc{n}": getattr(sympy, f"a{n}") for n in "sin cos tan cot sec csc".split()},
    "ln": sympy.log, "abs": sympy.Abs, "floor": sympy.floor, "ceil": sympy.ceiling, "sign": sympy.sign,
    "factorial": sympy.factorial, "binom": sympy.binomial, "max": sympy.Max, "min": sympy.Min,
}  # fmt: skip


_NUMERAL = re.compile(r"-?\d{1,40}(?:\.\d{1,40})?", re.ASCII)
_IDENTIFIER = re.compile(r"\\?[A-Za-z][A-Za-z0-9]{0,40}(?:_[A-Za-z0-9]{1,40})?", re.ASCII)


class Refused(Exception):
    """A text reached a parser that evaluates."""


def _literal(text: object, *_: object, **__: object) -> Any:
    """What stands for SymPy's parsers: its libraries name plain symbols and numerals by text, nothing else."""
    if isinstance(text, str) and _NUMERAL.fullmatch(text):
        return sympy.Rational(text) if "." not in text else sympy.Float(text)
    if isinstance(text, str) and _IDENTIFIER.fullmatch(text):
        return sympy.Symbol(text)
    raise Refused("text must not reach a parser that evaluates it")


def _disarm() -> None:
    """Replace every text parser of SymPy that evaluates, wherever it was already imported to."""
    import sys

    originals = {id(sympy_parser.parse_expr), id(sympy_parser.eval_expr)}
    for module in list(sys.modules.values()):
        for name in ("parse_expr", "eval_expr"):
            if id(getattr(module, name, None)) in originals:
                setattr(module, name, _literal)


_disarm()


def symbolic(gold: str, answer: str) -> str:
    """Our own parse as SymPy trees, simplified."""
    left, right = read(gold).values, read(answer).values
    if (
        not left
        or not right
        or not isinstance(left[0], EXPRESSION_TYPES)
        or not isinstance(right[0], EXPRESSION_TYPES)
    ):
        return "unknown"
    return _same(_tree(left[0]), _tree(right[0]))


def latex2sympy_member(gold: str, answer: str) -> str:
    """latex2sympy2-extended's parse of both, compared by SymPy."""
    try:
        a, b = (latex2sympy(normalize_latex(_plain(text), NormalizationConfig())) for text in (gold, answer))
    except MemoryError:
        raise
    except Exception:  # Its parser raises bare exceptions on text that it does not read.
        return "unknown"
    if isinstance(a, sympy.Expr) and isinstance(b, sympy.Expr):
        return _same(a, b)
    return "equal" if a == b and type(a) is type(b) and isinstance(a, sympy.Basic) else "unknown"


def math_verify_member(gold: str, answer: str) -> str:
    """math-verify, with LaTeX extraction alone and its own timers off: the worker has better ones."""
    config = [LatexExtractionConfig()]
    a, b = (
        math_verify.parse(
            f"\\boxed{{{_plain(text)}}}",
            extraction_config=config,
            fallback_mode="no_fallback",
            parsing_timeout=None,
        )
        for text in (gold, answer)
    )
    if not a or not b or isinstance(a[0], str) or isinstance(b[0], str):
        return "unknown"
    same = math_verify.verify(a, b, timeout_seconds=None, raise_on_error=True)
    return "equal" if same else "different"


def _plain(text: str) -> str:
    return text.replace("$", "").strip()


def _same(a: Any, b: Any) -> str:
    """Zero difference after simplification, or clearly other values at several points."""
    difference = a - b
    if difference == 0:
        return "equal"
    names = sorted(difference.free_symbols, key=str)
    gaps: list[bool] = []
    for k in range(1, 4):
        values = {s: sympy.Rational(7 * k + 3 * i + 2, 5 + i) for i, s in enumerate(names)}
        value = sympy.N(difference.subs(values), 30)
        if value.is_number and value.is_finite:
            gaps.append(abs(value) > 1e-9)
    if gaps and all(gaps):
        return "different"
    if gaps and any(gaps):
        return "unknown"
    return "equal" if sympy.simplify(difference) == 0 else "unknown"


def _tree(node: Expression) -> Any:
    match node:
        case Number(value):
            return sympy.Rational(value.numerator, value.denominator)
        case Symbol("pi"):
            return sympy.pi
        case Symbol("e"):
            return sympy.E
        case Symbol("i"):
            return sympy.I
        case Symbol("infinity"):
            return sympy.oo
        case Symbol(name):
            return sympy.Symbol(name, positive=True)
        case Sum(terms):
            return sympy.Add(*map(_tree, terms))
        case Product(factors):
            return sympy.Mul(*map(_tree, factors))
        case Power(base, exponent):
            return sympy.Pow(_tree(base), _tree(exponent))
        case Apply("log", (inner,)):
            return sympy.log(_tree(inner), 10)
        case Apply("log", (inner, base)):
            return sympy.log(_tree(inner), _tree(base))
        case Apply("degree", (inner,)):
            return _tree(inner) * sympy.pi / 180
        case Apply("sum" | "prod" as function, (index, low, high, body)):
            make = sympy.Sum if function == "sum" else sympy.Product
            return make(_tree(body), (_tree(index), _tree(low), _tree(high))).doit()
        case Apply(function, arguments) if function in _FUNCTIONS:
            return _FUNCTIONS[function](*map(_tree, arguments))
        case Apply(function, arguments):
            return sympy.Function(function)(*map(_tree, arguments))
