"""Equalities of closed arithmetic in a step's text, with every doubt about how they are read."""

# ruff: noqa: SIM905  (lists of words are easiest to read as text)

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from stepward.verifiers.answers.names import FUNCTIONS
from stepward.verifiers.claims.lexemes import Kind, Lexeme, lexemes
from stepward.verifiers.claims.operands import EXCLAIMED, Operand, Piece, left_of, pieces, right_of

MAX_CHARS = 50_000
MAX_CLAIMS = 100

_SIGN = re.compile(r"[=≈<>≤≥≡]|\\(?:approx|equiv|leq?|geq?|lt|gt)(?![a-zA-Z])")
_MARK = re.compile(r"<<([^<>]{1,200})>>")
# Words before an expression that make it the argument of something.
_TAKES_ARGUMENT = frozenset(
    "half twice double triple thrice quarter third fourth square squares cube cubes root roots sum difference "
    "product quotient plus minus times than by divided multiplied mod modulo base factorial percent less over "
    "per sqrt log sin cos tan ln to remainder between from negative dozen hundred thousand million billion "
    "squared cubed inverse absolute gcd lcm floor ceil max min into halves tripled doubled "
    "subtracting adding subtract add dividing multiplying approximately about roughly".split()
)
# Of these the expression behind is the argument as a rule: "subtract 3 from 5 - 1 = 4" is rare and left undecided.
_HARMLESS_VERBS = frozenset(
    "subtract add subtracting adding multiplying dividing approximately about roughly".split()
)
_AFTER_VALUE = re.compile(
    r"[\s$\\)}]*(?:mod|pmod|\\p?mod|remainder|million|billion|thousand|hundred|dozen|times|"
    r"and\s+(?:a\s+)?(?:\d|half|a\s)|"
    r"plus|minus|squared|cubed|or\s+\d|\(?(?:mod|base)\b|r\s*\d|"
    r"halves|thirds|fourths|quarters|fifths|sixths|eighths|percent of|percent more|percent less|%\s*of)",
    re.I,
)
# A line that begins with an operator; a hyphen may be the mark of a list.
_GOES_ON = re.compile(r"[ \t&]*(?:\\\\[\s&]*(?:\\q?quad\s*|\\[,;: ]\s*)*[-+*/×÷]|\n[ \t]*[+*/×÷](?!\*))")
_HYPOTHETICAL = re.compile(
    r"\b(?:if|suppose|assum\w+|let(?!')|contradict\w*|false|cannot|can't|not|isn't|doesn't|don't|never|impossible|incorrect\w*|"
    r"wrong\w*|mistake\w*|instead|error\w*|invalid|fail\w*|unless|would|whether|check\w*|says?|mod|modulo|modular|base|binary|"
    r"octal|hexadecimal|remainders?|congruen\w+|try|trying|guess|unequal|differs?|different from"
    r"|let['’]s (?:select|choose|pick|try|consider|test|say|take))\b"
    r"|\\p?mod|\\bmod|≠|\\neq?\b|\?|\.\.\.|…",
    re.I,
)
# Of the words above, what supposes nothing: "if we add them, we get", "that would be", an ellipsis between terms.
_NO_SUPPOSITION = re.compile(
    r"\bif (?:we|you|one|i) (?:then |now |just |further )?(?:add|sum|simplify|calculate|compute|evaluate|multiply|"
    r"divide|subtract|expand|combine)\b|\bwould be\b|[-+*,=]\s?(?:\.\.\.|…)\s?[-+*,=]",
    re.I,
)
# A number on the left may come of a value that is tried: "plugging in 1 we get 1 = 3 + 4".
_TRIED = re.compile(r"\b(?:plug\w*|substitut\w*|test\w*)\b", re.I)
_MODULAR = re.compile(r"mod|remainder|congruen", re.I)
_MODULI = re.compile(
    r"(?:\bmod(?:ulo|ulus)?|\\p?mod|\\bmod|\bremainder\b[^.?!]{0,80}\bdivided by)[\s({$\\]{0,4}(\d{1,12})(?![\d.])",
    re.I,
)
_CLEAN_BREAKS = frozenset([*".,;:\n\r?\"“'`→⇒⟹", "=>", "->", "\\Rightarrow", "\\implies", "\\rightarrow"])
_DENIED = re.compile(
    r"\b(?:contradict\w*|false|impossible|incorrect\w*|wrong\w*|mistake\w*|error\w*|invalid|mod|modulo|base|binary|"
    r"remainders?|congruen\w+|unequal)\b|\\p?mod|\\bmod|≠|\\neq?\b|\?",
    re.I,
)
_REJECTED = re.compile(
    r"\b(?:is|are|does|do|can|was)(?: clearly| obviously| also)?"
    r"(?: not|n't) (?:correct|equal|match|work|hold|true|satisf\w+|possible|valid)\b",
    re.I,
)
_LOOKS = re.compile(r"\\(?:left|right|[bB]igg?[lr]?|boxed|displaystyle|mathbf|quad|text\w*)\s*\{?\Z")
_OF = re.compile(r"(\w+)?[\s}]*\bof\b[\s}\\$({]*(?:\\text\{)?\Z")
# Words before "to" that make what follows a value: "simplifies to", "is equal to".
_TO_VALUE = re.compile(
    r"\b(?:simplif\w+|equal|equals|equivalent|reduc\w+|evaluat\w+|up|amounts?|comes?|down|out) to[\s$\\(\[{]*\Z",
    re.I,
)
_TOTALS = frozenset(
    "total cost amount number price value profit score distance speed rate weight age length height width area "
    "volume salary income result count balance payment charge fee".split()
)
_SENTENCE_END = re.compile(r"[.?!;](?=\s|$)|\n|:\s")


