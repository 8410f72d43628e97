"""When a judge must stay silent: a confidence that was calibrated on labelled steps.

The threshold is the lowest at which the error among kept verdicts of a calibration slice, with the finite-sample
correction (errors + 1) / (kept + 1), is at most alpha. The added one is the verdict to come, taken as kept and
wrong, as in conformal risk control (Angelopoulos et al. 2024) for the loss kept * (wrong - alpha).
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from stepward.prm.types import VerdictKind


@dataclass(frozen=True, slots=True)
class Calibrated:
    """Confidences below which a judge abstains.

    Attributes:
        supported: Least confidence for ``SUPPORTED``; infinity where none is high enough.
        refuted: The same for ``REFUTED``: wrong steps are rare, so the two are calibrated apart.
        alpha: The error among kept verdicts that was asked for; None where the thresholds were set by hand.
        num_supported: Labelled steps with a majority for "correct" in the calibration slice.
        num_refuted: The same for "incorrect".
    """

    supported: float
    refuted: float
    alpha: float | None = None
    num_supported: int = 0
    num_refuted: int = 0

    def threshold(self, kind: VerdictKind) -> float:
        """The threshold for a kind of verdict; infinity for ``UNKNOWN``."""
        if kind is VerdictKind.SUPPORTED:
            return self.supported
        return self.refuted if kind is VerdictKind.REFUTED else math.inf


MAJORITY = Calibrated(supported=math.nextafter(0.5, 1.0), refuted=math.nextafter(0.5, 1.0))
"""More than half of the samples; nothing is promised of the error."""


def conformal_threshold(confidences: Sequence[float], right: Sequence[bool], alpha: float) -> float:
    """The lowest threshold with (errors + 1) / (kept + 1) <= alpha among verdicts at or above it.

    Thresholds are tried from the highest confidence down, those with fewer than ``1 / alpha - 1`` kept verdicts
    skipped (no number of right ones could satisfy the bound), and the first that fails ends the search.

    Args:
        confidences: Of the calibration verdicts, any scale where higher is surer.
        right: Whether each verdict was right.
        alpha: Error among kept verdicts, in (0, 1).

    Returns:
        The threshold, or infinity where none satisfies the bound. For a verdict exchangeable with the slice the
        probability of being wrong, given that it is kept, is then about alpha or less on average over slices.

    Raises:
        ValueError: The lengths differ, a confidence is not finite, or alpha is out of range.
    """
    if len(confidences) != len(right):
        raise ValueError(
            f"{len(confidences)} confidences and {len(right)} outcomes; give one outcome a confidence"
        )
    if not 0 < alpha < 1:
        raise ValueError(f"alpha {alpha} must lie in (0, 1)")
    if not all(map(math.isfinite, confidences)):
        raise ValueError("a confidence is not finite; leave such verdicts out of the calibration slice")
    ranked = sorted(zip(confidences, right, strict=True), key=lambda pair: -pair[0])
    best, kept, errors = math.inf, 0, 0
    for position, (confidence, was_right) in enumerate(ranked):
        kept += 1
        errors += not was_right
        if position + 1 < len(ranked) and ranked[position + 1][0] == confidence:
            continue  # a threshold keeps all verdicts of equal confidence
        if alpha * (kept + 1) < 1:
            continue
        if errors + 1 > alpha * (kept + 1):
            break
        best = confidence
    return best


def calibrate(
    verdicts: Iterable[tuple[VerdictKind, float]], labels: Iterable[int | None], alpha: float
) -> Calibrated:
    """Thresholds from majority verdicts on labelled steps.

    Args:
        verdicts: Kind and confidence of the majority on each step; ``UNKNOWN`` where there is none.
        labels: 1 right, 0 wrong, None not known, in the same order.
        alpha: Error among kept verdicts, in (0, 1), for each kind.

    Raises:
        ValueError: See ``conformal_threshold``; or the lengths differ.
    """
    slices: dict[VerdictKind, tuple[list[float], list[bool]]] = {
        VerdictKind.SUPPORTED: ([], []),
        VerdictKind.REFUTED: ([], []),
    }
    for (kind, confidence), label in zip(verdicts, labels, strict=True):
        if label is None or kind not in slices:
            continue
        confidences, right = slices[kind]
        confidences.append(confidence)
        right.append((kind is VerdictKind.SUPPORTED) == (label == 1))
    supported, refuted = slices[VerdictKind.SUPPORTED], slices[VerdictKind.REFUTED]
    return Calibrated(
        supported=conformal_threshold(*supported, alpha),
        refuted=conformal_threshold(*refuted, alpha),
        alpha=alpha,
        num_supported=len(supported[0]),
        num_refuted=len(refuted[0]),
    )
