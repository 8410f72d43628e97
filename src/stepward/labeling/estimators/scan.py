"""SCAN's noise-aware labels (Ding et al. 2025, arXiv 2509.16548, section 3).

Only problems whose pass rate a is at least .75 are labelled. A right solution is right in all steps. In a wrong
one, e is the first step after which no completion is right: step e is wrong, the two steps before it get the
soft value min(1, MC / a), since their failures may be the completer's noise, and earlier ones are right. Without
such an e the solution is dropped.
"""

from collections.abc import Sequence
from dataclasses import replace

from stepward.labeling.estimators.prefix_value import (
    estimates_with_outcome,
    known_outcome,
    too_truncated,
    trials,
)
from stepward.labeling.estimators.registry import TruncatedAs, register, undecided
from stepward.labeling.evidence import LabelingConstants, SolutionEvidence, SolutionLabels
from stepward.prm.types import Allocation, Counts, StepLabel

MIN_PASS_RATE = 0.75
SOFT_STEPS = 2
MIN_TRIALS = 4


@register("scan", version="1", valid_for={Allocation.FIXED_K})
def scan(
    solutions: Sequence[SolutionEvidence],
    counts: Sequence[Sequence[Counts]],
    *,
    allocation: Allocation,
    truncated_as: TruncatedAs,
    constants: LabelingConstants,
    min_pass_rate: float = MIN_PASS_RATE,
    min_trials: int = MIN_TRIALS,
) -> list[SolutionLabels]:
    """SCAN's labels; valid for fixed K.

    The pass rate is the share of right outcomes among the problem's solutions and its rollouts from the bare
    problem. A soft step has its value in the estimate of its prefix and a hard label only where it is 1.
    """
    rate = _pass_rate(solutions, counts, truncated_as)
    if rate is None or rate < min_pass_rate:
        return [undecided(s, c) for s, c in zip(solutions, counts, strict=True)]
    return [_label(s, c, rate, truncated_as, min_trials) for s, c in zip(solutions, counts, strict=True)]


def _pass_rate(
    solutions: Sequence[SolutionEvidence], counts: Sequence[Sequence[Counts]], truncated_as: TruncatedAs
) -> float | None:
    known = [known_outcome(s.outcome, truncated_as) for s in solutions]
    right = sum(o for o in known if o is not None)
    n = sum(o is not None for o in known)
    for row in counts:
        more_right, more = trials(row[0], truncated_as)
        right, n = right + more_right, n + more
    return right / n if n else None


def _label(
    evidence: SolutionEvidence,
    row: Sequence[Counts],
    rate: float,
    truncated_as: TruncatedAs,
    min_trials: int,
) -> SolutionLabels:
    steps = evidence.num_steps
    estimates = list(estimates_with_outcome(evidence, row, truncated_as))
    outcome = known_outcome(evidence.outcome, truncated_as)
    if outcome == 1:
        return SolutionLabels(
            tuple(estimates), tuple(StepLabel(1, decided_by="outcome") for _ in range(steps)), None
        )
    failing: int | None = None
    for t in range(1, steps + 1):
        value = outcome if t == steps else _mean(row[t], truncated_as, min_trials)
        if value is None:
            break  # an unknown prefix before the first zero: the first zero is unknown
        if value == 0:
            failing = t - 1
            break
    if failing is None:
        return SolutionLabels(tuple(estimates), undecided(evidence, row).labels, None, decided=False)
    labels: list[StepLabel] = []
    for i in range(steps):
        soft = failing - SOFT_STEPS <= i < failing
        if soft:
            value = estimates[i + 1].value
            target = 1.0 if value is None else min(1.0, value / rate)
            estimates[i + 1] = replace(estimates[i + 1], value=target)
            labels.append(StepLabel(1 if target == 1.0 else None, decided_by="scan_soft"))
        elif i <= failing:
            labels.append(StepLabel(int(i < failing), decided_by="returns"))
        else:
            labels.append(StepLabel())
    return SolutionLabels(tuple(estimates), tuple(labels), failing)


def _mean(counts: Counts, truncated_as: TruncatedAs, min_trials: int) -> float | None:
    right, n = trials(counts, truncated_as)
    return right / n if n >= min_trials and not too_truncated(counts) else None
