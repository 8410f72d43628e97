"""Do two answers say the same? Text in, finding out; dispatch over the types of values."""

from collections.abc import Callable
from fractions import Fraction

from stepward.prm.types import Reason, VerdictKind
from stepward.verifiers.answers.expressions import (
    EXPRESSION_TYPES,
    BaseNumeral,
    Brackets,
    Colon,
    Expression,
    Interval,
    Items,
    Matrix,
    Number,
    Power,
    Product,
    Quantity,
    Relation,
    Symbol,
    Unreadable,
    Value,
    Words,
    quotient,
)
from stepward.verifiers.answers.finding import (
    DIFFERENT,
    EQUAL,
    Finding,
    ambiguous,
    different,
    equal,
    every,
    some,
    unsupported,
)
from stepward.verifiers.answers.numerals import Numeral, integer, numeral
from stepward.verifiers.answers.quantities import same_quantity
from stepward.verifiers.answers.reader import Reading, read
from stepward.verifiers.answers.regions import is_region, same_region
from stepward.verifiers.answers.relations import (
    is_arithmetic,
    named_value,
    same_named,
    same_relation,
    stated_value,
)
from stepward.verifiers.answers.scalars import same_number, same_scalar
from stepward.verifiers.answers.units import UNIT_LETTERS

MAX_COMPARED_ITEMS = 60
_ELLIPSIS = Symbol("\\ldots")
_LISTS = (Brackets.BARE, Brackets.SET)


def compare_answers(*, gold: str, answer: str, tolerance: float | None = None) -> Finding:
    """Compare two answers.

    Args:
        gold: The reference answer.
        answer: The answer to judge; untrusted, of any length.
        tolerance: Relative tolerance for constants, or None for exact comparison.
    """
    if (quick := _quick(gold, answer, tolerance)) is not None:
        return quick
    left, right = read(gold), read(answer)
    if left.signature == right.signature and left.signature not in ((), ("raw", "")):
        return equal("the same text")
    if left.textual and right.textual and left.words == right.words and left.words:
        return equal("the same words")
    if left.letter and right.letter and (_only_letter(left) or _only_letter(right)):
        return equal("the same option") if left.letter == right.letter else different("another option")
    if left.values and right.values:
        return _any_reading(left, right, tolerance)
    return _unread(left, right)


def _quick(gold: str, answer: str, tolerance: float | None) -> Finding | None:
    """Plain numbers, without the parser."""
    whole, other = integer(gold), integer(answer)
    if whole is not None and other is not None and tolerance is None:
        return EQUAL if whole == other else DIFFERENT
    left = numeral(gold)
    right = numeral(answer) if left else None
    if left is None or right is None:
        return _long_digits(gold, answer)
    if left.percent == right.percent:
        return same_number(_number(left), _number(right), tolerance)
    plain, percent = (right, left) if left.percent else (left, right)
    readings = [(_number(percent), _number(plain)), (_hundredth(percent), _number(plain))]
    return some(
        same_number(a, b, tolerance) if left.percent else same_number(b, a, tolerance) for a, b in readings
    )


def _number(found: Numeral) -> Number:
    return Number(found.value, found.decimals)


def _hundredth(found: Numeral) -> Number:
    return Number(found.value / 100, (found.decimals or 0) + 2)


def _long_digits(gold: str, answer: str) -> Finding | None:
    """Whole numbers of any length are compared as digits: nothing is computed."""
    if min(len(gold), len(answer)) == 0 or max(len(gold), len(answer)) < 200:
        return None
    pair = [t.strip().replace(",", "") for t in (gold, answer)]
    if not all(t.removeprefix("-").isascii() and t.removeprefix("-").isdigit() for t in pair):
        return None
    signs = [t.startswith("-") for t in pair]
    digits = [t.removeprefix("-").lstrip("0") for t in pair]
    return EQUAL if digits[0] == digits[1] and (signs[0] == signs[1] or not digits[0]) else DIFFERENT


def _only_letter(reading: Reading) -> bool:
    return len(reading.words) == 1


def _any_reading(left: Reading, right: Reading, tolerance: float | None) -> Finding:
    """Equal where any two readings are; different where the likeliest are and no other leaves a doubt."""
    findings: list[Finding] = []
    for a in left.values:
        for b in right.values:
            finding = same_value(a, b, tolerance)
            if finding.equal:
                return finding
            findings.append(finding)
    first = findings[0]
    doubts = (f for f in findings if f.reason is Reason.AMBIGUOUS)
    return next(doubts, first) if first.different else first


