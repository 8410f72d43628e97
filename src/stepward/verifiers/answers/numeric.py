r"""Values of expressions to 50 digits at fixed points, for what canonical forms leave open.

Points depend only on the names of the variables. A value is refused, never guessed, where an intermediate
result is so large that computing it would take long. Two expressions that agree to 40 digits at every point are
taken as equal: a probabilistic proof of identity, whose error for answers that people write is out of reach.
"""

import hashlib
import threading
from fractions import Fraction
from typing import Any

from stepward.verifiers.answers.expressions import (
    Apply,
    Expression,
    Number,
    Power,
    Product,
    Sum,
    Symbol,
    Unreadable,
    walk,
)

DIGITS = 50
MAX_MAGNITUDE = 2_000  # bits before or after the point
MAX_INDEX_STEPS = 60
MAX_NODES = 3_000
MAX_WORK = 6_000

_INTEGER_FUNCTIONS = frozenset({"gcd", "lcm", "mod", "floor", "ceil", "sum", "prod"})
_local = threading.local()


class Point:
    """A value for each variable.

    Args:
        number: Which point, from 0.
        integers: Whether variables take small whole numbers.
        signed: Whether variables may be negative.
    """

    def __init__(self, number: int, *, integers: bool = False, signed: bool = False) -> None:
        self.number = number
        self.integers = integers
        self.signed = signed
        self.bound: dict[str, Any] = {}
        self.work = MAX_WORK

    def value(self, name: str) -> Any:
        """The value of a variable at this point."""
        if name in self.bound:
            return self.bound[name]
        draw = _hashed(f"{self.number}:{name}")
        context = _context()
        if self.integers:
            return context.mpf(3 + draw % 8)
        size = context.mpf(draw % 100_003) / 50_000 + context.mpf("0.31")
        return -size if self.signed and draw >> 40 & 1 else size


