r"""Where is the final answer in a model's text?

Only what the model wrote is read, never the prompt, and all of it: no window. In order of trust: the last
``\boxed{...}``; a marked line (GSM8K's ``#### x``, ``A: x``) or phrase ("the answer is x"), whichever stands last;
a text that is nothing but an answer; the last formula or number, as a fallback that says so. Where the last box
is cut off there is no answer: an earlier box is an earlier thought. Every search takes time linear in the text.
"""

import re
from dataclasses import dataclass
from enum import StrEnum

from stepward.prm.types import CheckKind, FinishReason


class FoundBy(StrEnum):
    """Which rule found an answer. ``LAST_FORMULA`` and ``LAST_NUMBER`` are guesses."""

    @property
    def is_guess(self) -> bool:
        """True where nothing in the text marks the answer as one."""
        return self in (FoundBy.LAST_FORMULA, FoundBy.LAST_NUMBER)

    BOX = "box"
    HASHES = "hashes"
    PHRASE = "phrase"
    WHOLE_TEXT = "whole_text"
    LAST_FORMULA = "last_formula"
    LAST_NUMBER = "last_number"


@dataclass(frozen=True, slots=True)
class FinalAnswer:
    """An answer as the model wrote it.

    Attributes:
        text: What stands in the box or after the mark.
        found_by: The rule that found it.
        span: Its characters in the text that was searched; for joined boxes, from the first to the last.
    """

    text: str
    found_by: FoundBy
    span: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Extraction:
    """What a search for the final answer found.

    Attributes:
        answer: The answer, or None.
        cut: True where the text ends inside its final answer, or ends at the token limit before one.
    """

    answer: FinalAnswer | None
    cut: bool = False


