r"""What stands on either side of an equality sign: the longest expression that touches it, units left out."""

# ruff: noqa: SIM905  (lists of words are easiest to read as text)

import re
from collections.abc import Sequence
from dataclasses import dataclass

from stepward.verifiers.claims.lexemes import Kind, Lexeme

MAX_UNIT_WORDS = 5
MAX_PIECES = 200

_SPOKEN = {"times": "*", "plus": "+", "minus": "-"}
# These join or separate clauses; they never name what was counted.
_NEVER_UNITS = frozenset(
    "because since so is are was were and or which that then but as has have had equals equal makes gives get got "
    "means thus hence therefore where while than plus minus times we he she it they you if when be will".split()
)
# A number behind one of these is no part of a name: "so 227 = 5 * 45".
_CONNECTIVES = frozenset("so and because since thus that then therefore hence have get know now yes".split())
EXCLAIMED = "!an exclamation mark"
"""The doubt of an operand that ends in a mark which is a factorial or the end of a sentence."""

_VALUE_END = frozenset({Kind.NUMBER, Kind.CLOSE, Kind.POSTFIX, Kind.LETTER})
_VALUE_START = frozenset({Kind.NUMBER, Kind.OPEN, Kind.LETTER, Kind.COMMAND})


@dataclass(frozen=True, slots=True)
class Piece:
    """A lexeme's part in an expression.

    Attributes:
        lexeme: The lexeme.
        cut: True where it cannot be part of an expression: what stands left and right of it is separate.
        unit: Words behind the value, left out of the expression.
        of: True for a multiplication that is written "of".
    """

    lexeme: Lexeme
    cut: bool = False
    unit: str = ""
    of: bool = False


@dataclass(frozen=True, slots=True)
class Operand:
    """An expression beside an equality sign.

    Attributes:
        text: The expression, as the parser of formulas reads it.
        start: First character in the step.
        end: Character behind the last, units included.
        units: Words behind its values, in order.
        computed: True where it holds an operation, so that there is something to compute.
        doubt: Why it may not be the whole of what is meant, or empty.
    """

    text: str
    start: int
    end: int
    units: tuple[str, ...]
    computed: bool
    doubt: str = ""


def pieces(tokens: Sequence[Lexeme]) -> list[Piece]:
    """The part that each lexeme between two equality signs has; units and annotations are left out."""
    found: list[Piece] = []
    index, unit_words = 0, 0
    while index < len(tokens):
        token = tokens[index]
        after = tokens[index + 1] if index + 1 < len(tokens) else None
        last = found[-1] if found and not found[-1].cut else None
        ends_value = last is not None and (
            last.lexeme.kind in _VALUE_END
            or (last.lexeme.kind is Kind.COMMAND and last.lexeme.text == "\\pi")
        )
        if token.kind is Kind.WORD:
            spoken = _spoken(token, tokens[index + 1 : index + 3]) if ends_value else None
            if spoken:
                operator, width = spoken
                found.append(Piece(Lexeme(Kind.OPERATOR, operator, token.start, token.end, True)))
                index += width
                continue
            of = token.text == "of" and after is not None and after.kind in (Kind.NUMBER, Kind.OPEN)
            if of and ends_value and not unit_words and _is_share(found):
                found.append(Piece(Lexeme(Kind.OPERATOR, "*", token.start, token.end, True), of=True))
            elif (
                last is not None
                and ends_value
                and unit_words < MAX_UNIT_WORDS
                and not (
                    _starts_value(after)
                    or token.text.lower() in _NEVER_UNITS
                    or _opens_value(tokens, index + 1)
                )
            ):
                unit_words += 1
                found[-1] = _with_unit(last, token)
                index += 1
                continue
            else:
                found.append(Piece(token, cut=True))
        elif (
            last is not None
            and ends_value
            and token.kind is Kind.OPERATOR
            and token.text == "/"
            and after is not None
            and after.kind is Kind.WORD
            and not after.spaced
        ):
            found[-1] = _with_unit(last, after)  # "$35/hour"
            index += 2
            unit_words += 1
            continue
        elif last is not None and last.unit and token.text == "^" and (width := _exponent(tokens, index)):
            index += width  # "36 cm^2"
            continue
        elif (
            last is not None
            and ends_value
            and token.kind is Kind.OPEN
            and (width := _annotation(tokens, index))
        ):
            found[-1] = Piece(last.lexeme, unit=f"{last.unit} (note)".strip())
            index += width
            continue
        else:
            foreign = token.kind in (Kind.FOREIGN, Kind.BREAK, Kind.RELATION, Kind.DELIMITER) or (
                token.kind is Kind.LETTER and last is not None and bool(last.unit)  # "4 digits of pi"
            )
            found.append(Piece(token, cut=foreign))
        unit_words = 0
        index += 1
        if len(found) > MAX_PIECES:
            found = [Piece(found[-1].lexeme, cut=True)]
    return found


