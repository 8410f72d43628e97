"""What SymPy and z3 decide, in workers only. Texts come as operands and are parsed by our own grammar here.

Every function says ``true``, ``false`` or ``unknown``. ``false`` is a difference of values at several points;
``true`` is a proof, but for definite integrals: there it is agreement to 20 digits.
"""

# SymPy and z3 have no types.
# pyright: basic, reportArgumentType=false, reportOptionalMemberAccess=false

from typing import Any

import sympy

from stepward.verifiers.answers.expressions import (
    Expression,
    Number,
    Power,
    Product,
    Sum,
    Symbol,
    Unreadable,
    symbols,
)
from stepward.verifiers.answers.numeric import Point, evaluate
from stepward.verifiers.answers.sympy_trees import same, tree
from stepward.verifiers.claims.exact import parse

try:
    import z3
except ImportError:  # the extra "z3"; without it orders that it would prove stay open
    z3 = None

_SAID = {"equal": "true", "different": "false", "unknown": "unknown"}
_Z3_MS = 400


def _read(text: str) -> Any:
    return tree(parse(text, functions=True))


def derivative(body: str, name: str, stated: str) -> str:
    """Whether the derivative of ``body`` by a letter is ``stated``."""
    function, said = _read(body), _read(stated)
    if (
        said.free_symbols - function.free_symbols
        or sympy.Symbol(name, positive=True) not in function.free_symbols
    ):
        return "unknown"
    return _SAID[same(sympy.diff(function, sympy.Symbol(name, positive=True)), said)]


def antiderivative(body: str, name: str, stated: str) -> str:
    """Whether ``stated`` differentiates back to ``body``."""
    function, said = _read(body), _read(stated)
    if said.free_symbols - function.free_symbols - {sympy.Symbol(name, positive=True)}:
        return "unknown"
    return _SAID[same(sympy.diff(said, sympy.Symbol(name, positive=True)), function)]


def definite(body: str, name: str, low: str, high: str, stated: str) -> str:
    """Whether the integral of ``body`` between two numbers is ``stated``, by quadrature."""
    function = parse(body, functions=True)
    a, b, value = (evaluate(parse(text, functions=True), Point(0)) for text in (low, high, stated))
    if symbols(function) - {name} or any(symbols(parse(t, functions=True)) for t in (low, high, stated)):
        return "unknown"

    def integrand(x: Any) -> Any:
        point = Point(0)
        point.bound[name] = x
        return evaluate(function, point)

    context = value.context
    coarse, fine = (context.quad(integrand, [a, b], maxdegree=degree) for degree in (5, 7))
    scale = max(abs(fine), abs(value), 1)
    if abs(coarse - fine) > scale * context.mpf(10) ** -20:
        return "unknown"
    gap = abs(fine - value) / scale
    return "true" if gap < context.mpf(10) ** -20 else "false" if gap > context.mpf(10) ** -3 else "unknown"


def implies(first: list[str], second: list[str]) -> str:
    """Whether one order of polynomials, ``[left, sign, right]``, follows from another for all real numbers."""
    if z3 is None:
        return "unknown"
    solver = z3.Solver()
    solver.set("timeout", _Z3_MS)
    try:
        solver.add(_formula(first), z3.Not(_formula(second)))
    except Unreadable:
        return "unknown"
    return "true" if solver.check() == z3.unsat else "unknown"


# Below, z3 is there: ``implies`` has looked.
def _formula(statement: list[str]) -> Any:
    left, sign, right = statement
    a, b = (_polynomial(parse(text)) for text in (left, right))
    match sign:
        case "<":
            return a < b
        case "<=":
            return a <= b
        case ">":
            return a > b
        case ">=":
            return a >= b
        case _:
            return a == b


def _polynomial(node: Expression) -> Any:
    match node:
        case Number(value):
            return z3.RealVal(f"{value.numerator}/{value.denominator}")
        case Symbol(name):
            return z3.Real(name)
        case Sum(terms):
            return z3.Sum([_polynomial(t) for t in terms])
        case Product(factors):
            return z3.Product([_polynomial(f) for f in factors])
        case Power(base, Number(value)) if value.denominator == 1 and 0 <= value <= 12:
            return z3.Product([_polynomial(base)] * int(value)) if value else z3.RealVal(1)
        case Power(Number(value), Number(exponent)) if value and exponent == -1:
            return z3.RealVal(f"{value.denominator}/{value.numerator}")
        case _:
            raise Unreadable("no polynomial")
