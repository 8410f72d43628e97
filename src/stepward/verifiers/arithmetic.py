"""The step verifier ``arithmetic``: equalities that a step states, decided by exact arithmetic.

Supported means that all claims that were read are true, never that the step is right: most wrong steps hold true
arithmetic and a wrong set-up. Refuted means that an equality of plain numbers is false in every reading that the
text allows. Where a reading is open the verdict is unknown, with the reason.
"""

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from stepward.prm.types import Problem, Reason, Verdict
from stepward.verifiers.answers.expressions import Unreadable
from stepward.verifiers.base import register_verifier
from stepward.verifiers.claims.decisions import MAX_BEYOND_LIMITS, Decision, Truth, shown, verdict_of
from stepward.verifiers.claims.exact import Sides, compare, last_place, parse
from stepward.verifiers.claims.reading import Claim, claims_of

NAME = "arithmetic"
VERSION = "1"

# Quotients of two units of one kind, or of a percentage and a share.
_CONVERSIONS = frozenset(
    Fraction(n) for n in (7, 12, 16, 24, 28, 30, 31, 36, 52, 60, 360, 365, 1440, 1760, 3600, 5280, 86400)
)


def decide(claim: Claim, text: str) -> Decision:
    """Decide one claim of a step.

    Args:
        claim: From ``claims_of(text)``.
        text: The step.
    """
    equation = shown(text, claim.start, claim.end)
    try:
        left, right = parse(claim.left.text), parse(claim.right.text)
        sides = compare(left, right)
    except Unreadable as fault:
        reason = Reason.UNSUPPORTED if fault.over_limit else Reason.PARSE
        return Decision(claim.start, claim.end, Truth.OPEN, reason, str(fault), beyond=fault.over_limit)
    if sides.equal:
        return Decision(claim.start, claim.end, Truth.TRUE, evidence=f"{equation} is true")
    if sides.symbolic or sides.left is None or sides.right is None:
        return Decision(claim.start, claim.end, Truth.OPEN, Reason.UNSUPPORTED, f"{equation}: not plain numbers")
    unit = max(last_place(left), last_place(right))
    if (unit < 1 or claim.approximate) and abs(sides.left - sides.right) <= max(unit, Fraction(0)):
        return Decision(claim.start, claim.end, Truth.TRUE, evidence=f"{equation} is true to the stated precision")
    doubt = claim.doubt or _doubt(claim, sides, equation, unit) or _other_reading(claim)
    values = f"{claim.left.text} is {_shown(sides.left)}"
    if claim.right.computed:
        values += f" and {claim.right.text} is {_shown(sides.right)}"
    if doubt:
        return Decision(claim.start, claim.end, Truth.OPEN, Reason.AMBIGUOUS, f"{equation}: {values}, but {doubt}")
    return Decision(claim.start, claim.end, Truth.FALSE, evidence=f"{equation} is false: {values}")


def _doubt(claim: Claim, sides: Sides, equation: str, unit: Fraction) -> str:
    """Why an equality that does not hold may still be meant otherwise."""
    left, right = sides.left, sides.right
    assert left is not None
    assert right is not None
    units = claim.left.units + claim.right.units
    apart = abs(left - right)
    largest = max(abs(left), abs(right))
    if left == -right:
        return "only the sign differs"
    if apart < 1 and (left.denominator != 1) != (right.denominator != 1):
        return "a whole number may be rounded"
    if sides.irrational and apart * 50 < largest:
        return "it may be rounded"
    inexact = claim.approximate or left.denominator != 1 or right.denominator != 1 or "." in equation
    if inexact and apart <= 10 * unit and apart * (20 if claim.approximate else 100) < largest:
        return "it may be rounded"
    if claim.relation == "≈" and claim.right.computed:
        return "a calculation that is near may be meant"
    if claim.right.computed and _runs_on(claim, left):
        return "its end may be the next calculation"
    if right and left:
        factor = max(left / right, right / left, key=abs)
        percent = "%" in equation or "percent" in equation
        if (percent and 99 < abs(factor) < 101) or (factor in (100, 10000) and (units or "." in equation)):
            return "it may be a percentage"
        if factor in _CONVERSIONS and units:
            return "units may change"
        if _is_power_of_ten(factor) and (units or factor >= 1000):
            return "units may change"
    if ("circ" in equation or "°" in equation) and "pi" in equation:
        return "degrees and radians stand in it"
    if "%" in equation and _holds_without_percent(claim):
        return "it holds without the percent signs"
    if len(_terms_units(claim)) > 1 and re.search(r"[+\-–]", claim.left.text):
        return "units of its terms differ"
    return ""


def _runs_on(claim: Claim, left: Fraction) -> bool:
    """Whether what stands behind the sign begins with the left value: ``5 + 3 = 8 * 2``."""
    head = re.match(r"[({ ]*([\d.]+)", claim.right.text)
    return (
        head is not None and head[1].strip(".") != "" and head[1].count(".") < 2 and Fraction(head[1]) == left
    )


# A number before a fraction: a mixed number, or a factor.
_MIXED = re.compile(r"(?<![\d.]) ?(\d+) (?=\\frac|\d+ / \d)")


def _other_reading(claim: Claim) -> str:
    """Why a claim that is false may be true where numbers beside fractions are read the other way."""
    texts = [side.text for side in (claim.left, claim.right)]
    if not any(_MIXED.search(text) for text in texts):
        return ""
    for mended in (r" \1 * ", r" \1 + "):
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


def verify_step(text: str) -> Verdict:
    """The verdict on one step by itself: refuted by its first false claim."""
    began = time.process_time()
    decisions: list[Decision] = []
    beyond = 0
    for claim in claims_of(text):
        if beyond >= MAX_BEYOND_LIMITS:
            break
        decisions.append(decide(claim, text))
        beyond += decisions[-1].reason is Reason.UNSUPPORTED and decisions[-1].beyond
    return verdict_of(decisions, NAME, VERSION, began=began, nothing="no equality of numbers was read")


@register_verifier(NAME)
@dataclass(frozen=True, slots=True)
class Arithmetic:
    """The verifier ``arithmetic``: one verdict a step."""

    name: str = field(default=NAME, init=False)
    version: str = field(default=VERSION, init=False)

    async def verify(self, problem: Problem, steps: Sequence[str]) -> list[tuple[Verdict, ...]]:
        """One verdict a step, each with the span of the claim that it rests on."""
        return [(verify_step(text),) for text in steps]
