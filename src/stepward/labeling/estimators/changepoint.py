"""The change-point posterior as a label rule: valid for every allocation, because no stopping rule biases it.

Exported for every step i (0-based; prefix i + 1 ends with it): ``p_first_error`` = P(step i is the first wrong
one). The hard label is 1 where P(no error up to step i) and 0 where P(first error = i) reaches ``confidence``,
else unknown; so are the steps after a first error, about whose own rightness rollouts say nothing, and all steps of
a solution of which nothing at all is known.
``first_error`` is the most probable first error, ties to none. A prefix value is the posterior mean of V with
the 90 % interval of the Beta distribution of equal mean and variance.
"""

from collections.abc import Sequence

import numpy as np

from stepward.labeling.changepoint.grid import make_grid
from stepward.labeling.changepoint.problem import SolutionPosterior, posteriors
from stepward.labeling.estimators.prefix_value import known_outcome, too_truncated
from stepward.labeling.estimators.registry import TruncatedAs, register
from stepward.labeling.evidence import LabelingConstants, SolutionEvidence, SolutionLabels
from stepward.prm.types import Allocation, Counts, Estimate, StepLabel, VerdictKind

CONFIDENCE = 0.8
"""Posterior probability that a hard label needs."""


@register("changepoint", version="3", valid_for=set(Allocation))
def changepoint(
    solutions: Sequence[SolutionEvidence],
    counts: Sequence[Sequence[Counts]],
    *,
    allocation: Allocation,
    truncated_as: TruncatedAs,
    constants: LabelingConstants,
    pool: bool = True,
    confidence: float = CONFIDENCE,
) -> list[SolutionLabels]:
    """Labels of all solutions of one problem.

    Args:
        solutions: Their evidence; where any was continued by another model than its generator, all are read in
            the off-policy form.
        counts: What the rows will hold.
        allocation: Not read: the posterior is valid for any.
        truncated_as: ``exclude`` and ``wrong`` read unfinished draws so; ``bounds`` takes means and labels
            from ``exclude``, intervals from both, and gives a hard label only where both agree.
        constants: Grid weights, precision and recall that a pilot fixed.
        pool: Let the solutions inform each other.
        confidence: Posterior probability that a hard label needs, above 1/2.
    """
    if not 0.5 < confidence < 1:
        raise ValueError(f"labelling by changepoint: confidence is {confidence}; give a value in (1/2, 1)")
    if not solutions:
        return []
    grid = make_grid(
        constants.axis_weights,
        on_policy=all(s.on_policy for s in solutions),
        axis_points=constants.axis_points,
    )

    def read(unfinished_as_wrong: bool) -> list[SolutionPosterior]:
        return posteriors(
            solutions,
            grid,
            pool=pool,
            unfinished_as_wrong=unfinished_as_wrong,
            precision=constants.precision,
            recall=constants.recall,
            with_variance=True,
        )

    main = read(truncated_as == "wrong")
    unfinished = any(c.truncated + c.no_answer for row in counts for c in row)
    unfinished = unfinished or any(s.outcome.value in ("truncated", "no_answer") for s in solutions)
    other = read(unfinished_as_wrong=True) if truncated_as == "bounds" and unfinished else main
    known = [_is_known_of(s, truncated_as) for s in solutions]
    spoken = {n for s, k in zip(solutions, known, strict=True) if k for n in s.nodes[1:]}
    return [
        _label(
            evidence, row, a, b, truncated_as, confidence, known=k or not spoken.isdisjoint(evidence.nodes)
        )
        for evidence, row, a, b, k in zip(solutions, counts, main, other, known, strict=True)
    ]


def _label(
    evidence: SolutionEvidence,
    row: Sequence[Counts],
    main: SolutionPosterior,
    other: SolutionPosterior,
    truncated_as: TruncatedAs,
    confidence: float,
    *,
    known: bool,
) -> SolutionLabels:
    steps = evidence.num_steps
    low, high = _interval(main.value, main.variance)
    if other is not main:
        other_low, other_high = _interval(other.value, other.variance)
        low, high = np.minimum(low, other_low), np.maximum(high, other_high)
    estimates = [
        Estimate(c, float(v), float(a), float(b))
        for c, v, a, b in zip(row, main.value, low, high, strict=True)
    ]
    own = known_outcome(evidence.outcome, truncated_as)
    if own is not None:
        estimates[-1] = Estimate(row[-1], float(own), float(own), float(own))
    labels: list[StepLabel] = []
    for i in range(steps):
        readings = {_hard(p, i, confidence) for p in (main, other)}
        sure = known and len(readings) == 1 and not too_truncated(row[i + 1])
        label = readings.pop() if sure else None
        labels.append(StepLabel(label, float(main.p_first_error[i]), "" if label is None else "posterior"))
    best = int(np.argmax(main.p_first_error[:steps]))
    first_error = best if main.p_first_error[best] > main.p_first_error[steps] else None
    return SolutionLabels(tuple(estimates), tuple(labels), first_error)


def _is_known_of(evidence: SolutionEvidence, truncated_as: TruncatedAs) -> bool:
    """Whether anything at all is known of this solution: its own outcome, a judged rollout, a verdict, a hint.

    Without it the posterior is the prior and what its siblings say of the problem: enough for P, not for a label.
    """
    own = known_outcome(evidence.outcome, truncated_as) is not None
    unfinished = truncated_as == "wrong" and any(map(len, evidence.draws))
    told = any(v.kind is not VerdictKind.UNKNOWN for at_step in evidence.verdicts for v in at_step)
    drawn = any(evidence.trials(t)[1] for t in range(evidence.num_steps + 1))
    return own or drawn or unfinished or told or bool(evidence.prm_scores)


def _hard(posterior: SolutionPosterior, step: int, confidence: float) -> int | None:
    if posterior.p_right[step + 1] >= confidence:
        return 1
    return 0 if posterior.p_first_error[step] >= confidence else None


def _interval(
    mean: np.ndarray[tuple[int, ...], np.dtype[np.floating]],
    variance: np.ndarray[tuple[int, ...], np.dtype[np.floating]],
) -> tuple[np.ndarray[tuple[int, ...], np.dtype[np.floating]], ...]:
    """5 % and 95 % quantiles of Beta distributions of the given means and variances."""
    from scipy.special import betaincinv  # pyright: ignore[reportMissingTypeStubs]

    mean = np.clip(mean, 1e-6, 1 - 1e-6)
    spread = np.maximum(mean * (1 - mean) / np.maximum(variance, 1e-12) - 1, 1e-3)
    a, b = mean * spread, (1 - mean) * spread
    return np.asarray(betaincinv(a, b, 0.05)), np.asarray(betaincinv(a, b, 0.95))