def _hashed(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def _context() -> Any:
    """This thread's own multiprecision context: precision is no global state."""
    if not hasattr(_local, "context"):
        from mpmath.ctx_mp import MPContext  # pyright: ignore[reportMissingTypeStubs]

        _local.context = MPContext()
        _local.context.dps = DIGITS
    return _local.context


def needs_integers(node: Expression) -> bool:
    """Whether the variables of an expression can only be whole numbers."""
    for part in walk(node):
        if isinstance(part, Apply) and (
            part.function in _INTEGER_FUNCTIONS or part.function.startswith("sub:")
        ):
            return True
        if isinstance(part, Power) and not isinstance(part.exponent, Number):
            base = part.base
            if isinstance(base, Number) and base.value < 0:
                return True
            if isinstance(base, Product) and any(isinstance(f, Number) and f.value < 0 for f in base.factors):
                return True
    return False


def evaluate(node: Expression, point: Point) -> Any:
    """The value of an expression as an mpf or mpc.

    Raises:
        Unreadable: It has no finite value there, or takes too long to compute.
    """
    if sum(1 for _ in walk(node)) > MAX_NODES:
        raise Unreadable("an expression with too many parts", over_limit=True)
    point.work = MAX_WORK
    try:
        return _value(node, point, _context())
    except (ArithmeticError, ValueError, TypeError, OverflowError, NotImplementedError) as fault:
        raise Unreadable(f"no value: {type(fault).__name__}") from fault


def close(a: Any, b: Any) -> bool | None:
    """True where two values agree to 40 digits, False where they differ in the first 12, else None."""
    context = _context()
    scale = max(abs(a), abs(b), context.mpf(10) ** -30)
    gap = abs(a - b) / scale
    if gap < context.mpf(10) ** -40:
        return True
    return False if gap > context.mpf(10) ** -12 else None


def _bounded(value: Any, context: Any) -> Any:
    if not context.isfinite(value):
        raise Unreadable("no finite value")
    size = abs(value)
    if size and abs(context.mag(size)) > MAX_MAGNITUDE:
        raise Unreadable("a value too large to compute", over_limit=True)
    return value


def _value(node: Expression, point: Point, context: Any) -> Any:
    point.work -= 1
    if point.work < 0:
        raise Unreadable("a value that needs too much work", over_limit=True)
    match node:
        case Number(value):
            return _bounded(context.mpf(value.numerator) / value.denominator, context)
        case Symbol(name) if name in point.bound:
            return point.bound[name]
        case Symbol("pi"):
            return +context.pi
        case Symbol("e"):
            return +context.e
        case Symbol("i"):
            return context.mpc(0, 1)
        case Symbol("infinity" | "\\ldots" | "\\forall" | "\\exists"):
            raise Unreadable("no finite value")
        case Symbol(name):
            return point.value(name)
        case Sum(terms):
            return _bounded(context.fsum(_value(t, point, context) for t in terms), context)
        case Product(factors):
            result = context.mpf(1)
            for factor in factors:
                result = _bounded(result * _value(factor, point, context), context)
            return result
        case Power(base, exponent):
            return _power(base, exponent, point, context)
        case Apply("sum" | "prod" as function, (Symbol(name), low, high, body)):
            return _indexed(function, name, low, high, body, point, context)
        case Apply(function, arguments):
            values = [_value(a, point, context) for a in arguments if not _is_name(function, a)]
            return _bounded(_apply(function, values, arguments, point, context), context)


def _is_name(function: str, argument: Expression) -> bool:
    return function.startswith("sub:") and isinstance(argument, Symbol) and len(argument.name) > 1


def _power(base: Expression, exponent: Expression, point: Point, context: Any) -> Any:
    x, y = _value(base, point, context), _value(exponent, point, context)
    if not x:
        if context.re(y) > 0:
            return context.mpf(0)
        raise Unreadable("a division by zero")
    if abs(y) * (abs(context.mag(abs(x))) + 2) > MAX_MAGNITUDE * 8:
        raise Unreadable("a power too large to compute", over_limit=True)
    if isinstance(exponent, Number) and exponent.value.denominator % 2 and not context.im(x) and x < 0:
        # The real root of a negative number, as cube roots are taken at school.
        odd = exponent.value.numerator % 2
        root = context.power(-x, context.mpf(exponent.value.numerator) / exponent.value.denominator)
        return -root if odd else root
    return _bounded(context.power(x, y), context)


def _indexed(
    function: str, name: str, low: Expression, high: Expression, body: Expression, point: Point, context: Any
) -> Any:
    first, last = _whole(_value(low, point, context)), _whole(_value(high, point, context))
    if last - first > MAX_INDEX_STEPS:
        raise Unreadable("a sum of too many terms", over_limit=True)
    result = context.mpf(0 if function == "sum" else 1)
    before = point.bound.get(name)
    for k in range(first, last + 1):
        point.bound[name] = context.mpf(k)
        term = _value(body, point, context)
        result = result + term if function == "sum" else result * term
    if before is None:
        point.bound.pop(name, None)
    else:
        point.bound[name] = before
    return _bounded(result, context)


def _whole(value: Any) -> int:
    if value != int(value):
        raise Unreadable("a bound that is no whole number")
    return int(value)


def _apply(
    function: str, values: list[Any], arguments: tuple[Expression, ...], point: Point, context: Any
) -> Any:
    if values and context.mag(abs(values[0]) + 1) > 200 and function not in ("abs", "ln", "log", "sign"):
        raise Unreadable("a function of a very large value", over_limit=True)
    match function, values:
        case "percent", [x]:
            return x / 100
        case "degree", [x]:
            return x * context.pi / 180
        case "pm" | "mp", _:
            raise Unreadable("a double sign")
        case "factorial", [x]:
            if abs(x) > 500:
                raise Unreadable("a factorial too large to compute", over_limit=True)
            return context.factorial(x)
        case "binom", [n, k]:
            if max(abs(n), abs(k)) > 500:
                raise Unreadable("a binomial too large to compute", over_limit=True)
            return context.binomial(n, k)
        case "abs", [x]:
            return abs(x)
        case "log", [x]:
            return context.log10(x)
        case "log", [x, base]:
            return context.log(x) / context.log(base)
        case "ln", [x]:
            return context.log(x)
        case "floor" | "ceil", [x]:
            return getattr(context, function)(x)
        case "sign", [x]:
            return context.sign(x)
        case "max" | "min", [_, *_]:
            return max(values) if function == "max" else min(values)
        case "gcd" | "lcm", [_, *_]:
            return _divisors(function, [_whole(v) for v in values], context)
        case "mod", [x, n]:
            return context.mpf(_whole(x) % _whole(n))
        case "base", [digits, base]:
            return context.mpf(int(str(_whole(digits)), _whole(base)))
        case "Re", [x]:
            return context.re(x)
        case "Im", [x]:
            return context.im(x)
        case (
            (
                "sin"
                | "cos"
                | "tan"
                | "cot"
                | "sec"
                | "csc"
                | "sinh"
                | "cosh"
                | "tanh"
                | "coth"
                | "sech"
                | "csch"
            ),
            [x],
        ):
            return getattr(context, function)(x)
        case name, [x] if name.startswith("arc"):
            return getattr(context, "a" + name.removeprefix("arc"))(x)
        case _:
            # An unknown function is any function: a value that depends on its name and arguments alone.
            shown = ",".join(context.nstr(v, 20) for v in values)
            names = ",".join(a.name for a in arguments if _is_name(function, a) and isinstance(a, Symbol))
            return context.mpf(_hashed(f"{point.number}:{function}:{names}:{shown}") % 100_003) / 40_000 + 0.2


def _divisors(function: str, values: list[int], context: Any) -> Any:
    import math

    return context.mpf(math.gcd(*values) if function == "gcd" else math.lcm(*values))


def fraction(value: Any, places: int) -> Fraction:
    """A real value rounded to so many places, as an exact fraction."""
    context = _context()
    if context.im(value):
        raise Unreadable("a value that is not real")
    return Fraction(int(context.nint(context.re(value) * context.mpf(10) ** places)), 10**places)


def real(value: Any) -> Any:
    """The real part of a value whose imaginary part is nought.

    Raises:
        Unreadable: It is not real.
    """
    context = _context()
    if abs(context.im(value)) > context.mpf(10) ** -40 * (1 + abs(value)):
        raise Unreadable("a value that is not real")
    return context.re(value)


def rational(value: Fraction) -> Any:
    """An exact fraction as a value."""
    return _context().mpf(value.numerator) / value.denominator
