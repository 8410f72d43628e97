"""Units of answers: which words are units, and exact factors between those of one dimension."""

import re
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

# Unit -> (factor to the base unit, dimension). Words that are in no row are labels ("apples"): they name what is
# counted and are not converted.
_ROWS: dict[str, tuple[str, dict[str, str]]] = {
    "length": ("m", {
        "m meter metre": "1", "km kilometer kilometre": "1000", "cm centimeter centimetre": "1/100",
        "mm millimeter millimetre": "1/1000", "nm nanometer nanometre": "1/1000000000", "inch": "127/5000",
        "ft foot feet": "381/1250", "yd yard": "1143/1250", "mi mile": "201168/125",
    }),
    "mass": ("g", {
        "g gram": "1", "kg kilogram kilo": "1000", "mg milligram": "1/1000", "lb lbs pound": "45359237/100000",
        "oz ounce": "45359237/1600000", "ton tonne": "1000000",
    }),
    "time": ("s", {
        "s sec second": "1", "min mins minute": "60", "h hr hrs hour": "3600", "day": "86400", "week": "604800",
        "ms millisecond": "1/1000",
    }),
    "calendar": ("month", {"month": "1", "yr yrs year": "12", "decade": "120", "century centuries": "1200"}),
    "volume": ("L", {
        "l liter litre": "1", "ml milliliter millilitre": "1/1000", "gal gallon": "473176473/125000000",
        "cup": "473176473/2000000000", "pint": "473176473/1000000000", "quart qt": "473176473/500000000",
    }),
    "money": ("dollar", {"dollar usd buck $": "1", "cent ¢": "1/100", "dime": "1/10"}),
    "euro": ("euro", {"euro eur €": "1"}),
    "sterling": ("sterling", {"sterling gbp £": "1"}),
    "share": ("one", {"% percent pct percentage percents": "1/100"}),
    "angle": ("degree", {"degree deg degrees °": "1"}),
    "speed": ("m/s", {"mph": "201168/450000", "kph": "5/18", "fps": "381/1250"}),
    "plain": ("unit", {"unit": "1"}),
}  # fmt: skip

_UNITS: dict[str, tuple[Fraction, str]] = {
    word: (Fraction(factor), dimension)
    for dimension, (_, rows) in _ROWS.items()
    for words, factor in rows.items()
    for word in words.split()
}
UNIT_LETTERS = frozenset("mgshlLNJWVAKCF")
_SINGLE_LETTERS = frozenset("mgshlL")
_POWER_WORDS = {"square": 2, "sq": 2, "squared": 2, "cubic": 3, "cubed": 3, "cu": 3}
_WORD = re.compile(r"[^\W\d_]+|[%$€£¢°]|\^\s*\{?\s*(-?\d)\s*\}?|/|²|³")
_VOWEL = re.compile(r"[aeiouyAEIOUY]")


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit in base units.

    Attributes:
        factor: What one of it is in base units.
        dimensions: Sorted (dimension, power) pairs; empty for a label.
        label: Words that are no known unit, in the singular, sorted.
        plain: The power of "units", which name no scale; 0 where they are not named.
    """

    factor: Fraction = Fraction(1)
    dimensions: tuple[tuple[str, int], ...] = ()
    label: tuple[str, ...] = ()
    plain: int = 0

    @property
    def known(self) -> bool:
        """True where values in it can be converted."""
        return bool(self.dimensions) and not self.label


def _lookup(word: str) -> tuple[Fraction, str] | None:
    for form in (word, word.lower()):
        if form in _UNITS:
            return _UNITS[form]
    lower = word.lower()
    for ending, stem in (("ies", "y"), ("es", ""), ("s", "")):
        if len(lower) > len(ending) + 1 and lower.endswith(ending):
            found = _UNITS.get(lower[: -len(ending)] + stem)
            if found:
                return found
    return None


def is_unit_word(word: str, *, spaced: bool) -> bool:
    """Whether a bare word behind a value is a unit or a label rather than a product of variables."""
    if len(word) < 2:
        return False
    if _lookup(word) or word.lower() in _POWER_WORDS or word.lower() == "per":
        return (
            spaced
            or len(word) > 2
            or word in ("cm", "mm", "km", "kg", "mg", "ml", "mL", "ft", "hr", "lb", "oz")
        )
    return len(word) >= (3 if spaced else 5) and bool(_VOWEL.search(word))


def is_unit_letter(letter: str) -> bool:
    """Whether one letter may be a unit: ``5 m``."""
    return letter in _SINGLE_LETTERS


@lru_cache(maxsize=4096)
def read_unit(text: str) -> Unit:
    """Read the words behind a value: ``cm^2``, ``square feet``, ``miles per hour``, ``apples``."""
    factor = Fraction(1)
    dimensions: dict[str, int] = {}
    labels: list[str] = []
    sign, prefix = 1, 1
    last: tuple[Fraction, str] | None = None
    for match in _WORD.finditer(text[:200]):
        word = match.group()
        power = (
            int(match.group(1))
            if match.group(1)
            else {"²": 2, "³": 3}.get(word, _POWER_WORDS.get(word.lower(), 0))
        )
        if power and word.lower() in ("square", "sq", "cubic", "cu"):
            prefix = power
        elif power:
            if last:
                factor *= last[0] ** (sign * (power - 1))
                dimensions[last[1]] += sign * (power - 1)
        elif word == "/" or word.lower() == "per":
            sign = -1
        elif found := _lookup(word):
            last = found
            factor *= found[0] ** (sign * prefix)
            dimensions[found[1]] = dimensions.get(found[1], 0) + sign * prefix
            prefix = 1
        elif word.lower() not in (
            "of",
            "the",
            "a",
            "an",
            "in",
            "are",
            "is",
            "each",
            "more",
            "total",
            "old",
            "long",
        ):
            labels.append(word.lower().removesuffix("s"))
    if prefix != 1:
        dimensions["plain"] = prefix
    if dimensions.get("plain"):
        # "square units" names no scale: it fits every unit of that power and converts to none.
        return Unit(plain=dimensions["plain"])
    return Unit(factor, tuple(sorted((d, p) for d, p in dimensions.items() if p)), tuple(sorted(labels)))


def factors_of(dimension: str) -> frozenset[Fraction]:
    """Factors of all units of a dimension."""
    return frozenset(factor for factor, other in _UNITS.values() if other == dimension)
