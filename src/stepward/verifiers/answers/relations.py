"""Equations, inequalities and named values: what names what, and which relations say the same."""

from fractions import Fraction
from typing import Any

from stepward.verifiers.answers.canonical import Forms, Polynomial
from stepward.verifiers.answers.expressions import (
    CONSTANTS,
    EXPRESSION_TYPES,
    Apply,
    Brackets,
    Colon,
    Expression,
    Items,
    Number,
    Power,
    Product,
    Quantity,
    Relation,
    Sum,
    Symbol,
    Unreadable,
    Value,
    negative,
    symbols,
    total,
    walk,
)
from stepward.verifiers.answers.finding import (
    DIFFERENT,
    EQUAL,
    Finding,
    ambiguous,
    different,
    equal,
    unsupported,
)
from stepward.verifiers.answers.numeric import Point, close, evaluate
from stepward.verifiers.answers.scalars import same_scalar

_ROOT_GRID = 48
_BISECTIONS = 60
_FUNCTION_LETTERS = frozenset("fghpqFGHPQT")
_FLIPPED = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}


def is_name(value: Value) -> bool:
    r"""Whether a value only names something: ``x``, ``a_3``, ``f(2)``, ``\angle ABC``, ``(p, q)``, ``\sin x``."""
    match value:
        case Symbol(name):
            return name not in CONSTANTS
        case Product((head, *arguments)):
            called = isinstance(head, Symbol) and head.name[0] in _FUNCTION_LETTERS
            return is_name(head) and all(
                is_name(a) or (called and isinstance(a, Number | Sum)) for a in arguments
            )
        case Power(base, Number(exponent)):
            return is_name(base) and exponent == -1
        case Apply(function, arguments):
            return function.startswith("sub:") or any(symbols(a) for a in arguments)
        case Items(Brackets.TUPLE, items):
            return all(is_name(i) for i in items)
        case Colon(parts, _):
            return all(is_name(p) for p in parts)
        case _:
            return False


def named_value(value: Value) -> tuple[Value, Value] | None:
    """(name, value) of an equation that gives something a value: ``x = 2``, ``2 = x``, ``z = 1 + 1 = 2``."""
    if not isinstance(value, Relation) or any(o != "=" for o in value.operators):
        return None
    first, last = value.operands[0], value.operands[-1]
    if is_name(first):
        return first, last
    if len(value.operands) == 2 and is_name(last) and _is_constant(first):
        return last, first
    if len(value.operands) > 2 and _is_constant(last):
        return first, last
    return None


def stated_value(value: Value) -> Value | None:
    """The value that an equation states where the other side has no equation: also that of ``m + n = 5``."""
    if (named := named_value(value)) is not None:
        return named[1]
    if isinstance(value, Relation) and is_arithmetic(value):
        return value.operands[-1]  # "5 + 3 = 8" states 8.
    match value:
        case Relation((Sum() as left, right), ("=",)) if _is_constant(right):
            numbers = any(isinstance(n, Number) and n.value != -1 for n in walk(left))
            return None if numbers else right
        case _:
            return None


def is_arithmetic(value: Relation) -> bool:
    """Whether an equation holds numbers only."""
    return set(value.operators) == {"="} and all(map(_is_constant, value.operands))


def _is_constant(value: Value) -> bool:
    if isinstance(value, Quantity):
        return not symbols(value.value)
    if isinstance(value, EXPRESSION_TYPES):
        return not symbols(value)
    return False


def same_relation(gold: Relation, answer: Relation) -> Finding:
    """Whether two relations have the same solutions: equal up to a constant factor, both sides moved to one."""
    left, right = _moved(gold), _moved(answer)
    if left is None or right is None:
        return EQUAL if gold == answer else unsupported("relations of more than two sides")
    (f, op), (g, other) = left, right
    if (op in _FLIPPED) != (other in _FLIPPED) or {op, other} not in _COMPARABLE:
        return DIFFERENT
    if op in _FLIPPED and _direction(op) != _direction(other):
        g, other = negative(g), _FLIPPED[other]
    if op != other:
        return DIFFERENT
    ratio, exact = _ratio(f, g, equation=op not in _FLIPPED)
    if ratio is not None:
        positive = op not in _FLIPPED or ratio > 0
        return equal("the same up to a factor") if positive else DIFFERENT
    if exact:
        return different("no multiples of one another")
    if op == "=":
        return _by_roots(f, g)
    return unsupported("relations beyond polynomials")


_COMPARABLE: tuple[set[str], ...] = (
    {"="}, {"!="}, {"<"}, {"<="}, {">"}, {">="}, {"<", ">"}, {"<=", ">="}, {"<", "<="}, {">", ">="}, {"<", ">="},
    {">", "<="}, {"equiv"},
)  # fmt: skip


