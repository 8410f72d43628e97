r"""Claims about whole numbers: congruences, remainders, divisors, binomial coefficients, sums of progressions.

Each is a fixed form of words or signs around plain numerals; whatever is more than a numeral is left to others.
"""

import itertools
import math
import re
from collections.abc import Callable, Iterator
from fractions import Fraction

from stepward.prm.types import Reason
from stepward.verifiers.answers.expressions import Unreadable
from stepward.verifiers.answers.numeric import Point, evaluate
from stepward.verifiers.claims.decisions import Decision, Truth, shown
from stepward.verifiers.claims.exact import parse, rational
from stepward.verifiers.claims.reading import not_stated
from stepward.verifiers.claims.statements import Statement

MAX_FOUND = 40
_CONGRUENT = ("≡", "\\equiv")
_N = r"(\d{1,3}(?:,\d{3})+(?!\d)|\d{1,15})"
_GAP = r"[\s$]*(?:\\[()\[\]])?[\s$]*"
_STOP = r"(?![\d.]*\d)(?!,\d)(?!\s*[!/])(?!\s*[-+*/^!×÷·(]\s*[\d(\\a-zA-Z])(?!\s*(?:\\times|\\cdot|\\div|\\text|%|\\%))"
_START = r"(?<![\w.,^_+*/×·÷\-\\{])(?<!(?<!\\)\()(?<![-+*/=^×·] )"
_MODULUS = re.compile(r"[\s$\\,;:)]*\(?\s*\\?(?:p|b)?mod(?:ulo)?\}?[\s~{]*(\d{1,15})(?!\s*\^)")
_HARMLESS = re.compile(
    r"mod.*' (?:in its sentence|stands behind it)|a number that may belong to a name", re.S
)
_BARE_MODULUS = re.compile(_START + _N + r"\s*\\?b?mod\s*\{?\s*" + _N + r"\}?\s*=\s*" + _N + _STOP)
_REMAINDER = re.compile(
    _START + _N + r"\s*(?:÷|/|\\div|divided by)\s*" + _N + _GAP + r"(?:=|is|gives|equals)" + _GAP + _N + _GAP +
    r"(?:with |and )?(?:an? )?(?:\\text\{\s*(?:with |and )?(?:an? )?)?(?:remainder|R)(?: (?:of|is))?\s*\}?" + _GAP +
    r"(?:=\s*)?" + _N + _STOP
)  # fmt: skip
_DIVISOR = re.compile(
    r"(?<![a-zA-Z\\])\\?(?:operatorname\{|text\{|mathrm\{)?(gcd|lcm|GCD|LCM|HCF)\}?\s*(?:\\left)?\(\s*(\d{1,15}(?:\s*,\s*\d{1,15})+)"
    r"\s*(?:\\right)?\)\s*=\s*" + _N + _STOP
)
_DIVISOR_IN_WORDS = re.compile(
    r"(?<!and )\b(gcd|lcm|hcf|greatest common (?:divisor|factor)|least common multiple)(?: \([A-Z]{3}\))? of" +
    _GAP + _N + _GAP + r"and" + _GAP + _N + _GAP + r"(?:is|=)" + _GAP + _N + _STOP, re.I
)  # fmt: skip
_CHOOSE = re.compile(r"(?<![\w\\^_])(?:C|nCr)\(\s*(\d{1,4})\s*,\s*(\d{1,4})\s*\)\s*=\s*" + _N + _STOP)
_CHOOSE_IN_WORDS = re.compile(
    _START + r"(\d{1,4}) choose (\d{1,4})" + _GAP + r"(?:is|=|equals)" + _GAP + _N + _STOP
)
_PROGRESSION = re.compile(
    _START + _N + r"\s*\+\s*" + _N + r"\s*\+\s*(?:" + _N + r"\s*\+\s*)?(?:" + _N + r"\s*\+\s*)?"
    r"(?:\\[lc]?dots|\.\.\.|…|⋯)\s*\+\s*" + _N + r"\s*=\s*" + _N + _STOP
)  # fmt: skip
_SIGMA = re.compile(
    r"(?<![\d\w)}+\-*/=] )(?<![\d\w)}+\-*/])\\sum_\{\s*([a-z])\s*=\s*(\d{1,4})\s*\}\s*\^\s*"
    r"(?:\{\s*(\d{1,4})\s*\}|(\d))\s*([^=$\n&+\-]{1,80}?)\s*=\s*" + _N + _STOP
)  # fmt: skip


def decide_integers(text: str) -> list[Decision]:
    """Decisions on all claims of fixed forms in a step."""
    found: list[Decision] = []
    for pattern, check in _FORMS:
        for number, match in enumerate(pattern.finditer(text)):
            if number >= MAX_FOUND:
                break
            if (said := check(match)) is not None:
                found.append(_decision(text, match.start(), match.end(), *said))
    return sorted(found, key=lambda d: d.start)