_MAX_JOINED_BOXES = 32
_BOX = re.compile(r"(?:\\|\x08)(?:boxed|fbox)(?:\s*(\{)|\s*(-?\d[\d,]*(?:\.\d+)?)(?=[\s$.,;\\)]|$))")
_BRACE = re.compile(r"\\.|[{}]", re.S)
# What may stand between boxes that are one answer: "\boxed{1} and \boxed{-2}".
_JOINT = re.compile(
    r"(?:[\s$&.]|\\[()\[\],;!]|\\q?quad|[,;]|\\text\s*\{\s*(?:and|or)\s*\}|\b(?:and|or)\b){0,40}", re.I
)
_JOINING_WORD = re.compile(r"[,;]|\band\b|\bor\b", re.I)
_HASHES = re.compile(r"^[ \t>*]*####[ \t]*(\S[^\n]*)$", re.M)
_HASH_VALUE = re.compile(
    r"[$€£\\+\-−]{0,3}\s?\.?\d[\d,./{}\\!]*\s?\\?%?(?:[ \t][^\W\d]+){0,3}[.*]{0,3}[ \t]*$"
)
_SUBJECT = r"(?:(?:final|correct|right|best|resulting)[ \t]+)?answers?"
_PHRASE = re.compile(
    rf"\b{_SUBJECT}\b(?:[ \t]+(?:to|for|of|in)[ \t][^\n.:]{{1,60}}?)??"
    r"[ \t]*(?:\*\*|\*|__|\})?[ \t]*"
    r"(?:(?:is|are|was|will[ \t]+be|would[ \t]+be|should[ \t]+be|must[ \t]+be|equals)\b[ \t]*(?:\*\*)?[ \t]*:?|[:=])"
    rf"|^[ \t#*]*(?:{_SUBJECT})[ \t*:]*$"
    r"|^[ \t*]*A[ \t*]*:",
    re.I | re.M,
)
_LEAD_IN = re.compile(
    r"(?:[ \t]*(?:\*\*|\*(?!\*)|therefore|thus|simply|just|given by|equal to|option|choice|that|as follows"
    r"|the following)[ \t]*:?)+",
    re.I,
)
_DISPLAY = re.compile(r"\$\$(.+?)\$\$|\\\[(.+?)\\\]", re.S)
_MATH_SPAN = re.compile(r"(?:\$([^$\n]+)\$|\\\(([^\n]+?)\\\))\s*(?:[.,;!*]|$)")
_SENTENCE_END = re.compile(
    r"(?<!\d)\.(?=\s|$)|\.(?=\s{1,9}[A-Z\\$]|\s{0,9}$)|[!?](?=\s|$)|,?\s{1,9}(?:because|since|which)\b", re.I
)
_OPTION_AND_REASON = re.compile(r"\(?([A-Z])\)?,\s+[a-z]{2,}")
_CLOSING_REMARK = re.compile(r"\s{0,9}I hope (?:it|this) is correct.*$", re.I | re.S)
_NUMBER = re.compile(
    r"(?<![\w.,])(?:[-−](?=[\d.$\\]))?[$€£]?"
    r"(?:\\d?frac\{-?\d{1,40}\}\{\d{1,40}\}|\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+\s?/\s?\d+|\d*\.?\d+)"
    r"(?:\s?\\?%)?(?!\w|-[A-Za-z])"
)
_RESULT = re.compile(r"(?:=|>>|output\n)[ \t]*\$?(\d[\d,]*(?:\.\d+)?)(?![\d.,]*\d|[ \t]*[-+*/x×])")
_LONGEST_SENTENCE = 400
_NEXT_PROBLEM = re.compile(
    r"^[ \t#*]*(?:Question|Problem|Q|Human|User|Instruction|Exercise)(?:[ \t]*\d{1,4})?[ \t*]*:", re.M
)
_CHOICE = re.compile(r"\(?\b([A-Z])\b\)?")
_LAST_CHOICE = re.compile(r"\(([A-Z])\)|\b([A-Z])\)|\b(?:option|choice)[ \t]+\(?([A-Z])\b|\b([A-Z])[.\s*]*\Z")
_TWO_WORDS = re.compile(r"[^\W\d_]{2,} [^\W\d_]{2,}\b")
_LEADING_WORD = re.compile(r"[^\W\d_]{2,}\b")
_WORDS = re.compile(r"[^\W\d_]{3,}")
_LATEX = re.compile(r"\\(?:text\w*|begin|end|mathrm|operatorname)\s*\{[^{}]*\}|\\[a-zA-Z]+")
_LONGEST_BARE_ANSWER = 400
_FORMULA = re.compile(
    r"\$\$(.{1,2000}?)\$\$|\\\[(.{1,2000}?)\\\]|\\\((.{1,2000}?)\\\)|(?<!\\)\$([^$\n]{1,2000})\$", re.S
)


def extract_answer(
    text: str,
    *,
    finish_reason: FinishReason = FinishReason.STOP,
    kind: CheckKind = CheckKind.MATH,
    fallback: bool = True,
) -> Extraction:
    """Find the final answer in a model's text.

    Args:
        text: The model's text alone; untrusted, of any length.
        finish_reason: With ``LENGTH`` an answer counts only where something after it shows that it is whole,
            and nothing is guessed.
        kind: ``CHOICE`` looks for a letter where the answer is guessed, ``MATH`` for a number.
        fallback: Whether an unmarked last number (or letter) may be taken.

    Returns:
        The answer, or None and whether that is because the text was cut.
    """
    at_limit = finish_reason is not FinishReason.STOP
    thought_end = text.rfind("</think>")
    if thought_end >= 0:
        start = thought_end + len("</think>")
        found = _search(text, start, len(text), at_limit)
        if found.answer or found.cut:
            return found
    elif at_limit and "<think>" in text:
        return Extraction(None, cut=True)
    found = _search(text, 0, len(text), at_limit)
    if found.answer or found.cut or at_limit:
        return Extraction(found.answer, cut=found.answer is None)
    guess = _whole_text(text, kind) or (_last_guess(text, kind) if fallback else None)
    return Extraction(guess)