def _direction(operator: str) -> str:
    return operator[0]


def _moved(relation: Relation) -> tuple[Expression, str] | None:
    if len(relation.operands) != 2:
        return None
    left, right = relation.operands
    left = left.value if isinstance(left, Quantity) else left
    right = right.value if isinstance(right, Quantity) else right
    if not isinstance(left, EXPRESSION_TYPES) or not isinstance(right, EXPRESSION_TYPES):
        return None
    return total((left, negative(right))), relation.operators[0]


def _ratio(f: Expression, g: Expression, *, equation: bool) -> tuple[Fraction | None, bool]:
    """f / g where it is a rational constant; and whether its absence is a proof."""
    forms = Forms()
    try:
        a, b = forms.of(f), forms.of(g)
    except Unreadable:
        return None, False
    ratio = _multiple(a.numerator, b.numerator)
    if ratio is None:
        # Constant factors need not be rational: compare through one leading coefficient by value.
        return _ratio_by_value(f, g, forms.independent)
    below = _multiple(a.denominator, b.denominator)
    if below is not None:
        return ratio / below, True
    return (ratio, True) if equation else (None, False)  # The sign of other denominators is not known.


def _multiple(a: Polynomial, b: Polynomial) -> Fraction | None:
    if a.keys() != b.keys() or not a:
        return None
    first = next(iter(a))
    ratio = a[first] / b[first]
    return ratio if all(a[m] == ratio * b[m] for m in a) else None


def _ratio_by_value(f: Expression, g: Expression, independent: bool) -> tuple[Fraction | None, bool]:
    ratios: list[Any] = []
    for number in range(4):
        try:
            a, b = evaluate(f, Point(number)), evaluate(g, Point(number))
            if b:
                ratios.append(a / b)
        except Unreadable:
            continue
    if len(ratios) >= 3 and all(close(r, ratios[0]) for r in ratios[1:]):
        return Fraction(1 if ratios[0].real > 0 else -1), True
    return None, independent and len(ratios) >= 2


def _by_roots(f: Expression, g: Expression) -> Finding:
    """Equations in one variable: a root of one that is no root of the other tells them apart."""
    names = symbols(f) | symbols(g)
    if len(names) != 1:
        return unsupported("equations beyond polynomials")
    name = next(iter(names))
    for one, other in ((f, g), (g, f)):
        root = _root(one, name)
        if root is None:
            continue
        point = Point(0)
        point.bound[name] = root
        try:
            if abs(evaluate(other, point)) > 1e-6:
                return different("a root of one equation that is none of the other")
        except Unreadable:
            continue
    return unsupported("equations beyond polynomials")


def _root(f: Expression, name: str) -> object | None:
    """A sign change of f on (-6, 6), bisected."""
    point = Point(0)
    before: tuple[Fraction, float] | None = None
    for k in range(_ROOT_GRID + 1):
        x = Fraction(-6) + Fraction(12 * k, _ROOT_GRID) + Fraction(1, 97)
        value = _real_at(f, point, name, x)
        if (
            value is not None
            and before is not None
            and (value > 0) != (before[1] > 0)
            and max(abs(value), abs(before[1])) < 50
        ):
            low, high, positive = before[0], x, before[1] > 0
            for _ in range(_BISECTIONS):
                middle = (low + high) / 2
                at = _real_at(f, point, name, middle)
                if at is None:
                    return None
                low, high = (middle, high) if (at > 0) == positive else (low, middle)
            residue = _real_at(f, point, name, low)
            return point.bound[name] if residue is not None and abs(residue) < 1e-9 else None
        before = (x, value) if value is not None else None
    return None


def _real_at(f: Expression, point: Point, name: str, x: Fraction) -> float | None:
    point.bound[name] = evaluate(Number(x), point)
    try:
        value = evaluate(f, point)
    except Unreadable:
        return None
    return float(value.real) if abs(value.imag) < 1e-12 else None


def same_named(gold: tuple[Value, Value], answer: tuple[Value, Value]) -> Finding | None:
    """Two named values: by value where the names agree; None where the equations have to be compared as such."""
    name, other = gold[0], answer[0]
    same_name = name == other
    if isinstance(name, EXPRESSION_TYPES) and isinstance(other, EXPRESSION_TYPES):
        same_name = same_name or same_scalar(name, other).equal
    if same_name:
        return EQUAL
    plain = not any(isinstance(n, Apply) and not n.function.startswith("sub:") for n in (name, other))
    if plain and _is_constant(gold[1]) and _is_constant(answer[1]):
        return ambiguous("values of different names")
    return None
