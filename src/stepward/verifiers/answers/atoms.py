r"""Atoms of the grammar: numbers, names, groups, functions, fractions, roots, matrices, sums over an index."""

from fractions import Fraction

from stepward.verifiers.answers.cursor import Cursor
from stepward.verifiers.answers.expressions import (
    EXPRESSION_TYPES,
    INFINITY,
    Apply,
    Brackets,
    Expression,
    Interval,
    Items,
    Matrix,
    Number,
    Power,
    Relation,
    Symbol,
    Unreadable,
    Value,
    negative,
    product,
    quotient,
)
from stepward.verifiers.answers.names import (
    ACCENTS,
    DEFINITE,
    FUNCTIONS,
    GREEK,
    INVERSE,
    MATRICES,
    SAME_FUNCTION,
    SEVERAL_ARGUMENTS,
    UNREADABLE,
)
from stepward.verifiers.answers.parser import expression, number, parse_items, parse_sum, parse_value
from stepward.verifiers.answers.tokens import Kind, Token

MAX_CELLS = 400
_REALS = Interval(negative(INFINITY), INFINITY, False, False)
_CLOSED = {"(": False, "[": True, ")": False, "]": True}


def parse_atom(cursor: Cursor) -> Value:
    """The value that starts here, without exponent or postfix.

    Raises:
        Unreadable: Nothing of the grammar starts here.
    """
    bars = cursor.bars
    cursor.enter()
    cursor.bars = bars
    value = _atom(cursor, cursor.peek())
    cursor.leave(cursor.bars)
    return value


def _atom(cursor: Cursor, token: Token) -> Value:
    match token.kind:
        case Kind.NUMBER:
            cursor.take()
            return subscripted(cursor, number(token.text))
        case Kind.WORD:
            return _word(cursor, token)
        case Kind.COMMAND:
            return _command(cursor, token)
        case Kind.TEXT:
            if token.text.strip() in FUNCTIONS:
                cursor.take()
                return _function(cursor, token.text.strip())
            raise Unreadable(f"text {token.text[:30]!r} where a value is needed")
        case Kind.MARK:
            return _mark(cursor, token)


def _mark(cursor: Cursor, token: Token) -> Value:
    match token.text:
        case "(" | "[" | "]":
            return _bracketed(cursor)
        case "\\{":
            return _set(cursor)
        case "{":
            value = braced(cursor)
            return subscripted(cursor, value) if isinstance(value, Symbol) else value
        case "|":
            return _absolute(cursor)
        case "\\$" | "€" | "£" | "$":
            cursor.take()
            cursor.money = {"€": "euro", "£": "sterling"}.get(token.text, "dollar")
            return parse_atom(cursor)
        case "+" | "-":
            cursor.take()
            inner = expression(parse_atom(cursor))
            return negative(inner) if token.text == "-" else inner
        case "...":
            cursor.take()
            return Symbol("\\ldots")
        case _:
            raise Unreadable(f"{token.text[:20] or 'the end'!r} where a value is needed")


def braced(cursor: Cursor) -> Value:
    """A ``{...}`` group: looks only, so its content counts."""
    cursor.skip("{")
    bars = cursor.enter()
    values = parse_items(cursor, parse_atom)
    cursor.leave(bars)
    cursor.skip("}")
    return values[0] if len(values) == 1 else Items(Brackets.BARE, tuple(values))


def _argument(cursor: Cursor) -> Expression:
    r"""An argument of a command: a group, or one token (``\frac12`` has the arguments 1 and 2)."""
    if cursor.at("{"):
        return expression(braced(cursor))
    if cursor.peek().kind is Kind.NUMBER:
        cursor.split_number()
        return number(cursor.take().text)
    if cursor.peek().kind is Kind.WORD:
        return _letter(cursor)
    return expression(parse_atom(cursor))


def _letter(cursor: Cursor) -> Expression:
    if len(cursor.peek().text) > 1:
        cursor.split_word()
    return Symbol(cursor.take().text)