def _search(text: str, start: int, end: int, at_limit: bool) -> Extraction:
    """The last marked answer in text[start:end], before any further problem that the model went on to."""
    for turn in _NEXT_PROBLEM.finditer(text, start, end):
        before = _marked(text, start, turn.start(), at_limit=False)
        if before.answer:
            return before
        break  # It restates its own problem: all that follows belongs to the answer.
    return _marked(text, start, end, at_limit)


def _marked(text: str, start: int, end: int, at_limit: bool) -> Extraction:
    boxes = _boxed(text, start, end)
    if boxes is not None:
        return boxes
    hashes = None
    for line in _HASHES.finditer(text, start, end):
        value = line.group(1)
        last_line = not text[line.end() : end].strip()
        if _HASH_VALUE.match(value) or last_line:
            hashes = FinalAnswer(value.strip(" *"), FoundBy.HASHES, line.span(1))
    phrase = _phrase(text, start, end)
    found = max((a for a in (hashes, phrase) if a), key=lambda a: a.span[0], default=None)
    if found and at_limit and not text[found.span[1] : end].strip(" $*\\)]"):
        return Extraction(None, cut=True)  # The next token might have gone on with the number.
    return Extraction(found)


def _boxed(text: str, start: int, end: int) -> Extraction | None:
    """The last box, with those that are joined to it; None where there is no box with content."""
    joined: list[tuple[int, int, str]] = []
    for box in reversed(list(_BOX.finditer(text, start, end))):
        if box.group(1):
            close = _closing_brace(text, box.end(), end)
            if close is None:
                if joined:
                    break
                return Extraction(None, cut=True)
            content, box_end = text[box.end() : close].strip(), close + 1
        else:
            content, box_end = box.group(2), box.end()
        if not content:
            if joined:
                break
            continue  # "put the answer in \boxed{}" speaks of the command.
        if joined:
            between = text[box_end : joined[-1][0]]
            whole = _JOINT.fullmatch(between) if len(between) <= 40 else None
            adjacent = not between.strip() and "\n" not in between
            if not whole or not (adjacent or _JOINING_WORD.search(between)):
                break
        joined.append((box.start(), box_end, content))
        if len(joined) == _MAX_JOINED_BOXES:
            break
    if not joined:
        return None
    contents = list(dict.fromkeys(content for _, _, content in reversed(joined)))
    return Extraction(FinalAnswer(", ".join(contents), FoundBy.BOX, (joined[-1][0], joined[0][1])))


def _closing_brace(text: str, start: int, end: int) -> int | None:
    depth = 1
    for brace in _BRACE.finditer(text, start, end):
        if brace.group() == "{":
            depth += 1
        elif brace.group() == "}":
            depth -= 1
            if depth == 0:
                return brace.start()
    return None


def _phrase(text: str, start: int, end: int) -> FinalAnswer | None:
    """What follows the last "the answer is", "Answer:" or "A:" that is followed by anything."""
    for mark in reversed(list(_PHRASE.finditer(text, start, end))):
        begin = mark.end()
        lead_in = _LEAD_IN.match(text, begin, end)
        begin = lead_in.end() if lead_in else begin
        while begin < end and text[begin] in " \t\r\n*:":
            begin += 1
        if begin >= end:
            continue
        span = _value_span(text, begin, end)
        if span[0] < span[1]:
            return FinalAnswer(text[span[0] : span[1]], FoundBy.PHRASE, span)
    return None


def _value_span(text: str, begin: int, end: int) -> tuple[int, int]:
    """The value that starts at ``begin``: a display, a formula that ends its sentence, or the sentence."""
    display = _DISPLAY.match(text, begin, end)
    if display:
        return display.span(1) if display.group(1) is not None else display.span(2)
    line_end = text.find("\n", begin, end)
    line_end = end if line_end < 0 else line_end
    formula = _MATH_SPAN.match(text, begin, line_end)
    if formula:
        return formula.span(1) if formula.group(1) is not None else formula.span(2)
    remark = _CLOSING_REMARK.search(text, begin, line_end)
    line_end = remark.start() if remark else line_end
    if option := _OPTION_AND_REASON.match(text, begin, line_end):
        return option.span(1)
    stop = _SENTENCE_END.search(text, begin, line_end)
    line_end = stop.start() if stop else line_end
    while line_end > begin and text[line_end - 1] in " \t\r.*":
        line_end -= 1
    return begin, line_end


