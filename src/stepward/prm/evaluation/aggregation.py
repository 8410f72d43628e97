"""From step scores to one score of a solution: min, product, last, mean, and a learned one.

MC-trained PRMs rank best by ``last``, judge- or human-trained ones by ``product`` or ``min`` (Zhang et al.,
arXiv 2501.07301), so no rule is the default everywhere.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from stepward.prm.evaluation.errors import StepCountError
from stepward.prm.evaluation.intervals import Floats
from stepward.prm.evaluation.logistic import Logistic, fit_logistic

Aggregation = Callable[[Sequence[float]], float]


def product(scores: Sequence[float]) -> float:
    """Product of the step scores, by logarithms so that long solutions do not underflow to ties at 0."""
    values = np.asarray(scores, dtype=np.float64)
    return 0.0 if (values <= 0).any() else float(np.exp(np.log(values).sum()))


def last(scores: Sequence[float]) -> float:
    """The last step's score."""
    return float(scores[-1])


def mean(scores: Sequence[float]) -> float:
    """Mean over the steps."""
    return float(np.mean(scores))


def minimum(scores: Sequence[float]) -> float:
    """The lowest step score."""
    return float(min(scores))


AGGREGATIONS: dict[str, Aggregation] = {"min": minimum, "product": product, "last": last, "mean": mean}

_FLOOR = 1e-6


def features(scores: Sequence[float]) -> Floats:
    """What the learned aggregation sees, shape [6]: logits of min, mean and last, the mean log score, its sum,
    and the logarithm of the number of steps."""
    values = np.clip(np.asarray(scores, dtype=np.float64), _FLOOR, 1 - _FLOOR)
    if len(values) == 0:
        raise StepCountError("a solution without step scores cannot be aggregated; give each step a score")
    picked = np.array([values.min(), values.mean(), values[-1]])
    logs = np.log(values)
    return np.array([*np.log(picked / (1 - picked)), logs.mean(), logs.sum(), np.log(len(values))])


@dataclass(frozen=True, slots=True)
class LearnedAggregation:
    """P(final answer right | step scores), fitted on other problems than those it is reported on.

    Attributes:
        model: Logistic regression on ``features``.
        problems: Ids of the problems that were seen; an evaluation that holds one is refused.
    """

    model: Logistic
    problems: frozenset[str] = field(repr=False)

    def __call__(self, scores: Sequence[float]) -> float:
        """The aggregate of one solution's step scores."""
        return float(self.model.probability(features(scores)[None, :])[0])


def learn_aggregation(
    problems: Sequence[str], scores: Sequence[Sequence[float]], right: Sequence[bool]
) -> LearnedAggregation:
    """Fit the learned aggregation.

    Args:
        problems: The problem id of each solution.
        scores: Its step scores.
        right: Whether its final answer is right. Leave out solutions whose outcome is a fault.

    Raises:
        EmptySideError: All right or all wrong.
    """
    table = np.stack([features(row) for row in scores])
    return LearnedAggregation(fit_logistic(table, list(right)), frozenset(problems))
