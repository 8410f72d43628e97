r"""Prose with formulas in it, LaTeX or plain, to lexemes that know where they stand. One linear pass."""

# ruff: noqa: SIM905  (lists of words are easiest to read as text)

import re
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

MAX_LEXEMES = 20_000
MAX_NUMBER_CHARS = 60


class Kind(Enum):
    """What a lexeme is: ``BREAK`` ends a formula, ``ORDER`` is ``<`` and the like, ``FOREIGN`` other mathematics."""

    NUMBER = "number"
    OPERATOR = "operator"
    OPEN = "open"
    CLOSE = "close"
    WORD = "word"
    LETTER = "letter"
    COMMAND = "command"
    POSTFIX = "postfix"
    RELATION = "relation"
    ORDER = "order"
    DELIMITER = "delimiter"
    BREAK = "break"
    FOREIGN = "foreign"


@dataclass(frozen=True, slots=True)
class Lexeme:
    """One lexeme.

    Attributes:
        kind: Its kind.
        text: As the parser of formulas would read it: ``*`` for every sign of multiplication.
        start: First character in the text.
        end: Character behind the last.
        spaced: True where white space stands before it.
        first: True where it is the first of its line.
    """

    kind: Kind
    text: str
    start: int
    end: int
    spaced: bool = False
    first: bool = False


