r"""Is a statement wrongly drawn from the one before it?

From an equation in one unknown to the next: wrong where neither has all roots of the other, so that the second is no
consequence, no case and no multiple of the first. From an inequality in one unknown: wrong where each holds at a
point at which the other does not. From an equation in several unknowns: wrong where the two differ, as polynomials
up to a factor, by one term alone: a slip of calculation and not a condition that was used.
"""

import re
from collections.abc import Sequence
from fractions import Fraction

from stepward.verifiers.answers.canonical import Forms, Monomial, Polynomial
from stepward.verifiers.answers.expressions import (
    Apply,
    Expression,
    Number,
    Power,
    Symbol,
    Unreadable,
    double_signs,
    negative,
    symbols,
    total,
    walk,
    with_sign,
)
from stepward.verifiers.answers.numeric import Point, evaluate
from stepward.verifiers.claims.calculus import Question
from stepward.verifiers.claims.decisions import Decision, Truth
from stepward.verifiers.claims.exact import MAX_WORK, NO_PRODUCTS, compare, last_place, parse, tame
from stepward.verifiers.claims.operands import Operand
from stepward.verifiers.claims.orders import ORDERS
from stepward.verifiers.claims.statements import Link, Statement, link_between
from stepward.verifiers.claims.univariate import (
    Equation,
    equation_of,
    has_root_between,
    roots_within,
    square_free,
    value_at,
)

# A letter before brackets around one value, or a letter that usually names a function before any brackets.
_APPLIED = re.compile(
    r"(?:\b[fghpqdrFGHPQRTSVNCE]|[a-zA-Z](?: \^ - 1)?(?= \( -? ?(?:[\d.]+|[a-zA-Z]) [),])) (?:\^ \{? ?[-\d ]+\}? ?)?\("
)
_REWRITES = re.compile(r"\A\D*\b(?:simplif\w+|expand\w*|combin\w+ like terms|distribut\w+)\b\D*\Z", re.I)
_GRID = tuple(Fraction(n, 7) for n in range(-97, 98, 3)) + tuple(
    Fraction(n) for n in (-1000, -100, 100, 1000)
)


def decide_derivation(first: Statement, second: Statement, between: str) -> Decision | None:
    """Whether a statement is wrongly drawn from the one before it.

    Args:
        first: The statement before it, of the same step or of the step before.
        second: The statement.
        between: The text between them.

    Returns:
        A decision on the second statement; None where nothing is claimed that is decided here.

    Raises:
        Unreadable: A side meets a bound.
    """
    if first.doubt or second.doubt or link_between(between) is not Link.DRAWN:
        return None
    if any(_APPLIED.search(part.text) or "%" in part.text for part in (*first.parts, *second.parts)):
        return None
    if NO_PRODUCTS.search(first.shown) or NO_PRODUCTS.search(second.shown):
        return None
    if first.relation in ORDERS and second.relation in ORDERS:
        wrong = _orders(first, second)
    elif first.relation == "=" and second.relation in ("=", "≈"):
        wrong = _equations(first, second, rewritten=_REWRITES.search(between) is not None)
    else:
        return None
    if wrong is None:
        return None
    start, end = second.start, second.end
    if wrong:
        why = f"{second.shown} does not follow from {first.shown}: {wrong}"
        return Decision(start, end, Truth.FALSE, evidence=why)
    return Decision(start, end, Truth.TRUE, evidence=f"{second.shown} follows from {first.shown}")


def order_question(first: Statement, second: Statement, between: str) -> Question | None:
    """What a worker is to prove: that an order of polynomials follows from the one before it."""
    if first.relation not in ORDERS or second.relation not in ORDERS or first.doubt or second.doubt:
        return None
    if link_between(between) is not Link.DRAWN:
        return None
    try:
        names = [symbols(parse(s.parts[0].text)) | symbols(parse(s.parts[1].text)) for s in (first, second)]
    except Unreadable:
        return None
    if not names[1] or names[0] != names[1]:
        return None
    sides = [[s.parts[0].text, ORDERS[s.relation], s.parts[1].text] for s in (first, second)]
    return Question("implies", (sides[0], sides[1]), second.start, second.end, "")


def _sides(statement: Statement) -> tuple[Expression, Expression]:
    left, right = (parse(part.text, signs=True) for part in statement.parts)
    if any(isinstance(n, Symbol) and n.name in ("i", "e") for side in (left, right) for n in walk(side)):
        raise Unreadable("a letter that may be a constant")
    return left, right