def _whole_text(text: str, kind: CheckKind) -> FinalAnswer | None:
    """The text itself, where it is one short line without a sentence in it."""
    bare = text.strip()
    if (
        not bare
        or len(bare) > _LONGEST_BARE_ANSWER
        or "\n" in bare
        or len(_WORDS.findall(_LATEX.sub("", bare))) > (8 if kind is CheckKind.TEXT else 3)
    ):
        return None
    if _TWO_WORDS.match(bare) and kind is not CheckKind.TEXT:
        return None
    if (
        kind is not CheckKind.TEXT
        and not re.search(r"\d|\\[a-zA-Z]|[=^$]", bare)
        and not re.fullmatch(r"[\w'()-]+\.?", bare)
    ):
        return None
    if "boxed" in bare:
        return None
    if _LEADING_WORD.match(bare) and ("$" in bare or "\\(" in bare):
        return None  # Words that lead to a formula: the formula is the answer.
    begin = text.index(bare)
    return FinalAnswer(bare.rstrip("."), FoundBy.WHOLE_TEXT, (begin, begin + len(bare)))


def _last_guess(text: str, kind: CheckKind) -> FinalAnswer | None:
    """The last number, or for multiple choice the last letter that is marked as an option."""
    if kind is CheckKind.CHOICE:
        letters = list(_LAST_CHOICE.finditer(text))
        if not letters:
            return None
        letter = letters[-1]
        return FinalAnswer(next(filter(None, letter.groups())), FoundBy.LAST_NUMBER, letter.span())
    if kind is not CheckKind.MATH:
        return None
    numbers = list(_NUMBER.finditer(text))
    formula = next(filter(_is_formula, reversed(list(_FORMULA.finditer(text)))), None)
    if formula and (not numbers or numbers[-1].start() < formula.end()):
        return FinalAnswer(formula[formula.lastindex or 0].strip(), FoundBy.LAST_FORMULA, formula.span())
    if not numbers:
        return None
    number = _result_in_last_sentence(text, numbers)
    return FinalAnswer(number.group(), FoundBy.LAST_NUMBER, number.span())


def _result_in_last_sentence(text: str, numbers: list[re.Match[str]]) -> re.Match[str]:
    """The last number, or that number of its sentence which the text computed last ("makes $42 in 6 hours")."""
    last = numbers[-1]
    ends = [
        m.end() for m in _SENTENCE_END.finditer(text, max(0, last.start() - _LONGEST_SENTENCE), last.start())
    ]
    start = max([text.rfind("\n", 0, last.start()) + 1, *ends])
    results = [
        m[1].replace(",", "")
        for m in _RESULT.finditer(text, max(0, start - 20 * _LONGEST_SENTENCE), last.end())
    ]
    if not results:
        return last
    value = results[-1].rstrip("0").rstrip(".") if "." in results[-1] else results[-1]
    for number in reversed(numbers[-8:]):
        if number.start() < start:
            break
        shown = number.group().lstrip("$€£").replace(",", "")
        if (shown.rstrip("0").rstrip(".") if "." in shown else shown) == value:
            return number
    return last


def _is_formula(found: re.Match[str]) -> bool:
    """Whether a pair of delimiters holds a formula: ``$5 and then $`` lies between two prices."""
    content = found[found.lastindex or 0]
    if found.lastindex == 4 and (
        content[0].isspace() != content[-1].isspace() or content.rstrip()[-1:] in "+-*/=,("
    ):
        return False
    return bool(content.strip()) and not _WORDS.search(
        re.sub(r"\\[a-zA-Z]+\s*\{[^{}]*\}|\\[a-zA-Z]+", "", content)
    )
