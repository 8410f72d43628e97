"""Values that a problem and the steps so far give to single letters, where each letter has one value only."""

import re
from collections.abc import Iterable, Mapping
from fractions import Fraction

from stepward.verifiers.answers.expressions import (
    Apply,
    Expression,
    Number,
    Power,
    Symbol,
    Unreadable,
    product,
    total,
    walk,
)
from stepward.verifiers.answers.expressions import Product as _Product
from stepward.verifiers.answers.expressions import Sum as _Sum
from stepward.verifiers.claims.exact import parse, rational
from stepward.verifiers.claims.statements import Statement

MAX_NAMES = 30
_CONSTANTS = frozenset({"i", "e", "pi"})
_LET = re.compile(r"'let' in its", re.I)
_LETTER = re.compile(r"[a-zA-Z]|\\[a-zA-Z]+")


class Bindings:
    """Letters and their values; a letter that was given two values, or none that is exact, is without one."""

    def __init__(self) -> None:
        self._values: dict[str, Fraction | None] = {}

    def read(self, statements: Iterable[Statement]) -> None:
        """Take the values that statements give: ``x = 5``, ``x = 2 + 3 = 5``."""
        for statement in statements:
            name = statement.parts[0].text
            if len(self._values) >= MAX_NAMES or not _LETTER.fullmatch(name) or name in _CONSTANTS:
                continue
            value = None
            plain = all(
                c.relation == "=" and not c.approximate and (not c.doubt or _LET.match(c.doubt))
                for c in statement.claims
            )
            if plain and not any(part.units for part in statement.parts):
                value = _exact(statement.parts[-1].text)
            before = self._values.get(name, value)
            self._values[name] = value if before == value else None

    @property
    def known(self) -> Mapping[str, Fraction]:
        """Letters that have one value."""
        return {name: value for name, value in self._values.items() if value is not None}


def _exact(text: str) -> Fraction | None:
    try:
        return rational(parse(text))
    except Unreadable:
        return None


def bound(node: Expression, values: Mapping[str, Fraction]) -> Expression | None:
    """The expression with every letter replaced by its value; None where one has none."""
    for part in walk(node):
        if isinstance(part, Symbol) and part.name != "pi" and part.name not in values:
            return None
    return _replaced(node, values)


def _replaced(node: Expression, values: Mapping[str, Fraction]) -> Expression:
    match node:
        case Symbol(name) if name in values:
            return Number(values[name])
        case _Sum(terms):
            return total(tuple(_replaced(t, values) for t in terms))
        case _Product(factors):
            return product(tuple(_replaced(f, values) for f in factors))
        case Power(base, exponent):
            return Power(_replaced(base, values), _replaced(exponent, values))
        case Apply(function, arguments):
            return Apply(function, tuple(_replaced(a, values) for a in arguments))
        case _:
            return node
