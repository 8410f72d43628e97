r"""Tokens to typed values: recursive descent over the grammar of answers, bounded in depth.

::

    items    value ((',' | ';' | 'and' | 'or') value)*
    value    sets (('=' | '<' | 'in' | ...) sets)*
    sets     ratio (('\cup' | '\cap' | '\setminus') ratio)*
    ratio    sum (':' sum)* [unit]
    sum      term (('+' | '-' | '\pm') term)*
    term     factor (('*' | '/' | nothing) factor)*
    factor   atom ('^' atom | '_' atom | '!' | '%' | '^\circ' | "'")*

Nothing is computed but quotients of two integers. Juxtaposition is multiplication, except that an integer and a
fraction of two integers are a mixed number. Atoms are in ``atoms``.
"""

import re
from collections.abc import Callable
from fractions import Fraction

from stepward.verifiers.answers.cursor import MAX_POSTFIXES, Cursor
from stepward.verifiers.answers.expressions import (
    EXPRESSION_TYPES,
    ONE,
    Apply,
    Colon,
    Expression,
    Items,
    Matrix,
    Number,
    Power,
    Quantity,
    Relation,
    SetOperation,
    Symbol,
    Unreadable,
    Value,
    negative,
    product,
    quotient,
    total,
)
from stepward.verifiers.answers.names import (
    FUNCTIONS,
    GREEK,
    RELATION_COMMANDS,
    RELATIONS,
    SET_COMMANDS,
)
from stepward.verifiers.answers.tokens import Kind, Token
from stepward.verifiers.answers.units import is_unit_letter, is_unit_word

MAX_ITEMS = 200
_JOINS = frozenset({"and", "or"})

Atom = Callable[[Cursor], Value]


def joins(token: Token) -> bool:
    r"""Whether a token is an "and" or "or": a word, a command or in ``\text``."""
    return token.kind not in (Kind.MARK, Kind.NUMBER) and token.text.strip(" ~,\\").lower() in _JOINS


def expression(value: Value) -> Expression:
    """The value, where it is an expression."""
    if isinstance(value, EXPRESSION_TYPES):
        return value
    if isinstance(value, Quantity) and value.unit in ("%", "degree"):
        return Apply("percent" if value.unit == "%" else "degree", (value.value,))
    raise Unreadable(f"{type(value).__name__.lower()} inside an expression")


def parse_items(cursor: Cursor, atom: Atom) -> list[Value]:
    """Values up to a closing bracket or the end."""
    found: list[Value] = []
    while True:
        found.append(parse_value(cursor, atom))
        if len(found) > MAX_ITEMS:
            raise Unreadable(f"more than {MAX_ITEMS} items", over_limit=True)
        separated = False
        while cursor.at(",", ";") or joins(cursor.peek()):
            cursor.take()
            separated = True
        if not separated or cursor.at_end() or cursor.at(")", "]", "\\}", "}"):
            return found


def parse_value(cursor: Cursor, atom: Atom) -> Value:
    """One value: a relation, or what stands alone."""
    operands = [_sets(cursor, atom)]
    operators: list[str] = []
    while True:
        token = cursor.peek()
        table = (
            RELATIONS if token.kind is Kind.MARK else RELATION_COMMANDS if token.kind is Kind.COMMAND else {}
        )
        if token.text not in table:
            break
        cursor.take()
        operators.append(table[token.text])
        operands.append(_sets(cursor, atom))
    return Relation(tuple(operands), tuple(operators)) if operators else operands[0]


def _sets(cursor: Cursor, atom: Atom) -> Value:
    value = _ratio(cursor, atom)
    while cursor.at_command(*SET_COMMANDS):
        operator = cursor.take().text
        right = _ratio(cursor, atom)
        if isinstance(value, SetOperation) and value.operator == operator:
            value = SetOperation(operator, (*value.parts, right))
        else:
            value = SetOperation(operator, (value, right))
    return value


