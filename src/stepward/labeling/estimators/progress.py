"""Process advantage under a prover (PAV; Setlur et al. 2024, arXiv 2410.08146, equations 1 and 5).

A^mu of step t = Q^mu(after step t) - Q^mu(before it). The prover mu is the completer's best of K: from the
completer's own value Q, Q^mu = 1 - (1 - Q)^K, so that one set of rollouts serves both; K = 1 takes the completer
itself as the prover, which may differ from the generator everywhere. The effective reward of a step is
Q^pi(after it) + alpha A^mu; the hard label is its sign (StepWiser's Rel-Effective, Xiong et al. 2025).
"""

from collections.abc import Sequence
from itertools import pairwise

from stepward.labeling.estimators.prefix_value import (
    estimates_with_outcome,
    from_hard_labels,
    monte_carlo,
    share_root,
    too_truncated,
)
from stepward.labeling.estimators.registry import TruncatedAs, register
from stepward.labeling.evidence import LabelingConstants, SolutionEvidence, SolutionLabels
from stepward.prm.types import Allocation, Counts

PROVER_BEST_OF = 4
"""The paper's best K: 2 is too weak, 32 too strong."""
ALPHA = 0.5
"""Weight of the advantage; .2 to .6 was robust in the paper's search."""


@register("pav", version="1", valid_for={Allocation.FIXED_K, Allocation.DIFFICULTY_K})
def pav(
    solutions: Sequence[SolutionEvidence],
    counts: Sequence[Sequence[Counts]],
    *,
    allocation: Allocation,
    truncated_as: TruncatedAs,
    constants: LabelingConstants,
    prover_best_of: int = PROVER_BEST_OF,
    alpha: float = ALPHA,
) -> list[SolutionLabels]:
    """Hard labels from effective rewards; valid where the trials do not depend on their outcomes.

    Q^pi is read at every prefix but a truncated one; prefix 0 needs rollouts for the first step's advantage.
    """
    labelled: list[SolutionLabels] = []
    for evidence, row, shared in zip(solutions, counts, share_root(counts), strict=True):
        estimates = estimates_with_outcome(evidence, row, truncated_as)
        root = monte_carlo(shared[0], truncated_as)
        values = [None if too_truncated(e.counts) else e.value for e in (root, *estimates[1:])]
        gains = prover_advantages(values, prover_best_of)
        hard = [
            None if q is None or a is None else int(q + alpha * a > 0)
            for q, a in zip(values[1:], gains, strict=True)
        ]
        labelled.append(from_hard_labels(estimates, hard, "progress"))
    return labelled


def prover_advantages(
    values: Sequence[float | None], prover_best_of: int = PROVER_BEST_OF
) -> list[float | None]:
    """A^mu of each of T steps from the completer's values at prefixes 0..T.

    Args:
        values: Q in [0, 1], None where unknown.
        prover_best_of: K of the best-of-K prover, 1 or more.

    Returns:
        T advantages in [-1, 1], None where a value beside the step is unknown.

    Raises:
        ValueError: K is below 1.
    """
    if prover_best_of < 1:
        raise ValueError(f"computing advantages: prover_best_of is {prover_best_of}; give 1 or more")
    prover = [None if q is None else 1 - (1 - q) ** prover_best_of for q in values]
    return [None if a is None or b is None else b - a for a, b in pairwise(prover)]
