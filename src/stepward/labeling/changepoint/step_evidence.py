"""Likelihoods of what tools and reward models say of a step, as factors of the chain's transitions.

For step t: a_t where it stays on a right path, x_t where it is a new wrong step, z_t where it stays on a wrong
path. A tool flags a new wrong step with its recall, any other step that it covers with its false positive rate

    fpr = recall pi (1 - precision) / (precision (1 - pi)),     pi = share of wrong steps,

and a step after an error with f_after. Only ratios matter; a step without evidence has (1, 1, 1).
"""

from collections.abc import Mapping

import numpy as np

from stepward.labeling.changepoint.grid import Array
from stepward.labeling.changepoint.hints import HINT_CLIP
from stepward.labeling.evidence import SolutionEvidence
from stepward.prm.types import VerdictKind

WRONG_STEP_RATE = 0.06
"""pi: share of steps that are new errors."""
FLAG_AFTER_ERROR = 0.05
"""f_after: share of covered steps flagged on a wrong path."""
DEFAULT_PRECISION = 0.9
"""Below what good tools measure: verdict errors go along with the policy's errors, and an assumed .90 in place
of a true .97 cost nothing in simulations."""
DEFAULT_RECALL = 0.6


def tool_likelihoods(flagged: bool, precision: float, recall: float) -> tuple[float, float, float]:
    """(a, x, z) of one tool's verdict on a step that it covers.

    Args:
        flagged: True where it refutes a claim of the step, False where it supports all it checked.
        precision: P(new error | flag), in (0, 1].
        recall: P(flag | new error), in (0, 1).

    Raises:
        ValueError: Precision or recall outside these ranges.
    """
    if not 0 < precision <= 1 or not 0 < recall < 1:
        raise ValueError(
            f"reading a tool verdict: precision {precision} and recall {recall}; give a precision in (0, 1] and "
            "a recall in (0, 1)"
        )
    pi = WRONG_STEP_RATE
    false_positive = max(recall * pi * (1 - precision) / (precision * (1 - pi)), 1e-4)
    if flagged:
        return false_positive, recall, FLAG_AFTER_ERROR
    return 1 - false_positive, 1 - recall, 1 - FLAG_AFTER_ERROR


def hint_likelihood(p_right: float) -> float:
    """x_t of a calibrated reward model that gives P(step is right): its odds over the prior odds, clipped."""
    p_right = min(max(p_right, 1e-6), 1 - 1e-6)
    ratio = (1 - p_right) / p_right * (1 - WRONG_STEP_RATE) / WRONG_STEP_RATE
    return min(max(ratio, 1 / HINT_CLIP), HINT_CLIP)


def step_likelihoods(
    evidence: SolutionEvidence, precision: Mapping[str, float], recall: Mapping[str, float]
) -> Array:
    """(a_t, x_t, z_t) of every step, [T, 3].

    A verifier counts once a step: as a flag where any of its claims is refuted, as ok where it supports some
    and refutes none, not at all where it only says unknown.

    Args:
        evidence: The solution.
        precision: By verifier name; a verifier that is missing has DEFAULT_PRECISION.
        recall: By verifier name; DEFAULT_RECALL where missing.
    """
    factors = np.ones((evidence.num_steps, 3))
    for t, verdicts in enumerate(evidence.verdicts):
        kinds: dict[str, set[VerdictKind]] = {}
        for verdict in verdicts:
            kinds.setdefault(verdict.verifier, set()).add(verdict.kind)
        for verifier in sorted(kinds):
            flagged = VerdictKind.REFUTED in kinds[verifier]
            if flagged or VerdictKind.SUPPORTED in kinds[verifier]:
                factors[t] *= tool_likelihoods(
                    flagged, precision.get(verifier, DEFAULT_PRECISION), recall.get(verifier, DEFAULT_RECALL)
                )
    for t, score in enumerate(evidence.prm_scores):
        factors[t, 1] *= hint_likelihood(score)
    return factors
