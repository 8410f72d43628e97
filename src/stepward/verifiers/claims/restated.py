r"""Values stated again, in the same step or the next: ``34 * 30.5. That is 1049``, ``r = 9 + 34/4. So r = 46/4``."""

import itertools
import re
from dataclasses import replace

from stepward.verifiers.claims.lexemes import Kind, Lexeme, lexemes
from stepward.verifiers.claims.operands import QUOTIENT, left_of, pieces, right_of
from stepward.verifiers.claims.reading import MAX_CHARS, Claim, claim_between
from stepward.verifiers.claims.statements import Link, Statement, is_alternative, link_between, statements_of

MAX_LINKS = 40

# Words that put one value in the place of another, behind the end of a formula and before the next.
_RESTATES = re.compile(
    r"(?:[\s$.,:;]|\\[)\]]){1,8}"
    r"(?:(?:right|ok|okay|so|and|now|then|finally|well|yes|yep|that's right|that's correct|correct)\b[\s.,]{1,3}){0,2}"
    r"(?:(?:which|that|this)(?:(?:'s| is)(?: also)? (?:equal to|the same as)|'s| is| equals| simplifies to"
    r"| simplifies further to| evaluates to| reduces to| can be simplified to| can be reduced to)"
    r"|we can (?:simplify|reduce) (?:this|that) to|(?:and )?simplifying,? (?:this,? |that,? )?we (?:get|have|obtain))"
    r"[\s$\\(\[:]{1,8}(?=[-\d\\(\[{$√.])",
    re.I,
)
# Nothing may stand behind the restated value that makes it part of something longer: "5 more than", "3 times".
_ENDS = re.compile(r"[\s$\\)\]}]{0,6}(?:[.,;:=?!]|\Z|\n|≈|\\approx|(?:and|so|or|which|because|since)\b)")
_COMPARED = re.compile(
    r"[^.;:?!]{0,80}?\b(?:less|more|fewer|greater|larger|smaller|times|percent|of the|for the|each|every|per)\b"
)
_ARGUMENT = re.compile(
    r"\b(?:than|of|between|to|by|from|over|under|below|above|times|plus|minus|and)[\s$\\(\[]*\Z"
)
# What is done to both sides changes the left one too, said or not.
_BOTH_SIDES = re.compile(r"\b(?:divid|multipl|subtract|add|both|squar|factor|tak)", re.I)
_SIMPLIFIES = re.compile(r"simplif|reduce|equal", re.I)
_SIGN = Lexeme(Kind.RELATION, "=", 0, 0)


def claims_again(text: str, before: str) -> list[Claim]:
    """Claims that a value is the one that was stated just before it; they count in ``before + newline + text``.

    Args:
        text: A step.
        before: The end of the step before it.
    """
    return [*restated_of(text, before), *_by_name(text, before)]


def _by_name(text: str, before: str) -> list[Claim]:
    """What stands left of the sign is the same and nothing but words of derivation stands between the two."""
    joined, offset = f"{before}\n{text}", len(before) + 1
    found: list[Claim] = []
    earlier = statements_of(before) if before else ()
    first, source, shift = (earlier[-1], before, 0) if earlier else (None, "", 0)
    if is_alternative(earlier, len(earlier) - 1, before):
        first = None
    row = statements_of(text)
    for index, second in enumerate(row):
        if first is not None and _all_equal(first) and _all_equal(second):
            between = joined[first.end + shift : second.start + offset]
            name = _name(source, first)
            left, right = first.parts[-1], second.parts[1]
            again = name and name == _name(text, second) and link_between(between) is Link.DRAWN
            if again and left.computed and not _BOTH_SIDES.search(between):
                moved = replace(left, start=left.start + shift, end=left.end + shift)
                here = replace(right, start=right.start + offset, end=right.end + offset)
                found.append(Claim(moved, here, False, here.start, here.end))
        first, source, shift = (None if is_alternative(row, index, text) else second), text, offset
    return found


def _all_equal(statement: Statement) -> bool:
    plain = all(c.relation == "=" and not c.approximate for c in statement.claims)
    return plain and not statement.doubt and not any(part.units for part in statement.parts)


def _name(text: str, statement: Statement) -> str:
    """All that stands in a formula before the first sign, if a letter is in it."""
    begin = max(text.rfind(mark, 0, statement.start) + len(mark) for mark in ("$", "\\(", "\\[", "\n"))
    name = " ".join(text[begin : statement.parts[0].end].split())
    return name if re.search(r"[^\W\d_]", name) and "\\pm" not in name else ""


def restated_of(text: str, before: str) -> list[Claim]:
    """Claims of equality that words make, the restated value in ``text``; they count in ``before + newline + text``.

    Args:
        text: A step.
        before: The end of the step before it.
    """
    joined, offset = f"{before}\n{text}", len(before) + 1
    found: list[Claim] = []
    links = (link for link in _RESTATES.finditer(joined[: offset + MAX_CHARS]) if link.end() > offset)
    for link in itertools.islice(links, MAX_LINKS):
        ahead = [t for t in lexemes(joined) if t.end <= link.start()]
        behind = [t for t in lexemes(joined) if t.start >= link.end()]
        if _splits(ahead):
            continue
        left = left_of(pieces(_last_run(ahead)), "")
        right = right_of(pieces(_first_run(behind)), "")
        if isinstance(left, str) or isinstance(right, str) or not left.computed or left.units or right.units:
            continue
        if QUOTIENT.match(left.text) and not _SIMPLIFIES.search(link.group()):
            continue  # "sin t = 1/2, which is pi/6": a value that may belong to a name.
        if _COMPARED.match(joined, right.end) or _ARGUMENT.search(
            joined[max(0, left.start - 40) : left.start]
        ):
            continue
        if not _ENDS.match(joined[right.end : right.end + 20]) or "\n" in joined[left.start : left.end]:
            continue
        sign = replace(_SIGN, start=link.start(), end=link.end())
        claim = claim_between(joined, left, right, sign, last=True)
        found.append(replace(claim, start=max(right.start, offset)))
    return found


def _splits(tokens: list[Lexeme]) -> bool:
    """Whether a number stands before the last sign: ``9 = 3^2, which is``; then the words may mean what holds it."""
    signs = [i for i, t in enumerate(tokens) if t.kind in (Kind.RELATION, Kind.BREAK)]
    if not signs or tokens[signs[-1]].kind is not Kind.RELATION:
        return False
    begin = signs[-2] + 1 if len(signs) > 1 else 0
    run = [t for t in tokens[begin : signs[-1]] if t.kind is not Kind.DELIMITER]
    return (
        bool(run)
        and run[-1].kind is Kind.NUMBER
        and (len(run) == 1 or run[-2].kind in (Kind.WORD, Kind.FOREIGN))
    )


def _last_run(tokens: list[Lexeme]) -> list[Lexeme]:
    """What stands behind the last sign or break."""
    for index in range(len(tokens) - 1, -1, -1):
        if tokens[index].kind in (Kind.RELATION, Kind.ORDER, Kind.BREAK):
            return tokens[index + 1 :]
    return tokens


def _first_run(tokens: list[Lexeme]) -> list[Lexeme]:
    """What stands before the first sign or break."""
    for index, token in enumerate(tokens):
        if token.kind in (Kind.RELATION, Kind.ORDER, Kind.BREAK):
            return tokens[:index]
    return tokens
