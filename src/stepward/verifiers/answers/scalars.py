"""Are two expressions equal? Exactly where a canonical form decides, else by values to 50 digits.

A decimal is exact, unless it stands against a number that it rounds: then its stated places say how much of the
other it claims. A rounding to six or more significant digits counts as equal; to fewer, it is ambiguous whether
the problem allowed it; anything that is no rounding is different.
"""

from fractions import Fraction

from stepward.verifiers.answers.canonical import Forms
from stepward.verifiers.answers.expressions import (
    INFINITY,
    Apply,
    Expression,
    Number,
    Power,
    Symbol,
    Unreadable,
    negative,
    symbols,
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
from stepward.verifiers.answers.numeric import Point, close, evaluate, needs_integers, rational, real

ENOUGH_DIGITS = 6
FEWEST_DIGITS = 2
FLOAT_DIGITS = 12
SHORT_DECIMALS = 4
_POINTS = 4
_ELLIPSIS = Symbol("\\ldots")


def same_scalar(gold: Expression, answer: Expression, tolerance: float | None = None) -> Finding:
    """Compare two expressions.

    Args:
        gold: The reference.
        answer: What is judged. Only the rules for decimals treat the two differently.
        tolerance: Relative tolerance for constants, or None for exact comparison.
    """
    if gold == answer:
        return EQUAL
    if isinstance(gold, Number) and isinstance(answer, Number):
        return same_number(gold, answer, tolerance)
    infinite = {INFINITY, negative(INFINITY), _ELLIPSIS}
    if gold in infinite or answer in infinite:
        return DIFFERENT
    constant = not symbols(gold) and not symbols(answer)
    if constant and tolerance is not None:
        return _within(gold, answer, tolerance)
    if constant and (_is_decimal(gold) or _is_decimal(answer)):
        return _rounded(gold, answer)
    return _exact(gold, answer)


def same_number(gold: Number, answer: Number, tolerance: float | None = None) -> Finding:
    """Compare two rational numbers, at their stated places where both are decimals."""
    if gold.value == answer.value:
        return EQUAL
    if tolerance is not None:
        near = abs(gold.value - answer.value) <= Fraction(tolerance) * abs(gold.value)
        return equal(f"within {tolerance:g}") if near else DIFFERENT
    if _float_noise(gold, answer) or _float_noise(answer, gold):
        return equal("equal but for the last digits of a float")
    if gold.decimals is None and gold.value.denominator == 1:
        return DIFFERENT  # A whole number is exact.
    if answer.decimals is not None and (gold.decimals is None or gold.decimals > answer.decimals):
        return _claims(answer, gold.value, gold.decimals is None)
    if gold.decimals is not None and (answer.decimals is None or answer.decimals > gold.decimals):
        if answer.decimals is None and answer.value.denominator == 1:
            return DIFFERENT
        return _claims(gold, answer.value, True)
    return DIFFERENT


def _claims(decimal: Number, exact: Fraction, lenient: bool) -> Finding:
    """What a decimal says of a number: the same, a rounding of it, or another."""
    places = decimal.decimals or 0
    if abs(exact - decimal.value) * 2 * 10**places > 1:
        return DIFFERENT
    digits = significant(decimal.value, places)
    if digits >= ENOUGH_DIGITS and (lenient or digits >= 2 * ENOUGH_DIGITS):
        return equal(f"equal to {digits} significant digits")
    if digits < FEWEST_DIGITS:
        return different("a rounding to one digit")
    return ambiguous(f"a rounding to {digits} significant digits")


def _float_noise(exact: Number, noisy: Number) -> bool:
    """A decimal of twelve or more digits that came out of floating-point arithmetic, beside an exact or short one."""
    if noisy.decimals is None or significant(noisy.value, noisy.decimals) < FLOAT_DIGITS or not exact.value:
        return False
    if exact.decimals is not None and exact.decimals > SHORT_DECIMALS:
        return False
    return abs(noisy.value - exact.value) < abs(exact.value) * Fraction(1, 10**10)


def significant(value: Fraction, places: int) -> int:
    """Significant digits of a decimal with so many places."""
    return len(str(abs(int(value * 10**places)))) if value else 0


def _is_decimal(node: Expression) -> bool:
    return isinstance(node, Number) and node.decimals is not None


def _rounded(gold: Expression, answer: Expression) -> Finding:
    """A decimal against a constant that is no plain number."""
    decimal, other = (gold, answer) if _is_decimal(gold) else (answer, gold)
    assert isinstance(decimal, Number)
    try:
        if not Forms().difference(decimal, other):
            return EQUAL
    except Unreadable:
        pass
    try:
        value = real(evaluate(other, Point(0)))
    except Unreadable as fault:
        return unsupported(str(fault)) if fault.over_limit or "real" not in str(fault) else DIFFERENT
    places = decimal.decimals or 0
    gap = abs(value - rational(decimal.value))
    digits = significant(decimal.value, places)
    if decimal is answer and digits >= FLOAT_DIGITS and gap < abs(value) * 1e-10:
        return equal("equal but for the last digits of a float")
    if gap * 2 * 10**places > 1:
        return DIFFERENT
    if digits >= ENOUGH_DIGITS or (decimal is gold and digits > FEWEST_DIGITS):
        return equal(f"equal to the {digits} digits of the decimal")
    return ambiguous(f"a rounding to {digits} digits") if digits >= FEWEST_DIGITS else DIFFERENT


def _within(gold: Expression, answer: Expression, tolerance: float) -> Finding:
    try:
        a, b = evaluate(gold, Point(0)), evaluate(answer, Point(0))
    except Unreadable as fault:
        return unsupported(str(fault))
    return equal(f"within {tolerance:g}") if abs(a - b) <= tolerance * abs(a) else DIFFERENT


def _exact(gold: Expression, answer: Expression) -> Finding:
    forms = Forms()
    try:
        if not forms.difference(gold, answer):
            return equal("the same canonical form")
        if forms.independent:
            return different("different canonical forms")
    except Unreadable:
        if (towers := _same_tower(gold, answer)) is not None:
            return towers
    return by_value(gold, answer)


def _same_tower(gold: Expression, answer: Expression) -> Finding | None:
    """Powers too large to compute: of one number above 1 they are equal where their exponents are."""
    match gold, answer:
        case Power(Number(base), x), Power(Number(other), y) if base > 1 and base == other:
            return same_scalar(x, y)
        case _:
            return None


def by_value(gold: Expression, answer: Expression) -> Finding:
    """Compare values at fixed points: equal where all agree, different where none does."""
    integers = needs_integers(gold) or needs_integers(answer)
    variables = symbols(gold) | symbols(answer)
    signed = any(
        isinstance(n, Apply) and n.function in ("abs", "sign") for e in (gold, answer) for n in walk(e)
    )
    agreed = differed = 0
    fault: Unreadable | None = None
    for number in range(_POINTS if variables else 1):
        for below in (False, True) if signed and variables else (False,):
            point = Point(number, integers=integers, signed=below)
            try:
                verdict = close(evaluate(gold, point), evaluate(answer, point))
            except Unreadable as error:
                fault = error
                if error.over_limit:
                    break
                continue
            agreed += verdict is True
            differed += verdict is False
    if agreed and not differed and (agreed > 1 or not variables):
        return equal("equal to 40 digits" + (f" at {agreed} points" if variables else ""))
    if differed and not agreed:
        return different("different values")
    if agreed and differed:
        return ambiguous("equal for some values of the variables only")
    return unsupported(str(fault) if fault else "values too close to tell")
