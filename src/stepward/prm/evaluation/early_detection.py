"""Is an error flagged in time: intervention rate, gap and tokens saved.

Felicia et al., StepShield, arXiv 2601.22136: EIR = share of erroneous trajectories flagged at or before their
first wrong step; intervention gap = E[max(0, flag - first wrong step)] over the flagged ones; tokens saved = one
minus the share of tokens up to and including the flagged step. A flag long before the error counts as early
there, so a scorer that always flags at once has EIR 1: the false-alarm rate on correct solutions and the share
of flags before the error stand beside it and belong to every claim.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from stepward.prm.evaluation.errors import StepCountError
from stepward.prm.evaluation.intervals import Bootstrap, Measure, bootstrap_ratio, widen_at_bound
from stepward.prm.evaluation.items import Item


@dataclass(frozen=True, slots=True)
class EarlyDetection:
    """When a scorer flags.

    Attributes:
        slack: k: a flag counts as early up to k steps after the first wrong step (the paper's is 0).
        intervention_rate: Erroneous solutions flagged at or before first wrong step + k.
        recall: Erroneous solutions flagged anywhere.
        before_the_error: Erroneous solutions flagged before their first wrong step: right by accident.
        false_alarm_rate: Correct solutions flagged anywhere.
        intervention_gap: Steps from the first wrong step to the flag, at least 0, over flagged erroneous ones.
        tokens_saved: Over erroneous solutions: share of tokens behind the flag; 0 where none is flagged.
        tokens_lost: Over correct solutions: share of tokens that a false alarm would have cut.
    """

    slack: int
    intervention_rate: Measure
    recall: Measure
    before_the_error: Measure
    false_alarm_rate: Measure
    intervention_gap: Measure
    tokens_saved: Measure
    tokens_lost: Measure


def early_detection(
    items: Sequence[Item],
    flags: Sequence[int | None],
    step_tokens: Sequence[Sequence[int]],
    *,
    slack: int = 0,
    bootstrap: Bootstrap | None = None,
) -> EarlyDetection:
    """Measures of when the first flag comes.

    Args:
        items: Solutions with known first errors.
        flags: First flagged step of each, None = never. It must come from scores of all steps: logs that stop
            at the first error cannot show a late flag.
        step_tokens: Tokens (or characters) of each step of each solution.
        slack: Steps after the first wrong step that still count as early.
        bootstrap: How intervals are drawn.

    Raises:
        StepCountError: Counts do not match the items or their steps.
    """
    if not len(items) == len(flags) == len(step_tokens) or slack < 0:
        raise StepCountError(
            f"{len(items)} items, {len(flags)} flags, {len(step_tokens)} rows of token counts, slack {slack}: one "
            "flag and one row an item, slack >= 0"
        )
    bootstrap = bootstrap or Bootstrap()
    rows = [_row(*given) for given in zip(items, flags, step_tokens, strict=True)]
    wrong, correct = [r for r in rows if r.is_wrong], [r for r in rows if not r.is_wrong]
    return EarlyDetection(
        slack=slack,
        intervention_rate=_share(wrong, [r.flagged and r.gap <= slack for r in wrong], bootstrap),
        recall=_share(wrong, [r.flagged for r in wrong], bootstrap),
        before_the_error=_share(wrong, [r.flagged and r.gap < 0 for r in wrong], bootstrap),
        false_alarm_rate=_share(correct, [r.flagged for r in correct], bootstrap),
        intervention_gap=_mean([r for r in wrong if r.flagged], lambda r: max(0, r.gap), bootstrap),
        tokens_saved=_mean(wrong, lambda r: r.saved, bootstrap),
        tokens_lost=_mean(correct, lambda r: r.saved, bootstrap),
    )


@dataclass(frozen=True, slots=True)
class _Row:
    """One solution: flag minus first wrong step (0 where there is none), share of tokens behind the flag."""

    cluster: str
    is_wrong: bool
    flagged: bool
    gap: int
    saved: float


def _row(item: Item, flag: int | None, tokens: Sequence[int]) -> _Row:
    if len(tokens) != len(item.steps) or sum(tokens) <= 0 or not (flag is None or 0 <= flag < len(tokens)):
        raise StepCountError(
            f"item {item.id}: {len(tokens)} token counts for {len(item.steps)} steps, flag {flag}; give one "
            "count a step, not all 0, and a flag among the steps"
        )
    gap = 0 if flag is None or item.first_error is None else flag - item.first_error
    saved = 0.0 if flag is None else sum(tokens[flag + 1 :]) / sum(tokens)
    return _Row(item.cluster, item.first_error is not None, flag is not None, gap, saved)


def _share(rows: Sequence[_Row], hits: Sequence[bool], bootstrap: Bootstrap) -> Measure:
    clusters = [r.cluster for r in rows]
    given = bootstrap_ratio(
        np.array(hits, dtype=np.float64), np.ones(len(rows)), clusters, bootstrap, "early"
    )
    return widen_at_bound(given, len(set(clusters)), bootstrap.level)


def _mean(rows: Sequence[_Row], value: Callable[[_Row], float], bootstrap: Bootstrap) -> Measure:
    values = np.array([value(r) for r in rows], dtype=np.float64)
    return bootstrap_ratio(values, np.ones(len(rows)), [r.cluster for r in rows], bootstrap, "early")
