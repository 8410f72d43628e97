"""ReST-MCTS* quality values (Zhang et al. 2024, arXiv 2406.03816, equations 1 to 3).

With m_k = K - k steps left after step k and r_k = 1 where step k is wrong,

    w_k = (1 - v_{k-1}) / (m_k + 1) (1 - 2 r_k),      v_k = max(0, v_{k-1} + w_k),      v_0 = 0.

A right solution rises evenly, v_k = k / K. The authors' code differs: it divides by the least number of steps to
a right end that the tree knows, and takes +1 or -1 for the whole route.
"""

from collections.abc import Sequence
from dataclasses import replace

from stepward.labeling.estimators.monte_carlo import MIN_TRIALS, math_shepherd
from stepward.labeling.estimators.registry import TruncatedAs, register
from stepward.labeling.evidence import LabelingConstants, SolutionEvidence, SolutionLabels
from stepward.prm.types import Allocation, Counts


@register("rest_mcts", version="1", valid_for={Allocation.FIXED_K, Allocation.STOP_AT_FIRST_RIGHT})
def rest_mcts(
    solutions: Sequence[SolutionEvidence],
    counts: Sequence[Sequence[Counts]],
    *,
    allocation: Allocation,
    truncated_as: TruncatedAs,
    constants: LabelingConstants,
    min_trials: int = MIN_TRIALS,
) -> list[SolutionLabels]:
    """Quality values as the values of prefixes 1..T; r_k and the hard labels are Math-Shepherd's.

    A value is unknown from the first unknown step on. The intervals of the Monte Carlo values are left out: they
    are intervals of something else.
    """
    labelled = math_shepherd(
        solutions,
        counts,
        allocation=allocation,
        truncated_as=truncated_as,
        constants=constants,
        min_trials=min_trials,
    )
    return [_with_quality(labels) for labels in labelled]


def _with_quality(labels: SolutionLabels) -> SolutionLabels:
    values = quality_values([s.label for s in labels.labels])
    estimates = tuple(
        replace(e, value=v, low=None, high=None)
        for e, v in zip(labels.estimates, [0.0, *values], strict=True)
    )
    return replace(labels, estimates=estimates)


def quality_values(hard: Sequence[int | None]) -> list[float | None]:
    """v_1..v_K from the hard labels of K steps; None from the first unknown one on."""
    values: list[float | None] = []
    value: float | None = 0.0
    for k, label in enumerate(hard, start=1):
        if value is not None and label is not None:
            gain = (1 - value) / (len(hard) - k + 1)
            value = max(0.0, value + (gain if label else -gain))
        else:
            value = None
        values.append(value)
    return values
