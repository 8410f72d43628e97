"""ProcessBench: does a scorer find the first wrong step? Zheng et al., arXiv 2412.06559.

Error accuracy is the share of erroneous solutions whose first wrong step is named exactly, correct accuracy the
share of right solutions where no step is called wrong, F1 their harmonic mean (not a classification F1), macro
the mean over subsets. Where a side is empty F1 is undefined and said to be. ``final_answer_correct`` is not the
label: 254 of the 1,675 solutions at hand reach a right answer over a wrong step.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from stepward.prm.evaluation.errors import DifferentItemsError, StepCountError, TunedOnTestError
from stepward.prm.evaluation.intervals import (
    Bootstrap,
    Floats,
    Measure,
    bootstrap_ratio,
    cluster_sums,
    divide,
    measure,
    resampled_sums,
    widen_at_bound,
)
from stepward.prm.evaluation.items import Item, Scores
from stepward.prm.evaluation.thresholds import Threshold, choose_threshold, first_below, harmonic_mean


@dataclass(frozen=True, slots=True)
class SubsetScore:
    """Accuracies of one part of the benchmark.

    Attributes:
        name: Subset, ``macro``, generator or band of positions.
        error_accuracy: Exact first error, over erroneous items.
        correct_accuracy: "None" said, over correct items.
        f1: Their harmonic mean; undefined where a side is empty.
    """

    name: str
    error_accuracy: Measure
    correct_accuracy: Measure
    f1: Measure


@dataclass(frozen=True, slots=True)
class ProcessBenchResult:
    """What one scorer reached.

    Attributes:
        scorer: Its name.
        subsets: In order of first appearance.
        macro: Means over the subsets.
        by_generator: Per generator, over all subsets.
        by_position: Error accuracy by the gold index of the first error; correct items as their own band.
        misses: Erroneous items called too early, too late or not at all, and correct items called wrong.
        threshold: The frozen threshold, or None for a scorer that names steps itself.
        oracle: True where the threshold saw the items: an upper bound and no result.
        num_undecided: Items that the scorer could not decide; each counts as a miss, none as an answer. Where nothing
            was decided at all, every measure is undefined.
        decided: Subsets and macro over the decided items alone; empty where all or none are decided.
        labels: ``published``, or the name of the override file.
    """

    scorer: str
    subsets: tuple[SubsetScore, ...]
    macro: SubsetScore
    by_generator: tuple[SubsetScore, ...]
    by_position: tuple[SubsetScore, ...]
    misses: dict[str, int]
    threshold: Threshold | None = None
    oracle: bool = False
    num_undecided: int = 0
    decided: tuple[SubsetScore, ...] = ()
    labels: str = "published"


def tune_threshold(items: Sequence[Item], scores: Sequence[Sequence[float]], *, source: str) -> Threshold:
    """``choose_threshold`` on items, remembering their problems so that ``evaluate`` can refuse them."""
    return choose_threshold(
        scores,
        [item.first_error for item in items],
        source=source,
        problems=[item.cluster for item in items],
    )


def predict(scores: Sequence[Sequence[float]], threshold: Threshold | float) -> list[int | None]:
    """First step below the threshold for each solution, or None."""
    value = threshold.value if isinstance(threshold, Threshold) else threshold
    return [first_below(row, value) for row in scores]


def evaluate(
    items: Sequence[Item],
    predictions: Sequence[int | None],
    *,
    scorer: str,
    threshold: Threshold | None = None,
    oracle: bool = False,
    undecided: frozenset[str] = frozenset(),
    bootstrap: Bootstrap | None = None,
    labels: str = "published",
) -> ProcessBenchResult:
    """Accuracies and F1 of predicted first errors.

    Args:
        items: The benchmark.
        predictions: Predicted first error of each item (see ``predict`` and ``items.join``), None = none.
        scorer: Name for the report.
        threshold: What made the predictions, where a threshold did.
        oracle: Allow a threshold that saw these items; the result is marked so.
        undecided: Ids that the scorer could not decide (a critic without a verdict).
        bootstrap: How intervals are drawn; the default is 2,000 resamples of problems, seed 0.
        labels: Name of the labels in use.

    Raises:
        TunedOnTestError: The threshold saw items that are to be scored, and ``oracle`` is not set.
        StepCountError: Another number of predictions than items.
    """
    bootstrap = bootstrap or Bootstrap()
    if threshold is not None and not oracle:
        _refuse_tuned(items, threshold)
    hits = _hits(items, predictions, undecided)
    left = [i for i, item in enumerate(items) if item.id not in undecided]
    result = ProcessBenchResult(
        scorer=scorer,
        subsets=tuple(_subsets(items, hits, bootstrap)),
        macro=_macro(items, hits, bootstrap),
        by_generator=_breakdown(items, hits, [item.generator for item in items], bootstrap, "generator"),
        by_position=_breakdown(items, hits, [_band(item) for item in items], bootstrap, "position"),
        misses=_misses(items, predictions, undecided),
        threshold=threshold,
        oracle=oracle,
        num_undecided=len(items) - len(left),
        labels=labels,
    )
    if not left and items:
        return _undefined(result)
    if len(left) == len(items):
        return result
    some, some_hits = [items[i] for i in left], hits[left]
    decided = (*_subsets(some, some_hits, bootstrap), _macro(some, some_hits, bootstrap))
    return replace(result, decided=decided)


def oracle_sweep(
    items: Sequence[Item], scores: Sequence[Scores], *, scorer: str, bootstrap: Bootstrap | None = None
) -> tuple[ProcessBenchResult, ...]:
    """Each subset at its own best threshold, chosen on itself: an upper bound, marked ``oracle``."""
    results: list[ProcessBenchResult] = []
    for subset in dict.fromkeys(item.subset for item in items):
        rows = [i for i, item in enumerate(items) if item.subset == subset]
        part, part_scores = [items[i] for i in rows], [scores[i] for i in rows]
        best = tune_threshold(part, part_scores, source=f"{subset} itself (oracle)")
        results.append(
            evaluate(
                part,
                predict(part_scores, best),
                scorer=scorer,
                threshold=best,
                oracle=True,
                bootstrap=bootstrap,
            )
        )
    return tuple(results)


def difference(
    items: Sequence[Item],
    predictions_a: Sequence[int | None],
    predictions_b: Sequence[int | None],
    *,
    undecided_a: frozenset[str] = frozenset(),
    undecided_b: frozenset[str] = frozenset(),
    bootstrap: Bootstrap | None = None,
) -> dict[str, Measure]:
    """F1 of A minus F1 of B on the same items, by subset and macro, with paired bootstrap intervals.

    Undefined where one of them decided nothing at all.

    Raises:
        StepCountError: Another number of predictions than items.
    """
    bootstrap = bootstrap or Bootstrap()
    hits = (_hits(items, predictions_a, undecided_a), _hits(items, predictions_b, undecided_b))
    subsets = list(dict.fromkeys(item.subset for item in items))
    if items and any(all(item.id in u for item in items) for u in (undecided_a, undecided_b)):
        return {s: Measure(None, n=len(items), note="nothing was decided") for s in (*subsets, "macro")}
    out: dict[str, Measure] = {}
    point_parts: list[float] = []
    draw_parts: list[Floats] = []
    for subset in subsets:
        rows = [i for i, item in enumerate(items) if item.subset == subset]
        # The stream is the subset's name alone, so A and B see the same resampled problems.
        (total_a, draws_a), (total_b, draws_b) = (_resamples(items, h, rows, bootstrap, subset) for h in hits)
        point = _rates(total_a[None, :])[2] - _rates(total_b[None, :])[2]
        draws = _rates(draws_a)[2] - _rates(draws_b)[2]
        point_parts.append(float(point[0]))
        draw_parts.append(draws)
        out[subset] = measure(
            float(point[0]), draws, n=len(rows), level=bootstrap.level, note=_empty_note(total_a)
        )
    out["macro"] = measure(
        float(np.mean(point_parts)),
        np.mean(draw_parts, axis=0),
        n=len(items),
        level=bootstrap.level,
        note="F1 is undefined in a subset" if np.isnan(point_parts).any() else "",
    )
    return out


def same_items(a: Sequence[Item], b: Sequence[Item]) -> None:
    """Raises DifferentItemsError unless both hold the same ids with the same labels."""
    left, right = {i.id: i.first_error for i in a}, {i.id: i.first_error for i in b}
    odd = [i for i in {**left, **right} if i not in left or i not in right or left[i] != right[i]]
    if odd:
        raise DifferentItemsError(
            "items or labels differ", odd, "compare results on the same items and labels"
        )


def _refuse_tuned(items: Sequence[Item], threshold: Threshold) -> None:
    seen = [
        item.id for item in items if item.cluster in threshold.problems or item.subset == threshold.source
    ]
    if seen:
        raise TunedOnTestError(
            f"the threshold {threshold.value:.6g} was chosen on {threshold.source!r}, which holds "
            f"{len(seen)} of the items to be scored (such as {seen[0]}); choose it on other problems, or say "
            "oracle=True to have the result marked as an upper bound"
        )


def _hits(items: Sequence[Item], predictions: Sequence[int | None], undecided: frozenset[str]) -> Floats:
    """Shape [items, 4]: erroneous, hit among erroneous, correct, hit among correct."""
    if len(items) != len(predictions):
        raise StepCountError(f"{len(predictions)} predictions for {len(items)} items; there must be one each")
    table = np.zeros((len(items), 4))
    for row, item, prediction in zip(table, items, predictions, strict=True):
        hit = prediction == item.first_error and item.id not in undecided
        row[:] = (0, 0, 1, hit) if item.first_error is None else (1, hit, 0, 0)
    return table


def _resamples(
    items: Sequence[Item], hits: Floats, rows: Sequence[int], bootstrap: Bootstrap, *stream: str
) -> tuple[Floats, Floats]:
    """Sums over the rows, shape [4], and in each resample of their problems, shape [resamples, 4]."""
    sums = cluster_sums(hits[list(rows)], [items[i].cluster for i in rows])
    return sums.sum(axis=0), resampled_sums(sums, bootstrap, "processbench", *stream)


def _num_problems(items: Sequence[Item], rows: Sequence[int]) -> tuple[int, int]:
    """Distinct problems among the erroneous and among the correct items."""
    sides = (
        {items[i].cluster for i in rows if (items[i].first_error is None) is none} for none in (False, True)
    )
    erroneous, correct = (len(side) for side in sides)
    return erroneous, correct


def _rates(sums: Floats) -> tuple[Floats, Floats, Floats]:
    """Error accuracy, correct accuracy and F1 of sums of shape [n, 4]; NaN where undefined."""
    error, correct = divide(sums[:, 1], sums[:, 0]), divide(sums[:, 3], sums[:, 2])
    total = error + correct
    f1 = divide(2 * error * correct, np.where(total == 0, 1.0, total))
    return error, correct, f1


def _empty_note(total: Floats) -> str:
    return "no erroneous items" if total[0] == 0 else "no correct items" if total[2] == 0 else ""


def _subsets(items: Sequence[Item], hits: Floats, bootstrap: Bootstrap) -> list[SubsetScore]:
    return [_score(s, items, hits, rows, bootstrap, s) for s, rows in _rows_of_subsets(items).items()]


def _rows_of_subsets(items: Sequence[Item]) -> dict[str, list[int]]:
    """Indices by subset, in order of first appearance."""
    rows: dict[str, list[int]] = {}
    for i, item in enumerate(items):
        rows.setdefault(item.subset, []).append(i)
    return rows


def _score(
    name: str, items: Sequence[Item], hits: Floats, rows: Sequence[int], bootstrap: Bootstrap, *stream: str
) -> SubsetScore:
    total, draws = _resamples(items, hits, rows, bootstrap, *stream)
    points, resampled = _rates(total[None, :]), _rates(draws)
    notes = ("no erroneous items", "no correct items", _empty_note(total))
    counts = (int(total[0]), int(total[2]), int(total[0] + total[2]))
    error, correct, f1 = (
        measure(float(p[0]), r, n=n, level=bootstrap.level, note=note if np.isnan(p[0]) else "")
        for p, r, n, note in zip(points, resampled, counts, notes, strict=True)
    )
    return _widened(name, error, correct, f1, _num_problems(items, rows), bootstrap.level)


def _macro(items: Sequence[Item], hits: Floats, bootstrap: Bootstrap) -> SubsetScore:
    tables = [_resamples(items, hits, rows, bootstrap, s) for s, rows in _rows_of_subsets(items).items()]
    points = [[float(x[0]) for x in _rates(total[None, :])] for total, _ in tables]
    draws = [_rates(draws) for _, draws in tables]
    error, correct, f1 = (
        measure(
            float(np.mean([p[k] for p in points])),
            np.mean([d[k] for d in draws], axis=0),
            n=len(items),
            level=bootstrap.level,
            note="undefined in a subset" if any(np.isnan(p[k]) for p in points) else "",
        )
        for k in range(3)
    )
    return _widened("macro", error, correct, f1, _num_problems(items, range(len(items))), bootstrap.level)


def _widened(
    name: str, error: Measure, correct: Measure, f1: Measure, num_problems: tuple[int, int], level: float
) -> SubsetScore:
    """Where all items of a side agree the bootstrap has no width: Wilson's interval, and F1's from the two."""
    error = widen_at_bound(error, num_problems[0], level)
    correct = widen_at_bound(correct, num_problems[1], level)
    if f1.value is not None and f1.low is not None and f1.low == f1.high:
        low, high = (
            harmonic_mean(e or 0.0, c or 0.0)
            for e, c in ((error.low, correct.low), (error.high, correct.high))
        )
        f1 = Measure(f1.value, low, high, f1.n, "from the intervals of the two accuracies")
    return SubsetScore(name, error, correct, f1)


def _undefined(result: ProcessBenchResult) -> ProcessBenchResult:
    """A scorer that decided nothing has not reached 0: nothing is known of it."""

    def unknown(part: SubsetScore) -> SubsetScore:
        error, correct, f1 = (
            Measure(None, n=m.n, note="nothing was decided")
            for m in (part.error_accuracy, part.correct_accuracy, part.f1)
        )
        return SubsetScore(part.name, error, correct, f1)

    return replace(
        result,
        subsets=tuple(map(unknown, result.subsets)),
        macro=unknown(result.macro),
        by_generator=tuple(map(unknown, result.by_generator)),
        by_position=tuple(map(unknown, result.by_position)),
    )


def _breakdown(
    items: Sequence[Item], hits: Floats, names: Sequence[str], bootstrap: Bootstrap, kind: str
) -> tuple[SubsetScore, ...]:
    scores: list[SubsetScore] = []
    for name in sorted(set(names), key=_natural):
        rows = [i for i, other in enumerate(names) if other == name]
        scores.append(_score(name, items, hits, rows, bootstrap, kind, name))
    return tuple(scores)


_BANDS = ((0, 0), (1, 1), (2, 2), (3, 4), (5, 8), (9, 16))


def _band(item: Item) -> str:
    """The band of the first error's index that an item is reported under."""
    if item.first_error is None:
        return "no error"
    for low, high in _BANDS:
        if low <= item.first_error <= high:
            return f"step {low}" if low == high else f"steps {low}-{high}"
    return f"steps {_BANDS[-1][1] + 1}+"


