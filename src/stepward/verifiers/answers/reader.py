r"""Text of an answer to its readings.

A text can mean several things (``1,200`` a number or a list, ``abc`` a word or a product): all readings are kept,
the likeliest first. What is in no grammar stays a text.
"""

# ruff: noqa: SIM905  (lists of words are easiest to read as text)

import re
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise

from stepward.verifiers.answers.atoms import parse_atom
from stepward.verifiers.answers.cursor import Cursor
from stepward.verifiers.answers.expressions import (
    EXPRESSION_TYPES,
    Apply,
    BaseNumeral,
    Brackets,
    Items,
    Number,
    Quantity,
    Relation,
    Unreadable,
    Value,
    Words,
    double_signs,
    total,
    with_sign,
)
from stepward.verifiers.answers.names import FUNCTIONS, GREEK, NUMBER_WORDS
from stepward.verifiers.answers.parser import parse_items
from stepward.verifiers.answers.tokens import Kind, Token, tokenize
from stepward.verifiers.answers.units import read_unit

_LETTER = re.compile(r"\(?([A-Z])\)?[.:]?")
_IN_BASE = re.compile(
    r"\(?(?:\\(?:text|mathrm)\{)?([0-9A-Z]{0,400}\.?[0-9A-Z]{1,400})\}?\)?_\{?(?:\\text\{)?\(?(\d{1,2})\)?\}?\}?"
)
_TEXT_MARKS = frozenset({".", ",", ";", ":", "!", "?", "'", "(", ")", "-", '"', "`", "&", "@", "#", "%"})
_LEADING_WORDS = frozenset(
    "approximately about around roughly exactly nearly only just answer answers is are the a an final value total "
    "equals equal to so thus therefore hence and or we get have there".split()
)
_PUNCTUATION = re.compile(r"[^\w%$€£/+.-]+|\.(?!\d)")
_VOWEL = re.compile(r"[aeiouyAEIOUY]")
_ARTICLES = re.compile(r"\b(?:the|a|an)\b ")


@dataclass(frozen=True, slots=True)
class Reading:
    """All that a text can mean.

    Attributes:
        values: Readings, the likeliest first; empty where only the text stands.
        words: The text in lower case without punctuation.
        letter: The option that it names, such as ``B``, or empty.
        signature: Equal for texts that differ in looks only.
        wordy: True where most of it is words.
        textual: True where it is words and numbers without a formula.
        fault: Why there is no value, or None.
    """

    values: tuple[Value, ...]
    words: str
    letter: str
    signature: tuple[str, ...]
    wordy: bool
    textual: bool
    fault: Unreadable | None = None


def plain_words(text: str) -> str:
    """Lower case, no LaTeX, no punctuation, single spaces, no articles."""
    text = re.sub(r"\\(?:text\w*|mathrm|mbox|textnormal)\s*\{([^{}]{0,2000})\}", r"\1", text[:4000])
    text = re.sub(r"\\[a-zA-Z]+|\\.", " ", text)
    text = _PUNCTUATION.sub(" ", text).strip().lower()
    return " ".join(_ARTICLES.sub("", text).split())


@lru_cache(maxsize=4096)
def read(text: str) -> Reading:
    """Read an answer. Never raises: what cannot be read is a text with a fault."""
    bare = text.strip().rstrip(".").strip()
    words = plain_words(bare)
    try:
        tokens = _trimmed(tokenize(bare))
    except Unreadable as fault:
        letters = sum(c.isalpha() for c in bare[:4000])
        wordy = letters > 0.7 * len(bare[:4000]) and "\\" not in bare[:4000]
        return Reading((), words, "", ("raw", "".join(bare.split())), wordy, False, fault)
    letter, behind = _option(tokens)
    signature = tuple(plain_words(t.text) if t.kind is Kind.TEXT else t.text for t in tokens)
    if numeral := _IN_BASE.fullmatch(bare.strip("$").replace(" ", "")):
        base = int(numeral[2])
        if 2 <= base <= 36 and any(c.isdigit() for c in numeral[1]):
            value = BaseNumeral(numeral[1].lstrip("0") or "0", base)
            return Reading((value,), words, "", signature, False, False)
    wordy = _is_wordy(tokens)
    values: list[Value] = []
    fault: Unreadable | None = Unreadable("a sentence") if _is_sentence(tokens) else None
    for candidate in () if _is_sentence(tokens) else _candidates(tokens, behind):
        try:
            value = _finished(candidate)
        except Unreadable as error:
            fault = fault or error
        except RecursionError:
            fault = Unreadable("nested too deeply", over_limit=True)
        else:
            if value not in values:
                values.append(value)
    if wordy:
        values = [Words(words), *values]
    if words in NUMBER_WORDS:
        values.insert(0, Number(Fraction(NUMBER_WORDS[words])))
    if not values and (single := _only_number(tokens)):
        values.append(single)
    if len(tokens) == 1 and tokens[0].kind is Kind.TEXT:
        values.extend(v for v in read(tokens[0].text).values if v not in values)
    textual = any(t.kind in (Kind.WORD, Kind.TEXT) for t in tokens) and all(_plain(t) for t in tokens)
    return Reading(tuple(values), words, letter, signature, wordy, textual, None if values else fault)


