r"""Canonical forms: an expression as a quotient of two sparse polynomials over named kernels.

A kernel is a variable, a constant, a prime under a root, or a function of canonical arguments; a monomial is a
product of kernels with rational exponents in which whole powers of numbers are already multiplied out. Symbols
stand for positive reals, so that :math:`(x^2)^{1/2} = x`. Two expressions are equal where cross-multiplied
numerators agree. Where the only kernels are variables, one of :math:`\pi` and :math:`e`, the imaginary unit and
roots of primes, they differ where those do not: distinct products of roots of primes are linearly independent
over the rationals (Besicovitch 1940).
"""

from dataclasses import dataclass, field
from fractions import Fraction

from stepward.verifiers.answers.expressions import (
    Apply,
    Expression,
    Number,
    Power,
    Product,
    Sum,
    Symbol,
    Unreadable,
)

MAX_TERMS = 400
MAX_WORK = 20_000
MAX_BITS = 150_000
MAX_EXPANDED_POWER = 60
_TRIAL_DIVISORS = 2_000

Monomial = tuple[tuple[str, Fraction], ...]
Polynomial = dict[Monomial, Fraction]

_UNIT: Monomial = ()
_ONE: Polynomial = {_UNIT: Fraction(1)}


@dataclass(slots=True)
class Ratio:
    """numerator / denominator."""

    numerator: Polynomial
    denominator: Polynomial


