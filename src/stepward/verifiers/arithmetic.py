"""The step verifier ``arithmetic``: equalities that a step states, decided by exact arithmetic.

Supported means that all claims that were read are true, never that the step is right: most wrong steps hold true
arithmetic and a wrong set-up. Refuted means that an equality of plain numbers is false in every reading that the
text allows. Where a reading is open the verdict is unknown, with the reason.
"""

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from fractions import Fraction

from stepward.prm.types import Problem, Reason, Verdict, VerdictKind
from stepward.verifiers.answers.expressions import Unreadable
from stepward.verifiers.base import register_verifier, unknown
from stepward.verifiers.claims.exact import Sides, compare, last_place, parse
from stepward.verifiers.claims.reading import Claim, claims_of

NAME = "arithmetic"
VERSION = "1"

_EVIDENCE_CHARS = 300
MAX_BEYOND_LIMITS = 5
"""Claims of one step that may meet a bound before the rest of the step is left undecided."""
# Quotients of two units of one kind, or of a percentage and a share.
_CONVERSIONS = frozenset(
    Fraction(n) for n in (7, 12, 16, 24, 28, 30, 31, 36, 52, 60, 360, 365, 1440, 1760, 3600, 5280, 86400)
)


class Truth(Enum):
    """What is known of one claim."""

    TRUE = "true"
    FALSE = "false"
    OPEN = "open"


@dataclass(frozen=True, slots=True)
class Decision:
    """One claim, decided or not.

    Attributes:
        claim: The claim.
        truth: What is known of it.
        reason: Why it is open.
        evidence: The equation and the right value, or why it is open.
        beyond: True where a bound on the work was met.
    """

    claim: Claim
    truth: Truth
    reason: Reason = Reason.NONE
    evidence: str = ""
    beyond: bool = False


def decide(claim: Claim, text: str) -> Decision:
    """Decide one claim of a step.

    Args:
        claim: From ``claims_of(text)``.
        text: The step.
    """
    equation = " ".join(text[claim.start : claim.end].replace("\x00", " ").split())[:_EVIDENCE_CHARS]
    try:
        left, right = parse(claim.left.text), parse(claim.right.text)
        sides = compare(left, right)
    except Unreadable as fault:
        reason = Reason.UNSUPPORTED if fault.over_limit else Reason.PARSE
        return Decision(claim, Truth.OPEN, reason, str(fault), beyond=fault.over_limit)
    if sides.equal:
        return Decision(claim, Truth.TRUE, evidence=f"{equation} is true")
    if sides.symbolic and sides.equal is False and _is_identity(claim, sides):
        if claim.doubt:
            return Decision(claim, Truth.OPEN, Reason.AMBIGUOUS, f"{equation}: {claim.doubt}")
        return Decision(claim, Truth.FALSE, evidence=f"{equation} is false: the two polynomials differ")
    if sides.symbolic or sides.left is None or sides.right is None:
        return Decision(claim, Truth.OPEN, Reason.UNSUPPORTED, f"{equation}: not plain numbers")
    unit = max(last_place(left), last_place(right))
    if (unit < 1 or claim.approximate) and abs(sides.left - sides.right) <= max(unit, Fraction(0)):
        return Decision(claim, Truth.TRUE, evidence=f"{equation} is true to the stated precision")
    doubt = claim.doubt or _doubt(claim, sides, equation, unit)
    shown = f"{claim.left.text} is {_shown(sides.left)}"
    if claim.right.computed:
        shown += f" and {claim.right.text} is {_shown(sides.right)}"
    if doubt:
        return Decision(claim, Truth.OPEN, Reason.AMBIGUOUS, f"{equation}: {shown}, but {doubt}")
    return Decision(claim, Truth.FALSE, evidence=f"{equation} is false: {shown}")


def _is_identity(claim: Claim, sides: Sides) -> bool:
    """Whether a false equality of polynomials is claimed for every value of its unknowns.

    In a chain ``a = b = c`` whose later parts hold the same names, the steps are rewritings. A condition on the
    unknowns may be used in between; with several unknowns that is usual, so that the difference must be one term.
    """
    if not (claim.chained and claim.left.computed and claim.right.computed and sides.unknowns):
        return False
    if _APPLIED.search(claim.left.text) or _APPLIED.search(claim.right.text):
        return False
    named = sides.unknowns - {"i", "pi"}
    return sides.lone_term or (len(named) <= 1 and named.isdisjoint(_BOUND_BY_HABIT))


# Letters that usually name a function, and letters that usually stand for one number with an equation of its own.
_APPLIED = re.compile(r"[fghpqFGHPQTS] (?:\^ \{? ?[-\d ]+\}? ?)?\(")
_BOUND_BY_HABIT = frozenset({"\\omega", "\\zeta", "\\phi", "\\alpha", "\\varphi", "ω", "ζ", "φ", "e"})


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
    return _joined(decisions, began)


def _joined(decisions: Sequence[Decision], began: float) -> Verdict:
    false = next((d for d in decisions if d.truth is Truth.FALSE), None)
    if false is not None:
        span = (false.claim.start, false.claim.end)
        return Verdict(VerdictKind.REFUTED, NAME, VERSION, evidence=false.evidence, span=span,
                       seconds=time.process_time() - began)  # fmt: skip
    seconds = time.process_time() - began
    doubtful = next((d for d in decisions if d.reason is Reason.AMBIGUOUS), None)
    if doubtful is not None:
        span = (doubtful.claim.start, doubtful.claim.end)
        return unknown(NAME, VERSION, Reason.AMBIGUOUS, doubtful.evidence, span=span, seconds=seconds)
    true = [d for d in decisions if d.truth is Truth.TRUE]
    if true:
        evidence = "; ".join(d.evidence for d in true[:3])
        more = f"; {len(true) - 3} more" if len(true) > 3 else ""
        left_out = len(decisions) - len(true)
        note = f" ({left_out} not decided)" if left_out else ""
        span = (true[0].claim.start, true[-1].claim.end)
        return Verdict(VerdictKind.SUPPORTED, NAME, VERSION, evidence=evidence + more + note, span=span,
                       seconds=seconds)  # fmt: skip
    if decisions:
        first = decisions[0]
        span = (first.claim.start, first.claim.end)
        return unknown(NAME, VERSION, first.reason, first.evidence, span=span, seconds=seconds)
    return unknown(NAME, VERSION, Reason.NO_CLAIM, "no equality of numbers was read", seconds=seconds)


@register_verifier(NAME)
@dataclass(frozen=True, slots=True)
class Arithmetic:
    """The verifier ``arithmetic``: one verdict a step."""

    name: str = field(default=NAME, init=False)
    version: str = field(default=VERSION, init=False)

    async def verify(self, problem: Problem, steps: Sequence[str]) -> list[tuple[Verdict, ...]]:
        """One verdict a step, each with the span of the claim that it rests on."""
        return [(verify_step(text),) for text in steps]