def _word(cursor: Cursor, token: Token) -> Value:
    name = token.text
    if name in FUNCTIONS:
        cursor.take()
        return _function(cursor, name)
    if name in GREEK or name == "pi":
        cursor.take()
        return subscripted(cursor, Symbol("pi" if name == "pi" else f"\\{name}"))
    if name.lower() in ("infinity", "inf", "oo"):
        cursor.take()
        return INFINITY
    if name in ("mod",):
        raise Unreadable(f"{name!r} where a value is needed")
    return subscripted(cursor, _letter(cursor))


def subscripted(cursor: Cursor, value: Expression) -> Expression:
    """A name with its primes and subscripts; ``F_{n-1}`` is a function of its subscript."""
    while True:
        if cursor.at("'") and isinstance(value, Symbol):
            cursor.take()
            value = Symbol(value.name + "'")
        elif cursor.at("_"):
            cursor.take()
            if isinstance(value, Number):
                base = _argument(cursor)
                if not isinstance(base, Number):
                    raise Unreadable("a number with a subscript that is no base")
                value = Apply("base", (value, base))
                continue
            if not isinstance(value, Symbol):
                raise Unreadable("a subscript behind something that is no name")
            return Apply(f"sub:{value.name}", (_subscript(cursor),))
        else:
            return value


def _subscript(cursor: Cursor) -> Expression:
    word, end = cursor.peek(1), cursor.peek(2)
    named = word.kind in (Kind.WORD, Kind.TEXT) or word.text in FUNCTIONS
    if cursor.at("{") and named and end.text == "}" and len(word.text.strip()) > 1:
        cursor.position += 3
        return Symbol(word.text.strip())
    if cursor.peek().kind is Kind.TEXT:
        return Symbol(cursor.take().text.strip())
    if cursor.at("{"):
        cursor.take()
        bars = cursor.enter()
        values = parse_items(cursor, parse_atom)
        cursor.leave(bars)
        cursor.skip("}")
        if len(values) == 1:
            return expression(values[0])
        return Apply("index", tuple(expression(v) for v in values))
    return _argument(cursor)


def _command(cursor: Cursor, token: Token) -> Value:
    name = token.text
    cursor.take()
    if name in FUNCTIONS and name != "sqrt":
        return _function(cursor, name)
    match name:
        case "frac":
            above = _argument(cursor)
            return quotient(above, _argument(cursor))
        case "sqrt":
            return _root(cursor)
        case "binom":
            above = _argument(cursor)
            return Apply("binom", (above, _argument(cursor)))
        case "pi":
            return Symbol("pi")
        case "infty":
            return INFINITY
        case "emptyset":
            return Items(Brackets.SET, ())
        case "ldots":
            return Symbol("\\ldots")
        case "lfloor" | "lceil":
            return _closed_by(cursor, name)
        case "angle" | "triangle" | "measuredangle":
            return subscripted(cursor, Symbol(f"\\{name}"))
        case "mathbb:R":
            return _REALS
        case "quad":
            return parse_atom(cursor)
        case _:
            pass
    if name.startswith("begin:"):
        return _matrix(cursor, name.removeprefix("begin:"))
    if name in ACCENTS:
        return _subscripted_accent(cursor, Apply(name, (_argument(cursor),)))
    if name in DEFINITE:
        return _over_index(cursor, name)
    if name in UNREADABLE:
        raise Unreadable(f"\\{name} is not in the grammar of answers")
    return subscripted(cursor, Symbol(f"\\{name}"))


def _subscripted_accent(cursor: Cursor, value: Apply) -> Expression:
    if not cursor.at("_"):
        return value
    cursor.take()
    return Apply(f"sub:{value.function}", (*value.arguments, _subscript(cursor)))


def _closed_by(cursor: Cursor, name: str) -> Expression:
    bars = cursor.enter()
    inner = expression(parse_sum(cursor, parse_atom))
    cursor.leave(bars)
    if not cursor.at_command("r" + name[1:]):
        raise Unreadable(f"\\{name} is not closed")
    cursor.take()
    return Apply(name[1:], (inner,))