def _unread(left: Reading, right: Reading) -> Finding:
    """Where one side is in no grammar: words against a number differ, all else is open."""
    fault = right.fault or left.fault
    for one, other in ((left, right), (right, left)):
        number = bool(one.values) and isinstance(one.values[0], Number | Words)
        if number and not other.values and other.wordy:
            return different("words, and not those of the reference")
    limit = fault is not None and fault.over_limit
    reason = Reason.UNSUPPORTED if limit else Reason.PARSE
    return Finding(VerdictKind.UNKNOWN, reason, str(fault) if fault else "not read")


def same_value(gold: Value, answer: Value, tolerance: float | None = None) -> Finding:
    """Compare two typed values."""
    if gold == answer:
        return EQUAL
    if isinstance(gold, Words) or isinstance(answer, Words):
        return DIFFERENT
    if isinstance(gold, Relation) or isinstance(answer, Relation):
        found = _relations(gold, answer, tolerance)
        if found is not None:
            return found
    if is_region(gold) or is_region(answer):
        found = _regions(gold, answer, tolerance)
        if found is not None:
            return found
    if isinstance(gold, EXPRESSION_TYPES) and isinstance(answer, EXPRESSION_TYPES):
        found = same_scalar(gold, answer, tolerance)
        return ambiguous("a unit or a variable") if found.different and _unit_letter(gold, answer) else found
    if isinstance(gold, Quantity | Number | Product | Power) and isinstance(
        answer, Quantity | Number | Product | Power
    ):
        return same_quantity(gold, answer, tolerance)
    if isinstance(gold, Quantity) and isinstance(answer, EXPRESSION_TYPES):
        return same_quantity(gold, answer, tolerance)
    if isinstance(answer, Quantity) and isinstance(gold, EXPRESSION_TYPES):
        return same_quantity(gold, answer, tolerance)
    if isinstance(gold, Items) or isinstance(answer, Items):
        return _items(gold, answer, tolerance)
    if isinstance(gold, Matrix) and isinstance(answer, Matrix):
        return _cells(gold, answer, tolerance)
    if isinstance(gold, Colon) or isinstance(answer, Colon):
        return _colons(gold, answer)
    if isinstance(gold, BaseNumeral) or isinstance(answer, BaseNumeral):
        return _numerals_in_bases(gold, answer)
    return different("values of different kinds")


def _unit_letter(gold: Expression, answer: Expression) -> bool:
    """``2600g`` against ``2600``: the letter may be a unit that the other leaves out."""
    for one, other in ((gold, answer), (answer, gold)):
        match one, other:
            case Product((Number(value), Symbol(name))), Number(bare) if (
                name in UNIT_LETTERS and value == bare
            ):
                return True
            case _:
                pass
    return False


def _relations(gold: Value, answer: Value, tolerance: float | None) -> Finding | None:
    """Named values by their values; equations up to scale. None where sets of numbers decide."""
    if isinstance(gold, Relation) and isinstance(answer, Relation):
        if is_arithmetic(gold) and is_arithmetic(answer):
            return _arithmetic(gold, answer, tolerance)
        left, right = named_value(gold), named_value(answer)
        if left and right:
            names = same_named(left, right)
            if names is not None:
                values = same_value(left[1], right[1], tolerance)
                return values if names.equal or values.different else names
        if is_region(gold) and is_region(answer):
            found = _regions(gold, answer, tolerance)
            if found is not None and found.kind is not VerdictKind.UNKNOWN:
                return found
        return same_relation(gold, answer)
    relation, other = (gold, answer) if isinstance(gold, Relation) else (answer, gold)
    assert isinstance(relation, Relation)
    value = stated_value(relation)
    if value is not None and not isinstance(other, Relation):
        return (
            same_value(value, other, tolerance) if relation is gold else same_value(other, value, tolerance)
        )
    if is_region(relation):
        return None
    if isinstance(other, Items):
        return None
    return different("an equation against a value")


def _arithmetic(gold: Relation, answer: Relation, tolerance: float | None) -> Finding:
    """``0.56 = 56\\%``: the same numbers side by side, or at least the same at the end."""
    pairs = zip(gold.operands, answer.operands, strict=False)
    if len(gold.operands) != len(answer.operands):
        pairs = [(gold.operands[-1], answer.operands[-1])]
    return every(same_value(a, b, tolerance) for a, b in pairs)


