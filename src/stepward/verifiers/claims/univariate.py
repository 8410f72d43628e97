r"""Polynomials in one unknown with rational coefficients: what two equations say of each other.

An equation's polynomial is the numerator of left - right, without factors that its denominator shares. Its roots,
real and complex, are compared through greatest common divisors: no root is ever computed for that.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from stepward.verifiers.answers.canonical import Forms, Polynomial
from stepward.verifiers.answers.expressions import Expression, Unreadable, negative, total
from stepward.verifiers.claims.exact import MAX_WORK, tame

MAX_DEGREE = 24
MAX_COEFFICIENT_BITS = 3_000

Coefficients = tuple[Fraction, ...]
"""Lowest degree first; the last one is not zero. Empty for zero."""


@dataclass(frozen=True, slots=True)
class Equation:
    """A polynomial that an equation sets to zero.

    Attributes:
        name: The unknown.
        coefficients: The polynomial.
    """

    name: str
    coefficients: Coefficients

    @property
    def degree(self) -> int:
        """Its degree."""
        return len(self.coefficients) - 1


def equation_of(left: Expression, right: Expression) -> Equation | None:
    """The equation left = right; None where it is not one of a single unknown, or is always or never true.

    Raises:
        Unreadable: It meets a bound or divides by zero.
    """
    form = Forms(work=MAX_WORK).of(tame(total((left, negative(right)))))
    names = {
        kernel for poly in (form.numerator, form.denominator) for monomial in poly for kernel, _ in monomial
    }
    if len(names) != 1:
        return None
    (name,) = names
    if name in ("i", "e", "pi") or name[0] == "#" or "(" in name:
        return None
    above, below = _coefficients(form.numerator, name), _coefficients(form.denominator, name)
    if not above or not below:
        return None
    while len(common := gcd(above, below)) > 1:
        above = divide(above, common)[0]
    return Equation(name, above) if len(above) > 1 else None


def _coefficients(poly: Polynomial, name: str) -> Coefficients | None:
    """The coefficients of a polynomial of that unknown alone; None where it is none."""
    by_degree: dict[int, Fraction] = {}
    for monomial, coefficient in poly.items():
        exponent = Fraction(0)
        for kernel, power in monomial:
            if kernel != name:
                return None
            exponent = power
        if exponent.denominator != 1 or exponent < 0:
            return None
        if exponent > MAX_DEGREE:
            raise Unreadable(f"an equation of degree {exponent}", over_limit=True)
        by_degree[int(exponent)] = coefficient
    return _stripped([by_degree.get(k, Fraction(0)) for k in range(max(by_degree, default=-1) + 1)])


def _stripped(values: list[Fraction]) -> Coefficients:
    while values and not values[-1]:
        values.pop()
    if any(v.numerator.bit_length() + v.denominator.bit_length() > MAX_COEFFICIENT_BITS for v in values):
        raise Unreadable("coefficients beyond the bounds", over_limit=True)
    return tuple(values)


def divide(above: Coefficients, below: Coefficients) -> tuple[Coefficients, Coefficients]:
    """Quotient and remainder; ``below`` is not zero."""
    rest, quotient = list(above), [Fraction(0)] * max(0, len(above) - len(below) + 1)
    while len(rest) >= len(below):
        factor, shift = rest[-1] / below[-1], len(rest) - len(below)
        quotient[shift] = factor
        for k, value in enumerate(below):
            rest[shift + k] -= factor * value
        rest = list(_stripped(rest[:-1]))
    return _stripped(quotient), tuple(rest)


def gcd(a: Coefficients, b: Coefficients) -> Coefficients:
    """The greatest common divisor with leading coefficient 1."""
    while b:
        a, b = b, divide(a, b)[1]
    return tuple(v / a[-1] for v in a) if a else ()


def square_free(a: Coefficients) -> Coefficients:
    """The polynomial with every root once."""
    slope = _stripped([k * v for k, v in enumerate(a)][1:])
    return divide(a, gcd(a, slope))[0] if slope else a


def roots_within(a: Coefficients, b: Coefficients) -> bool:
    """Whether every root of ``a``, real or complex, is one of ``b``."""
    return not divide(b, square_free(a))[1]


def value_at(a: Coefficients, x: Fraction) -> Fraction:
    """The polynomial's value."""
    value = Fraction(0)
    for coefficient in reversed(a):
        value = value * x + coefficient
    return value


def has_root_between(a: Coefficients, low: Fraction, high: Fraction) -> bool:
    """Whether a real root lies in [low, high] (Sturm's theorem)."""
    a = square_free(a)
    if not value_at(a, low) or not value_at(a, high):
        return True
    chain: list[Coefficients] = [a, _stripped([k * v for k, v in enumerate(a)][1:])]
    while chain[-1]:
        chain.append(_stripped([-v for v in divide(chain[-2], chain[-1])[1]]))
    return _sign_changes(chain, low) > _sign_changes(chain, high)


def _sign_changes(chain: Sequence[Coefficients], x: Fraction) -> int:
    signs = [v > 0 for poly in chain if (v := value_at(poly, x))]
    return sum(a != b for a, b in itertools.pairwise(signs))
