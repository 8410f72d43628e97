"""What is known of one claim, and how the claims of a step become its verdict."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from stepward.prm.types import Reason, Verdict, VerdictKind
from stepward.verifiers.base import unknown

EVIDENCE_CHARS = 300
MAX_BEYOND_LIMITS = 5
"""Claims of one step that may meet a bound before the rest of the step is left undecided."""


class Truth(Enum):
    """What is known of one claim."""

    TRUE = "true"
    FALSE = "false"
    OPEN = "open"


@dataclass(frozen=True, slots=True)
class Decision:
    """One claim, decided or not.

    Attributes:
        start: First character of the claim in the step.
        end: Character behind its last.
        truth: What is known of it.
        reason: Why it is open.
        evidence: The claim and the right value, or why it is open.
        beyond: True where a bound on the work was met.
    """

    start: int
    end: int
    truth: Truth
    reason: Reason = Reason.NONE
    evidence: str = ""
    beyond: bool = False


def shown(text: str, start: int, end: int) -> str:
    """A part of a step as evidence shows it: on one line, bounded."""
    return " ".join(text[start:end].replace("\x00", " ").split())[:EVIDENCE_CHARS]


def verdict_of(
    decisions: Sequence[Decision], name: str, version: str, *, began: float, nothing: str
) -> Verdict:
    """The verdict on a step: refuted by its first false claim, supported where some are true and none in doubt.

    Args:
        decisions: On the step's claims, in order.
        name: The verifier.
        version: Its version.
        began: ``time.process_time()`` when its work began.
        nothing: What to say where there is no claim at all.
    """
    seconds = time.process_time() - began
    false = next((d for d in decisions if d.truth is Truth.FALSE), None)
    if false is not None:
        span = (false.start, false.end)
        return Verdict(
            VerdictKind.REFUTED, name, version, evidence=false.evidence, span=span, seconds=seconds
        )
    doubtful = next((d for d in decisions if d.reason is Reason.AMBIGUOUS), None)
    if doubtful is not None:
        span = (doubtful.start, doubtful.end)
        return unknown(name, version, Reason.AMBIGUOUS, doubtful.evidence, span=span, seconds=seconds)
    true = [d for d in decisions if d.truth is Truth.TRUE]
    if true:
        evidence = "; ".join(d.evidence for d in true[:3])
        more = f"; {len(true) - 3} more" if len(true) > 3 else ""
        left_out = len(decisions) - len(true)
        note = f" ({left_out} not decided)" if left_out else ""
        span = (true[0].start, true[-1].end)
        return Verdict(VerdictKind.SUPPORTED, name, version, evidence=evidence + more + note, span=span,
                       seconds=seconds)  # fmt: skip
    if decisions:
        first = decisions[0]
        span = (first.start, first.end)
        return unknown(name, version, first.reason, first.evidence, span=span, seconds=seconds)
    return unknown(name, version, Reason.NO_CLAIM, nothing, seconds=seconds)
