"""What a comparison of two values found, and how findings about parts become one about the whole."""

from collections.abc import Iterable
from dataclasses import dataclass

from stepward.prm.types import Reason, VerdictKind


@dataclass(frozen=True, slots=True)
class Finding:
    """Equal, different, or not known and why.

    Attributes:
        kind: Supported for equal, refuted for different.
        reason: Why it is not known.
        why: A few words for a person.
    """

    kind: VerdictKind
    reason: Reason = Reason.NONE
    why: str = ""

    @property
    def equal(self) -> bool:
        """True where equality is established."""
        return self.kind is VerdictKind.SUPPORTED

    @property
    def different(self) -> bool:
        """True where a difference is established."""
        return self.kind is VerdictKind.REFUTED


EQUAL = Finding(VerdictKind.SUPPORTED, why="equal")
DIFFERENT = Finding(VerdictKind.REFUTED, why="different")


def equal(why: str) -> Finding:
    """Equal, for this reason."""
    return Finding(VerdictKind.SUPPORTED, why=why)


def different(why: str) -> Finding:
    """Different, for this reason."""
    return Finding(VerdictKind.REFUTED, why=why)


def ambiguous(why: str) -> Finding:
    """Both readings are sound: the text does not say which is meant."""
    return Finding(VerdictKind.UNKNOWN, Reason.AMBIGUOUS, why)


def unsupported(why: str) -> Finding:
    """Beyond what exact comparison decides."""
    return Finding(VerdictKind.UNKNOWN, Reason.UNSUPPORTED, why)


def every(findings: Iterable[Finding]) -> Finding:
    """Equal where all parts are; different as soon as one is; else the first that is not known."""
    open_part: Finding | None = None
    for finding in findings:
        if finding.different:
            return finding
        if not finding.equal and open_part is None:
            open_part = finding
    return open_part or EQUAL


def some(findings: Iterable[Finding]) -> Finding:
    """Equal as soon as one reading is; different where all are; else the first that is not known."""
    open_part: Finding | None = None
    last = DIFFERENT
    for finding in findings:
        if finding.equal:
            return finding
        if not finding.different and open_part is None:
            open_part = finding
        last = finding
    return open_part or last
