"""The step verifier ``arithmetic``: equalities that a step states, decided by exact arithmetic.

Supported means that all claims that were read are true, never that the step is right: most wrong steps hold true
arithmetic and a wrong set-up. Refuted means that an equality of plain numbers is false in every reading that the
text allows. Where a reading is open the verdict is unknown, with the reason.
"""

import re
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

from stepward.prm.types import Problem, Reason, Verdict
from stepward.verifiers.answers.expressions import Symbol, Unreadable, walk
from stepward.verifiers.base import register_verifier
from stepward.verifiers.claims.bindings import Bindings, bound
from stepward.verifiers.claims.conversions import decide_conversion
from stepward.verifiers.claims.decisions import MAX_BEYOND_LIMITS, Decision, Truth, shown, verdict_of
from stepward.verifiers.claims.exact import Sides, compare, last_place, parse, rational
from stepward.verifiers.claims.named import decide_named
from stepward.verifiers.claims.operands import QUOTIENT, Operand
from stepward.verifiers.claims.orders import ORDERS, decide_order
from stepward.verifiers.claims.reading import Claim, claims_of, is_modular, moduli_of, sentence_of
from stepward.verifiers.claims.restated import claims_again
from stepward.verifiers.claims.statements import TAIL_CHARS, statements_of

NAME = "arithmetic"
VERSION = "3"

# Quotients of two units of one kind, or of a percentage and a share.
_CONVERSIONS = frozenset(
    Fraction(n) for n in (7, 12, 16, 24, 28, 30, 31, 36, 52, 60, 360, 365, 1440, 1760, 3600, 5280, 86400)
)


def decide(claim: Claim, text: str, moduli: Collection[int] = ()) -> Decision:
    """Decide one claim of a step.

    Args:
        claim: From ``claims_of(text)``.
        text: The step.
        moduli: Numbers by which the problem or an earlier step divides with remainder.
    """
    equation = _written(claim, text)
    try:
        left, right = parse(claim.left.text), parse(claim.right.text)
        if any(isinstance(n, Symbol) and n.name != "pi" for side in (left, right) for n in walk(side)):
            why = f"{equation}: not plain numbers"
            return Decision(claim.start, claim.end, Truth.OPEN, Reason.UNSUPPORTED, why)
        sides = compare(left, right)
    except Unreadable as fault:
        reason = Reason.UNSUPPORTED if fault.over_limit else Reason.PARSE
        return Decision(claim.start, claim.end, Truth.OPEN, reason, str(fault), beyond=fault.over_limit)
    if sides.equal:
        return Decision(claim.start, claim.end, Truth.TRUE, evidence=f"{equation} is true")
    if sides.symbolic or sides.left is None or sides.right is None:
        return Decision(
            claim.start, claim.end, Truth.OPEN, Reason.UNSUPPORTED, f"{equation}: not plain numbers"
        )
    unit = max(last_place(left), last_place(right))
    if (unit < 1 or claim.approximate) and abs(sides.left - sides.right) <= max(unit, Fraction(0)):
        return Decision(
            claim.start, claim.end, Truth.TRUE, evidence=f"{equation} is true to the stated precision"
        )
    doubt = (
        _congruence(claim, sides, text, moduli)
        or _doubt(claim, sides, equation, unit)
        or _other_reading(claim)
    )
    values = f"{claim.left.text} is {_shown(sides.left)}"
    if claim.right.computed:
        values += f" and {claim.right.text} is {_shown(sides.right)}"
    if doubt:
        return Decision(
            claim.start, claim.end, Truth.OPEN, Reason.AMBIGUOUS, f"{equation}: {values}, but {doubt}"
        )
    return Decision(claim.start, claim.end, Truth.FALSE, evidence=f"{equation} is false: {values}")


def _written(claim: Claim, text: str) -> str:
    """The claim as its step writes it; one that words make, as an equation."""
    if claim.start > claim.left.start:
        left = shown(text, claim.left.start, claim.left.end)
        return f"{left} = {shown(text, claim.right.start, claim.right.end)}"
    return shown(text, claim.start, claim.end)