def states_value(statement: Statement) -> bool:
    """Whether a statement is an equation that only states a value: ``x = 5``."""
    try:
        return statement.relation == "=" and _bare(*_sides(statement))
    except Unreadable:
        return False


def in_one_unknown(statement: Statement) -> bool:
    """Whether a statement is an equation in one unknown that does more than state its value."""
    if statement.relation != "=":
        return False
    try:
        left, right = _sides(statement)
        return not _bare(left, right) and equation_of(left, right) is not None
    except Unreadable:
        return False


def holds_by(parts: Sequence[Operand], given: Statement) -> bool:
    """Whether an equation in one unknown, as its two sides, holds at every root of another that was stated."""
    if given.relation != "=" or given.doubt:
        return False
    try:
        stated = equation_of(*_sides(given))
        drawn = equation_of(*(parse(part.text) for part in parts))
    except Unreadable:
        return False
    if (
        stated is None
        or drawn is None
        or stated.name != drawn.name
        or len(square_free(stated.coefficients)) < 3
    ):
        return False  # An equation with one root says the value, which no rewriting uses.
    return roots_within(stated.coefficients, drawn.coefficients)


def has_several_roots(statement: Statement) -> bool:
    """Whether a statement is an equation of degree two or more in one unknown."""
    try:
        given = equation_of(*_sides(statement)) if statement.relation == "=" else None
    except Unreadable:
        return False
    return given is not None and given.degree > 1


def _bare(left: Expression, right: Expression) -> bool:
    """Whether an equation only states a value: ``x = 5``."""
    return (isinstance(left, Symbol) and not symbols(right)) or (
        isinstance(right, Symbol) and not symbols(left)
    )


def _equations(first: Statement, second: Statement, *, rewritten: bool) -> str | None:
    """Why the second equation does not follow; empty where it does, None where that is open.

    ``rewritten``: the words between say that the first is only written otherwise.
    """
    left, right = _sides(first)
    if double_signs(right):
        return _both_values(left, right, first, second)
    if _bare(left, right) or double_signs(left):
        return None
    given = equation_of(left, right)
    to, value = _sides(second)
    if given is None:
        return None if second.relation == "≈" else _lone_term(left, right, to, value, rewritten=rewritten)
    if isinstance(to, Symbol) and not symbols(value) and to.name == given.name:
        return _value(given, value, second)
    if (
        second.relation == "≈"
        or double_signs(value)
        or double_signs(to)
        or _rounded(first.parts, second.parts)
    ):
        return None
    reached = equation_of(to, value)
    if reached is None or reached.name != given.name:
        return None
    if roots_within(given.coefficients, reached.coefficients):
        return ""
    if roots_within(reached.coefficients, given.coefficients):
        return None  # A case of it, or a root that was lost.
    return "neither holds wherever the other does"


def _both_values(left: Expression, right: Expression, first: Statement, second: Statement) -> str | None:
    """Whether ``x = a ± b`` and what is drawn from it give the same values."""
    to, value = _sides(second)
    if symbols(right) or symbols(value) or not symbols(left) or to != left or second.relation != "=":
        return None
    if _rounded(first.parts, second.parts) or double_signs(left):
        return None
    given = [with_sign(right, sign) for sign in (1, -1)]
    reached = [with_sign(value, sign) for sign in ((1, -1) if double_signs(value) else (1,))]
    same = [[compare(tame(a), tame(b)).equal for a in given] for b in reached]
    if any(equal is None for row in same for equal in row):
        return None
    return "" if all(any(row) for row in same) else "the values differ"


def _value(given: Equation, value: Expression, second: Statement) -> str | None:
    """Whether a stated value solves an equation."""
    unit = (
        last_place(value)
        if second.relation == "≈" or (isinstance(value, Number) and value.decimals)
        else Fraction(0)
    )
    if unit and isinstance(value, Number):
        near = has_root_between(given.coefficients, value.value - unit, value.value + unit)
        rough = has_root_between(given.coefficients, value.value - 10 * unit, value.value + 10 * unit)
        return "" if near else None if rough else f"no root lies near {value.value}"
    signs = (1, -1) if double_signs(value) else (1,)
    for sign in signs:
        plain = with_sign(value, sign)
        if isinstance(plain, Number):
            residue: object = value_at(given.coefficients, plain.value)
        else:
            residue = abs(_at(given, plain)) > Fraction(1, 10**9)
        if residue:
            return "it is no root"
    return ""


