"""The members themselves. Imported by workers only: SymPy, latex2sympy2-extended and math-verify read the text.

Every function gets two texts and says ``equal``, ``different`` or ``unknown``. SymPy's own text parsers, which
end in ``eval``, are replaced on import by one that reads numerals and names and refuses all else.
"""

# SymPy, latex2sympy2-extended and math-verify have no types.
# pyright: basic, reportArgumentType=false
import re
from typing import Any

import math_verify
import sympy
from latex2sympy2_extended import NormalizationConfig, latex2sympy, normalize_latex
from math_verify import LatexExtractionConfig
from sympy.parsing import sympy_parser

from stepward.verifiers.answers.expressions import EXPRESSION_TYPES
from stepward.verifiers.answers.reader import read
from stepward.verifiers.answers.sympy_trees import same, tree

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
    return same(tree(left[0]), tree(right[0]))


def latex2sympy_member(gold: str, answer: str) -> str:
    """latex2sympy2-extended's parse of both, compared by SymPy."""
    try:
        a, b = (latex2sympy(normalize_latex(_plain(text), NormalizationConfig())) for text in (gold, answer))
    except MemoryError:
        raise
    except Exception:  # Its parser raises bare exceptions on text that it does not read.
        return "unknown"
    if isinstance(a, sympy.Expr) and isinstance(b, sympy.Expr):
        return same(a, b)
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
