"""Are step scores ordered and do they mean what they say: AUROC, Brier score, ECE and reliability.

Only steps with a gold label take part: those before the first error (right), the first error itself (wrong), and
all steps of a correct solution. What follows a first error has no label. Steps of one problem are one cluster.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stepward.prm.evaluation.aggregation import Aggregation
from stepward.prm.evaluation.errors import StepCountError
from stepward.prm.evaluation.intervals import Bootstrap, Floats, Measure, bootstrap_ratio, bootstrap_statistic
from stepward.prm.evaluation.items import Item, JudgedSolution, check_row


@dataclass(frozen=True, slots=True)
class ReliabilityBin:
    """Steps whose scores lie in one bin.

    Attributes:
        low: Lowest score in it.
        high: Highest score in it.
        mean_score: What the scorer says.
        share_right: What is the case, with its interval.
    """

    low: float
    high: float
    mean_score: float
    share_right: Measure


@dataclass(frozen=True, slots=True)
class Calibration:
    """Step-level measures of a scorer.

    Attributes:
        auroc: P(a right step scores above a wrong one), ties half; undefined with one kind of step only.
        brier: Mean squared difference of score and label.
        brier_of_share: Brier score of saying the share of right steps everywhere: what no knowledge reaches.
        ece: Expected calibration error over the bins. It is biased upwards: noise in a bin counts as error.
        bins: Reliability data, in order of score.
        num_steps: Labelled steps.
        num_wrong: Wrong ones among them.
    """

    auroc: Measure
    brier: Measure
    brier_of_share: float | None
    ece: Measure
    bins: tuple[ReliabilityBin, ...]
    num_steps: int
    num_wrong: int


@dataclass(frozen=True, slots=True)
class LabelledSteps:
    """Scores and gold labels of steps, flat.

    Attributes:
        scores: Shape [steps].
        right: Shape [steps], 1 or 0.
        clusters: The problem of each step.
    """

    scores: Floats
    right: Floats
    clusters: tuple[str, ...]


def labelled_steps(items: Sequence[Item], scores: Sequence[Sequence[float]]) -> LabelledSteps:
    """The steps that have a gold label. Scores may be of all steps or end at the first error.

    Raises:
        StepCountError: A labelled step has no score.
        ScoreRangeError: A score is not in [0, 1].
    """
    if len(items) != len(scores):
        raise StepCountError(
            f"{len(scores)} rows of scores for {len(items)} items; there must be one an item"
        )
    flat: list[float] = []
    right: list[float] = []
    clusters: list[str] = []
    for item, raw in zip(items, scores, strict=True):
        labels = [1.0] * len(item.steps) if item.first_error is None else [1.0] * item.first_error + [0.0]
        row = check_row(item.id, raw)
        if len(row) not in (len(labels), len(item.steps)):
            raise StepCountError(
                f"item {item.id}: {len(row)} scores for {len(item.steps)} steps, {len(labels)} of them labelled"
            )
        flat += row[: len(labels)]
        right += labels
        clusters += [item.cluster] * len(labels)
    return LabelledSteps(np.array(flat), np.array(right), tuple(clusters))


def auroc(scores: Floats, right: Floats, weights: Floats | None = None) -> float | None:
    """Area under the ROC curve, ties counted half (Mann-Whitney).

    Args:
        scores: Shape [n].
        right: Shape [n], 1 for the positive kind.
        weights: Shape [n], ones where None.

    Returns:
        The area, or None where one kind is absent.
    """
    order = np.argsort(scores, kind="stable")
    weights = np.ones(len(scores)) if weights is None else weights
    return _auroc_of_sorted(_group_starts(scores[order]), right[order], weights[order])


def _group_starts(ordered: Floats) -> NDArray[np.int64]:
    """Where each group of equal values begins."""
    if len(ordered) == 0:
        return np.zeros(0, dtype=np.int64)
    return np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]])).astype(np.int64)


def _auroc_of_sorted(starts: NDArray[np.int64], right: Floats, weights: Floats) -> float | None:
    """AUROC where rows are sorted by score and ``starts`` begins each group of equal scores."""
    if len(right) == 0:
        return None
    p, n = np.add.reduceat(right * weights, starts), np.add.reduceat((1 - right) * weights, starts)
    total = p.sum() * n.sum()
    if total == 0:
        return None
    below = np.cumsum(n) - n
    return float((p * (below + n / 2)).sum() / total)


def bin_numbers(scores: Floats, num_bins: int) -> NDArray[np.int64]:
    """Bin number of each score: bins of about equal numbers of steps, equal scores in one bin."""
    edges = np.unique(np.quantile(scores, np.linspace(0, 1, num_bins + 1)[1:-1]))
    return np.searchsorted(edges, scores, side="left").astype(np.int64)


def expected_calibration_error(
    scores: Floats, right: Floats, bins: NDArray[np.int64], weights: Floats
) -> float | None:
    """Sum over bins of share of steps times |mean score - share right|."""
    if weights.sum() == 0:
        return None
    gap = np.bincount(bins, weights=weights * (scores - right))
    return float(np.abs(gap).sum() / weights.sum())


def calibration(
    items: Sequence[Item],
    scores: Sequence[Sequence[float]],
    *,
    num_bins: int = 10,
    bootstrap: Bootstrap | None = None,
) -> Calibration:
    """AUROC, Brier score, ECE and reliability of step scores against gold first errors.

    Args:
        items: Solutions with known first errors.
        scores: P(step is right), one row an item: all steps, or up to the first error.
        num_bins: Bins of equal mass.
        bootstrap: How intervals are drawn.

    Raises:
        StepCountError, ScoreRangeError: See ``labelled_steps``.
    """
    bootstrap = bootstrap or Bootstrap()
    steps = labelled_steps(items, scores)
    s, y, clusters = steps.scores, steps.right, steps.clusters
    order = np.argsort(s, kind="stable")
    starts = _group_starts(s[order])
    sorted_right = y[order]
    bins = bin_numbers(s, num_bins) if len(s) else np.zeros(0, dtype=np.int64)
    ones = np.ones(len(s))
    share = float(y.mean()) if len(y) else None
    return Calibration(
        auroc=bootstrap_statistic(
            lambda w: _auroc_of_sorted(starts, sorted_right, w[order]),
            clusters,
            bootstrap,
            "calibration",
            note="needs right and wrong steps",
        ),
        brier=bootstrap_ratio((s - y) ** 2, ones, clusters, bootstrap, "calibration"),
        brier_of_share=None if share is None else share * (1 - share),
        ece=bootstrap_statistic(
            lambda w: expected_calibration_error(s, y, bins, w),
            clusters,
            bootstrap,
            "calibration",
            note="no steps",
        ),
        bins=tuple(_bin(s, y, clusters, bins == b, bootstrap, str(b)) for b in np.unique(bins)),
        num_steps=len(s),
        num_wrong=int((y == 0).sum()),
    )


def _bin(
    s: Floats, y: Floats, clusters: Sequence[str], inside: NDArray[np.bool_], bootstrap: Bootstrap, name: str
) -> ReliabilityBin:
    rows: list[int] = np.flatnonzero(inside).tolist()
    names = [clusters[i] for i in rows]
    return ReliabilityBin(
        float(s[rows].min()),
        float(s[rows].max()),
        float(s[rows].mean()),
        bootstrap_ratio(y[rows], np.ones(len(rows)), names, bootstrap, "reliability", name),
    )


def solution_auroc(
    judged: Sequence[JudgedSolution],
    scores: Sequence[Sequence[float]],
    aggregation: Aggregation,
    bootstrap: Bootstrap | None = None,
) -> Measure:
    """P(a sound solution's aggregate score lies above an unsound one's), for sets judged as wholes.

    Raises:
        StepCountError: Another number of scores than steps.
    """
    values: list[float] = []
    for solution, row in zip(judged, scores, strict=True):
        if len(row) != len(solution.steps):
            raise StepCountError(
                f"{solution.id}: {len(row)} scores for {len(solution.steps)} steps; one a step"
            )
        values.append(aggregation(check_row(solution.id, row)))
    right = np.array([float(solution.right) for solution in judged])
    numbers = np.array(values, dtype=np.float64)
    return bootstrap_statistic(
        lambda w: auroc(numbers, right, w),
        [solution.problem for solution in judged],
        bootstrap or Bootstrap(),
        "solution_auroc",
        note="needs sound and unsound solutions",
    )