def _at(given: Equation, value: Expression) -> Fraction:
    """The polynomial at an irrational number, by its size there."""
    x = evaluate(tame(value), Point(0))
    if not hasattr(x, "man_exp"):
        raise Unreadable("a number that is not real")
    found, size = x * 0, abs(x) * 0 + 1
    for coefficient in reversed(given.coefficients):
        term = x * 0 + coefficient.numerator
        found = found * x + term / coefficient.denominator
        size = size * (abs(x) + 1) + abs(term) / coefficient.denominator
    return Fraction(int(abs(found) / size * 10**30), 10**30)


def _rounded(before: Sequence[Operand], after: Sequence[Operand]) -> bool:
    """Whether a decimal stands in the second that does not stand in the first."""
    old = {d for part in before for d in re.findall(r"\d*\.\d+", part.text)}
    return any(d not in old for part in after for d in re.findall(r"\d*\.\d+", part.text)) or bool(old)


def _lone_term(
    left: Expression, right: Expression, to: Expression, value: Expression, *, rewritten: bool
) -> str | None:
    """Equations in several unknowns, as polynomials up to a factor: why the second is another one."""
    if any(isinstance(n, Apply) for side in (left, right, to, value) for n in walk(side)):
        return None
    forms = Forms(work=MAX_WORK)
    a, b = (forms.of(tame(total((x, negative(y))))) for x, y in ((left, right), (to, value)))
    if not forms.independent or len(a.denominator) > 1 or len(b.denominator) > 1:
        return None
    one, other = a.numerator, b.numerator
    names = [{k for m in poly for k, _ in m} for poly in (one, other)]
    if names[0] != names[1] or len(names[0]) < 2 or any(k[0] == "#" for k in names[0]):
        return None
    common = [m for m in one if m in other]
    gaps = [len(_gap(one, other, one[anchor] / other[anchor])) for anchor in common]
    if not all(gaps):
        return ""
    if len(common) > 1 and 1 in gaps:
        return "the two differ by one term"
    # The same terms with other coefficients: no condition that was used makes them of each other.
    return "their terms differ" if rewritten and len(common) == len(other) > 1 else None


def _gap(one: Polynomial, other: Polynomial, factor: Fraction) -> Polynomial:
    gap: dict[Monomial, Fraction] = {}
    for monomial in one.keys() | other.keys():
        value = one.get(monomial, Fraction(0)) - factor * other.get(monomial, Fraction(0))
        if value:
            gap[monomial] = value
    return gap


def _orders(first: Statement, second: Statement) -> str | None:
    """Inequalities in one unknown, at many points."""
    (a, b), (c, d) = _sides(first), _sides(second)
    if _bare(a, b):
        return None  # "For a > 0" is a condition.
    names = symbols(a) | symbols(b)
    if len(names) != 1 or symbols(c) | symbols(d) != names or any(double_signs(s) for s in (a, b, c, d)):
        return None
    given, reached = equation_of(a, b), equation_of(c, d)
    if given is None or reached is None or any(_divides(side) for side in (a, b, c, d)):
        return None  # The sign of a denominator may be known.
    holds = [
        (_order_at(a, b, first.relation, x), _order_at(c, d, second.relation, x)) for x in _points(names)
    ]
    only_first = any(p is True and q is False for p, q in holds)
    only_second = any(p is False and q is True for p, q in holds)
    if only_first and only_second:
        return "each holds where the other does not"
    return None


def _divides(node: Expression) -> bool:
    return any(isinstance(n, Power) and symbols(n.base) and not _whole(n.exponent) for n in walk(node))


def _whole(node: Expression) -> bool:
    return isinstance(node, Number) and node.value.denominator == 1 and node.value >= 0


def _points(names: frozenset[str]) -> list[dict[str, Fraction]]:
    (name,) = names
    return [{name: x} for x in _GRID]


def _order_at(left: Expression, right: Expression, sign: str, point: dict[str, Fraction]) -> bool | None:
    """Whether an inequality holds at a point; None where a side has no value."""
    at = Point(0)
    for name, value in point.items():
        at.bound[name] = evaluate(Number(value), Point(0))
    try:
        gap = evaluate(tame(left), at) - evaluate(tame(right), at)
    except Unreadable:
        return None
    if not hasattr(gap, "man_exp"):
        return None
    if abs(gap) < 1e-30:
        return "=" in ORDERS[sign]
    return (gap < 0) == (ORDERS[sign][0] == "<")
