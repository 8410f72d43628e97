"""The typed values that an answer can be.

Expressions are trees of ``Number``, ``Symbol``, ``Sum``, ``Product``, ``Power`` and ``Apply``; around them stand
quantities, sequences, intervals, relations, matrices, texts. All are immutable and compare by structure.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction


class Unreadable(Exception):
    """A text is not in the grammar of answers, or needs more work than is allowed.

    Attributes:
        over_limit: True where a bound was met, False where the text does not parse.
    """

    def __init__(self, what: str, *, over_limit: bool = False) -> None:
        super().__init__(what)
        self.over_limit = over_limit


@dataclass(frozen=True, slots=True)
class Number:
    """A rational number. ``decimals``: places after the point as written, None for an integer."""

    value: Fraction
    decimals: int | None = None


@dataclass(frozen=True, slots=True)
class Symbol:
    """A variable, or a constant: ``pi``, ``e``, ``i``, ``infinity``. Commands keep their backslash."""

    name: str


@dataclass(frozen=True, slots=True)
class Sum:
    """Terms added up. Subtraction is a product with -1."""

    terms: tuple["Expression", ...]


@dataclass(frozen=True, slots=True)
class Product:
    """Factors multiplied. Division is a power with -1."""

    factors: tuple["Expression", ...]


@dataclass(frozen=True, slots=True)
class Power:
    """base ** exponent."""

    base: "Expression"
    exponent: "Expression"


@dataclass(frozen=True, slots=True)
class Apply:
    """A named function of arguments; ``sub:F`` is a subscripted name, ``pm`` and ``mp`` are the double signs."""

    function: str
    arguments: tuple["Expression", ...]


Expression = Number | Symbol | Sum | Product | Power | Apply


class Brackets(StrEnum):
    """How a sequence is written: a bare list and a set have no order, a tuple and a square bracket have."""

    BARE = "bare"
    SET = "set"
    TUPLE = "tuple"
    SQUARE = "square"


@dataclass(frozen=True, slots=True)
class Quantity:
    """A value with what stands beside it: ``%``, ``degree``, a currency, a unit or any other word."""

    value: Expression
    unit: str


@dataclass(frozen=True, slots=True)
class Items:
    """Several values: a list, set, tuple or bracketed list."""

    brackets: Brackets
    items: tuple["Value", ...]


@dataclass(frozen=True, slots=True)
class Interval:
    """An interval whose brackets show that it is one: ``[2, 5)``, or one that reaches infinity."""

    low: Expression
    high: Expression
    closed_low: bool
    closed_high: bool


@dataclass(frozen=True, slots=True)
class SetOperation:
    """Sets joined by ``cup``, ``cap`` or ``setminus``."""

    operator: str
    parts: tuple["Value", ...]


@dataclass(frozen=True, slots=True)
class Relation:
    """A chain such as ``0 < x <= 3``: one operator fewer than operands."""

    operands: tuple["Value", ...]
    operators: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Matrix:
    """Rows of cells, of equal length."""

    rows: tuple[tuple["Value", ...], ...]


@dataclass(frozen=True, slots=True)
class Colon:
    """``7:32``: a ratio or a time of day. ``clock`` where it could be a time; ``suffix``: ``am``, ``pm`` or empty."""

    parts: tuple[Expression, ...]
    clock: bool
    suffix: str = ""


@dataclass(frozen=True, slots=True)
class BaseNumeral:
    """Digits in a stated base, perhaps with a point."""

    digits: str
    base: int


@dataclass(frozen=True, slots=True)
class Words:
    """A text answer, in lower case, single spaces, without punctuation."""

    text: str


Value = (
    Expression | Quantity | Items | Interval | SetOperation | Relation | Matrix | Colon | BaseNumeral | Words
)

EXPRESSION_TYPES = (Number, Symbol, Sum, Product, Power, Apply)

ONE = Number(Fraction(1))
MINUS_ONE = Number(Fraction(-1))
INFINITY = Symbol("infinity")
CONSTANTS = frozenset({"pi", "e", "i", "infinity"})


def negative(term: Expression) -> Expression:
    """-term."""
    if isinstance(term, Number):
        return Number(-term.value, term.decimals)
    return product((MINUS_ONE, term))


def product(factors: tuple[Expression, ...]) -> Expression:
    """The product, flat; one factor is itself."""
    flat: list[Expression] = []
    for factor in factors:
        flat.extend(factor.factors if isinstance(factor, Product) else (factor,))
    return flat[0] if len(flat) == 1 else Product(tuple(flat))


def total(terms: tuple[Expression, ...]) -> Expression:
    """The sum, flat; one term is itself."""
    flat: list[Expression] = []
    for term in terms:
        flat.extend(term.terms if isinstance(term, Sum) else (term,))
    return flat[0] if len(flat) == 1 else Sum(tuple(flat))


def quotient(above: Expression, below: Expression) -> Expression:
    """above / below; two plain integers become one exact number."""
    if (
        isinstance(above, Number)
        and isinstance(below, Number)
        and above.decimals is None
        and below.decimals is None
        and below.value
    ):
        return Number(above.value / below.value)
    return product((above, Power(below, MINUS_ONE)))


def children(node: Expression) -> tuple[Expression, ...]:
    """The parts of an expression."""
    match node:
        case Sum(parts) | Product(parts) | Apply(_, parts):
            return parts
        case Power(base, exponent):
            return base, exponent
        case _:
            return ()


def walk(node: Expression) -> Iterator[Expression]:
    """The expression and all its parts."""
    todo = [node]
    while todo:
        part = todo.pop()
        yield part
        todo.extend(children(part))


def symbols(node: Expression) -> frozenset[str]:
    """Names of the variables in an expression."""
    return frozenset(n.name for n in walk(node) if isinstance(n, Symbol) and n.name not in CONSTANTS)


def double_signs(node: Expression) -> bool:
    """Whether the expression holds a plus-minus."""
    return any(isinstance(n, Apply) and n.function in ("pm", "mp") for n in walk(node))


def with_sign(node: Expression, sign: int) -> Expression:
    """The expression with every plus-minus read as ``sign`` (1 or -1), every minus-plus as its opposite."""
    match node:
        case Apply("pm" | "mp" as kind, (inner,)):
            inner = with_sign(inner, sign)
            return inner if (sign > 0) == (kind == "pm") else negative(inner)
        case Sum(terms):
            return total(tuple(with_sign(t, sign) for t in terms))
        case Product(factors):
            return product(tuple(with_sign(f, sign) for f in factors))
        case Power(base, exponent):
            return Power(with_sign(base, sign), with_sign(exponent, sign))
        case Apply(function, arguments):
            return Apply(function, tuple(with_sign(a, sign) for a in arguments))
        case _:
            return node
