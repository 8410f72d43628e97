"""Is an equality of closed arithmetic true? Exact rationals, roots of primes and powers of pi, bounded by work."""

import math
import re
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from stepward.verifiers.answers.atoms import parse_atom
from stepward.verifiers.answers.canonical import Forms
from stepward.verifiers.answers.cursor import Cursor
from stepward.verifiers.answers.expressions import (
    Apply,
    Expression,
    Number,
    Power,
    Symbol,
    Unreadable,
    children,
    product,
    walk,
)
from stepward.verifiers.answers.numeric import Point, evaluate
from stepward.verifiers.answers.parser import expression, parse_sum
from stepward.verifiers.answers.tokens import tokenize

MAX_OPERAND_CHARS = 400
MAX_RESULT_BITS = 4_000
MAX_EXPONENT = 200
MAX_WORK = 3_000
MAX_FACTORIAL = 60

NO_PRODUCTS = re.compile(r"\\(?:mathbf|boldsymbol|vec|hat|overrightarrow)(?![a-zA-Z])|[A-Z]{2}\s?\^")
"""Names that do not multiply as letters do: vectors, and segments such as ``AB^2``."""

_KNOWN = frozenset({"percent", "factorial", "binom"})
_PLAIN = re.compile(r"\d{1,30}(?:\.\d{1,30})?\Z")


@dataclass(frozen=True, slots=True)
class Sides:
    """Both sides of an equality, evaluated.

    Attributes:
        left: Its value; to 30 places where it is irrational, None where it is no real number.
        right: Its value; to 30 places where it is irrational, None where it is no real number.
        equal: Whether they are the same number or polynomial; None where that is not known.
        unknowns: The names in them, where both hold the same; empty otherwise.
        symbolic: True where a name other than pi is left in them.
        irrational: True where a side is an irrational number.
        lone_term: True where the numerator of their difference is one term: no condition on the unknowns that
            could have been used in between makes such a term zero.
    """

    left: Fraction | None
    right: Fraction | None
    equal: bool | None
    unknowns: frozenset[str] = frozenset()
    symbolic: bool = False
    irrational: bool = False
    lone_term: bool = False


@lru_cache(maxsize=4096)
def parse(text: str, *, signs: bool = False, functions: bool = False) -> Expression:
    """The expression that an operand's text is.

    Args:
        text: Of an operand.
        signs: Whether plus-minus may stand in it.
        functions: Whether other functions than those that are decided here may.

    Raises:
        Unreadable: It does not parse, meets a bound, or holds a function that is not decided here.
    """
    if len(text) > MAX_OPERAND_CHARS:
        raise Unreadable(f"{len(text)} characters; at most {MAX_OPERAND_CHARS} are read", over_limit=True)
    if _PLAIN.match(text):
        _, point, places = text.partition(".")
        return Number(Fraction(text), len(places) if point else None)
    cursor = Cursor(tokenize(text), read_units=False)
    tree = expression(parse_sum(cursor, parse_atom))
    if not cursor.at_end():
        raise Unreadable(f"{cursor.peek().text[:20]!r} behind an expression")
    known = _KNOWN | {"pm", "mp"} if signs else _KNOWN
    for node in walk(tree):
        if isinstance(node, Apply) and node.function not in known and not functions:
            raise Unreadable(f"the function {node.function[:20]!r}")
    return tree


def tame(node: Expression) -> Expression:
    """The tree with percents and factorials as numbers, exponents bounded.

    Raises:
        Unreadable: An exponent or factorial beyond the bounds, or a function that has no value here.
    """
    match node:
        case Apply("percent", (inner,)):
            return product((tame(inner), Number(Fraction(1, 100))))
        case Apply("factorial", (inner,)):
            return Number(Fraction(math.factorial(_small(inner))))
        case Apply("binom", (above, below)):
            return Number(Fraction(math.comb(_small(above), _small(below))))
        case Power(base, exponent):
            power = rational(exponent)
            if power is None or abs(power.numerator) > MAX_EXPONENT or power.denominator > 12:
                raise Unreadable("an exponent beyond the bounds", over_limit=True)
            return Power(tame(base), Number(power))
        case Number():
            return node
        case Apply(function):
            raise Unreadable(f"the function {function[:20]!r}")
        case _ if children(node):
            return type(node)(tuple(tame(part) for part in children(node)))  # type: ignore[call-arg,return-value]
        case _:
            return node


def _small(node: Expression) -> int:
    value = rational(node)
    if value is None or value.denominator != 1 or not 0 <= value <= MAX_FACTORIAL:
        raise Unreadable(f"a factorial or a binomial coefficient beyond {MAX_FACTORIAL}", over_limit=True)
    return int(value)


def rational(node: Expression) -> Fraction | None:
    """The value where it is a rational number of bounded size, else None.

    Raises:
        Unreadable: It meets a bound or divides by zero.
    """
    if isinstance(node, Number):
        return node.value
    form = Forms(work=MAX_WORK).of(tame(node))
    return _constant(form.numerator, form.denominator)


def _constant(above: dict[tuple[tuple[str, Fraction], ...], Fraction],
              below: dict[tuple[tuple[str, Fraction], ...], Fraction]) -> Fraction | None:  # fmt: skip
    if set(above) <= {()} and set(below) == {()}:
        value = above.get((), Fraction(0)) / below[()]
        if value.numerator.bit_length() + value.denominator.bit_length() > MAX_RESULT_BITS:
            raise Unreadable("a result beyond the bounds", over_limit=True)
        return value
    return None


def compare(left: Expression, right: Expression) -> Sides:
    """Evaluate both sides.

    Raises:
        Unreadable: A side meets a bound, divides by zero, is not real or is not in the grammar.
    """
    names = [frozenset(n.name for n in walk(side) if isinstance(n, Symbol)) for side in (left, right)]
    symbolic = bool((names[0] | names[1]) - {"pi"})
    if not names[0] and not names[1]:
        one, other = rational(left), rational(right)
        if one is not None and other is not None:
            return Sides(one, other, one == other)
    forms = Forms(work=MAX_WORK)
    left, right = tame(left), tame(right)
    difference = forms.difference(left, right)
    same = not difference
    equal = True if same else (False if forms.independent else None)
    if symbolic or equal is not False:
        unknowns = names[0] if names[0] == names[1] else frozenset[str]()
        return Sides(None, None, equal, unknowns, symbolic, lone_term=len(difference) == 1)
    return Sides(_approximate(left), _approximate(right), False, irrational=True)


def _approximate(node: Expression) -> Fraction:
    """A real number to 30 places."""
    value = evaluate(node, Point(0))
    if not hasattr(value, "man_exp"):
        raise Unreadable("a number that is not real")
    mantissa, exponent = value.man_exp  # Without its sign.
    found = Fraction(mantissa if value >= 0 else -mantissa) * Fraction(2) ** max(-2000, min(2000, exponent))
    return Fraction(round(found * 10**30), 10**30)


def last_place(node: Expression) -> Fraction:
    """The unit of the last place of a plain number that is not zero: 0.01 for 3.50, 100 for 1200; 0 for others."""
    if isinstance(node, Apply) and node.function == "percent":
        return last_place(node.arguments[0]) / 100
    if not isinstance(node, Number):
        return Fraction(0)
    if node.decimals is not None:
        return Fraction(1, 10**node.decimals)
    if node.value.denominator != 1 or not node.value:
        return Fraction(0)
    digits = str(node.value.numerator)
    return Fraction(10 ** (len(digits) - len(digits.rstrip("0"))))
