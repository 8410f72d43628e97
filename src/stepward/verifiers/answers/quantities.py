"""Numbers with units, percent, degrees, currencies or other words beside them."""

from fractions import Fraction

from stepward.verifiers.answers.expressions import Apply, Expression, Number, Quantity, product
from stepward.verifiers.answers.finding import Finding, ambiguous, different, some
from stepward.verifiers.answers.scalars import same_scalar
from stepward.verifiers.answers.units import Unit, factors_of, read_unit


def same_quantity(
    gold: Quantity | Expression, answer: Quantity | Expression, tolerance: float | None
) -> Finding:
    """Compare two quantities. A unit that one side leaves out is taken as understood."""
    a, unit_a = _parts(gold)
    b, unit_b = _parts(answer)
    left, right = read_unit(unit_a), read_unit(unit_b)
    percents = [_is(u, "share") for u in (left, right)]
    if percents[0] != percents[1]:
        percent_first = percents[0]
        if (right if percent_first else left).known:
            return different("a percentage against another unit")
        hundredth = _scaled(a if percent_first else b, Fraction(1, 100))
        return some(
            same_scalar(x, y, tolerance)
            for x, y in (((a, b), (hundredth, b)) if percent_first else ((a, b), (a, hundredth)))
        )
    if left.plain and right.plain and left.plain != right.plain:
        return different("units of different powers")
    if left.known and right.known:
        if left.dimensions != right.dimensions:
            return different("units of different dimensions")
        if left.factor != right.factor:
            return same_scalar(_scaled(a, left.factor), _scaled(b, right.factor), tolerance)
        return same_scalar(a, b, tolerance)
    found = same_scalar(a, b, tolerance)
    if _is(left, "angle") != _is(right, "angle") and not found.equal:
        radians = (Apply("degree", (a,)), b) if _is(left, "angle") else (a, Apply("degree", (b,)))
        return some((found, same_scalar(*radians, tolerance)))
    if (
        found.equal
        and left.label
        and right.label
        and left.label != right.label
        and not set(left.label) & set(right.label)
    ):
        return ambiguous(f"equal numbers of {' '.join(left.label)} and of {' '.join(right.label)}")
    if (
        found.different
        and left.known != right.known
        and _other_scale(a, b, left if left.known else right, left.known)
    ):
        return ambiguous("equal in another unit than the one left out")
    return found


def _parts(value: Quantity | Expression) -> tuple[Expression, str]:
    return (value.value, value.unit) if isinstance(value, Quantity) else (value, "")


def _is(unit: Unit, dimension: str) -> bool:
    return unit.dimensions == ((dimension, 1),)


def _scaled(value: Expression, factor: Fraction) -> Expression:
    if isinstance(value, Number):
        places = None if value.decimals is None else value.decimals + (2 if factor == Fraction(1, 100) else 0)
        return Number(value.value * factor, places)
    return product((Number(factor), value))


def _other_scale(a: Expression, b: Expression, unit: Unit, first: bool) -> bool:
    """Whether the bare number is the other one converted to a sister unit: 225 and ``3 hours 45 minutes``."""
    if not isinstance(a, Number) or not isinstance(b, Number) or len(unit.dimensions) != 1:
        return False
    with_unit, bare = (a.value, b.value) if first else (b.value, a.value)
    dimension, power = unit.dimensions[0]
    if power != 1 or not bare or dimension in ("share", "angle"):
        return False
    return with_unit * unit.factor / bare in factors_of(dimension)
