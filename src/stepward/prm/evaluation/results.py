"""What an evaluation found, as one record for the results folder and its page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stepward.prm.evaluation.best_of_n import BestOfNResult
from stepward.prm.evaluation.calibration import Calibration, calibration
from stepward.prm.evaluation.early_detection import EarlyDetection, early_detection
from stepward.prm.evaluation.intervals import Bootstrap, Measure
from stepward.prm.evaluation.items import Item, Scores, apply_fixes
from stepward.prm.evaluation.prmbench import PRMBenchResult
from stepward.prm.evaluation.processbench import ProcessBenchResult, evaluate, predict
from stepward.prm.evaluation.q_alignment import QAlignment
from stepward.prm.evaluation.thresholds import Threshold


@dataclass(frozen=True, slots=True)
class ScorerRun:
    """One scorer on the items.

    Attributes:
        result: Its ProcessBench result; the scorer's name stands there.
        predictions: First error of each item, None = none.
        scores: Step scores of each item, or empty for a scorer that names steps itself.
        undecided: Ids without a decision.
        corrected: The result under corrected labels, where an override file was given.
        calibration: Step-level measures, where there are scores.
        early: Early-detection measures, where scores of all steps were at hand.
    """

    result: ProcessBenchResult
    predictions: tuple[int | None, ...]
    scores: tuple[Scores, ...] = ()
    undecided: frozenset[str] = frozenset()
    corrected: ProcessBenchResult | None = None
    calibration: Calibration | None = None
    early: EarlyDetection | None = None


@dataclass(frozen=True, slots=True)
class Results:
    """What a results folder holds. All but the title may be empty.

    Attributes:
        title: Of the page.
        items: The benchmark's items.
        runs: The scorer first, baselines after it.
        differences: F1 differences on the same items by name ("A - B"), each by subset and macro.
        oracle: Sweeps on the reported items themselves, shown only under that name.
        best_of_n: Curves against N and, where asked for, against tokens.
        prmbench: PRMBench results.
        q_alignment: Q-alignment by signal.
        notes: Sentences for the page: what was left out and why.
        manifest: What the run says of itself (config, revisions, seeds); no times, no paths.
    """

    title: str
    items: tuple[Item, ...] = ()
    runs: tuple[ScorerRun, ...] = ()
    differences: Mapping[str, Mapping[str, Measure]] = field(default_factory=dict[str, Mapping[str, Measure]])
    oracle: tuple[ProcessBenchResult, ...] = ()
    best_of_n: tuple[BestOfNResult, ...] = ()
    prmbench: tuple[PRMBenchResult, ...] = ()
    q_alignment: Mapping[str, QAlignment] = field(default_factory=dict[str, QAlignment])
    notes: tuple[str, ...] = ()
    manifest: Mapping[str, Any] = field(default_factory=dict[str, Any])


def score_run(
    items: Sequence[Item],
    scores: Sequence[Scores],
    threshold: Threshold,
    *,
    scorer: str,
    step_tokens: Sequence[Sequence[int]] | None = None,
    fixes: Mapping[str, int | None] | None = None,
    fixes_name: str = "corrected labels",
    bootstrap: Bootstrap | None = None,
) -> ScorerRun:
    """Everything that step scores of all steps say on a benchmark.

    Args:
        items: The benchmark.
        scores: P(step is right), one a step.
        threshold: Chosen elsewhere.
        scorer: Name for the report.
        step_tokens: Tokens of each step for early detection; characters where None.
        fixes: Corrected labels, for a second, separately named result.
        fixes_name: What to call it.
        bootstrap: How intervals are drawn.
    """
    predictions = predict(scores, threshold)
    lengths = step_tokens or [[max(1, len(step)) for step in item.steps] for item in items]
    corrected = (
        evaluate(
            apply_fixes(items, fixes),
            predictions,
            scorer=scorer,
            threshold=threshold,
            bootstrap=bootstrap,
            labels=fixes_name,
        )
        if fixes is not None and any(item.id in fixes for item in items)
        else None
    )
    return ScorerRun(
        result=evaluate(items, predictions, scorer=scorer, threshold=threshold, bootstrap=bootstrap),
        predictions=tuple(predictions),
        scores=tuple(scores),
        corrected=corrected,
        calibration=calibration(items, scores, bootstrap=bootstrap),
        early=early_detection(items, predictions, lengths, bootstrap=bootstrap),
    )