def _doubt(claim: Claim, sides: Sides, equation: str, unit: Fraction) -> str:
    """Why an equality that does not hold may still be meant otherwise."""
    left, right = sides.left, sides.right
    assert left is not None
    assert right is not None
    units = claim.left.units + claim.right.units
    apart = abs(left - right)
    largest = max(abs(left), abs(right))
    if left == -right and any(_OPEN_SIGN.search(side.text) for side in (claim.left, claim.right)):
        return "only the sign differs"
    if apart < 1 and _may_be_rounded(claim, sides):
        return "a whole number may be rounded"
    if sides.irrational and apart * 50 < largest:
        return "it may be rounded"
    inexact = claim.approximate or left.denominator != 1 or right.denominator != 1 or "." in equation
    if inexact and apart <= 10 * unit and apart * (20 if claim.approximate else 100) < largest:
        return "it may be rounded"
    if inexact and apart * 10**9 < largest:
        return "it may be rounded"
    if claim.right.computed and apart <= _finest(claim) and apart * 100 < largest:
        return "its terms may be rounded"
    if _PERCENT_OFF.search(claim.left.text) or _PERCENT_OFF.search(claim.right.text):
        return "a percentage may be of what stands before it"
    if claim.relation == "≈" and claim.right.computed:
        return "a calculation that is near may be meant"
    if claim.right.computed and _runs_on(claim, left):
        return "its end may be the next calculation"
    if right and left:
        factor = max(left / right, right / left, key=abs)
        percent = "%" in equation or "percent" in equation
        if (percent and 99 < abs(factor) < 101) or (
            any(abs(factor - n) * 100 < n for n in (100, 10000)) and (units or "." in equation)
        ):
            return "it may be a percentage"
        if factor in _CONVERSIONS and units:
            return "units may change"
        if _is_power_of_ten(factor) and (units or factor >= 1000):
            return "units may change"
    if ("circ" in equation or "°" in equation) and "pi" in equation:
        return "degrees and radians stand in it"
    measures = [
        {m[1].lower() for u in side.units for m in _TIME_LENGTH.finditer(u)}
        for side in (claim.left, claim.right)
    ]
    if measures[0] and measures[1] and measures[0].isdisjoint(measures[1]):
        return "units may change"
    if claim.left.units and claim.right.units and _kinds(claim.left).isdisjoint(_kinds(claim.right)):
        return "its sides count different things"
    if right == 1 and len(units) > 1:
        return "a factor that converts units may be meant"
    if "%" in equation and _holds_without_percent(claim):
        return "it holds without the percent signs"
    if len(_terms_units(claim)) > 1 and re.search(r"[+\-–]", claim.left.text):
        return "units of its terms differ"
    return ""


def _finest(claim: Claim) -> Fraction:
    """The unit of the last of the decimal places that are written in a claim; 0 where there is none."""
    places = [len(d) for side in (claim.left, claim.right) for d in re.findall(r"\d*\.(\d+)", side.text)]
    return Fraction(1, 10 ** max(places)) if places else Fraction(0)


# "800 - 20%": of the 800.
_PERCENT_OFF = re.compile(r"(?<!%) [-+] [\d.]+ %(?! [*(])")
# A difference of two numbers, of which the size may be meant, or a sign that a power may take in.
_OPEN_SIGN = re.compile(r"\A[\d.]+ - [\d.]+\Z|- [\d.]+ \^")


def _may_be_rounded(claim: Claim, sides: Sides) -> bool:
    """Whether one side is a plain whole number near the other, or what a division without remainder leaves."""
    pairs = ((claim.left, sides.left, sides.right), (claim.right, sides.right, sides.left))
    for operand, whole, other in pairs:
        assert whole is not None
        assert other is not None
        if whole.denominator != 1 or other.denominator == 1:
            continue
        counterpart = claim.right if operand is claim.left else claim.left
        near = abs(whole - other) * 10 <= abs(other)
        if operand.computed:  # "7 + 9 + 1 = 17.50": its terms may be rounded.
            if near and "." not in operand.text and not counterpart.computed:
                return True
        elif near or QUOTIENT.match(counterpart.text):
            return True
    return False


def _congruence(claim: Claim, sides: Sides, text: str, moduli: Collection[int]) -> str:
    """Why a claim may be in doubt: a congruence may be meant, or what its reader found."""
    assert sides.left is not None
    assert sides.right is not None
    gap = sides.left - sides.right
    near = moduli_of(sentence_of(claim, text))
    if gap.denominator == 1 and any(gap.numerator % n == 0 for n in (*moduli, *near)):
        return claim.doubt or "a congruence may be meant"
    if near and gap.denominator == 1 and is_modular(claim.doubt):
        return ""  # Not even as a congruence does it hold.
    return claim.doubt