def _natural(name: str) -> tuple[bool, int, str]:
    """Bands in order of their index, other names by text."""
    digits = "".join(c if c.isdigit() else " " for c in name).split()
    is_band = name.startswith("step")
    return (not is_band, int(digits[0]) if is_band and digits else 0, name)


def _misses(
    items: Sequence[Item], predictions: Sequence[int | None], undecided: frozenset[str]
) -> dict[str, int]:
    kinds = ("exact", "too_early", "too_late", "missed", "none_right", "false_alarm", "undecided")
    counts: dict[str, int] = dict.fromkeys(kinds, 0)
    for item, prediction in zip(items, predictions, strict=True):
        if item.id in undecided:
            kind = "undecided"
        elif item.first_error is None:
            kind = "none_right" if prediction is None else "false_alarm"
        elif prediction is None:
            kind = "missed"
        elif prediction == item.first_error:
            kind = "exact"
        else:
            kind = "too_early" if prediction < item.first_error else "too_late"
        counts[kind] += 1
    return counts


def accuracy_of_final_answers(items: Sequence[Item], bootstrap: Bootstrap | None = None) -> Measure:
    """Share of right final answers among items where it is known, for tables beside the labels."""
    known = [item for item in items if item.final_answer_correct is not None]
    return bootstrap_ratio(
        np.array([float(bool(item.final_answer_correct)) for item in known]),
        np.ones(len(known)),
        [item.cluster for item in known],
        bootstrap or Bootstrap(),
        "final_answer",
    )