def _regions(gold: Value, answer: Value, tolerance: float | None) -> Finding | None:
    try:
        return same_region(gold, answer)
    except Unreadable as fault:
        both = (gold, answer)
        if all(isinstance(v, Items) for v in both) or any(isinstance(v, Relation) for v in both):
            return None if all(isinstance(v, Items) for v in both) else _open(gold, answer, str(fault))
        ends = [_ends(v) for v in both]
        if ends[0] is None or ends[1] is None:
            return _open(gold, answer, str(fault))
        if ends[0][1] != ends[1][1]:
            return DIFFERENT
        return every(same_scalar(a, b, tolerance) for a, b in zip(ends[0][0], ends[1][0], strict=True))


def _open(gold: Value, answer: Value, why: str) -> Finding:
    """Numbers are no sets; other pairs are beyond this comparison."""
    if isinstance(gold, Number | Quantity) or isinstance(answer, Number | Quantity):
        return different("a number against a set of numbers")
    return unsupported(why)


def _ends(value: Value) -> tuple[tuple[Expression, Expression], tuple[bool, bool]] | None:
    """The two ends of one interval, whatever they hold."""
    match value:
        case Interval(low, high, closed_low, closed_high):
            return (low, high), (closed_low, closed_high)
        case Items(Brackets.TUPLE | Brackets.SQUARE as brackets, (low, high)):
            if isinstance(low, EXPRESSION_TYPES) and isinstance(high, EXPRESSION_TYPES):
                return (low, high), (brackets is Brackets.SQUARE, brackets is Brackets.SQUARE)
            return None
        case _:
            return None


def _items(gold: Value, answer: Value, tolerance: float | None) -> Finding:
    """Lists, sets and tuples; a set of one is its member, a column is a tuple."""
    left, right = _as_items(gold), _as_items(answer)
    if 1 in (len(left.items), len(right.items)) and len(left.items) != len(right.items):
        return _one_against_several(left, right, tolerance)
    if len(left.items) == 1 and len(right.items) == 1:
        if left.items[0] is gold and right.items[0] is answer:
            return different("values of different kinds")
        return same_value(left.items[0], right.items[0], tolerance)
    if _ELLIPSIS in left.items or _ELLIPSIS in right.items:
        return _with_ellipsis(left, right, tolerance)
    if len(left.items) != len(right.items):
        return different(f"{len(left.items)} values against {len(right.items)}")
    if max(len(left.items), len(right.items)) > MAX_COMPARED_ITEMS:
        return unsupported(f"more than {MAX_COMPARED_ITEMS} items")
    ordered = left.brackets not in _LISTS or right.brackets not in _LISTS
    if ordered:
        kinds = {left.brackets, right.brackets}
        if kinds == {Brackets.SET, Brackets.TUPLE} or kinds == {Brackets.SET, Brackets.SQUARE}:
            return _set_against_tuple(left, right, tolerance)
        pairs = zip(left.items, right.items, strict=True)
        found = every(same_value(_unnamed(a, ordered), _unnamed(b, ordered), tolerance) for a, b in pairs)
        if found.equal and kinds == {Brackets.TUPLE, Brackets.SQUARE} and len(left.items) == 2:
            return ambiguous("round against square brackets around two numbers")
        return found
    return _matched(list(left.items), list(right.items), tolerance)


def _set_against_tuple(left: Items, right: Items, tolerance: float | None) -> Finding:
    found = _matched(list(left.items), list(right.items), tolerance)
    return found if found.different else different("a set against a tuple")


def _unnamed(value: Value, ordered: bool) -> Value:
    """In a tuple the place says what the value is of."""
    named = named_value(value) if ordered else None
    return named[1] if named else value


def _one_against_several(left: Items, right: Items, tolerance: float | None) -> Finding:
    """A bare list that says one value in several ways is that value."""
    one, several = (left, right) if len(left.items) == 1 else (right, left)
    if several.brackets is Brackets.BARE and several.items:
        found = every(same_value(one.items[0], item, tolerance) for item in several.items)
        if found.equal:
            return found
    return different("one value against several")


def _as_items(value: Value) -> Items:
    match value:
        case Items():
            return value
        case Matrix(rows) if len(rows) == 1:
            return Items(Brackets.TUPLE, rows[0])
        case Matrix(rows) if len(rows[0]) == 1:
            return Items(Brackets.TUPLE, tuple(row[0] for row in rows))
        case _:
            return Items(Brackets.BARE, (value,))