def decide_congruences(statement: Statement, text: str) -> Iterator[Decision]:
    """Decisions on ``a ≡ b (mod n)``, for each pair of a chain."""
    if not any(c.relation in _CONGRUENT for c in statement.claims):
        return
    last = statement.claims[-1].right
    modulus = _MODULUS.search(text, last.start, last.end + 30)
    if modulus is None or int(modulus[1]) < 2:
        return
    for claim in statement.claims:
        if claim.relation not in _CONGRUENT:
            continue
        try:
            a, b = rational(parse(claim.left.text)), rational(parse(claim.right.text))
        except Unreadable:
            continue
        if a is None or b is None or a.denominator != 1 or b.denominator != 1:
            continue
        if claim.doubt and not claim.supposed and not _HARMLESS.search(claim.doubt):
            yield Decision(claim.start, claim.end, Truth.OPEN, Reason.AMBIGUOUS, claim.doubt)
            continue
        true = (a - b) % int(modulus[1]) == 0
        yield _decision(text, claim.start, claim.end, true, f"{a} mod {modulus[1]} is {a % int(modulus[1])}")


def _decision(text: str, start: int, end: int, true: bool, right: str) -> Decision:
    claim = shown(text, start, end)
    if true:
        return Decision(start, end, Truth.TRUE, evidence=f"{claim} is true")
    if word := not_stated(text, start, end):
        return Decision(
            start, end, Truth.OPEN, Reason.AMBIGUOUS, f"{claim}: {right}, but {word!r} in its sentence"
        )
    return Decision(start, end, Truth.FALSE, evidence=f"{claim} is false: {right}")


def _int(text: str) -> int:
    return int(text.replace(",", ""))


Said = tuple[bool, str] | None


def _bare_modulus(match: re.Match[str]) -> Said:
    a, n, r = map(_int, match.groups())
    return None if n < 2 else (a % n == r % n, f"{a} mod {n} is {a % n}")


def _remainder(match: re.Match[str]) -> Said:
    a, b, q, r = map(_int, match.groups())
    return None if not b else (a == q * b + r, f"{q} * {b} + {r} is {q * b + r}")


def _divisor(match: re.Match[str]) -> Said:
    *_, listed, value = match.groups()
    return _common(match[1], [int(n) for n in re.findall(r"\d+", listed)], _int(value))


def _divisor_in_words(match: re.Match[str]) -> Said:
    return _common(match[1], [_int(match[2]), _int(match[3])], _int(match[4]))


def _common(name: str, numbers: list[int], value: int) -> Said:
    multiple = name.lower() in ("lcm", "least common multiple")
    right = math.lcm(*numbers) if multiple else math.gcd(*numbers)
    return right == value, f"it is {right}"


def _choose(match: re.Match[str]) -> Said:
    n, k, value = map(_int, match.groups())
    if not k <= n <= 500:
        return None
    right = math.comb(n, k)
    return right == value, f"it is {right}"


def _progression(match: re.Match[str]) -> Said:
    *terms, last, value = [_int(g) for g in match.groups() if g is not None]
    step = terms[1] - terms[0]
    if len(terms) < 3 and not (terms[0] == 1 and step in (1, 2)):
        return None
    if step <= 0 or any(b - a != step for a, b in itertools.pairwise(terms)) or (last - terms[0]) % step:
        return None
    right = (terms[0] + last) * ((last - terms[0]) // step + 1) // 2
    return right == value, f"the sum is {right}"


def _sigma(match: re.Match[str]) -> Said:
    """A sum over an index of one term; where the body may go on it is not read."""
    name, low, high, digit, body, value = match.groups()
    if int(high or digit) - int(low) > 60 or int(high or digit) < int(low):
        return None
    try:
        tree = parse(body.replace("\\left", "").replace("\\right", ""))
        total = Fraction(0)
        for k in range(int(low), int(high or digit) + 1):
            point = Point(0)
            point.bound[name] = evaluate(parse(str(k)), Point(0))
            found = evaluate(tree, point)
            mantissa, exponent = found.man_exp
            total += Fraction(mantissa if found >= 0 else -mantissa) * Fraction(2) ** max(
                -600, min(600, exponent)
            )
    except (Unreadable, AttributeError):
        return None
    near = Fraction(round(total * 10**20), 10**20)
    return abs(near - _int(value)) < Fraction(1, 10**12), f"the sum is {float(near):.10g}"


_FORMS: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], Said]], ...] = (
    (_BARE_MODULUS, _bare_modulus),
    (_REMAINDER, _remainder),
    (_DIVISOR, _divisor),
    (_DIVISOR_IN_WORDS, _divisor_in_words),
    (_CHOOSE, _choose),
    (_CHOOSE_IN_WORDS, _choose),
    (_PROGRESSION, _progression),
    (_SIGMA, _sigma),
)