def _ratio(cursor: Cursor, atom: Atom) -> Value:
    cursor.money = ""
    start = cursor.position
    value = parse_sum(cursor, atom)
    if cursor.at(":") and isinstance(value, EXPRESSION_TYPES):
        parts, digits = [value], [cursor.tokens[start:]]
        while cursor.at(":"):
            cursor.take()
            start = cursor.position
            parts.append(expression(parse_sum(cursor, atom)))
            digits.append(cursor.tokens[start : cursor.position])
        minutes = digits[1:]
        clock = all(len(d) == 1 and d[0].kind is Kind.NUMBER and len(d[0].text) == 2 for d in minutes)
        suffix = _meridian(cursor)
        value = Colon(tuple(parts), clock and isinstance(parts[0], Number), suffix)
    unit = _unit(cursor) if isinstance(value, EXPRESSION_TYPES) else ""
    if isinstance(value, EXPRESSION_TYPES) and (unit or cursor.money):
        return Quantity(value, unit or cursor.money)
    match value:
        case Apply("percent", (inner,)):
            return Quantity(inner, "%")
        case Apply("degree", (inner,)):
            return Quantity(inner, "degree")
        case _:
            return value


def _meridian(cursor: Cursor) -> str:
    """``am``, ``pm``, ``p.m.`` behind a time of day."""
    first = cursor.peek()
    if first.kind not in (Kind.WORD, Kind.TEXT):
        return ""
    letters = re.sub(r"[^apm]", "", first.text.lower())
    if letters in ("am", "pm"):
        cursor.take()
        return letters
    if letters in ("a", "p") and cursor.peek(1).text == "." and cursor.peek(2).text.lower() == "m":
        cursor.position += 3
        return f"{letters}m"
    return ""


def _unit(cursor: Cursor) -> str:
    r"""The words behind a value: ``\text{ cm}^2``, ``miles per hour``; empty where there are none."""
    words: list[str] = []
    while not cursor.at_end():
        token = cursor.peek()
        if joins(token):
            break
        if token.kind is Kind.TEXT:
            words.append(cursor.take().text.replace("~", " ").strip(" ,.()\\"))
        elif token.kind is Kind.WORD and (words or (cursor.read_units and _unit_begins(cursor))):
            words.append(cursor.take().text)
        elif words and cursor.at("^"):
            cursor.take()
            braced = cursor.at("{")
            if braced:
                cursor.take()
            sign = cursor.take().text if cursor.at("-") else ""
            power = cursor.take()
            if braced:
                cursor.skip("}")
            if (power.kind is not Kind.NUMBER or len(power.text) > 1) and power.text != "circ":
                raise Unreadable("a unit with an exponent that is no digit")
            words.append(f"^{sign}{power.text}" if power.kind is Kind.NUMBER else "degree")
        elif words and cursor.at("/", ".", "*"):
            words.append(cursor.take().text)
        else:
            break
    return " ".join(w for w in words if w not in (".", ""))


def _unit_begins(cursor: Cursor) -> bool:
    token = cursor.peek()
    dotted = token.text.lower() in ("a", "p") and [cursor.peek(k).text.lower() for k in (1, 2)] == [".", "m"]
    if dotted or token.text.lower() in ("am", "pm"):
        return True
    if token.text == "min":
        return cursor.peek(1).text not in ("(", "{", "_", "\\{")
    if token.text in FUNCTIONS or token.text in GREEK:
        return False
    if len(token.text) == 1:
        behind = cursor.peek(1)
        ends = behind.text in ("", ",", ";", "/", "^")
        return token.spaced and ends and is_unit_letter(token.text)
    rate = cursor.peek(1).text == "/" and cursor.peek(2).kind is Kind.WORD and len(cursor.peek(2).text) > 2
    return rate or is_unit_word(token.text, spaced=token.spaced)


def parse_sum(cursor: Cursor, atom: Atom) -> Value:
    """Terms and their signs. Matrices add cell by cell."""
    value: Value | None = None
    while True:
        sign = _sign(cursor)
        if value is not None and sign is None:
            return value
        term = _term(cursor, atom)
        if sign == "-":
            term = _scaled(negative(ONE), term)
        elif sign in ("pm", "mp"):
            term = Apply(sign, (expression(term),))
        value = term if value is None else _added(value, term)


def _sign(cursor: Cursor) -> str | None:
    """The sign before a term: ``+``, ``-``, ``pm``, ``mp``; None where none is written."""
    sign = None
    while cursor.at("+", "-") or cursor.at_command("pm", "mp"):
        token = cursor.take().text
        if sign is None or sign == "+":
            sign = token
        elif token == "-":
            sign = {"-": "+", "pm": "mp", "mp": "pm"}[sign]
        elif token != "+":
            sign = token
    return sign