def _runs_on(claim: Claim, left: Fraction) -> bool:
    """Whether what stands behind the sign begins with the left value: ``5 + 3 = 8 * 2``."""
    head = re.match(r"[({ ]*([\d.]+)", claim.right.text)
    return (
        head is not None and head[1].strip(".") != "" and head[1].count(".") < 2 and Fraction(head[1]) == left
    )


# A number before a fraction: a mixed number, or a factor.
_MIXED = re.compile(r"(?<![\d.])(\d+) (\\frac (?:\{ \d+ \} \{ \d+ \}|\d\d?(?: \d)?(?![\d ]*\.))|\d+ / \d+)")


_LOST_EXPONENTS = re.compile(r"(?<![\d.])(\d)(\d)(?![\d.])")


def _other_reading(claim: Claim) -> str:
    """Why a claim that is false may be true where its numbers are read another way."""
    texts = [side.text for side in (claim.left, claim.right)]
    digits = {m[1] for text in texts for m in _LOST_EXPONENTS.finditer(text)}
    if len(digits) == 1 and digits.isdisjoint("01") and not re.search(r"[\^\\]", " ".join(texts)):
        try:
            sides = compare(*(parse(_LOST_EXPONENTS.sub(r"\1 ^ \2", text)) for text in texts))
        except Unreadable:
            return ""
        if sides.equal:
            return "its exponents may be lost: 23 for 2^3"
    if not any(_MIXED.search(text) for text in texts):
        return ""
    for mended in (r"\1 * \2", r"( \1 + \2 )"):
        try:
            sides = compare(*(parse(_MIXED.sub(mended, text)) for text in texts))
        except Unreadable:
            return "a number stands beside a fraction"
        if sides.equal is not False:
            return "a number beside a fraction may be a factor or a part of a mixed number"
    if any(len(_MIXED.findall(text)) and re.search(r"\} \\frac", text) for text in texts):
        return "a number stands beside two fractions"
    return ""


def _is_power_of_ten(value: Fraction) -> bool:
    return value.denominator == 1 and bool(re.fullmatch(r"10+", str(abs(value.numerator))[:40]))


_TIME_LENGTH = re.compile(
    r"\b(sec|second|min|minute|hour|hr|day|week|month|year|inch|inche|foot|feet|yard|mile|cm|mm|km|meter|metre|"
    r"centimeter|gram|kg|g|kilogram|pound|lb|ounce|oz|ton|cent|penny|pennies|nickel|dime|quarter|dollar|dozen|liter|"
    r"ml|gallon|quart|pint|cup)s?\b",
    re.I,
)


def _kinds(side: Operand) -> frozenset[str]:
    """Words behind the values of a side, without the ends that number gives them."""
    return frozenset(
        re.sub(r"(?:ies|es|s|y)\Z", "", w) for w in re.findall(r"[a-z]+", " ".join(side.units).lower())
    )


def _terms_units(claim: Claim) -> frozenset[str]:
    """Names of measures behind values of the claim."""
    units = " ".join((*claim.left.units, *claim.right.units))
    return frozenset(m[1].lower() for m in _TIME_LENGTH.finditer(units))


def _holds_without_percent(claim: Claim) -> bool:
    try:
        left, right = (parse(side.text.replace("%", "")) for side in (claim.left, claim.right))
        sides = compare(left, right)
    except Unreadable:
        return True
    if sides.left is None or sides.right is None:
        return True
    return abs(sides.left - sides.right) <= min(Fraction(1), max(last_place(left), last_place(right)))


def _shown(value: Fraction) -> str:
    if value.denominator == 1:
        return str(value.numerator) if value.numerator.bit_length() < 200 else "a long number"
    if value.denominator.bit_length() > 60:
        return f"about {float(value):.8g}" if abs(value.numerator).bit_length() < 900 else "a long fraction"
    return f"{value.numerator}/{value.denominator} = {float(value):.8g}"


