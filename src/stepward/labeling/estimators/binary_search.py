"""OmegaPRM's decode (Luo et al. 2024, arXiv 2406.06592, section 3.2): replay the binary search on its counts.

The search keeps lo = a prefix from which the answer was still reached and hi = one from which it was not;
MC(m) > 0 at the midpoint moves lo, MC(m) = 0 moves hi. It ends at hi = lo + 1: step number hi is the first
wrong one (index hi - 1 here). A solution whose own answer is right has no error by this rule.
"""

from collections.abc import Sequence

from stepward.labeling.estimators.prefix_value import (
    estimates_with_outcome,
    known_outcome,
    posterior_mean,
    too_truncated,
    trials,
)
from stepward.labeling.estimators.registry import TruncatedAs, register, undecided
from stepward.labeling.evidence import LabelingConstants, SolutionEvidence, SolutionLabels
from stepward.prm.types import Allocation, Counts, StepLabel


@register("omegaprm", version="1", valid_for={Allocation.BINARY_SEARCH, Allocation.FIXED_K})
def omegaprm(
    solutions: Sequence[SolutionEvidence],
    counts: Sequence[Sequence[Counts]],
    *,
    allocation: Allocation,
    truncated_as: TruncatedAs,
    constants: LabelingConstants,
) -> list[SolutionLabels]:
    """Labels by binary search: 1 before the first error, 0 at it, unknown after it.

    Values are given at the tested prefixes: k/n under fixed K, the mean of the Jeffreys posterior where the
    search may have stopped at a success.
    """
    return [
        _label(evidence, row, allocation, truncated_as)
        for evidence, row in zip(solutions, counts, strict=True)
    ]


def _label(
    evidence: SolutionEvidence, row: Sequence[Counts], allocation: Allocation, truncated_as: TruncatedAs
) -> SolutionLabels:
    estimates = estimates_with_outcome(evidence, row, truncated_as)
    if allocation is Allocation.BINARY_SEARCH:
        estimates = (*(posterior_mean(e, truncated_as) for e in estimates[:-1]), estimates[-1])
    outcome = known_outcome(evidence.outcome, truncated_as)
    if outcome == 1:
        labels = tuple(StepLabel(1, decided_by="outcome") for _ in range(evidence.num_steps))
        return SolutionLabels(estimates, labels, None)
    first_error = None if outcome is None else _search(row, evidence.num_steps, truncated_as)
    if first_error is None:
        return SolutionLabels(estimates, undecided(evidence, row).labels, None, decided=False)
    labels = tuple(
        StepLabel(int(t < first_error), decided_by="returns") if t <= first_error else StepLabel()
        for t in range(evidence.num_steps)
    )
    return SolutionLabels(estimates, labels, first_error)


def _search(row: Sequence[Counts], num_steps: int, truncated_as: TruncatedAs) -> int | None:
    """Index of the first wrong step, or None where a prefix on the way has no usable trial."""
    lo, hi = 0, num_steps
    while hi - lo > 1:
        middle = (lo + hi) // 2
        if row[middle].right:
            lo = middle
        elif trials(row[middle], truncated_as)[1] and not too_truncated(row[middle]):
            hi = middle
        else:
            return None
    return hi - 1