def _added(left: Value, right: Value) -> Value:
    if isinstance(left, Matrix) and isinstance(right, Matrix):
        if [len(r) for r in left.rows] != [len(r) for r in right.rows]:
            raise Unreadable("a sum of matrices of different shapes")
        pairs = zip(left.rows, right.rows, strict=True)
        return Matrix(tuple(tuple(_added(a, b) for a, b in zip(x, y, strict=True)) for x, y in pairs))
    return total((expression(left), expression(right)))


def _scaled(factor: Expression, value: Value) -> Value:
    if isinstance(value, Matrix):
        return Matrix(tuple(tuple(_scaled(factor, cell) for cell in row) for row in value.rows))
    plain = expression(value)
    if (
        isinstance(factor, Number)
        and isinstance(plain, Number)
        and factor.decimals is None
        and abs(factor.value) == 1
    ):
        return Number(factor.value * plain.value, plain.decimals)
    return product((factor, plain))


def _term(cursor: Cursor, atom: Atom) -> Value:
    """Factors multiplied and divided, from left to right; written or implied."""
    before = cursor.peek()
    value = _factor(cursor, atom)
    while True:
        if cursor.at("*") or cursor.at_command("times"):
            cursor.take()
            value = _multiplied(value, _signed_factor(cursor, atom))
        elif cursor.at("/"):
            cursor.take()
            below = _signed_factor(cursor, atom)
            value = quotient(expression(value), expression(below))
        elif _factor_begins(cursor):
            mixed = _mixed_part(cursor, before, value)
            token = cursor.peek()
            if token.kind is Kind.NUMBER and not mixed and _last_is_number(cursor):
                raise Unreadable("two numbers side by side")
            right = _factor(cursor, atom)
            if mixed and cursor.at("/") and isinstance(right, Number):
                cursor.take()
                right = quotient(right, expression(_factor(cursor, atom)))
            value = total((expression(value), expression(right))) if mixed else _multiplied(value, right)
            if mixed and isinstance(value, Apply | Symbol):
                raise Unreadable("a mixed number without numbers")
        else:
            return value
        before = cursor.peek()


def _multiplied(left: Value, right: Value) -> Value:
    if isinstance(right, Matrix):
        return _scaled(expression(left), right)
    if isinstance(left, Matrix):
        return _scaled(expression(right), left)
    return product((expression(left), expression(right)))


def _signed_factor(cursor: Cursor, atom: Atom) -> Value:
    sign = _sign(cursor)
    value = _factor(cursor, atom)
    if sign in ("pm", "mp"):
        return Apply(sign, (expression(value),))
    return _scaled(negative(ONE), value) if sign == "-" else value


def _last_is_number(cursor: Cursor) -> bool:
    return cursor.position > 0 and cursor.tokens[cursor.position - 1].kind is Kind.NUMBER


def _mixed_part(cursor: Cursor, before: Token, value: Value) -> bool:
    r"""Whether an integer has just been read and a proper fraction of integers follows: ``12\frac{3}{5}``."""
    whole = (
        cursor.tokens[cursor.position - 1] is before and before.kind is Kind.NUMBER and before.text.isdigit()
    )
    if not whole or not isinstance(value, Number):
        return False
    if cursor.at_command("frac"):
        digits = [t.text for t in cursor.tokens[cursor.position + 1 : cursor.position + 7]]
        if digits[:1] == ["{"]:
            fits = len(digits) == 6 and digits[2:4] == ["}", "{"] and digits[5] == "}"
            above, below = (digits[1], digits[4]) if fits else ("", "")
        else:
            joined = "".join(digits[:2]) if digits and len(digits[0]) == 1 else digits[0] if digits else ""
            above, below = joined[:1], joined[1:].strip("{}")
        if not above.isdigit() or not below.isdigit():
            return False
        if int(above[:50]) >= int(below[:50]):
            raise Unreadable("a whole number beside an improper fraction: a sum or a product")
        return True
    above, slash, below = cursor.peek(), cursor.peek(1), cursor.peek(2)
    fraction = above.kind is Kind.NUMBER and slash.text == "/" and below.kind is Kind.NUMBER
    return fraction and above.spaced and above.text.isdigit() and below.text.isdigit()


