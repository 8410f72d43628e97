"""PRMBench: fine-grained errors by class. Song et al., arXiv 2501.03124; conventions of its released code.

A step is predicted right where its score lies strictly above the threshold (.5 for most models upstream). Counts
are pooled over the steps of a class: TP right steps called right, TN wrong steps called wrong, FP wrong called
right, FN right called wrong. PRMScore = .5 F1(right) + .5 F1(wrong). ``multi_solutions`` holds no wrong step, so
its F1(wrong) and PRMScore are undefined and its accuracy is reported. ``correct`` items, the unmodified
solutions, stay out of the totals; ``multi_solutions`` is in.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stepward.prm.evaluation.errors import StepCountError
from stepward.prm.evaluation.intervals import (
    Bootstrap,
    Floats,
    Measure,
    cluster_sums,
    divide,
    measure,
    resampled_sums,
    widen_at_bound,
)
from stepward.prm.evaluation.items import check_row

CORRECT = "correct"
CLASSES = {
    "simplicity": ("redundency", "circular"),
    "soundness": ("counterfactual", "step_contradiction", "domain_inconsistency", "confidence"),
    "sensitivity": ("missing_condition", "deception", "multi_solutions"),
}
WEIGHT_RIGHT = 0.5
DEFAULT_THRESHOLD = 0.5


@dataclass(frozen=True, slots=True)
class PRMBenchItem:
    """A process with its wrong steps.

    Attributes:
        id: ``classification_idx``.
        classification: One of the nine classes, or ``correct``.
        problem: The question shown to the scorer.
        steps: Step texts.
        wrong: 0-based indices of the wrong steps.
        original: The question that it was made from: rows of one original are one cluster.
    """

    id: str
    classification: str
    problem: str
    steps: tuple[str, ...]
    wrong: frozenset[int]
    original: str


@dataclass(frozen=True, slots=True)
class PRMBenchSet:
    """A read benchmark.

    Attributes:
        items: One an id.
        doubled: Ids that came again and were left out.
        beyond: Ids that list an error step behind the end of their process.
    """

    items: tuple[PRMBenchItem, ...]
    doubled: tuple[str, ...]
    beyond: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ClassScore:
    """Pooled step counts of a class and what follows from them.

    Attributes:
        name: Class, category or ``total``.
        prm_score: .5 F1(right) + .5 F1(wrong), undefined without wrong steps.
        f1_right: 2 TP / (2 TP + FP + FN).
        f1_wrong: 2 TN / (2 TN + FP + FN).
        accuracy: Steps judged rightly.
        counts: TP, FP, TN, FN.
    """

    name: str
    prm_score: Measure
    f1_right: Measure
    f1_wrong: Measure
    accuracy: Measure
    counts: tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class PRMBenchResult:
    """What a scorer reached.

    Attributes:
        scorer: Its name.
        total: Pooled over all steps of all classes but ``correct``.
        classes: Each class, ``correct`` last.
        categories: Pooled within simplicity, soundness and sensitivity.
        class_mean: Mean PRMScore over the classes where it is defined.
        first_error_accuracy: Over items with a wrong step: is the first wrong step called wrong.
        threshold: A step is right where its score lies strictly above.
        threshold_source: Where the threshold comes from.
        weight_right: Weight of F1(right) in PRMScore.
    """

    scorer: str
    total: ClassScore
    classes: tuple[ClassScore, ...]
    categories: tuple[ClassScore, ...]
    class_mean: float | None
    first_error_accuracy: Measure
    threshold: float | None
    threshold_source: str
    weight_right: float


def call_right(
    items: Sequence[PRMBenchItem], scores: Sequence[Sequence[float]], threshold: float = DEFAULT_THRESHOLD
) -> list[tuple[bool, ...]]:
    """Which steps are predicted right.

    Raises:
        StepCountError: Another number of scores than steps.
        ScoreRangeError: A score is not in [0, 1].
    """
    if len(items) != len(scores):
        raise StepCountError(
            f"{len(scores)} rows of scores for {len(items)} items; there must be one an item"
        )
    for item, row in zip(items, scores, strict=True):
        _same_length(item, len(row), "scores")
    return [
        tuple(s > threshold for s in check_row(item.id, row)) for item, row in zip(items, scores, strict=True)
    ]


def evaluate_prmbench(
    items: Sequence[PRMBenchItem],
    called_right: Sequence[Sequence[bool]],
    *,
    scorer: str,
    threshold: float | None = None,
    threshold_source: str = "upstream default",
    bootstrap: Bootstrap | None = None,
) -> PRMBenchResult:
    """PRMScore by class and in total.

    Args:
        items: See ``readers.prmbench``.
        called_right: For each item whether each step is predicted right (see ``call_right``). A scorer with a
            redundancy judgement hands in its negation for ``redundency`` and ``circular`` items, as upstream.
        scorer: Name for the report.
        threshold: What made the predictions, kept in the result.
        threshold_source: Where the threshold comes from.
        bootstrap: How intervals over original questions are drawn.

    Raises:
        StepCountError: Another number of predictions than steps.
    """
    if len(items) != len(called_right):
        raise StepCountError(f"{len(called_right)} rows of predictions for {len(items)} items; one an item")
    bootstrap = bootstrap or Bootstrap()
    table = np.array(
        [_counts(item, row) for item, row in zip(items, called_right, strict=True)], dtype=np.float64
    )
    table = table.reshape(len(items), 4)
    kinds = [item.classification for item in items]
    names = sorted(set(kinds), key=lambda kind: (kind == CORRECT, kind))

    def score(name: str, members: Sequence[str]) -> ClassScore:
        rows = [i for i, kind in enumerate(kinds) if kind in members]
        return _class_score(name, table[rows], [items[i].original for i in rows], bootstrap)

    classes = tuple(score(name, (name,)) for name in names)
    defined = [c.prm_score.value for c in classes if c.prm_score.value is not None]
    first = [
        (item.original, not row[min(item.wrong)])
        for item, row in zip(items, called_right, strict=True)
        if item.wrong
    ]
    return PRMBenchResult(
        scorer=scorer,
        total=score("total", [name for name in names if name != CORRECT]),
        classes=classes,
        categories=tuple(
            score(name, members) for name, members in CLASSES.items() if any(k in members for k in kinds)
        ),
        class_mean=float(np.mean(defined)) if defined else None,
        first_error_accuracy=_share(
            [hit for _, hit in first], [original for original, _ in first], bootstrap
        ),
        threshold=threshold,
        threshold_source=threshold_source,
        weight_right=WEIGHT_RIGHT,
    )


def _same_length(item: PRMBenchItem, count: int, what: str) -> None:
    if count != len(item.steps):
        raise StepCountError(
            f"item {item.id}: {count} {what} for {len(item.steps)} steps; one a step is needed"
        )


def _counts(item: PRMBenchItem, row: Sequence[bool]) -> tuple[int, int, int, int]:
    """TP, FP, TN, FN of one item."""
    _same_length(item, len(row), "predictions")
    kinds = [(t in item.wrong, bool(right)) for t, right in enumerate(row)]
    return (
        kinds.count((False, True)),
        kinds.count((True, True)),
        kinds.count((True, False)),
        kinds.count((False, False)),
    )


def _class_score(name: str, table: Floats, clusters: Sequence[str], bootstrap: Bootstrap) -> ClassScore:
    sums = cluster_sums(table, clusters)
    total = sums.sum(axis=0)
    draws = resampled_sums(sums, bootstrap, "prmbench", name)
    n = int(total.sum())
    points, resampled = _rates(total[None, :]), _rates(draws)
    note = (
        "no wrong steps" if total[1] + total[2] == 0 else "no right steps" if total[0] + total[3] == 0 else ""
    )
    values = [
        measure(float(p[0]), r, n=n, level=bootstrap.level, note=note if np.isnan(p[0]) else "")
        for p, r in zip(points, resampled, strict=True)
    ]
    tp, fp, tn, fn = (int(v) for v in total)
    return ClassScore(name, values[0], values[1], values[2], values[3], (tp, fp, tn, fn))


def _rates(sums: Floats) -> tuple[Floats, Floats, Floats, Floats]:
    """PRMScore, F1(right), F1(wrong), accuracy of TP, FP, TN, FN; F1 of an absent kind is undefined."""
    tp, fp, tn, fn = sums.T
    f1_right = np.where(tp + fn > 0, divide(2 * tp, 2 * tp + fp + fn), np.nan)
    f1_wrong = np.where(tn + fp > 0, divide(2 * tn, 2 * tn + fp + fn), np.nan)
    score = WEIGHT_RIGHT * f1_right + (1 - WEIGHT_RIGHT) * f1_wrong
    return score, f1_right, f1_wrong, divide(tp + tn, sums.sum(axis=1))


def _share(hits: Sequence[bool], clusters: Sequence[str], bootstrap: Bootstrap) -> Measure:
    columns = np.column_stack([np.array(hits, dtype=np.float64), np.ones(len(hits))])
    sums = cluster_sums(columns, clusters)
    total = sums.sum(axis=0)
    draws = resampled_sums(sums, bootstrap, "prmbench", "first_error")
    point = float(total[0] / total[1]) if total[1] else None
    note = "no wrong steps" if point is None else ""
    given = measure(point, divide(draws[:, 0], draws[:, 1]), n=len(hits), level=bootstrap.level, note=note)
    return widen_at_bound(given, len(sums), bootstrap.level)
