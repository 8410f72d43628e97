r"""The quick path: plain numerals (``72``, ``-1,200``, ``3.50``, ``\$18``, ``3/4``, ``45\%``) decided in microseconds.

Most answers are whole numbers; they never reach the parser.
"""

import re
from dataclasses import dataclass
from fractions import Fraction

_INTEGER = re.compile(r"-?[0-9]{1,18}\Z")
_PLAIN = re.compile(
    r"\s*(?P<sign>[-−+])?\s*(?P<money>\\?\$)?\s*(?P<sign2>[-−])?"
    r"(?P<whole>\d{1,3}(?:(?:,|\{,\}|,\\!)\d{3})+|\d{1,200})?(?P<places>\.\d{0,200})?"
    r"\s*(?P<percent>\\?%)?\s*\.?\s*\Z"
)
_FRACTION = re.compile(
    r"\s*(?P<sign>-)?\s*(?:\\[dtc]?frac\s*\{\s*(?P<a>-?\d{1,60})\s*\}\s*\{\s*(?P<b>\d{1,60})\s*\}|(?P<c>\d{1,60})\s*/\s*(?P<d>\d{1,60}))\s*\Z"
)


@dataclass(frozen=True, slots=True)
class Numeral:
    """A plain number.

    Attributes:
        value: Exactly what is written, percent not applied.
        decimals: Places behind the point, None for an integer or a fraction.
        percent: True with a percent sign.
        fraction: True for ``a/b``.
    """

    value: Fraction
    decimals: int | None = None
    percent: bool = False
    fraction: bool = False


def integer(text: str) -> int | None:
    """The value of a bare integer of at most 18 digits."""
    return int(text) if _INTEGER.match(text) else None


def numeral(text: str) -> Numeral | None:
    """The value of a plain number; None where more than that is written."""
    if len(text) > 220:
        return None
    if match := _PLAIN.match(text):
        whole, places = match["whole"] or "", (match["places"] or "")[1:]
        if not whole and not places:
            return None
        digits = re.sub(r"\D", "", whole)
        value = Fraction(int(digits + places), 10 ** len(places)) if places else Fraction(int(digits))
        if (match["sign"] in ("-", "−")) != (match["sign2"] is not None):
            value = -value
        return Numeral(value, len(places) or None, match["percent"] is not None)
    if match := _FRACTION.match(text):
        above, below = int(match["a"] or match["c"]), int(match["b"] or match["d"])
        if below:
            value = Fraction(above, below)
            return Numeral(-value if match["sign"] else value, fraction=True)
    return None
