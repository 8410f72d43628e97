r"""Text of an answer, LaTeX or plain or mixed, to tokens. One linear pass; bounded in characters and tokens."""

# ruff: noqa: SIM905  (lists of words are easiest to read as text)

import re
from dataclasses import dataclass
from enum import Enum

from stepward.verifiers.answers.expressions import Unreadable

MAX_CHARS = 4000
MAX_TOKENS = 1200
MAX_DIGITS = 2000


class Kind(Enum):
    """What a token is."""

    NUMBER = "number"
    WORD = "word"
    TEXT = "text"
    COMMAND = "command"
    MARK = "mark"


@dataclass(frozen=True, slots=True)
class Token:
    r"""One token.

    Attributes:
        kind: Its kind.
        text: Digits; letters; the content of ``\text{}``; a command's name without backslash; a mark.
        spaced: True where white space stands before it.
        grouped: For a number: True where commas alone group its digits, so that it could be a list.
    """

    kind: Kind
    text: str
    spaced: bool = False
    grouped: bool = False


_UNICODE = {
    "−": "-", "–": "-", "—": "-", "×": "*", "·": "*", "⋅": "*", "∙": "*", "÷": "/", "∕": "/", "⁄": "/",
    "≤": r"\le ", "⩽": r"\le ", "≥": r"\ge ", "⩾": r"\ge ", "≠": r"\ne ", "≈": r"\approx ", "∞": r"\infty ",
    "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ", "∖": r"\setminus ", "±": r"\pm ", "∓": r"\mp ", "√": r"\sqrt ",
    "∠": r"\angle ", "△": r"\triangle ", "∀": r"\forall ", "∃": r"\exists ", "∅": r"\emptyset ", "ℝ": r"\mathbb{R}",
    "ℤ": r"\mathbb{Z}", "ℕ": r"\mathbb{N}", "ℚ": r"\mathbb{Q}", "→": r"\to ", "°": r"^\circ ", "′": "'", "’": "'",
    "²": "^2", "³": "^3", "¹": "^1", "⁰": "^0", "⁴": "^4", "⁵": "^5", "⁶": "^6", "⁷": "^7", "⁸": "^8", "⁹": "^9",
    "½": r"\frac12", "¼": r"\frac14", "¾": r"\frac34", "⅓": r"\frac13", "⅔": r"\frac23", "⅛": r"\frac18",
    "∶": ":", "％": "%", "，": ",", "；": ";", "（": "(", "）": ")", "：": ":", "＝": "=", "…": r"\ldots ",
    "⌊": r"\lfloor ", "⌋": r"\rfloor ", "⌈": r"\lceil ", "⌉": r"\rceil ", "∑": r"\sum ", "∏": r"\prod ",
    "“": "", "”": "", "\u00a0": " ", "\u2009": " ", "\u202f": " ", "\u200b": "", "\ufeff": "",
    "α": r"\alpha ", "β": r"\beta ", "γ": r"\gamma ", "δ": r"\delta ", "ε": r"\epsilon ", "ζ": r"\zeta ",
    "η": r"\eta ", "θ": r"\theta ", "κ": r"\kappa ", "λ": r"\lambda ", "μ": r"\mu ", "ν": r"\nu ", "ξ": r"\xi ",
    "π": r"\pi ", "ρ": r"\rho ", "σ": r"\sigma ", "τ": r"\tau ", "φ": r"\phi ", "χ": r"\chi ", "ψ": r"\psi ",
    "ω": r"\omega ", "Γ": r"\Gamma ", "Δ": r"\Delta ", "Θ": r"\Theta ", "Λ": r"\Lambda ", "Σ": r"\Sigma ",
    "Φ": r"\Phi ", "Ψ": r"\Psi ", "Ω": r"\Omega ",
}  # fmt: skip
_TRANSLATION = str.maketrans(_UNICODE)