def _plain(token: Token) -> bool:
    return token.kind in (Kind.WORD, Kind.TEXT, Kind.NUMBER) or token.text in _TEXT_MARKS


def _trimmed(tokens: tuple[Token, ...]) -> tuple[Token, ...]:
    """Without punctuation at the ends and words that announce a value."""
    start, end = 0, len(tokens)
    while end > start and (tokens[end - 1].text in (".", ",", ";", ":", "\\\\") or _blank(tokens[end - 1])):
        end -= 1
    while start < end:
        token = tokens[start]
        announces = token.kind is Kind.TEXT and token.text.strip().endswith((":", "="))
        word = token.kind in (Kind.WORD, Kind.TEXT) and _announcing(token.text)
        sign = token.text in ("approx", "sim", "=", ":", ",", "therefore", "implies", "Rightarrow", "to")
        if not (announces or word or sign or _blank(token)) or start == end - 1:
            break
        start += 1
    return tokens[start:end]


def _announcing(text: str) -> bool:
    words = plain_words(text).split()
    # A lone capital A is an option or a name, not an article.
    return (
        bool(words or text.strip())
        and all(w in _LEADING_WORDS for w in words)
        and text.strip() not in ("A", "a")
    )


def _blank(token: Token) -> bool:
    return token.kind is Kind.TEXT and not token.text.strip(" ~.,;:\\")


def _option(tokens: tuple[Token, ...]) -> tuple[str, tuple[Token, ...]]:
    r"""The option letter that a text is or starts with, and what stands behind it: ``\textbf{(B)}\ 5``."""
    if not tokens:
        return "", ()
    if tokens[0].kind is Kind.TEXT:
        letter = _LETTER.fullmatch(tokens[0].text.strip(" ~\\,"))
        if letter and (len(tokens) == 1 or "(" in tokens[0].text or tokens[0].text.strip()[-1] in ").:"):
            return letter[1], tokens[1:]
        return "", ()
    texts = [t.text for t in tokens[:3]]
    if texts[0] == "(" and len(texts) == 3 and _single(tokens[1]) and texts[2] == ")":
        return texts[1], tokens[3:]
    if _single(tokens[0]) and (len(tokens) == 1 or texts[1] in (")", ".", ":")):
        return texts[0], tokens[2:]
    return "", ()


def _single(token: Token) -> bool:
    return (
        token.kind in (Kind.WORD, Kind.TEXT) and len(token.text.strip()) == 1 and token.text.strip().isupper()
    )


def _is_wordy(tokens: tuple[Token, ...]) -> bool:
    """Whether an answer is words rather than a formula."""
    real = [t for t in tokens if not (t.kind is Kind.MARK and t.text in ".,;:!?'()-\"`&@#")]
    if not real or any(t.kind in (Kind.MARK, Kind.COMMAND) for t in real):
        return False
    words = [t for t in real if t.kind in (Kind.WORD, Kind.TEXT)]
    long = [t for t in words if t.kind is Kind.TEXT or (len(t.text) > 1 and t.text not in FUNCTIONS | GREEK)]
    numbers = len(real) - len(words)
    return bool(long) and (numbers == 0 or len(words) > 4 * numbers)


def _is_sentence(tokens: tuple[Token, ...]) -> bool:
    """Whether an answer opens with prose: letters of words are no variables."""
    prose = 0
    for token in tokens:
        word = token.kind is Kind.WORD and len(token.text) > 1 and token.text not in FUNCTIONS | GREEK
        if not word or not _VOWEL.search(token.text):
            break
        prose += 1
    return prose >= 2


def _candidates(tokens: tuple[Token, ...], behind: tuple[Token, ...]) -> list[tuple[tuple[Token, ...], bool]]:
    """Lists of tokens to parse, each with or without words as units."""
    found = [(tokens, True)]
    if any(t.grouped for t in tokens):
        inside = any(t.text in ("(", "[", "\\{") for t in tokens)  # "(12,102)" is a pair.
        found.insert(0 if inside else 1, (_ungrouped(tokens), True))
    if any(t.kind is Kind.WORD and 1 <= len(t.text) <= 4 and t.text not in FUNCTIONS for t in tokens):
        found.append((tokens, False))
    if behind:
        found.append((_trimmed(behind), True))
    if len(tokens) == 3 and tokens[1].text == "," and not tokens[-1].spaced:
        (whole, _, places) = tokens
        if whole.kind is Kind.NUMBER and places.kind is Kind.NUMBER and (whole.text + places.text).isdigit():
            found.append(((Token(Kind.NUMBER, f"{whole.text}.{places.text}"),), True))
    groups = [t.text for t in tokens if t.kind is Kind.NUMBER and t.text.isdigit()]
    if len(groups) == len(tokens) > 1 and len(groups[0]) <= 3 and all(len(g) == 3 for g in groups[1:]):
        found.append(((Token(Kind.NUMBER, "".join(groups)),), True))  # "118 000"
    return found