def verify_step(
    text: str,
    before: Sequence[str] = (),
    *,
    problem: str = "",
    known: Mapping[str, Fraction] | None = None,
    moduli: Collection[int] = (),
) -> Verdict:
    """The verdict on one step: refuted by its first false claim.

    Args:
        text: The step.
        before: The steps before it: it may restate the value that the last one ends in.
        problem: The problem's text; one that defines an operation gives ``*`` another meaning.
        known: Values of letters, from the problem and the steps before.
        moduli: Numbers by which the problem and the steps before divide with remainder.
    """
    began = time.process_time()
    decisions: list[Decision] = []
    beyond = 0
    operation = _OPERATION.search(problem) is not None
    moduli = {*moduli, *moduli_of(text)}
    for claim in claims_of(text, every=True):
        if beyond >= MAX_BEYOND_LIMITS:
            break
        if claim.relation in ORDERS:
            made = decide_order(claim, text)
        elif not (claim.left.computed or claim.right.computed):
            made = decide_conversion(claim, text)
        elif claim.relation not in ("=", "≈"):
            continue
        else:
            made = decide(claim, text, moduli)
            if made.truth is Truth.OPEN and made.reason is Reason.UNSUPPORTED and known and not made.beyond:
                made = _with_values(claim, text, known) or made
            if operation and made.truth is Truth.FALSE:
                made = replace(made, truth=Truth.OPEN, reason=Reason.AMBIGUOUS)
        if made is not None:
            decisions.append(made)
            beyond += made.reason is Reason.UNSUPPORTED and made.beyond
    if not operation:
        decisions.extend(_restated(text, before[-1][-TAIL_CHARS:] if before else "", moduli))
    decisions = sorted([*decisions, *decide_named(text)], key=lambda d: d.start)
    return verdict_of(decisions, NAME, VERSION, began=began, nothing="no equality of numbers was read")


def _restated(text: str, before: str, moduli: Collection[int]) -> list[Decision]:
    """Decide what words restate; only what is false or true is kept, as the words may mean another thing."""
    joined, shift = f"{before}\n{text}", len(before) + 1
    found: list[Decision] = []
    for claim in claims_again(text, before):
        made = decide(claim, joined, moduli)
        if made.truth is Truth.TRUE or (made.truth is Truth.FALSE and not _is_share_of(claim)):
            found.append(replace(made, start=made.start - shift, end=made.end - shift))
    return found


def _is_share_of(claim: Claim) -> bool:
    """Whether words put an amount in the place of its share: ``1/5, which is 90/5``."""
    if not QUOTIENT.match(claim.left.text):
        return False
    try:
        share, amount = rational(parse(claim.left.text)), rational(parse(claim.right.text))
    except Unreadable:
        return True
    return share is not None and amount is not None and share < 1 < amount


def _with_values(claim: Claim, text: str, known: Mapping[str, Fraction]) -> Decision | None:
    """Support a claim whose letters have values. One that does not hold is left open: the letter may be used anew."""
    if claim.relation != "=" or claim.doubt or not claim.left.computed:
        return None
    equation = shown(text, claim.start, claim.end)
    try:
        left, right = (bound(parse(side.text), known) for side in (claim.left, claim.right))
        if left is None or right is None:
            return None
        values = rational(left), rational(right)
    except Unreadable:
        return None
    if None in values:
        return None
    if values[0] == values[1]:
        used = ", ".join(
            f"{n} = {v}"
            for n, v in known.items()
            if re.search(rf"(?<![a-zA-Z\\\\]){re.escape(n)}\\b", equation)
        )
        return Decision(claim.start, claim.end, Truth.TRUE, evidence=f"{equation} is true for {used}")
    return None


_OPERATION = re.compile(
    r"\b(?:operation|operator|defined?\s+(?:by|as|to)|defines?|symbol)\b|[a-z]\s*(?:\*|\\?ast|⋆|\\star|#|@)\s*[a-z]",
    re.I,
)


@register_verifier(NAME)
@dataclass(frozen=True, slots=True)
class Arithmetic:
    """The verifier ``arithmetic``: one verdict a step."""

    name: str = field(default=NAME, init=False)
    version: str = field(default=VERSION, init=False)

    async def verify(self, problem: Problem, steps: Sequence[str]) -> list[tuple[Verdict, ...]]:
        """One verdict a step, each with the span of the claim that it rests on."""
        values = Bindings()
        values.read(statements_of(problem.text))
        moduli = moduli_of(problem.text)
        found: list[tuple[Verdict, ...]] = []
        for index, text in enumerate(steps):
            verdict = verify_step(
                text, steps[:index], problem=problem.text, known=values.known, moduli=moduli
            )
            found.append((verdict,))
            values.read(statements_of(text))
            moduli |= moduli_of(text)
        return found
