"""SymPy trees from trees of our own parse, never from text. Imported by workers only."""

# SymPy has no types.
# pyright: basic, reportArgumentType=false
# ruff: noqa: SIM905

from typing import Any

import sympy

from stepward.verifiers.answers.expressions import Apply, Expression, Number, Power, Product, Sum, Symbol

_FUNCTIONS: dict[str, Any] = {
    **{n: getattr(sympy, n) for n in "sin cos tan cot sec csc sinh cosh tanh coth sech csch gcd lcm".split()},
    **{f"arc{n}": getattr(sympy, f"a{n}") for n in "sin cos tan cot sec csc".split()},
    "ln": sympy.log, "abs": sympy.Abs, "floor": sympy.floor, "ceil": sympy.ceiling, "sign": sympy.sign,
    "factorial": sympy.factorial, "binom": sympy.binomial, "max": sympy.Max, "min": sympy.Min,
}  # fmt: skip


def same(a: Any, b: Any) -> str:
    """Zero difference after simplification, or clearly other values at several points."""
    difference = a - b
    if difference == 0:
        return "equal"
    names = sorted(difference.free_symbols, key=str)
    gaps: list[bool] = []
    for k in range(1, 4):
        values = {s: sympy.Rational(7 * k + 3 * i + 2, 5 + i) for i, s in enumerate(names)}
        value = sympy.N(difference.subs(values), 30)
        if value.is_number and value.is_finite:
            gaps.append(abs(value) > 1e-9)
    if gaps and all(gaps):
        return "different"
    if gaps and any(gaps):
        return "unknown"
    return "equal" if sympy.simplify(difference) == 0 else "unknown"


def tree(node: Expression) -> Any:
    """The SymPy expression that an expression is; names are positive reals."""
    match node:
        case Number(value):
            return sympy.Rational(value.numerator, value.denominator)
        case Symbol("pi"):
            return sympy.pi
        case Symbol("e"):
            return sympy.E
        case Symbol("i"):
            return sympy.I
        case Symbol("infinity"):
            return sympy.oo
        case Symbol(name):
            return sympy.Symbol(name, positive=True)
        case Sum(terms):
            return sympy.Add(*map(tree, terms))
        case Product(factors):
            return sympy.Mul(*map(tree, factors))
        case Power(base, exponent):
            return sympy.Pow(tree(base), tree(exponent))
        case Apply("log", (inner,)):
            return sympy.log(tree(inner), 10)
        case Apply("log", (inner, base)):
            return sympy.log(tree(inner), tree(base))
        case Apply("degree", (inner,)):
            return tree(inner) * sympy.pi / 180
        case Apply("sum" | "prod" as function, (index, low, high, body)):
            make = sympy.Sum if function == "sum" else sympy.Product
            return make(tree(body), (tree(index), tree(low), tree(high))).doit()
        case Apply(function, arguments) if function in _FUNCTIONS:
            return _FUNCTIONS[function](*map(tree, arguments))
        case Apply(function, arguments):
            return sympy.Function(function)(*map(tree, arguments))