def _ungrouped(tokens: tuple[Token, ...]) -> tuple[Token, ...]:
    """``1,200`` read as two numbers."""
    split: list[Token] = []
    for token in tokens:
        if not token.grouped:
            split.append(token)
            continue
        whole, point, places = token.text.partition(".")
        first = len(whole) % 3 or 3
        groups = [whole[:first], *(whole[i : i + 3] for i in range(first, len(whole), 3))]
        groups[-1] += point + places
        for i, group in enumerate(groups):
            if i:
                split.append(Token(Kind.MARK, ","))
            split.append(Token(Kind.NUMBER, group))
    return tuple(split)


def _finished(candidate: tuple[tuple[Token, ...], bool]) -> Value:
    tokens, read_units = candidate
    cursor = Cursor(tokens, read_units=read_units)
    values = parse_items(cursor, parse_atom)
    if not cursor.at_end():
        raise Unreadable(f"{cursor.peek().text[:20]!r} is left over")
    values = [_settled(v) for v in values]
    if compound := _compound(values):
        return compound
    flat: list[Value] = []
    for value in values:
        spread = isinstance(value, Items) and value.brackets is Brackets.BARE and len(values) > 1
        flat.extend(value.items if isinstance(value, Items) and spread else (value,))
    return flat[0] if len(flat) == 1 else Items(Brackets.BARE, tuple(flat))


def _settled(value: Value) -> Value:
    r"""Double signs spread into two values, numerals in a base typed, inside lists and relations too."""
    match value:
        case Apply("base", (Number(digits), Number(base))):
            if digits.denominator != 1 or not 2 <= base <= 36:
                raise Unreadable("a subscript that is no base")
            return BaseNumeral(str(digits), int(base))
        case Relation((left, right), ("=",)) if isinstance(right, EXPRESSION_TYPES) and double_signs(right):
            both = tuple(dict.fromkeys(Relation((left, with_sign(right, s)), ("=",)) for s in (1, -1)))
            return Items(Brackets.BARE, both)
        case Items(brackets, items):
            flat: list[Value] = []
            for item in (_settled(i) for i in items):
                spread = isinstance(item, Items) and item.brackets is Brackets.BARE
                flat.extend(item.items if isinstance(item, Items) and spread else (item,))
            return Items(brackets, tuple(flat))
        case Relation(operands, operators):
            return Relation(tuple(_settled(o) for o in operands), operators)
        case Quantity(inner, unit) if double_signs(inner):
            return Items(Brackets.BARE, tuple(Quantity(with_sign(inner, s), unit) for s in (1, -1)))
        case _ if isinstance(value, EXPRESSION_TYPES) and double_signs(value):
            both = tuple(dict.fromkeys(with_sign(value, s) for s in (1, -1)))
            return both[0] if len(both) == 1 else Items(Brackets.BARE, both)
        case _:
            return value


def _compound(values: list[Value]) -> Value | None:
    """``3 hours and 45 minutes`` as one quantity, in its smallest unit."""
    quantities = [v for v in values if isinstance(v, Quantity)]
    if len(quantities) < 2 or len(quantities) != len(values):
        return None
    units = [read_unit(q.unit) for q in quantities]
    same = all(u.known and u.dimensions == units[0].dimensions for u in units)
    falling = all(a.factor > b.factor for a, b in pairwise(units))
    if not same or not falling or not all(isinstance(q.value, Number) for q in quantities):
        return None
    parts = [
        q.value.value * u.factor / units[-1].factor
        for q, u in zip(quantities, units, strict=True)
        if isinstance(q.value, Number)
    ]
    return Quantity(total((Number(sum(parts, Fraction(0))),)), quantities[-1].unit)


def _only_number(tokens: tuple[Token, ...]) -> Value | None:
    """The number of a sentence that holds one number and else words: ``Janet makes 18 dollars``."""
    numbers = [t for t in tokens if t.kind is Kind.NUMBER]
    glued = [t for before, t in pairwise(tokens) if not t.spaced and Kind.NUMBER in (before.kind, t.kind)]
    if any(t.kind in (Kind.NUMBER, Kind.WORD) for t in glued):
        return None
    others = [t for t in tokens if t.kind is not Kind.NUMBER and t.text not in (",", ".", "'", "\\$", ":")]
    if len(numbers) != 1 or len(others) < 2 or any(t.kind not in (Kind.WORD, Kind.TEXT) for t in others):
        return None
    if "(" in numbers[0].text or any(
        w in NUMBER_WORDS or w in ("not", "no") for t in others for w in t.text.split()
    ):
        return None
    _, point, places = numbers[0].text.partition(".")
    return Quantity(Number(Fraction(numbers[0].text), len(places) if point else None), "")
