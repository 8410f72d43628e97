"""GenPRM's relative progress estimation (Zhao et al. 2025, arXiv 2504.00891, section 3.2).

P_t = MC(after step t) / MC(before step t); a step is right where P_t >= epsilon. Before step 1 stands the bare
problem, whose MC is its pass rate, so prefix 0 needs rollouts too. After the first MC = 0 all is wrong.
"""

from collections.abc import Sequence
from itertools import pairwise

from stepward.labeling.estimators.prefix_value import (
    estimates_with_outcome,
    from_hard_labels,
    known_outcome,
    share_root,
    too_truncated,
    trials,
)
from stepward.labeling.estimators.registry import TruncatedAs, register
from stepward.labeling.evidence import LabelingConstants, SolutionEvidence, SolutionLabels
from stepward.prm.types import Allocation, Counts

EPSILON = 0.8
"""The paper's best: F1 75.2, against 73.5 at .5 and 72.3 at 1."""
MIN_TRIALS = 4
"""Fewest trials of a ratio's two values."""


@register("genprm_relative", version="1", valid_for={Allocation.FIXED_K, Allocation.DIFFICULTY_K})
def genprm_relative(
    solutions: Sequence[SolutionEvidence],
    counts: Sequence[Sequence[Counts]],
    *,
    allocation: Allocation,
    truncated_as: TruncatedAs,
    constants: LabelingConstants,
    epsilon: float = EPSILON,
    min_trials: int = MIN_TRIALS,
) -> list[SolutionLabels]:
    """Labels by relative progress; a step whose value before or after is unknown is unknown.

    Valid where the number of trials at a prefix does not depend on their outcomes.
    """
    labelled: list[SolutionLabels] = []
    for evidence, row, shared in zip(solutions, counts, share_root(counts), strict=True):
        values = [_value(c, truncated_as, min_trials) for c in shared[:-1]]
        own = known_outcome(evidence.outcome, truncated_as)
        values.append(None if own is None else float(own))
        hard = relative_labels(values, epsilon)
        estimates = estimates_with_outcome(evidence, row, truncated_as)
        labelled.append(from_hard_labels(estimates, hard, "relative_progress"))
    return labelled


def relative_labels(values: Sequence[float | None], epsilon: float = EPSILON) -> list[int | None]:
    """1 where value[t+1] >= epsilon value[t], 0 where not and after the first value of 0.

    Args:
        values: MC of the prefixes 0..T, None where unknown.
        epsilon: Least ratio of a right step.

    Returns:
        T labels.
    """
    labels: list[int | None] = []
    dead = False
    for before, after in pairwise(values):
        dead = dead or before == 0 or after == 0
        if dead:
            labels.append(0)
        elif before is None or after is None:
            labels.append(None)
        else:
            labels.append(int(after >= epsilon * before))
    return labels


def _value(counts: Counts, truncated_as: TruncatedAs, min_trials: int) -> float | None:
    right, n = trials(counts, truncated_as)
    return right / n if n >= min_trials and not too_truncated(counts) else None
