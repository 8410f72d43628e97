"""From the counts at one prefix to its value, its interval and its hard label.

Only for counts whose number of trials did not depend on their outcomes: k/n of adaptively stopped sampling is
biased and is never a value.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from stepward.labeling.estimators.registry import TruncatedAs
from stepward.labeling.evidence import SolutionEvidence, SolutionLabels
from stepward.prm.types import Counts, Estimate, Outcome, StepLabel

MAX_TRUNCATED = 0.1
"""A prefix with a larger share of truncated draws gets no hard label: its k/n says more of the token limit
than of the prefix."""


def trials(counts: Counts, truncated_as: TruncatedAs) -> tuple[int, int]:
    """(right, trials) by the main reading of ``truncated_as``; faults never count."""
    decided = counts.right + counts.wrong
    if truncated_as == "wrong":
        return counts.right, decided + counts.truncated + counts.no_answer
    return counts.right, decided


@lru_cache(maxsize=65536)
def beta_interval(right: int, n: int) -> tuple[float, float]:
    """Equal-tailed 90 % interval of Beta(right + 1/2, n - right + 1/2), the posterior under Jeffreys' prior."""
    from scipy.special import betaincinv  # pyright: ignore[reportMissingTypeStubs]

    a, b = right + 0.5, n - right + 0.5
    return float(betaincinv(a, b, 0.05)), float(betaincinv(a, b, 0.95))


def monte_carlo(counts: Counts, truncated_as: TruncatedAs) -> Estimate:
    """Math-Shepherd's MC = right / trials with a Jeffreys interval; unknown where there are no trials.

    With ``bounds`` the value leaves draws without an answer out and the interval covers that reading and the
    one that counts them as wrong.
    """
    right, n = trials(counts, truncated_as)
    if n == 0:
        return Estimate(counts)
    low, high = beta_interval(right, n)
    if truncated_as == "bounds":
        low_wrong, high_wrong = beta_interval(*trials(counts, "wrong"))
        low, high = min(low, low_wrong), max(high, high_wrong)
    return Estimate(counts, right / n, low, high)


def posterior_mean(estimate: Estimate, truncated_as: TruncatedAs) -> Estimate:
    """The estimate with the mean of the Jeffreys posterior, (k + 1/2) / (n + 1), in place of k / n.

    A posterior does not depend on when sampling stopped; k / n does.
    """
    right, n = trials(estimate.counts, truncated_as)
    return replace(estimate, value=(right + 0.5) / (n + 1)) if n else estimate


def too_truncated(counts: Counts) -> bool:
    """More than a tenth of the draws (faults left out) hit the token limit."""
    honest = counts.decided + counts.truncated + counts.no_answer
    return counts.truncated > MAX_TRUNCATED * honest


def share_root(counts: Sequence[Sequence[Counts]]) -> list[list[Counts]]:
    """The counts with prefix 0 pooled: the bare problem is the same prefix for all its solutions.

    Where every row already holds the same draws, pooling repeats them and the mean stays what it was.
    """
    names = ("right", "wrong", "truncated", "no_answer", "no_gold", "undecided", "timeout", "error")
    root = Counts(**{name: sum(getattr(row[0], name) for row in counts) for name in names})
    return [[root, *row[1:]] for row in counts]


def known_outcome(outcome: Outcome, truncated_as: TruncatedAs) -> int | None:
    """1 right, 0 wrong, None where the solution's own outcome says neither."""
    if outcome in (Outcome.TRUNCATED, Outcome.NO_ANSWER):
        return 0 if truncated_as == "wrong" else None
    return {Outcome.RIGHT: 1, Outcome.WRONG: 0}.get(outcome)


def estimates_with_outcome(
    evidence: SolutionEvidence, counts: Sequence[Counts], truncated_as: TruncatedAs
) -> tuple[Estimate, ...]:
    """T+1 Monte Carlo estimates; prefix T is the finished solution, whose value is its own outcome."""
    own = known_outcome(evidence.outcome, truncated_as)
    last = Estimate(counts[-1]) if own is None else Estimate(counts[-1], float(own), float(own), float(own))
    return (*(monte_carlo(c, truncated_as) for c in counts[:-1]), last)


def from_hard_labels(
    estimates: tuple[Estimate, ...], hard: Sequence[int | None], decided_by: str
) -> SolutionLabels:
    """Wrap hard labels: the first 0 is the first error, unless a step before it is unknown."""
    first_zero = next((t for t, label in enumerate(hard) if label == 0), None)
    before = hard if first_zero is None else hard[:first_zero]
    decided = None not in before
    labels = tuple(StepLabel(label, decided_by=decided_by if label is not None else "") for label in hard)
    return SolutionLabels(estimates, labels, first_zero if decided else None, decided)