def _exponent(tokens: Sequence[Lexeme], index: int) -> int:
    """Lexemes of an exponent of a unit; 0 where it is none."""
    braced = index + 1 < len(tokens) and tokens[index + 1].kind is Kind.OPEN
    at = index + 1 + braced
    at += at < len(tokens) and tokens[at].text == "-"
    if at >= len(tokens) or tokens[at].kind is not Kind.NUMBER:
        return 0
    at += 1
    if braced:
        closed = at < len(tokens) and tokens[at].kind is Kind.CLOSE
        return at + 1 - index if closed else 0
    return at - index


def _with_unit(piece: Piece, word: Lexeme) -> Piece:
    return Piece(piece.lexeme, unit=f"{piece.unit} {word.text}".strip())


def _starts_value(token: Lexeme | None) -> bool:
    return token is not None and token.kind in (Kind.NUMBER, Kind.COMMAND)


def _opens_value(tokens: Sequence[Lexeme], index: int) -> bool:
    """Whether brackets stand at ``index`` that are no remark."""
    return index < len(tokens) and tokens[index].kind is Kind.OPEN and not _annotation(tokens, index)


def _spoken(token: Lexeme, following: Sequence[Lexeme]) -> tuple[str, int] | None:
    """The operator that words name, and how many lexemes they take."""
    if not following:
        return None
    if token.text in ("multiplied", "divided") and following[0].text == "by":
        starts = len(following) > 1 and following[1].kind in _VALUE_START
        return ("*" if token.text == "multiplied" else "/", 2) if starts else None
    if token.text in _SPOKEN and following[0].kind in _VALUE_START:
        return _SPOKEN[token.text], 1
    return None


def _is_share(found: Sequence[Piece]) -> bool:
    """Whether what was read last is a percentage or a plain fraction, so that "of" multiplies."""
    last = found[-1].lexeme
    if last.kind is Kind.POSTFIX and last.text == "%":
        return True
    plain = len(found) > 2 and found[-2].lexeme.text == "/" and found[-3].lexeme.kind is Kind.NUMBER
    return plain or (last.text == "}" and any(p.lexeme.text == "\\frac" for p in found[-7:]))


def _annotation(tokens: Sequence[Lexeme], index: int) -> int:
    """Lexemes of a remark in brackets behind a value, such as ``(lost income)``; 0 where it is none."""
    follows = tokens[index + 1] if index + 1 < len(tokens) else None
    if (
        follows is None
        or follows.kind is not Kind.WORD
        or tokens[index].text != "("
        or not tokens[index].spaced
    ):
        return 0
    for width in range(2, min(14, len(tokens) - index)):
        token = tokens[index + width]
        if token.kind is Kind.CLOSE:
            return width + 1
        if token.kind is Kind.LETTER and token.text.isupper() and len(token.text) > 1:
            return 0  # "(arc ABC)" has a value.
        if token.kind not in (Kind.WORD, Kind.NUMBER, Kind.LETTER):
            return 0
    return 0


def left_of(parts: Sequence[Piece], before: str) -> Operand | str:
    """The expression that ends at an equality sign, or why there is none.

    Args:
        parts: All pieces between the sign and the sign or break before it.
        before: What stands before those: ``""`` for the start of a line, a sentence or a formula.
    """
    depth, start = 0, len(parts)
    reason = before
    for position in range(len(parts) - 1, -1, -1):
        piece = parts[position]
        if piece.cut:
            reason = _reason_before(piece, parts[position - 1] if position else None)
            break
        if piece.lexeme.kind is Kind.CLOSE:
            depth += 1
        elif piece.lexeme.kind is Kind.OPEN:
            depth -= 1
            if depth < 0:
                outside = (
                    parts[position - 1].lexeme.kind if position and not parts[position - 1].cut else None
                )
                reason = "" if outside is None else "!("
                break
        start = position
    if depth > 0:
        return "brackets"
    return _made(parts[start:], reason, starts=True)


def _reason_before(cut: Piece, outside: Piece | None) -> str:
    """What stands before an expression: a word, or after ``!`` what makes it doubtful."""
    if cut.lexeme.kind in (Kind.FOREIGN, Kind.BREAK):
        return f"!{cut.lexeme.text}"
    value = outside is not None and not outside.cut
    if cut.lexeme.kind is Kind.DELIMITER:
        listed = outside is not None and outside.lexeme.first and outside.lexeme.text in ("-", "*")
        return "!a formula" if value and outside is not None and not outside.unit and not listed else ""
    if outside is not None and value:
        if outside.lexeme.kind is Kind.OPERATOR and not outside.lexeme.first:
            return f"!{cut.lexeme.text}"  # The word stands for a value.
        if cut.lexeme.text.lower() in ("and", "or", "to") and not outside.unit:
            return f"!{cut.lexeme.text}"
    return cut.lexeme.text


