"""Math-Shepherd (Wang et al. 2024, arXiv 2312.08935): K completions after each step.

Hard estimation (their eq. 3): a step is right where any completion reaches the gold answer, y_t = 1[c_t > 0].
Soft estimation (their eq. 4): y_t = c_t / K, kept as the value of prefix t; the hard label then asks for
more than ``threshold``. The last step has no completions: the solution's own outcome decides it.
"""

from collections.abc import Sequence

from stepward.labeling.estimators.prefix_value import (
    estimates_with_outcome,
    from_hard_labels,
    known_outcome,
    posterior_mean,
    too_truncated,
    trials,
)
from stepward.labeling.estimators.registry import TruncatedAs, register
from stepward.labeling.evidence import LabelingConstants, SolutionEvidence, SolutionLabels
from stepward.prm.types import Allocation, Counts

MIN_TRIALS = 4
"""Fewest trials behind a hard 0: with half of the paper's K = 8, a prefix of value .5 is called wrong by
chance in 6 % of cases. One right completion is enough for a 1."""


@register(
    "math_shepherd",
    version="1",
    valid_for={
        Allocation.FIXED_K,
        Allocation.STOP_AT_FIRST_RIGHT,
        Allocation.DIFFICULTY_K,
        Allocation.TWO_FIDELITY,
    },
)
def math_shepherd(
    solutions: Sequence[SolutionEvidence],
    counts: Sequence[Sequence[Counts]],
    *,
    allocation: Allocation,
    truncated_as: TruncatedAs,
    constants: LabelingConstants,
    min_trials: int = MIN_TRIALS,
) -> list[SolutionLabels]:
    """Hard estimation: 1 where any completion is right, 0 where ``min_trials`` or more were all wrong.

    Valid for fixed K and for stopping at the first right completion. There k/n is biased upwards, so the
    value is the Beta posterior's mean, which no stopping rule touches.
    """
    labelled: list[SolutionLabels] = []
    for evidence, row in zip(solutions, counts, strict=True):
        hard = [_any_right(c, truncated_as, min_trials) for c in row[1:-1]]
        hard.append(known_outcome(evidence.outcome, truncated_as))
        estimates = estimates_with_outcome(evidence, row, truncated_as)
        if allocation is Allocation.STOP_AT_FIRST_RIGHT:
            estimates = (*(posterior_mean(e, truncated_as) for e in estimates[:-1]), estimates[-1])
        labelled.append(from_hard_labels(estimates, hard, "returns"))
    return labelled


@register(
    "math_shepherd_soft",
    version="1",
    valid_for={Allocation.FIXED_K, Allocation.DIFFICULTY_K, Allocation.TWO_FIDELITY},
)
def math_shepherd_soft(
    solutions: Sequence[SolutionEvidence],
    counts: Sequence[Sequence[Counts]],
    *,
    allocation: Allocation,
    truncated_as: TruncatedAs,
    constants: LabelingConstants,
    threshold: float = 0.0,
    min_trials: int = MIN_TRIALS,
) -> list[SolutionLabels]:
    """Soft estimation: the value is k/n, the label is 1 where it exceeds ``threshold``.

    Valid for K that no outcome at the prefix itself decided.
    """
    labelled: list[SolutionLabels] = []
    for evidence, row in zip(solutions, counts, strict=True):
        hard = [_above(c, truncated_as, threshold, min_trials) for c in row[1:-1]]
        hard.append(known_outcome(evidence.outcome, truncated_as))
        labelled.append(
            from_hard_labels(estimates_with_outcome(evidence, row, truncated_as), hard, "returns")
        )
    return labelled


def _any_right(counts: Counts, truncated_as: TruncatedAs, min_trials: int) -> int | None:
    if too_truncated(counts):
        return None
    if counts.right:
        return 1
    return 0 if trials(counts, truncated_as)[1] >= min_trials else None


def _above(counts: Counts, truncated_as: TruncatedAs, threshold: float, min_trials: int) -> int | None:
    right, n = trials(counts, truncated_as)
    if too_truncated(counts) or n < min_trials:
        return None
    verdict = int(right > threshold * n)
    if truncated_as == "bounds":
        right_low, n_low = trials(counts, "wrong")
        if int(right_low > threshold * n_low) != verdict:
            return None  # the two readings of draws without an answer disagree
    return verdict
