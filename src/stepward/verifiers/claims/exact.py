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
    Unreadable,
    children,
    product,
    symbols,
    walk,
)
from stepward.verifiers.answers.parser import expression, parse_sum
from stepward.verifiers.answers.tokens import tokenize

MAX_OPERAND_CHARS = 400
MAX_RESULT_BITS = 4_000
MAX_EXPONENT = 200
MAX_FACTORIAL = 60

_KNOWN = frozenset({"percent", "factorial", "binom"})
_PLAIN = re.compile(r"\d{1,30}(?:\.\d{1,30})?\Z")


@dataclass(frozen=True, slots=True)
class Sides:
    """Both sides of an equality, evaluated.

    Attributes:
        left: Its value; None where it is no rational number.
        right: Its value; None where it is no rational number.
        equal: Whether they are the same number; None where that is not known.
        symbolic: True where a symbol is left in them.
    """

    left: Fraction | None
    right: Fraction | None
    equal: bool | None
    symbolic: bool


@lru_cache(maxsize=4096)
def parse(text: str) -> Expression:
    """The expression that an operand's text is.

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
    for node in walk(tree):
        if isinstance(node, Apply) and node.function not in _KNOWN:
            raise Unreadable(f"the function {node.function[:20]!r}")
    return tree


def _tame(node: Expression) -> Expression:
    """The tree with percents and factorials as numbers, exponents bounded.

    Raises:
        Unreadable: An exponent or factorial beyond the bounds.
    """
    match node:
        case Apply("percent", (inner,)):
            return product((_tame(inner), Number(Fraction(1, 100))))
        case Apply("factorial", (inner,)):
            return Number(Fraction(math.factorial(_small(inner))))
        case Apply("binom", (above, below)):
            return Number(Fraction(math.comb(_small(above), _small(below))))
        case Power(base, exponent):
            power = rational(exponent)
            if power is None or abs(power.numerator) > MAX_EXPONENT or power.denominator > 12:
                raise Unreadable("an exponent beyond the bounds", over_limit=True)
            return Power(_tame(base), Number(power))
        case Number():
            return node
        case _ if children(node):
            return type(node)(tuple(_tame(part) for part in children(node)))  # type: ignore[call-arg,return-value]
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
    form = Forms().of(_tame(node))
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
        Unreadable: A side meets a bound, divides by zero or is not in the grammar.
    """
    symbolic = bool(symbols(left) | symbols(right))
    if not symbolic:
        one, other = rational(left), rational(right)
        if one is not None and other is not None:
            return Sides(one, other, one == other, False)
    else:
        one = other = None
    forms = Forms()
    same = not forms.difference(_tame(left), _tame(right))
    return Sides(
        one, other, True if same else (False if forms.independent and not symbolic else None), symbolic
    )


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