# Commands that change only how things look.
_INVISIBLE = frozenset(
    "left right big Big bigg Bigg bigl bigr Bigl Bigr biggl biggr Biggl Biggr bigm middle displaystyle textstyle "
    "scriptstyle limits nolimits mathopen mathclose mathord mathrel mathbin nonumber notag hfill null relax "
    "rm bf it normalsize large Large small allowbreak strut protect centering".split()
)
_SPACES = frozenset("quad qquad enspace thinspace space hskip".split())
_TEXT_COMMANDS = frozenset(
    "text textnormal textbf textit textrm textsf texttt textup mbox hbox emph textsc".split()
)
_FONT_COMMANDS = frozenset(
    "mathbf boldsymbol mathit mathsf mathcal mathscr bm mathtt mathfrak boxed fbox".split()
)
_SAME_COMMAND = {
    "dfrac": "frac", "tfrac": "frac", "cfrac": "frac", "leq": "le", "leqslant": "le", "leqq": "le", "lt": "<",
    "geq": "ge", "geqslant": "ge", "geqq": "ge", "gt": ">", "neq": "ne", "times": "*", "cdot": "*", "ast": "*",
    "div": "/", "colon": ":", "lbrace": "{", "rbrace": "}", "lbrack": "[", "rbrack": "]", "lparen": "(",
    "rparen": ")", "lvert": "|", "rvert": "|", "vert": "|", "mid": "|", "dots": "ldots", "cdots": "ldots",
    "dotsc": "ldots", "dotsb": "ldots", "tbinom": "binom", "dbinom": "binom", "arctg": "arctan", "tg": "tan",
    "varnothing": "emptyset", "empty": "emptyset", "degree": "circ", "backslash": "setminus", "land": "and",
    "lor": "or", "wedge": "and", "vee": "or", "bigcup": "cup", "bigcap": "cap", "varphi": "phi",
    "varepsilon": "epsilon", "vartheta": "theta", "prime": "'", "ldotp": ".", "infin": "infty", "bullet": "*",
    "isin": "in", "rightarrow": "to", "longrightarrow": "to", "simeq": "approx", "doteq": "approx",
    "mathdollar": "$", "textdollar": "$", "dollar": "$", "pound": "£", "pounds": "£", "euro": "€", "percent": "%",
}  # fmt: skip

_TOKEN = re.compile(
    r"""
      (?P<space>\s+|\\[,;:!>\s]|~|\\\\(?=\s*$))
    | (?P<row>\\\\(?:\s*\[[^\]]{0,12}\])?)
    | (?P<command>\\[a-zA-Z]+\*?)
    | (?P<escape>\\[^a-zA-Z])
    | (?P<repeating>\d*\.\d*\\overline\s*(?:\{\s*\d+\s*\}|\d))
    | (?P<ordinal>\d+(?:st|nd|rd|th)\b)
    | (?P<grouped>\d{1,3}(?:,\d{3})+(?![\d{])(?:\.\d+)?)
    | (?P<number>\d{1,3}(?:(?:\s*\{,\s*\}\s*|,\\!\s*|\\,\s*|\\!,\s*|,\s*\\!\s*)\d{3})+(?!\d)(?:\.\d+)?
                |\d+(?:\.\d+)?|\.\d+)
    | (?P<word>[^\W\d_]+(?:'(?=s\b)s)?)
    | (?P<mark>\*\*|<=|>=|!=|==|->|\.\.\.|[-+*/^_=<>()\[\]{}|,;:!&'%.$£€?\#@"`])
    """,
    re.X,
)
_DOUBLED = re.compile(r"\\\\(?=[a-zA-Z{}%$])")  # A text that was escaped once too often.
_BRACE = re.compile(r"\\.|[{}]", re.S)