def _root(cursor: Cursor) -> Expression:
    order: Expression = Number(Fraction(2))
    if cursor.at("["):
        cursor.take()
        order = expression(parse_sum(cursor, parse_atom))
        cursor.skip("]")
    if cursor.at("(", "{"):
        inner = expression(braced(cursor) if cursor.at("{") else _bracketed(cursor))
    elif cursor.peek().kind is Kind.NUMBER:
        inner = number(cursor.take().text)
    else:
        inner = _argument(cursor)
    return Power(inner, quotient(Number(Fraction(1)), order))


def _function(cursor: Cursor, name: str) -> Expression:
    r"""A named function: ``\sin^2 x``, ``\log_2 8``, ``max(a, b)``, ``sqrt(2)``."""
    name = SAME_FUNCTION.get(name, name)
    bars = cursor.enter()
    base = exponent = None
    for _ in range(2):
        if cursor.at("_") and base is None:
            cursor.take()
            base = _subscript(cursor)
        elif cursor.at("^") and exponent is None:
            cursor.take()
            exponent = _argument(cursor)
    if exponent == Number(Fraction(-1)) and name in INVERSE:
        name, exponent = INVERSE[name], None
    arguments = _function_arguments(cursor, name)
    cursor.leave(bars)
    value: Expression
    match name:
        case "sqrt":
            value = Power(arguments[0], Number(Fraction(1, 2)))
        case "cbrt":
            value = Power(arguments[0], Number(Fraction(1, 3)))
        case "exp":
            value = Power(Symbol("e"), arguments[0])
        case _:
            value = Apply(name, (*arguments, base) if base is not None else arguments)
    return value if exponent is None else Power(value, exponent)


def _function_arguments(cursor: Cursor, name: str) -> tuple[Expression, ...]:
    if cursor.at("(", "{", "["):
        value = braced(cursor) if cursor.at("{") else _bracketed(cursor)
        if isinstance(value, Items) and (name in SEVERAL_ARGUMENTS or name == "log"):
            return tuple(expression(v) for v in value.items)
        return (expression(value),)
    if cursor.at("|"):
        return (expression(_absolute(cursor)),)
    factors = [_signless(cursor)]
    while _argument_goes_on(cursor):
        factors.append(_signless(cursor))
    return (product(tuple(factors)),)


def _argument_goes_on(cursor: Cursor) -> bool:
    token = cursor.peek()
    if token.kind is Kind.WORD:
        return token.text not in FUNCTIONS and not (token.spaced and len(token.text) > 1)
    return token.kind is Kind.COMMAND and (token.text in GREEK or token.text in ("pi", "frac", "sqrt"))


def _signless(cursor: Cursor) -> Expression:
    value = expression(parse_atom(cursor))
    if cursor.at("^"):
        cursor.take()
        if cursor.at_command("circ"):
            cursor.take()
            return Apply("degree", (value,))
        exponent = _argument(cursor)
        return Apply("degree", (value,)) if exponent == Symbol("\\circ") else Power(value, exponent)
    return value


def _absolute(cursor: Cursor) -> Value:
    cursor.skip("|")
    bars = cursor.enter()
    cursor.bars = 1
    inner = parse_sum(cursor, parse_atom)
    cursor.leave(bars)
    cursor.skip("|")
    return Apply("abs", (expression(inner),))


def _bracketed(cursor: Cursor) -> Value:
    """``( )`` or ``[ ]`` or a mixture of both: a group, a tuple, a list, an interval."""
    opening = cursor.take().text
    if opening == "]":
        raise Unreadable("']' where a value is needed")
    bars = cursor.enter()
    if cursor.at(")", "]"):
        raise Unreadable("empty brackets")
    values = parse_items(cursor, parse_atom)
    cursor.leave(bars)
    if not cursor.at(")", "]"):
        raise Unreadable(f"{opening!r} is not closed")
    closing = cursor.take().text
    if len(values) == 1:
        if _CLOSED[opening] != _CLOSED[closing]:
            raise Unreadable("brackets that do not match around one value")
        return values[0]
    low, high = values[0], values[-1]
    if len(values) == 2 and isinstance(low, EXPRESSION_TYPES) and isinstance(high, EXPRESSION_TYPES):
        infinite = high == INFINITY or low == negative(INFINITY)
        if infinite or _CLOSED[opening] != _CLOSED[closing]:
            return Interval(
                low,
                high,
                _CLOSED[opening] and low != negative(INFINITY),
                _CLOSED[closing] and high != INFINITY,
            )
    if _CLOSED[opening] != _CLOSED[closing]:
        raise Unreadable("brackets that do not match around several values")
    return Items(Brackets.TUPLE if opening == "(" else Brackets.SQUARE, tuple(values))