@dataclass(frozen=True, slots=True)
class Claim:
    """One equality.

    Attributes:
        left: What stands before the sign.
        right: What stands behind it.
        approximate: True for a sign such as ``≈``, or where words say that a number is rounded.
        start: First character of the claim in the step.
        end: Character behind its last.
        doubt: Why it may mean something else than it says; empty where nothing speaks against it.
        chained: True where its left side is the right side of the claim before it: ``a = b = c``.
        relation: ``=``, ``≈`` or an order as written, such as ``<`` or ``\\le``.
        supposed: Of the doubts, one that only says that its sentence may not state it as a fact.
    """

    left: Operand
    right: Operand
    approximate: bool
    start: int
    end: int
    doubt: str = ""
    chained: bool = False
    relation: str = "="
    supposed: bool = False


@lru_cache(maxsize=128)
def claims_of(text: str, *, every: bool = False) -> tuple[Claim, ...]:
    """The equalities in a text, in order, none of them decided; at most ``MAX_CLAIMS``.

    Args:
        text: A step.
        every: Also those with nothing to compute, such as ``x = 5``, and orders such as ``2x < 7``.
    """
    text = text[:MAX_CHARS].replace("\x00", " ")
    found: list[Claim] = []
    for mark in _MARK.finditer(text):
        found.extend(_in_formula(mark[1], mark.start(1), every=every))
    outside = _MARK.sub(lambda m: " " * len(m.group()), text)
    if _SIGN.search(outside):
        found.extend(_in_prose(outside, every=every))
    return tuple(sorted(found, key=lambda c: (c.start, c.end))[:MAX_CLAIMS])


def _in_formula(text: str, offset: int, *, every: bool) -> list[Claim]:
    return [
        replace(
            c,
            left=replace(c.left, start=c.left.start + offset, end=c.left.end + offset),
            right=replace(c.right, start=c.right.start + offset, end=c.right.end + offset),
            start=c.start + offset,
            end=c.end + offset,
        )
        for c in _in_prose(text, every=every)
    ]


def _in_prose(text: str, *, every: bool) -> list[Claim]:
    kind = Kind.RELATION if every else Kind.BREAK
    tokens = [
        replace(t, kind=kind) if t.kind is Kind.ORDER or (every and t.text in ("≡", "\\equiv")) else t
        for t in lexemes(text)
    ]
    found: list[Claim] = []
    begin = 0
    for index in range(len(tokens) + 1):
        if index < len(tokens) and tokens[index].kind is not Kind.BREAK:
            continue
        if any(t.kind is Kind.RELATION for t in tokens[begin:index]):
            found.extend(_in_segment(text, tokens, begin, index, every=every))
        begin = index + 1
        if len(found) > MAX_CLAIMS:
            break
    return found