def _factor_begins(cursor: Cursor) -> bool:
    """Whether what comes next is multiplied without a sign."""
    token = cursor.peek()
    match token.kind:
        case Kind.NUMBER:
            return True
        case Kind.WORD:
            return not joins(token) and not (cursor.read_units and _unit_begins(cursor))
        case Kind.COMMAND:
            return not (
                joins(token)
                or token.text in RELATION_COMMANDS
                or token.text in SET_COMMANDS
                or token.text
                in ("pm", "mp", "rfloor", "rceil", "rangle", "pmod", "mod", "bmod", "ldots", "quad")
                or token.text.startswith("end:")
            )
        case Kind.MARK:
            return token.text in ("(", "[", "{", "\\$") or (token.text == "|" and cursor.bars == 0)
        case Kind.TEXT:
            return False


def _factor(cursor: Cursor, atom: Atom) -> Value:
    """An atom with its exponents, subscripts, factorials, percent and degree signs."""
    value = atom(cursor)
    for _ in range(MAX_POSTFIXES):
        if cursor.at("^"):
            cursor.take()
            if _ordinal(cursor):
                continue
            if degree := _degree(cursor):
                value = Apply(degree, (expression(value),))
                continue
            if isinstance(value, Matrix):
                raise Unreadable("a power of a matrix")
            value = Power(expression(value), _exponent(cursor, atom))
        elif cursor.at_command("circ"):
            cursor.take()
            value = Apply("degree", (expression(value),))
        elif cursor.at("!"):
            cursor.take()
            value = Apply("factorial", (expression(value),))
        elif cursor.at("%"):
            cursor.take()
            value = Apply("percent", (expression(value),))
        elif cursor.at_command("pmod", "mod", "bmod"):
            value = Apply("mod", (expression(value), _modulus(cursor, atom)))
        else:
            return value
    raise Unreadable(f"more than {MAX_POSTFIXES} exponents and signs behind one value", over_limit=True)


def _degree(cursor: Cursor) -> str:
    r"""Takes ``\circ`` or ``{\circ}`` behind a caret, and says so."""
    if cursor.at_command("circ"):
        cursor.take()
        return "degree"
    if cursor.at("{") and cursor.peek(1).text == "circ" and cursor.peek(2).text == "}":
        cursor.position += 3
        return "degree"
    return ""


def _ordinal(cursor: Cursor) -> bool:
    r"""Takes ``\text{th}`` behind a caret, and says so."""
    braced = cursor.at("{")
    token = cursor.peek(1 if braced else 0)
    if token.kind not in (Kind.TEXT, Kind.WORD) or token.text.strip() not in ("th", "st", "nd", "rd"):
        return False
    cursor.position += 3 if braced else 1
    return True


def _exponent(cursor: Cursor, atom: Atom) -> Expression:
    bars = cursor.enter()
    sign = _sign(cursor)
    value = expression(atom(cursor))
    if cursor.at("^"):
        cursor.take()
        value = Power(value, _exponent(cursor, atom))
    cursor.leave(bars)
    return negative(value) if sign == "-" else value


def _modulus(cursor: Cursor, atom: Atom) -> Expression:
    cursor.take()
    return expression(_factor(cursor, atom))


def number(text: str) -> Number:
    """A decimal numeral, or a repeating one written ``0.(3)``."""
    if "(" in text:
        head, _, repeated = text.rstrip(")").partition("(")
        whole, _, fixed = head.partition(".")
        scale = 10 ** len(fixed)
        value = Fraction(int(whole + fixed or "0"), scale) + Fraction(
            int(repeated), scale * (10 ** len(repeated) - 1)
        )
        return Number(value)
    _, point, places = text.partition(".")
    return Number(Fraction(text if text[0] != "." else f"0{text}"), len(places) if point else None)


def items_or_value(values: list[Value], wrap: Callable[[tuple[Value, ...]], Items]) -> Value:
    """One value as it is, several wrapped."""
    return values[0] if len(values) == 1 else wrap(tuple(values))
