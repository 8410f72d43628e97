r"""Sets of real numbers, however they are written: intervals, inequalities, unions, :math:`x \ne 3`."""

from dataclasses import dataclass
from typing import Any

from stepward.verifiers.answers.expressions import (
    EXPRESSION_TYPES,
    INFINITY,
    Brackets,
    Expression,
    Interval,
    Items,
    Relation,
    SetOperation,
    Symbol,
    Unreadable,
    Value,
    negative,
    symbols,
)
from stepward.verifiers.answers.finding import DIFFERENT, EQUAL, Finding, every
from stepward.verifiers.answers.numeric import Point, close, evaluate, real

_FLIPPED = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "=": "=", "!=": "!="}
_MINUS_INFINITY = negative(INFINITY)
_INEQUALITIES = frozenset({"<", ">", "<=", ">=", "!="})


@dataclass(frozen=True, slots=True)
class Piece:
    """From ``low`` to ``high`` (None: without bound), each end in or out. A point has equal ends."""

    low: Any
    high: Any
    closed_low: bool
    closed_high: bool


def is_region(value: Value) -> bool:
    """Whether a value can only be a set of numbers given by bounds."""
    match value:
        case Interval() | SetOperation():
            return True
        case Relation(_, operators):
            return any(o in _INEQUALITIES for o in operators) or operators == ("in",)
        case Items(Brackets.BARE, items):
            return bool(items) and all(isinstance(i, Relation | Interval) and is_region(i) for i in items)
        case _:
            return False


def variable(value: Value) -> str:
    """The one variable that an inequality bounds, or empty."""
    match value:
        case Relation(operands, _):
            names = {o.name for o in operands if isinstance(o, Symbol) and o.name != "infinity"}
            return names.pop() if len(names) == 1 else ""
        case Items(_, items):
            names = {variable(i) for i in items}
            return names.pop() if len(names) == 1 else ""
        case _:
            return ""


def pieces(value: Value) -> list[Piece]:
    """Disjoint pieces in rising order.

    Raises:
        Unreadable: The value is no set of reals with constant bounds.
    """
    match value:
        case Interval(low, high, closed_low, closed_high):
            return _merged([_piece(low, high, closed_low, closed_high)])
        case Items(Brackets.TUPLE, (low, high)) if isinstance(low, EXPRESSION_TYPES) and isinstance(
            high, EXPRESSION_TYPES
        ):
            return _merged([_piece(low, high, False, False)])
        case Items(Brackets.SQUARE, (low, high)) if isinstance(low, EXPRESSION_TYPES) and isinstance(
            high, EXPRESSION_TYPES
        ):
            return _merged([_piece(low, high, True, True)])
        case Items(_, items) if all(isinstance(i, EXPRESSION_TYPES) for i in items):
            points = [_constant(i) for i in items if isinstance(i, EXPRESSION_TYPES)]
            return _merged([Piece(p, p, True, True) for p in points])
        case Items(Brackets.BARE, items):
            parts = [pieces(i) for i in items]
            union = _merged([p for part in parts for p in part])
            if union == [Piece(None, None, False, False)] and len(parts) == 2:
                return _intersection(parts[0], parts[1])  # "x > 2 and x < 5", not "or".
            return union
        case SetOperation(operator, parts):
            found = pieces(parts[0])
            for part in parts[1:]:
                other = pieces(part)
                if operator == "cup":
                    found = _merged(found + other)
                else:
                    found = _intersection(found, other if operator == "cap" else _complement(other))
            return found
        case Relation((_, region), ("in",)):
            return pieces(region)
        case Relation(operands, operators):
            return _chain(operands, operators)
        case _:
            raise Unreadable("no set of real numbers")


def same_region(gold: Value, answer: Value) -> Finding:
    """Compare two sets of reals by their pieces.

    Raises:
        Unreadable: One of them is no set of reals with constant bounds.
    """
    left, right = pieces(gold), pieces(answer)
    names = {variable(gold), variable(answer)} - {""}
    if len(left) != len(right) or len(names) > 1:
        return DIFFERENT
    return every(_same_piece(a, b) for a, b in zip(left, right, strict=True))