def _in_segment(text: str, tokens: Sequence[Lexeme], begin: int, end: int, *, every: bool) -> list[Claim]:
    """Claims between two breaks."""
    inside = _without_inner_delimiters(tokens[begin:end])
    signs = [i for i, t in enumerate(inside) if t.kind is Kind.RELATION]
    edges = [-1, *signs[: MAX_CLAIMS + 1], len(inside)]
    runs = [pieces(inside[a + 1 : b]) for a, b in itertools.pairwise(edges)]
    before = _break_before(tokens, begin)
    found: list[Claim] = []
    before_it = -1
    for number, sign in enumerate(signs[:MAX_CLAIMS]):
        left = left_of(runs[number], before if number == 0 else "")
        right = right_of(runs[number + 1], "")
        if isinstance(left, str) or isinstance(right, str):
            continue
        chained = left.start == before_it
        before_it = right.start if right.end >= _end_of(runs[number + 1]) else -1
        if not (left.computed or right.computed or every):
            continue
        sign_lexeme = inside[sign]
        claim = claim_between(text, left, right, sign_lexeme, last=number == len(signs) - 1)
        found.append(replace(claim, chained=chained, relation=sign_lexeme.text))
    return found


def _end_of(run: Sequence[Piece]) -> int:
    """Where the last piece of a run ends that is more than a delimiter."""
    return next((p.lexeme.end for p in reversed(run) if p.lexeme.kind is not Kind.DELIMITER), 0)


def _without_inner_delimiters(tokens: Sequence[Lexeme]) -> list[Lexeme]:
    """The lexemes without those delimiters of formulas that stand beside an equality sign or at an end."""
    kept: list[Lexeme] = []
    for index, token in enumerate(tokens):
        if token.kind is Kind.DELIMITER:
            behind = next(
                (t.kind for t in tokens[index + 1 : index + 4] if t.kind is not Kind.DELIMITER), None
            )
            if not kept or behind in (None, Kind.RELATION):
                continue
            if kept[-1].kind in (Kind.RELATION, Kind.DELIMITER):
                continue
        kept.append(token)
    return kept


def _break_before(tokens: Sequence[Lexeme], begin: int) -> str:
    """Why what follows a break may be the rest of something longer; empty where it is not."""
    if begin == 0:
        return ""
    mark = tokens[begin - 1]
    last = tokens[begin - 2] if begin > 1 else None
    if mark.text == ":" and last is not None and last.kind in (Kind.NUMBER, Kind.CLOSE):
        follows = tokens[begin] if begin < len(tokens) else None
        if mark.spaced or (follows is not None and not follows.spaced):
            return "!a ratio"
    if last is not None and last.kind is Kind.OPERATOR:
        return "!an operator"
    follows = tokens[begin] if begin < len(tokens) else None
    around = {t.kind for t in (last, follows) if t is not None}
    if mark.text == "," and follows is not None and around <= {Kind.NUMBER, Kind.OPEN, Kind.CLOSE}:
        return "!a list"
    if mark.text.startswith("\\\\") and follows is not None and follows.kind is Kind.OPERATOR:
        return "!an operator"
    if mark.text not in _CLEAN_BREAKS and not mark.text.startswith("\\\\"):
        return f"!{mark.text}"
    return ""