def right_of(parts: Sequence[Piece], after: str) -> Operand | str:
    """The expression that begins at an equality sign, or why there is none.

    Args:
        parts: All pieces between the sign and the next sign or break.
        after: What stands behind those: a doubt, or empty.
    """
    depth, end = 0, 0
    reason = after
    for position, piece in enumerate(parts):
        if piece.cut:
            following = parts[position + 1].lexeme if position + 1 < len(parts) else None
            number = following is not None and following.kind in (Kind.NUMBER, Kind.COMMAND, Kind.OPEN)
            if piece.lexeme.kind is Kind.DELIMITER:
                reason = "!a formula" if number else ""
                break
            joins = piece.lexeme.text in ("and", "or", "to", "remainder", "R", "r")
            reason = (
                f"!{piece.lexeme.text}"
                if piece.lexeme.kind is not Kind.WORD or (joins and number)
                else (piece.lexeme.text)
            )
            break
        if piece.lexeme.kind is Kind.OPEN:
            depth += 1
        elif piece.lexeme.kind is Kind.CLOSE:
            depth -= 1
            if depth < 0:
                reason = ""
                break
        end = position + 1
    if depth > 0:
        return "brackets"
    return _made(parts[:end], reason, starts=False)


QUOTIENT = re.compile(r"\A(?:[\d.]+ / [\d.]+|\\frac \{ [\d.]+ \} \{ [\d.]+ \})\Z")
"""The text of an operand that is one fraction of two numbers."""

_REMARK = re.compile(r"\( [\d.]+ \) [-+*/]")
_SHARE_BESIDE = re.compile(r"\d \( [\d.]+ % \)")
_JUXTAPOSED = re.compile(r"/\s*(?:\d[\d.]*|[a-zA-Z])\s*(?:[(a-zA-Z\\]|! \d)")


def _made(parts: Sequence[Piece], reason: str, *, starts: bool) -> Operand | str:
    kept = list(parts)
    doubt = reason if reason.startswith("!") else ""
    if starts and kept and kept[0].lexeme.kind is Kind.OPERATOR:
        sign = kept[0].lexeme
        tight = len(kept) > 1 and not kept[1].lexeme.spaced
        if sign.first and sign.text in "-*–" and not tight:
            kept = kept[1:]  # The mark of a list.
        elif sign.text != "-" or not (tight or not reason) or (reason and not sign.spaced):
            return "it begins in the middle"
    while not starts and kept and kept[-1].lexeme.kind is Kind.OPERATOR:
        return "it ends in an operator"
    if not kept or kept[-1].lexeme.kind is Kind.OPERATOR:
        return "nothing"
    words = [p.lexeme.text for p in kept]
    text = " ".join("-" if w == "–" else w for w in words)
    if _JUXTAPOSED.search(text):
        doubt = doubt or "!a quotient before a factor without a sign"
    if _SHARE_BESIDE.search(text):
        doubt = doubt or "!a percentage in brackets"
    if re.search(r"/ [\d.]+ /", text):
        doubt = doubt or "!two quotients in a row"
    if not starts and any(p.of for p in kept):
        doubt = doubt or "!of"
    if re.search(r"(?:^| )0\d", text):
        doubt = doubt or "!a time or a code"
    if kept[-1].lexeme.text == "!":
        doubt = doubt or EXCLAIMED
    units = tuple(p.unit for p in kept if p.unit)
    signs = [
        p.lexeme.kind is Kind.OPERATOR or p.lexeme.text in ("\\sqrt", "\\frac", "\\binom", "!") for p in kept
    ]
    implied = re.search(r"[\d)] \(", text) is not None
    computed = implied or any(signs[1:]) or (signs[0] and kept[0].lexeme.kind is not Kind.OPERATOR)
    if starts and not doubt and _names(kept, text, reason):
        doubt = "!a number that may belong to a name"
    return Operand(text, kept[0].lexeme.start, kept[-1].lexeme.end, units, computed, doubt or _word(reason))


def _names(kept: Sequence[Piece], text: str, reason: str) -> bool:
    """Whether an expression may be part of a name or count things: ``4 pizzas``, ``Weeks 1-2``, ``1/2 a cup``."""
    unit = kept[-1].unit
    if any(p.unit.startswith("-") for p in kept):
        return True  # "10 \\text{-year-old}"
    if _REMARK.match(text) and kept[1].unit and reason:
        return True  # "1/3 of 12 birds (4 birds) + 20"
    if len(unit.replace("(note)", "").split()) > 2:
        return True
    if re.fullmatch(r"[\d.]+", text):
        return bool(unit or (reason and reason.lower() not in _CONNECTIVES))
    if pair := re.fullmatch(r"([\d.]+) ([/-]) ([\d.]+)", text):
        tight = not kept[1].lexeme.spaced and reason != ""
        return (
            tight and not unit
            if pair[2] == "-"
            else unit != "" and not kept[0].unit and len(pair[1]) <= len(pair[3])
        )
    return False


def _word(reason: str) -> str:
    return f"?{reason.lower()}" if reason else ""
