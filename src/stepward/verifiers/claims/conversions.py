"""Conversions of units: ``2 hours = 120 minutes``. Units and factors are pint's; lengths are never refuted (a map's
scale says ``1 inch = 5 miles``), and units of different kinds are left open."""

import re
from fractions import Fraction
from functools import lru_cache
from typing import Any

from stepward.prm.types import Reason
from stepward.verifiers.answers.expressions import Unreadable
from stepward.verifiers.claims.decisions import Decision, Truth, shown
from stepward.verifiers.claims.exact import parse, rational
from stepward.verifiers.claims.reading import Claim, not_stated

_SHARE = Fraction(1, 20)
_UNITS = {
    word: unit
    for unit, words in {
        "second": "second seconds sec secs", "minute": "minute minutes min mins", "hour": "hour hours hr hrs",
        "day": "day days", "week": "week weeks", "meter": "meter meters metre metres m", "kilometer":
        "kilometer kilometers kilometre kilometres km", "centimeter": "centimeter centimeters cm", "millimeter":
        "millimeter millimeters mm", "inch": "inch inches", "foot": "foot feet ft", "yard": "yard yards yd", "mile":
        "mile miles", "gram": "gram grams g", "kilogram": "kilogram kilograms kg", "milligram":
        "milligram milligrams mg",
        "pound": "pound pounds lb lbs", "liter": "liter liters litre litres", "milliliter":
        "milliliter milliliters ml mL", "gallon": "gallon gallons", "quart": "quart quarts", "pint": "pint pints",
    }.items()
    for word in words.split()
}  # fmt: skip
_SCALED = re.compile(r"\b(?:scale|map|model|drawing|every|each|per|rate|weighs?|takes?|costs?|worth)\b", re.I)


def decide_conversion(claim: Claim, text: str) -> Decision | None:
    """Decide a number of one unit that is said to be a number of another; None where it is no such claim."""
    if claim.relation != "=" or len(claim.left.units) != 1 or len(claim.right.units) != 1:
        return None
    names = [_UNITS.get(side.units[0]) for side in (claim.left, claim.right)]
    if None in names or names[0] == names[1] or claim.left.computed or claim.right.computed:
        return None
    try:
        left, right = rational(parse(claim.left.text)), rational(parse(claim.right.text))
    except Unreadable:
        return None
    if not left or not right:
        return None
    claimed = shown(text, claim.start, claim.end)
    factor = _factor(str(names[0]), str(names[1]))
    if factor is None:
        return Decision(
            claim.start, claim.end, Truth.OPEN, Reason.AMBIGUOUS, f"{claimed}: units of two kinds"
        )
    ratio = right / (left * factor)
    if abs(ratio - 1) <= Fraction(1, 100):
        return Decision(claim.start, claim.end, Truth.TRUE, evidence=f"{claimed} is true")
    value = f"{float(left):g} {names[0]} is {float(left * factor):g} {names[1]}"
    loose = abs(ratio - 1) <= _SHARE or _is_length(str(names[0])) or _SCALED.search(text)
    loose = loose or (claim.doubt and "belong to a name" not in claim.doubt)
    if loose or not_stated(text, claim.start, claim.end):
        return Decision(claim.start, claim.end, Truth.OPEN, Reason.AMBIGUOUS, f"{claimed}: {value}")
    return Decision(claim.start, claim.end, Truth.FALSE, evidence=f"{claimed} is false: {value}")


@lru_cache(maxsize=1)
def _registry() -> Any:
    import pint

    registry: Any = pint.UnitRegistry
    return registry(non_int_type=Fraction)


@lru_cache(maxsize=1024)
def _factor(one: str, other: str) -> Fraction | None:
    """How many of the other unit one is; None where their kinds differ."""
    units = _registry()
    if units.Unit(one).dimensionality != units.Unit(other).dimensionality:
        return None
    return Fraction(units.Quantity(Fraction(1), one).to(other).magnitude)


@lru_cache(maxsize=1024)
def _is_length(one: str) -> bool:
    return bool(_registry().Unit(one).dimensionality == {"[length]": 1})
