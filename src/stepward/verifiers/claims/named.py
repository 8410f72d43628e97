"""One name, two values: ``Total cost = 3 + 4 + 2`` and in the next line ``Total cost = 8``."""

import re
from collections.abc import Sequence
from fractions import Fraction

from stepward.verifiers.answers.expressions import Unreadable
from stepward.verifiers.claims.decisions import Decision, Truth, shown
from stepward.verifiers.claims.exact import last_place, parse, rational
from stepward.verifiers.claims.lexemes import Kind, Lexeme, lexemes
from stepward.verifiers.claims.operands import Operand, pieces, right_of
from stepward.verifiers.claims.reading import not_stated

MAX_NAME_WORDS = 7
_SKIPPED = re.compile(r"(?: \(\w[\w ]{0,30}\)| [a-z]{2,15}){0,2}[\s\\()\[\]$.;,]*\Z")
_DOUBTS = re.compile(r"%|percent|about|approx|round|≈|average|per\b", re.I)


def decide_named(text: str) -> list[Decision]:
    """Names whose calculation is followed at once by another value: ``name = a + b. name = c``."""
    if text.count("=") < 2:
        return []
    found: list[Decision] = []
    before: tuple[str, Operand, int] | None = None
    for name, start, value in _entries(lexemes(text)):
        if before is not None and before[0] == name and _SKIPPED.match(text[before[1].end : start]):
            decision = _compared(text, before[1], value, before[2], value.end)
            if decision is not None:
                found.append(decision)
        before = (name, value, start)
    return found


def _entries(tokens: Sequence[Lexeme]) -> list[tuple[str, int, Operand]]:
    """Each ``words = value`` at the start of a sentence or formula: the words, where they begin, the last value."""
    found: list[tuple[str, int, Operand]] = []
    begin = 0
    for index in range(len(tokens) + 1):
        ends = (
            index == len(tokens)
            or tokens[index].kind is Kind.BREAK
            or tokens[index].text in ("\\[", "\\]", "$$")
        )
        if not ends:
            continue
        segment = [t for t in tokens[begin:index] if t.kind is not Kind.DELIMITER]
        begin = index + 1
        signs = [i for i, t in enumerate(segment) if t.kind is Kind.RELATION]
        if (
            not signs
            or not 1 <= signs[0] <= MAX_NAME_WORDS
            or any(t.kind is not Kind.WORD for t in segment[: signs[0]])
        ):
            continue
        if any(segment[i].text != "=" for i in signs):
            continue
        last = segment[signs[-1] + 1 :]
        value = right_of(pieces(last), "")
        if not isinstance(value, str) and value.end >= (last[-1].end if last else 0) - 40:
            name = " ".join(t.text.lower() for t in segment[: signs[0]])
            if len(name) > 2:
                found.append((name, segment[0].start, value))
    return found


def _compared(text: str, first: Operand, second: Operand, start: int, end: int) -> Decision | None:
    if first.doubt.startswith("!") or second.doubt.startswith("!") or second.computed or not first.computed:
        return None
    if _DOUBTS.search(text[start:end]) or not_stated(text, start, end):
        return None
    if first.units and second.units and first.units[-1].split()[0] != second.units[-1].split()[0]:
        note = first.units[-1].startswith("(") or second.units[-1].startswith("(")
        if not note:
            return None
    try:
        left, right = rational(parse(first.text)), rational(parse(second.text))
        unit = last_place(parse(second.text))
    except Unreadable:
        return None
    if left is None or right is None:
        return None
    claim = shown(text, start, end)
    if abs(left - right) <= min(unit, Fraction(1)):
        return Decision(start, end, Truth.TRUE, evidence=f"{claim}: both are {left}")
    if abs(left) == abs(right) or left.denominator != 1 or left in (right * 100, right * 60):
        return None
    return Decision(start, end, Truth.FALSE, evidence=f"{claim}: {first.text} is {left}")