def _same_piece(a: Piece, b: Piece) -> Finding:
    if (a.closed_low, a.closed_high) != (b.closed_low, b.closed_high):
        return DIFFERENT
    return EQUAL if _same_end(a.low, b.low) and _same_end(a.high, b.high) else DIFFERENT


def _same_end(a: Any, b: Any) -> bool:
    if a is None or b is None:
        return a is b
    return bool(close(a, b))


def _constant(node: Expression) -> Any:
    if symbols(node):
        raise Unreadable("a bound that is no constant")
    return real(evaluate(node, Point(0)))


def _piece(low: Expression, high: Expression, closed_low: bool, closed_high: bool) -> Piece:
    return Piece(
        None if low == _MINUS_INFINITY else _constant(low),
        None if high == INFINITY else _constant(high),
        closed_low and low != _MINUS_INFINITY,
        closed_high and high != INFINITY,
    )


def _chain(operands: tuple[Value, ...], operators: tuple[str, ...]) -> list[Piece]:
    """A chain of inequalities around one variable."""
    places = [i for i, o in enumerate(operands) if isinstance(o, Symbol) and o != INFINITY]
    if len(places) != 1 or len(operands) > 3 or not all(o in _FLIPPED for o in operators):
        raise Unreadable("inequalities that are not around one variable")
    found = [Piece(None, None, False, False)]
    for i, operator in enumerate(operators):
        if i == places[0]:
            bound, sign = operands[i + 1], operator
        elif i + 1 == places[0]:
            bound, sign = operands[i], _FLIPPED[operator]
        else:
            raise Unreadable("inequalities that are not around one variable")
        if not isinstance(bound, EXPRESSION_TYPES):
            raise Unreadable("a bound that is no number")
        found = _intersection(found, _half_line(sign, bound))
    return found


def _half_line(sign: str, bound: Expression) -> list[Piece]:
    if bound in (INFINITY, _MINUS_INFINITY):
        return [Piece(None, None, False, False)]
    value = _constant(bound)
    match sign:
        case "<" | "<=":
            return [Piece(None, value, False, sign == "<=")]
        case ">" | ">=":
            return [Piece(value, None, sign == ">=", False)]
        case "=":
            return [Piece(value, value, True, True)]
        case _:
            return [Piece(None, value, False, False), Piece(value, None, False, False)]


def _merged(parts: list[Piece]) -> list[Piece]:
    """Sorted, with overlapping and touching pieces joined and empty ones left out."""
    proper = [p for p in parts if not _empty(p)]
    proper.sort(key=lambda p: (p.low is not None, p.low if p.low is not None else 0, not p.closed_low))
    found: list[Piece] = []
    for piece in proper:
        last = found[-1] if found else None
        if last is not None and _touch(last, piece):
            found[-1] = _joined(last, piece)
        else:
            found.append(piece)
    return found


def _empty(p: Piece) -> bool:
    if p.low is None or p.high is None:
        return False
    return p.low > p.high or (p.low == p.high and not (p.closed_low and p.closed_high))


def _touch(a: Piece, b: Piece) -> bool:
    if a.high is None or b.low is None:
        return True
    return b.low < a.high or (b.low == a.high and (a.closed_high or b.closed_low))


def _joined(a: Piece, b: Piece) -> Piece:
    if a.high is None or b.high is None:
        high, closed = None, False
    elif a.high == b.high:
        high, closed = a.high, a.closed_high or b.closed_high
    else:
        longer = a if a.high > b.high else b
        high, closed = longer.high, longer.closed_high
    closed_low = a.closed_low or (b.closed_low and a.low is not None and a.low == b.low)
    return Piece(a.low, high, closed_low, closed)


def _complement(parts: list[Piece]) -> list[Piece]:
    found: list[Piece] = []
    low, closed = None, False
    open_end = True
    for piece in parts:
        if piece.low is not None:
            found.append(Piece(low, piece.low, closed, not piece.closed_low))
        if piece.high is None:
            open_end = False
            break
        low, closed = piece.high, not piece.closed_high
    if open_end:
        found.append(Piece(low, None, closed, False))
    return _merged(found)


def _intersection(a: list[Piece], b: list[Piece]) -> list[Piece]:
    return _complement(_merged(_complement(a) + _complement(b)))