def _with_ellipsis(left: Items, right: Items, tolerance: float | None) -> Finding:
    """Lists that leave values out: different where their first or last values are."""
    ends = every(same_value(left.items[k], right.items[k], tolerance) for k in (0, -1))
    if ends.different:
        return ends
    if len(left.items) == len(right.items):
        return every(same_value(a, b, tolerance) for a, b in zip(left.items, right.items, strict=True))
    return unsupported("lists that leave values out")


def _matched(gold: list[Value], answer: list[Value], tolerance: float | None) -> Finding:
    """Match each value with another, in any order."""
    open_part: Finding | None = None
    rest = list(answer)
    unmatched = 0
    for value in gold:
        place = None
        for k, other in enumerate(rest):
            finding = same_value(value, other, tolerance)
            if finding.equal:
                place = k
                break
            if not finding.different:
                open_part = open_part or finding
        if place is None:
            unmatched += 1
        else:
            rest.pop(place)
    if not unmatched:
        return EQUAL
    return open_part or different(f"{unmatched} of {len(gold)} values have no match")


def _cells(gold: Matrix, answer: Matrix, tolerance: float | None) -> Finding:
    shapes = [(len(m.rows), len(m.rows[0])) for m in (gold, answer)]
    if shapes[0] != shapes[1]:
        vectors = all(1 in s for s in shapes) and sorted(shapes[0]) == sorted(shapes[1])
        return ambiguous("a row against a column") if vectors else different("matrices of different shapes")
    pairs: list[tuple[Value, Value]] = [
        (a, b) for x, y in zip(gold.rows, answer.rows, strict=True) for a, b in zip(x, y, strict=True)
    ]
    return every(same_value(a, b, tolerance) for a, b in pairs)


def _colons(gold: Value, answer: Value) -> Finding:
    """Times by their digits, ratios by their quotients."""
    match gold, answer:
        case Colon(left, clock, suffix), Colon(right, other, other_suffix):
            if len(left) != len(right) or (suffix and other_suffix and suffix != other_suffix):
                return DIFFERENT
            same = every(same_scalar(a, b) for a, b in zip(left, right, strict=True))
            if same.equal or suffix or other_suffix:
                return same
            crossed: list[Callable[[], Finding]] = [
                lambda k=k: same_scalar(_times(left[0], right[k]), _times(right[0], left[k]))
                for k in range(1, len(left))
            ]
            if any(_is_zero(p) for p in (*left, *right)):
                return DIFFERENT
            proportional = every(check() for check in crossed)
            if proportional.equal and clock and other:
                return ambiguous("equal as ratios, different as times")
            return proportional
        case (Colon((Number(hour), Number(minute)), True), Number(value)) | (
            Number(value),
            Colon((Number(hour), Number(minute)), True),
        ) if not minute and hour == value:
            return ambiguous("an hour or a number")
        case Colon((a, b), _, ""), _ if isinstance(answer, EXPRESSION_TYPES) and not _is_zero(b):
            return same_scalar(quotient(a, b), answer)
        case _, Colon((a, b), _, "") if isinstance(gold, EXPRESSION_TYPES) and not _is_zero(b):
            return same_scalar(gold, quotient(a, b))
        case _:
            return different("values of different kinds")


def _times(a: Expression, b: Expression) -> Expression:
    return Product((a, b))


def _is_zero(part: Expression) -> bool:
    return isinstance(part, Number) and not part.value


def _numerals_in_bases(gold: Value, answer: Value) -> Finding:
    """Digits in one base are compared as digits; across bases a value can be right and its form wrong."""
    match gold, answer:
        case BaseNumeral(digits, base), BaseNumeral(others, other):
            if base == other:
                return EQUAL if digits.upper() == others.upper() else DIFFERENT
            values = [_value_in_base(d, b) for d, b in ((digits, base), (others, other))]
            if None in values:
                return different("digits that the base does not have")
            return ambiguous("equal numbers in different bases") if values[0] == values[1] else DIFFERENT
        case (BaseNumeral(digits, base), other) | (other, BaseNumeral(digits, base)):
            if not isinstance(other, Number):
                return different("values of different kinds")
            if "." not in digits and other.value.denominator == 1 and str(other.value) == digits:
                return ambiguous("the same digits, the base is not said")
            if _value_in_base(digits, base) == other.value:
                return ambiguous("the same number in another base")
            return DIFFERENT
        case _:
            return different("values of different kinds")


def _value_in_base(digits: str, base: int) -> Fraction | None:
    whole, _, places = digits.partition(".")
    try:
        return Fraction(int(whole + places, base), base ** len(places))
    except ValueError:
        return None