def tokenize(text: str) -> tuple[Token, ...]:
    r"""Tokens of an answer; dollar signs that only delimit formulas, sizes and spaces are left out.

    Raises:
        Unreadable: A character outside the grammar, an unclosed brace, or a bound.
    """
    if len(text) > MAX_CHARS:
        raise Unreadable(f"{len(text)} characters; at most {MAX_CHARS} are read", over_limit=True)
    text = text.translate(_TRANSLATION)
    if "\\\\" in text and "\\begin" not in text:
        text = _DOUBLED.sub(r"\\", text)
    tokens: list[Token] = []
    position, spaced = 0, False
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise Unreadable(f"character {text[position]!r} is not used in answers")
        position, kind, content = match.end(), str(match.lastgroup), match.group()
        made: Token | None = None
        match kind:
            case "space":
                spaced = True
                continue
            case "row":
                made = Token(Kind.MARK, "\\\\")
            case "escape":
                if content in ("\\(", "\\)", "\\[", "\\]"):
                    continue
                made = Token(Kind.MARK, content if content in ("\\$", "\\{", "\\}") else content[1])
            case "command":
                made, position = _command(text, content[1:].rstrip("*"), position)
                if made is None:
                    spaced = spaced or content[1:] in _SPACES
                    continue
            case "grouped":
                made = Token(Kind.NUMBER, content.replace(",", ""), grouped=True)
            case "ordinal":
                made = Token(Kind.NUMBER, content[:-2])
            case "number":
                made = Token(Kind.NUMBER, re.sub(r"[^\d.]", "", content))
            case "repeating":
                made = Token(Kind.NUMBER, re.sub(r"\\overline\s*\{?\s*(\d+)\s*\}?", r"(\1)", content))
            case "word":
                made = Token(Kind.WORD, content)
            case _:
                made = _mark(text, content, position)
                if made is None:
                    continue
        if made.kind is Kind.NUMBER and len(made.text) > MAX_DIGITS:
            raise Unreadable(
                f"a number of {len(made.text)} digits; at most {MAX_DIGITS} are read", over_limit=True
            )
        tokens.append(Token(made.kind, made.text, spaced, made.grouped))
        spaced = False
        if len(tokens) > MAX_TOKENS:
            raise Unreadable(f"more than {MAX_TOKENS} tokens", over_limit=True)
    return tuple(tokens)


def _mark(text: str, content: str, position: int) -> Token | None:
    if content == "$":
        # "$18" with no closing dollar is money; else it delimits a formula.
        money = text.count("$") - text.count("\\$") == 1 and text[position : position + 1].isdigit()
        return Token(Kind.MARK, "\\$") if money else None
    if content == "**":
        content = "^"
    return Token(Kind.MARK, {"==": "=", "<=": "le", ">=": "ge", "!=": "ne"}.get(content, content))


def _command(text: str, name: str, position: int) -> tuple[Token | None, int]:
    """The token of a command, None where it only changes looks, and where to go on."""
    if name in _INVISIBLE or name in _SPACES:
        no_bracket = name in ("left", "right") and text[position : position + 1] == "."
        return None, position + no_bracket
    if name in ("begin", "end"):
        content, position = _argument(text, position, name)
        return Token(Kind.COMMAND, f"{name}:{content.strip().rstrip('*')}"), position
    if name in _TEXT_COMMANDS or name in ("mathrm", "operatorname"):
        content, position = _argument(text, position, name)
        plain = content.strip()
        if name == "operatorname" or (name == "mathrm" and plain in ("e", "i", "d", "π")):
            return Token(Kind.WORD, plain), position
        return Token(Kind.TEXT, content), position
    if name == "mathbb":
        content, position = _argument(text, position, name)
        return Token(Kind.COMMAND, f"mathbb:{content.strip()}"), position
    if name in _FONT_COMMANDS:
        return None, position  # Its braces stay as a group.
    name = _SAME_COMMAND.get(name, name)
    if name in ("le", "ge", "ne") or not name.isalpha():
        return Token(Kind.MARK, {"{": "\\{", "}": "\\}", "$": "\\$"}.get(name, name)), position
    if name in ("hspace", "vspace", "phantom", "label", "tag", "color"):
        _, position = _argument(text, position, name)
        return None, position
    return Token(Kind.COMMAND, name), position


def _argument(text: str, position: int, name: str) -> tuple[str, int]:
    """The braced argument at ``position`` and the place behind it; one character where there is no brace."""
    while position < len(text) and text[position].isspace():
        position += 1
    if position >= len(text):
        raise Unreadable(f"\\{name} has no argument")
    if text[position] != "{":
        return text[position], position + 1
    depth = 1
    for brace in _BRACE.finditer(text, position + 1):
        depth += {"{": 1, "}": -1}.get(brace.group(), 0)
        if depth == 0:
            return text[position + 1 : brace.start()], brace.end()
    raise Unreadable(f"the brace of \\{name} is not closed")