@dataclass(slots=True)
class Forms:
    """Makes canonical forms within one budget of work.

    Attributes:
        work: Products of monomials that may still be formed.
        independent: False once a kernel was used that may be algebraically dependent on others.
    """

    work: int = MAX_WORK
    independent: bool = True
    _constants: set[str] = field(default_factory=set[str])

    def of(self, node: Expression) -> Ratio:
        """The canonical form of an expression.

        Raises:
            Unreadable: It needs more work than the budget holds, or divides by zero.
        """
        match node:
            case Number(value):
                return Ratio({_UNIT: value} if value else {}, _ONE)
            case Symbol(name):
                return self._symbol(name)
            case Sum(terms):
                total = self.of(terms[0])
                for term in terms[1:]:
                    total = self.add(total, self.of(term))
                return total
            case Product(factors):
                product = self.of(factors[0])
                for factor in factors[1:]:
                    product = self.multiply(product, self.of(factor))
                return product
            case Power(base, exponent):
                return self._power(base, exponent)
            case Apply("percent", (inner,)):
                return self.multiply(self.of(inner), Ratio({_UNIT: Fraction(1, 100)}, _ONE))
            case Apply("factorial", (Number(value),)) if value.denominator == 1 and 0 <= value <= 300:
                whole = Fraction(1)
                for k in range(2, int(value) + 1):
                    whole *= k
                return Ratio({_UNIT: whole}, _ONE)
            case Apply(function, arguments):
                parts = (arguments[0], *arguments[1:])
                return self._kernel(f"{function}({','.join(self.key(self.of(a)) for a in parts)})", function)

    def difference(self, left: Expression, right: Expression) -> Polynomial:
        """Numerator of left - right over the product of denominators: empty where they are equal."""
        a, b = self.of(left), self.of(right)
        if a.denominator == b.denominator:
            return self._sum(a.numerator, b.numerator, Fraction(-1))
        crossed = self._times(b.numerator, a.denominator)
        return self._sum(self._times(a.numerator, b.denominator), crossed, Fraction(-1))

    def add(self, a: Ratio, b: Ratio) -> Ratio:
        """a + b."""
        if a.denominator == b.denominator:
            return Ratio(self._sum(a.numerator, b.numerator, Fraction(1)), a.denominator)
        above = self._sum(
            self._times(a.numerator, b.denominator), self._times(b.numerator, a.denominator), Fraction(1)
        )
        return Ratio(above, self._times(a.denominator, b.denominator))

    def multiply(self, a: Ratio, b: Ratio) -> Ratio:
        """a * b."""
        return Ratio(self._times(a.numerator, b.numerator), self._times(a.denominator, b.denominator))

    def key(self, form: Ratio) -> str:
        """A text that names the form, the same for forms that differ by a common scalar."""
        lead = form.denominator[min(form.denominator)]
        parts = [
            ";".join(f"{c / lead}*{'*'.join(f'{k}^{e}' for k, e in m)}" for m, c in sorted(poly.items()))
            for poly in (form.numerator, form.denominator)
        ]
        text = "/".join(parts)
        if len(text) > 4000:
            raise Unreadable("a kernel with a very long argument", over_limit=True)
        return text

    def _symbol(self, name: str) -> Ratio:
        if name in ("pi", "e"):
            self._constants.add(name)
            self.independent = self.independent and len(self._constants) == 1
        elif name in ("infinity", "\\ldots"):
            self.independent = False
        return Ratio({((name, Fraction(1)),): Fraction(1)}, _ONE)

    def _kernel(self, key: str, function: str) -> Ratio:
        # A subscripted name is a variable of its own where its subscript is a plain one.
        if not function.startswith("sub:"):
            self.independent = False
        return Ratio({((key, Fraction(1)),): Fraction(1)}, _ONE)

    def _power(self, base: Expression, exponent: Expression) -> Ratio:
        power = self._number(exponent)
        form = self.of(base)
        if power is None:
            return self._symbolic_power(form, exponent)
        if power == 0:
            return Ratio(_ONE, _ONE)
        if power < 0:
            if not form.numerator:
                raise Unreadable("a division by zero")
            form, power = Ratio(form.denominator, form.numerator), -power
        return Ratio(self._raised(form.numerator, power), self._raised(form.denominator, power))

    def _number(self, exponent: Expression) -> Fraction | None:
        form = self.of(exponent)
        if not form.numerator:
            return Fraction(0)
        if list(form.numerator) == [_UNIT] and list(form.denominator) == [_UNIT]:
            return form.numerator[_UNIT] / form.denominator[_UNIT]
        return None

    def _symbolic_power(self, form: Ratio, exponent: Expression) -> Ratio:
        """base ** (3 n + 1) as base ** 3n * base: kernels of one base and one monomial multiply as they should."""
        self.independent = False
        powers = self.of(exponent)
        if powers.denominator != _ONE or len(powers.numerator) > 8:
            return self._kernel(f"pow({self.key(form)},{self.key(powers)})", "pow")
        result = Ratio(_ONE, _ONE)
        for monomial, coefficient in powers.numerator.items():
            if monomial == _UNIT and coefficient.denominator == 1 and abs(coefficient) <= MAX_EXPANDED_POWER:
                above, below = form.numerator, form.denominator
                if coefficient < 0:
                    above, below = below, above
                times = abs(coefficient)
                factor = Ratio(self._raised(above, times), self._raised(below, times))
            else:
                name = f"pow({self.key(form)},{'*'.join(f'{k}^{e}' for k, e in monomial)})"
                factor = Ratio({((name, coefficient),): Fraction(1)}, _ONE)
            result = self.multiply(result, factor)
        return result

    def _raised(self, poly: Polynomial, power: Fraction) -> Polynomial:
        """poly ** power for a positive rational power."""
        if not poly:
            return {}
        if len(poly) == 1:
            ((monomial, coefficient),) = poly.items()
            raised = self._number_power(coefficient, power)
            rest: Polynomial = {tuple((k, e * power) for k, e in monomial): Fraction(1)}
            return self._times(raised, self._times(rest, _ONE))
        if power.denominator == 1:
            if power > MAX_EXPANDED_POWER:
                raise Unreadable(f"a power of {power}", over_limit=True)
            result = _ONE
            for _ in range(int(power)):
                result = self._times(result, poly)
            return result
        # The content leaves the root, so that sqrt(4 + 8 x) and 2 sqrt(1 + 2 x) agree.
        content = abs(poly[min(poly)])
        inner = {m: c / content for m, c in poly.items()}
        whole, fractional = int(power), power - int(power)
        self.independent = False
        kernel: Polynomial = {((f"root({self.key(Ratio(inner, _ONE))})", fractional),): Fraction(1)}
        result = self._times(self._number_power(content, power), kernel)
        for _ in range(whole):
            result = self._times(result, inner)
        return result

    def _number_power(self, value: Fraction, power: Fraction) -> Polynomial:
        """value ** power as a rational times roots of primes (and i for an odd root of a negative)."""
        size = max(value.numerator.bit_length(), value.denominator.bit_length())
        if size * max(power, 1) > MAX_BITS:
            raise Unreadable("a number too large to compute", over_limit=True)
        if power.denominator == 1:
            return {_UNIT: value ** int(power)}
        result: Polynomial = _ONE
        if value < 0:
            if power.denominator == 2:
                turns = int(power * 2) % 4
                result = {(("i", Fraction(1)),): Fraction(1 if turns == 1 else -1)}
            elif power.denominator % 2:
                result = {_UNIT: Fraction(-1 if power.numerator % 2 else 1)}
            else:
                self.independent = False
                result = {(("(-1)", power),): Fraction(1)}
            value = -value
        for number, sign in ((value.numerator, 1), (value.denominator, -1)):
            for prime, times in self._factors(number):
                exponent = sign * times * power
                whole = exponent.numerator // exponent.denominator
                rest = exponent - whole
                factor = Fraction(prime) ** whole
                monomial: Monomial = ((f"#{prime}", rest),) if rest else _UNIT
                result = self._times(result, {monomial: factor})
        return result

    def _factors(self, number: int) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        divisor = 2
        while divisor <= _TRIAL_DIVISORS and divisor * divisor <= number:
            times = 0
            while number % divisor == 0:
                number //= divisor
                times += 1
            if times:
                found.append((divisor, times))
            divisor += 1 if divisor == 2 else 2
        if number > 1:
            if number > _TRIAL_DIVISORS**2:
                self.independent = False  # It may hide primes that stand elsewhere on their own.
            found.append((number, 1))
        return found

    def _sum(self, a: Polynomial, b: Polynomial, factor: Fraction) -> Polynomial:
        result = dict(a)
        for monomial, coefficient in b.items():
            value = result.get(monomial, 0) + factor * coefficient
            if value:
                result[monomial] = value
            else:
                result.pop(monomial, None)
        self._bound(result)
        return result

    def _times(self, a: Polynomial, b: Polynomial) -> Polynomial:
        if a == _ONE and not any(k == "i" or k[0] == "#" for m in b for k, _ in m):
            return b
        if b == _ONE and not any(k == "i" or k[0] == "#" for m in a for k, _ in m):
            return a
        self.work -= len(a) * len(b)
        if self.work < 0:
            raise Unreadable("a canonical form that needs too much work", over_limit=True)
        result: Polynomial = {}
        for left, x in a.items():
            for right, y in b.items():
                monomial, factor = _join(left, right)
                value = result.get(monomial, 0) + x * y * factor
                if value:
                    result[monomial] = value
                else:
                    result.pop(monomial, None)
        self._bound(result)
        return result

    def _bound(self, poly: Polynomial) -> None:
        if len(poly) > MAX_TERMS:
            raise Unreadable("a canonical form with too many terms", over_limit=True)
        for value in poly.values():
            if value.numerator.bit_length() > MAX_BITS or value.denominator.bit_length() > MAX_BITS:
                raise Unreadable("a number too large to compute", over_limit=True)


def _join(left: Monomial, right: Monomial) -> tuple[Monomial, Fraction]:
    """The product of two monomials: exponents added, whole powers of numbers and of i taken out."""
    exponents = dict(left)
    for kernel, exponent in right:
        exponents[kernel] = exponents.get(kernel, Fraction(0)) + exponent
    factor = Fraction(1)
    kept: list[tuple[str, Fraction]] = []
    for kernel, exponent in sorted(exponents.items()):
        if kernel[0] == "#":
            whole = exponent.numerator // exponent.denominator
            if whole:
                factor *= Fraction(int(kernel[1:])) ** whole
            exponent -= whole
        elif kernel == "i" and exponent.denominator == 1:
            turns = int(exponent) % 4
            factor *= -1 if turns in (2, 3) else 1
            exponent = Fraction(turns % 2)
        if exponent:
            kept.append((kernel, exponent))
    return tuple(kept), factor