_LEXEME = re.compile(
    r"""
      (?P<continued>(?:\n|\\\\(?:\[\w{1,8}\])?)[\s&]{0,40}(?==(?!=)|\\approx|≈))
    | (?P<newline>\n|\\\\(?:\[\w{1,8}\])?|\r)
    | (?P<apart>\\q?quad(?![a-zA-Z])(?!\s*(?:=|\\approx|≈)))
    | (?P<space>[ \t\u00a0\u2009\u202f]+|\\[,;:!>\ ]|\\q?quad\b|~|&
        |\\(?:left|right|[bB]igg?[lr]?|displaystyle|textstyle|boxed|mathbf|boldsymbol|mathrm)(?![a-zA-Z])
        |[\u200b\ufeff])
    | (?P<delimiter>\\[()\[\]]|\$\$)
    | (?P<bold>\*\*)
    | (?P<number>\d{1,3}(?:(?:,|\{,\}|,\\!|\\,|\\!,)\d{3}){1,12}(?![\d])(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+)
    | (?P<onesided>\^\s?\{?\s?[+\-]\s?\}?(?=[\s)$,=<>]))
    | (?P<elision>\.\.\.+|…|\\[lc]?dots[a-z]?)
    | (?P<text>\\(?:text|textbf|textit|textrm|mbox)\s*\{[^{}$\\]{0,200}\})
    | (?P<degree>\^\s?\\circ|\^\s?\{\s?\\circ\s?\}|°|\\degree)
    | (?P<percent>\\?%)
    | (?P<currency>\\\$|[£€])
    | (?P<times>\\times(?![a-zA-Z])|\\cdot(?![a-zA-Z])|[×·⋅∙*])
    | (?P<divide>\\div(?![a-zA-Z])|[÷∕⁄/])
    | (?P<superscript>[²³⁴⁵⁶⁷⁸⁹])
    | (?P<approx>\\approx(?![a-zA-Z])|≈|≅|\\simeq(?![a-zA-Z])|~=|\\doteq(?![a-zA-Z]))
    | (?P<other>[≠≡→⇒⟹∈]|=>|->|!!+|(?<![\d)])!=|\\(?:ll|gg|neq?|equiv|to|implies|Rightarrow|rightarrow
        |iff|in|cong|sim|mid|pmod|bmod|mod|quad)(?![a-zA-Z])|\|)
    | (?P<order>[<>]=?|[≤≥]|\\(?:leq?|geq?|leqslant|geqslant|lt|gt)(?![a-zA-Z]))
    | (?P<equal>==?)
    | (?P<known>\\[dt]?binom(?![a-zA-Z])|\\[dtc]?frac(?![a-zA-Z])|\\sqrt(?![a-zA-Z])|\\pi(?![a-zA-Z])
        |[π√]|sqrt(?=\s?\())
    | (?P<either>\\pm(?![a-zA-Z])|±)
    | (?P<command>\\[a-zA-Z]+|\\[{}]|\\.)
    | (?P<word>[^\W\d_]+(?:['’\-][^\W\d_]+)*)
    | (?P<plus>[+])
    | (?P<minus>[-−–—])
    | (?P<caret>\^)
    | (?P<open>[(\[{])
    | (?P<close>[)\]}])
    | (?P<bang>!)
    | (?P<stop>[.,;:?"“”‘’'`])
    | (?P<dollar>\$)
    | (?P<foreign>.)
    """,
    re.X | re.S,
)
_SUPERSCRIPTS = {c: str(i) for i, c in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")}
_ARTICLES = frozenset("a A I".split())
_SHORT = frozenset(
    "is so we in of to the and for are was has had her his our its one two six ten per day mm cm km m kg g mg lb lbs "
    "oz ft yd mi hr hrs min sec mph he she it at by if or as on an am pm be do no not all any can now how let out new "
    "old sum get got add use pay run buy cup cups car cat dog egg eggs pie pen bag box men man ml gal mpg pts non way "
    "who why you up us tv cd dvd cds my me go did may see set say due end few own off only both each left too top "
    "bus bar jar job kid key leg lot map mom dad pan pet pin pig hen cow row sit age ago ad ads air arm art ax".split()
)
# Those that are written directly behind a number.
_MEASURES = frozenset(
    "mm cm km m kg g mg lb lbs oz ft yd mi hr hrs min sec mph am pm ml gal mpg pts in day way cup cups".split()
)
_AS_ONE = {"approx": (Kind.RELATION, "≈"), "equal": (Kind.RELATION, "="), "times": (Kind.OPERATOR, "*"),
           "divide": (Kind.OPERATOR, "/"), "plus": (Kind.OPERATOR, "+"),
           "either": (Kind.OPERATOR, "\\pm"), "caret": (Kind.OPERATOR, "^"),
           "percent": (Kind.POSTFIX, "%"), "bang": (Kind.POSTFIX, "!"), "degree": (Kind.WORD, "degrees")}  # fmt: skip
_KINDS = {"newline": Kind.BREAK, "apart": Kind.BREAK, "order": Kind.ORDER,
          "stop": Kind.BREAK, "other": Kind.BREAK, "delimiter": Kind.DELIMITER,
          "open": Kind.OPEN, "close": Kind.CLOSE, "elision": Kind.FOREIGN, "onesided": Kind.FOREIGN,
          "foreign": Kind.FOREIGN, "command": Kind.FOREIGN}  # fmt: skip


@lru_cache(maxsize=64)
def lexemes(text: str) -> tuple[Lexeme, ...]:
    """The lexemes of a text, at most ``MAX_LEXEMES`` of them; what is beyond is not read."""
    found: list[Lexeme] = []
    spaced, first = False, True
    for match in _LEXEME.finditer(text):
        name, content = str(match.lastgroup), match.group()
        start, end = match.span()
        if name in ("continued", "space"):
            spaced = True
            continue
        if (name == "dollar" and _is_money(text, start)) or name == "currency":
            continue
        if name == "bold":
            tight = text[start - 1 : start].isdigit() and text[end : end + 1].isdigit()
            if not tight:
                continue
            name = "caret"
        kind, written = _read(name, content, text, start, end)
        if kind is Kind.OPERATOR and written == "–" and not (spaced and text[end : end + 1].isspace()):
            kind = Kind.FOREIGN  # A dash without spaces is a range or a pause.
        found.append(Lexeme(kind, written, start, end, spaced, first))
        if name == "superscript":
            found[-1:] = [
                Lexeme(Kind.OPERATOR, "^", start, end),
                Lexeme(Kind.NUMBER, _SUPERSCRIPTS[content], start, end),
            ]
        spaced = False
        first = name == "newline"
        if len(found) >= MAX_LEXEMES:
            break
    return tuple(found if _UNKNOWN_X.search(text) else _with_crosses(found))


# An x that stands for a number somewhere in the text.
_UNKNOWN_X = re.compile(
    r"(?<![a-zA-Z\\])[xX]\s?[=^+\-)<>,.}$\\]|[=(+\-{^]\s?[xX]\b|\d[xX]\b(?!\s?\d)|\bfor x\b"
)


def _with_crosses(found: list[Lexeme]) -> list[Lexeme]:
    """The lexemes with each ``x`` between two values, where both or neither of its sides is spaced, as a sign."""
    for index in range(1, len(found) - 1):
        token, before, after = found[index], found[index - 1], found[index + 1]
        if token.kind is not Kind.LETTER or token.text not in "xX" or token.spaced != after.spaced:
            continue
        tight = not token.spaced and (before.kind is not Kind.NUMBER or after.kind is not Kind.NUMBER)
        value = before.kind in (Kind.NUMBER, Kind.CLOSE, Kind.WORD, Kind.POSTFIX)
        if value and not tight and after.kind in (Kind.NUMBER, Kind.OPEN):
            found[index] = Lexeme(Kind.OPERATOR, "*", token.start, token.end, True)
    return found


def _read(name: str, content: str, text: str, start: int, end: int) -> tuple[Kind, str]:
    if name in _AS_ONE:
        return _AS_ONE[name]
    if name in _KINDS:
        return _KINDS[name], content
    match name:
        case "minus":
            return Kind.OPERATOR, "–" if content in "–—" else "-"
        case "number":
            if len(content) > MAX_NUMBER_CHARS:
                return Kind.FOREIGN, content[:20]
            if text[end : end + 1].isalpha() and re.match(r"(?:st|nd|rd|th)\b", text[end : end + 3]):
                return Kind.FOREIGN, content  # An ordinal.
            if end < len(text) and text[end] == "," and text[end + 1 : end + 2].isdigit():
                return Kind.FOREIGN, content
            if start and (
                text[start - 1] == "_" or (text[start - 1] == "," and text[start - 2 : start - 1].isdigit())
            ):
                return Kind.FOREIGN, content
            return Kind.NUMBER, re.sub(r"[^\d.]", "", content)
        case "text":
            inner = content[content.index("{") + 1 : -1].strip()
            if not re.search(r"[^\W\d_]", inner):
                return (Kind.WORD, "text") if not re.search(r"\d", inner) else (Kind.FOREIGN, inner)
            return (Kind.FOREIGN, inner) if re.search(r"\d", inner) else (Kind.WORD, inner)
        case "known":
            written = {"π": "\\pi", "√": "\\sqrt", "sqrt": "\\sqrt"}.get(content, content)
            return Kind.COMMAND, re.sub(r"\\[dtc](?=frac|binom)", r"\\", written)
        case "word":
            return (Kind.WORD if _is_word(content, text, start, end) else Kind.LETTER), content
        case "superscript":
            return Kind.NUMBER, content
        case _:
            return Kind.DELIMITER, content


def _is_word(content: str, text: str, start: int, end: int) -> bool:
    """Whether letters are a word or a unit rather than the names of unknowns written side by side."""
    if len(content) == 1:
        apart = text[start - 1 : start].isspace() or not start
        return content in _ARTICLES and apart and bool(re.match(r"\s[^\W\d_]{2}", text[end : end + 3]))
    if (
        text[start - 1 : start].isdigit()
        and content not in _MEASURES
        and (len(content) < 4 or text[end : end + 1] in ("}", "^", "_"))
    ):
        return False  # "2ad" and "2^{2abcd}" hold products.
    if len(content) > 3:
        return True
    return content.lower() in _SHORT and not (content.isupper() and content not in ("TV", "CD", "DVD"))


def _is_money(text: str, start: int) -> bool:
    """Whether a dollar sign stands before an amount rather than around a formula."""
    before = text[start - 1 : start]
    return bool(re.match(r"\$\s?-?\.?\d", text[start : start + 4])) and not (
        before.isalnum() or before in (")", "}", "%")
    )