def _set(cursor: Cursor) -> Value:
    r"""``\{1, 2\}``, or ``\{x : x > 2\}``, which is its condition."""
    cursor.skip("\\{")
    bars = cursor.enter()
    cursor.bars = 1  # A bar here separates; it opens no absolute value.
    if cursor.at("\\}"):
        cursor.leave(bars)
        cursor.take()
        return Items(Brackets.SET, ())
    if cursor.peek().kind is Kind.WORD and cursor.peek(1).text == ":":
        cursor.take()
        values: list[Value] = [Symbol("x")]
    else:
        values = parse_items(cursor, parse_atom)
    if cursor.at("|", ":"):
        cursor.take()
        cursor.bars = 0
        conditions = parse_items(cursor, parse_atom)
        cursor.leave(bars)
        cursor.skip("\\}")
        if len(conditions) != 1 or len(values) != 1 or not isinstance(conditions[0], Relation):
            raise Unreadable("a set with several conditions")
        return conditions[0]
    cursor.leave(bars)
    cursor.skip("\\}")
    return Items(Brackets.SET, tuple(values))


def _matrix(cursor: Cursor, name: str) -> Value:
    if name not in MATRICES:
        raise Unreadable(f"\\begin{{{name}}} is not in the grammar of answers")
    if name == "array" and cursor.at("{"):
        while not cursor.at("}") and not cursor.at_end():
            cursor.take()
        cursor.skip("}")
    bars = cursor.enter()
    rows: list[tuple[Value, ...]] = []
    row: list[Value] = []
    cells = 0
    while not cursor.at_command(f"end:{name}"):
        if cursor.at_end():
            raise Unreadable(f"\\begin{{{name}}} is not closed")
        row.append(parse_value(cursor, parse_atom))
        cells += 1
        if cells > MAX_CELLS:
            raise Unreadable(f"more than {MAX_CELLS} cells", over_limit=True)
        if cursor.at("&"):
            cursor.take()
        elif cursor.at("\\\\"):
            cursor.take()
            rows.append(tuple(row))
            row = []
    cursor.take()
    cursor.leave(bars)
    if row:
        rows.append(tuple(row))
    if not rows or len({len(r) for r in rows}) != 1:
        raise Unreadable("a matrix with rows of different lengths")
    if name in ("vmatrix", "Vmatrix"):
        raise Unreadable("a determinant")
    return Matrix(tuple(rows))


def _over_index(cursor: Cursor, name: str) -> Expression:
    r"""``\sum_{k=0}^{n} body``: the body is the term that follows."""
    bars = cursor.enter()
    cursor.skip("_")
    lower = braced(cursor)
    cursor.skip("^")
    high = _argument(cursor)
    factors = [_signless(cursor)]
    while not cursor.at_end() and _body_goes_on(cursor):
        if cursor.at("*"):
            cursor.take()
        factors.append(_signless(cursor))
    cursor.leave(bars)
    match lower:
        case Relation((Symbol() as index, low), ("=",)):
            return Apply(name, (index, expression(low), high, product(tuple(factors))))
        case _:
            raise Unreadable(f"\\{name} without an index that starts somewhere")


def _body_goes_on(cursor: Cursor) -> bool:
    token = cursor.peek()
    if token.kind in (Kind.NUMBER, Kind.WORD):
        return True
    if token.kind is Kind.COMMAND:
        return token.text in GREEK or token.text in ("frac", "sqrt", "binom", "pi")
    return token.kind is Kind.MARK and token.text in ("(", "*")