def claim_between(text: str, left: Operand, right: Operand, sign: Lexeme, *, last: bool) -> Claim:
    """The claim that a sign makes of its sides, with every doubt that the text around it raises.

    Args:
        text: What both sides stand in.
        left: What ends at the sign.
        right: What begins at it.
        sign: The sign, or words in its place.
        last: Whether no other sign follows in the same chain.
    """
    start, end = left.start, right.end
    doubt = ""
    for side in (left, right):
        # Before a sign, or inside of a formula, an exclamation mark is a factorial.
        inside = side is left or text[side.end : side.end + 1] in ("$", "\\", ",", ")", "=")
        if side.doubt.startswith("!") and not (side.doubt == EXCLAIMED and inside):
            doubt = f"{side.doubt[1:]!r} stands beside it"
    word = left.doubt[1:].split(" ")[-1] if left.doubt.startswith("?") else ""
    if word == "to" and _TO_VALUE.search(text[max(0, start - 40) : start]):
        word = ""
    if (word in _TAKES_ARGUMENT and word not in _HARMLESS_VERBS) or word in FUNCTIONS:
        doubt = doubt or f"{word!r} stands before it"
    doubt = doubt or _doubt_before(text[max(0, start - 60) : start])
    if text[start] == "." and re.match(r"\.\d+\s?\^", text[start : start + 12]):
        doubt = doubt or "its point may be a sign of multiplication"
    if "\\boxed" in text[left.start : left.end + 1]:
        doubt = doubt or "a box stands in it"
    units = " ".join(right.units)
    behind = text[end : end + 40]
    if last and _AFTER_VALUE.match(behind):
        doubt = doubt or f"{behind.strip()[:20]!r} stands behind it"
    if last and _GOES_ON.match(behind):
        doubt = doubt or "the next line goes on"
    if re.match(r"[:]\s?\d|…|\.\.|\\[lc]?dots|,\d|\s?(?:\||\\l?vert)|\.?\\overline", behind):
        doubt = doubt or "the number goes on"
    if re.search(
        r"\b(?:million|billion|thousand|hundred|dozen|remainder|squared|cubed)\b",
        " ".join((*left.units, units)),
    ):
        doubt = doubt or "a word changes the number"
    around, rest = _sentence(text, start, end)
    supposed = False
    rejected = _REJECTED.search(text[end : end + 120])
    stated = _NO_SUPPOSITION.sub(" ", around)
    if not (doubt or left.computed) and right.computed and (found := _TRIED.search(around)):
        doubt, supposed = f"{found.group()!r} in its sentence", True
    if not doubt and (found := _HYPOTHETICAL.search(stated) or _DENIED.search(rest) or rejected):
        doubt, supposed = f"{found.group()!r} in its sentence", True
    approximate = sign.text == "≈" or bool(
        re.search(
            r"\b(?:approximate\w*|about|roughly|round\w*|nearest|around|nearly|almost|estimat\w+)\b",
            around + rest,
            re.I,
        )
    )
    return Claim(left, right, approximate, start, end, doubt, supposed=supposed)


def moduli_of(text: str) -> frozenset[int]:
    """Whole numbers by which a text divides with remainder, so that an equality may be a congruence."""
    return frozenset(int(found[1]) for found in _MODULI.finditer(text[-MAX_CHARS:])) - {0, 1}


def sentence_of(claim: Claim, text: str) -> str:
    """The sentence that a claim stands in."""
    return "".join(_sentence(text, claim.start, claim.end))


def is_modular(doubt: str) -> bool:
    """Whether a claim is in doubt only because its sentence speaks of remainders."""
    return doubt.endswith("in its sentence") and _MODULAR.search(doubt) is not None


_NOT_STATED = re.compile(
    r"\b(?:if|says|suppose|assum\w+|contradict\w*|false|cannot|can't|not|isn't|doesn't|never|impossible|incorrect\w*|wrong\w*|"
    r"mistake\w*|error\w*|unless|would|whether|check\w*|try|trying|guess|base|binary|octal|hexadecimal|least|smallest|"
    r"find|such that|when|where|want|need\w*|require\w*|must|should)\b|\?|≠|\\neq?\b|≢|\.\.\.|…",
    re.I,
)


_DISMISSED = re.compile(
    r"\b(?:contradict\w*|false|impossible|incorrect\w*|wrong\w*|mistake\w*|error\w*|invalid|unequal)\b|≠|\\neq?\b|\?",
    re.I,
)


def not_stated(text: str, start: int, end: int) -> str:
    """The word around a claim that says that it is no statement of a fact; empty where there is none."""
    around, rest = _sentence(text, start, end)
    found = _NOT_STATED.search(around) or _DISMISSED.search(rest) or _REJECTED.search(text[end : end + 120])
    return found.group() if found else ""


def _doubt_before(before: str) -> str:
    """Why the characters in front of an equality may make it the rest of something longer."""
    before = _LOOKS.sub("", before)
    if before and (before[-1].isalnum() or before[-1] in "'’_^}|)]!%\\"):
        return "it continues what stands before it"
    if (found := _OF.search(before)) and (found[1] or "").lower() not in _TOTALS:
        return f"{found.group().strip()!r} stands before it"
    return ""


def _sentence(text: str, start: int, end: int) -> tuple[str, str]:
    """The sentence around a claim: up to its end, and what follows."""
    low = max(0, start - 300)
    begin = low
    for stop in _SENTENCE_END.finditer(text, low, start):
        begin = stop.end()
    stop = re.search(r"[.?!;](?=\s|$)|\n", text[end : end + 300])
    return text[begin:end], text[end : end + (stop.end() if stop else 300)]
