"""The threshold that turns step scores into a first error: chosen exactly, on a named split, and frozen.

A step is called wrong where its score lies strictly below the threshold; the prediction is the first such step,
or none. For an erroneous item with first error e the prediction is right exactly where
``score[e] < threshold <= min(score[:e])``, for a correct item where ``threshold <= min(score)``. So F1 as a
function of the threshold is a step function whose steps are known, and its maximum is found by one sweep over
them, not by trying a grid.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from stepward.prm.evaluation.errors import EmptySideError, StepCountError
from stepward.prm.evaluation.items import check_row


@dataclass(frozen=True, slots=True)
class Threshold:
    """A frozen threshold and where it comes from.

    Attributes:
        value: A step with a score below it is called wrong.
        source: Name of the split it was chosen on, or what else fixed it (such as ``fixed``).
        f1: F1 there, in sample, or None where it was not chosen by F1.
        num_error: Erroneous items there.
        num_correct: Correct items there.
        problems: The problems that were seen (see ``Item.cluster``): evaluation refuses them.
    """

    value: float
    source: str
    f1: float | None = None
    num_error: int = 0
    num_correct: int = 0
    problems: frozenset[str] = field(default=frozenset(), repr=False)


def first_below(scores: Sequence[float], threshold: float) -> int | None:
    """Index of the first score strictly below the threshold, or None."""
    return next((i for i, score in enumerate(scores) if score < threshold), None)


def harmonic_mean(a: float, b: float) -> float:
    """2ab / (a + b); 0 where both are 0."""
    return 2 * a * b / (a + b) if a + b > 0 else 0.0


def choose_threshold(
    scores: Sequence[Sequence[float]],
    labels: Sequence[int | None],
    *,
    source: str = "dev",
    problems: Sequence[str] = (),
) -> Threshold:
    """The threshold of greatest ProcessBench F1 on a split that is not reported.

    All thresholds are compared, exactly. Where an interval of thresholds is best its midpoint is taken (scores
    .4 wrong and .6 right give .5); of several best intervals the widest, then the lowest.

    Args:
        scores: P(step is right) of each solution's steps, or up to the first error.
        labels: First error of each solution, 0-based, None = no wrong step.
        source: Name of the split, kept with the threshold.
        problems: The problems' names (``Item.cluster``), so that evaluation can refuse them.

    Raises:
        EmptySideError: No erroneous or no correct solution: F1 is undefined at every threshold.
        StepCountError: As many labels as solutions are needed, and a label needs a score at its step.
        ScoreRangeError: A score is not in [0, 1].
    """
    if len(scores) != len(labels):
        raise StepCountError(f"{len(scores)} rows of scores for {len(labels)} labels; there must be one each")
    # A hit for thresholds in (low, high]: +1 just above low, -1 just above high.
    error_spans: list[tuple[float, float]] = []
    correct_ends: list[float] = []
    points = {0.0, 1.0}
    for i, (raw, label) in enumerate(zip(scores, labels, strict=True)):
        row = check_row(str(i), raw)
        points.update(row)
        if label is None:
            if not row:
                raise StepCountError(f"solution {i} has no scores; leave it out")
            correct_ends.append(min(row))
            continue
        if not 0 <= label < len(row):
            raise StepCountError(
                f"solution {i}: label {label} with {len(row)} scores; give a 0-based index, or None for no error"
            )
        low, high = row[label], min(row[:label], default=math.inf)
        error_spans.append((low, high))
    num_error, num_correct = len(error_spans), len(correct_ends)
    if not num_error or not num_correct:
        raise EmptySideError(
            f"choosing a threshold on {source!r} with {num_error} erroneous and {num_correct} correct solutions: "
            "F1 needs both; take another split"
        )
    # Cell c holds the thresholds in (cuts[c], cuts[c + 1]]; within a cell no prediction changes.
    cuts = np.array([-math.inf, *sorted(points), math.inf])
    error_hits = np.zeros(len(cuts))
    for low, high in error_spans:
        if low < high:
            error_hits[np.searchsorted(cuts, low)] += 1
            error_hits[np.searchsorted(cuts, high)] -= 1
    error_accuracy = np.cumsum(error_hits)[:-1] / num_error
    ends = np.searchsorted(cuts, np.array(correct_ends))
    lost = np.cumsum(np.bincount(ends, minlength=len(cuts)))[:-1]
    correct_accuracy = (num_correct - lost) / num_correct
    total = error_accuracy + correct_accuracy
    f1 = np.zeros(len(total))
    np.divide(2 * error_accuracy * correct_accuracy, total, out=f1, where=total > 0)
    value = _middle_of_best(cuts, f1)
    best = float(f1.max())
    return Threshold(value, source, best, num_error, num_correct, frozenset(problems))


def _middle_of_best(cuts: np.ndarray, f1: np.ndarray) -> float:
    """Midpoint of the widest run of best cells; below 0 and above 1 a cell has no width of its own."""
    best = np.flatnonzero(f1 >= f1.max() - 1e-12)
    runs = np.split(best, np.flatnonzero(np.diff(best) > 1) + 1)
    # The two outer cells call no step wrong (threshold 0) and every step (just above 1).
    spans = [(max(0.0, float(cuts[r[0]])), min(1.0, float(cuts[r[-1] + 1]))) for r in runs]
    low, high = max(spans, key=lambda span: (span[1] - span[0], -span[0]))
    if low >= 1.0:
        return math.nextafter(1.0, 2.0)
    return (low + high) / 2
