"""A reward model's score of a step as a likelihood ratio, learned from labels and not from the truth.

Scores of right steps and of first wrong steps are taken as normal with means m0, m1 and one variance; both are
estimated with the posterior's own weights, P(c > t) and P(c = t). The reward model must not have been trained
on labels of the problems it is read for: fit and train on the other folds (by problem), or the hints are echoes.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stepward.labeling.changepoint.grid import Array

HINT_CLIP = 20.0
"""A reward model's likelihood ratio is kept within [1/20, 20]."""


@dataclass(frozen=True, slots=True)
class HintModel:
    """Two normal distributions of a score.

    Attributes:
        mean_right: Mean over steps before the first error.
        mean_wrong: Mean over first errors.
        sd: Common standard deviation.
    """

    mean_right: float
    mean_wrong: float
    sd: float

    def ratio(self, scores: Array) -> Array:
        """P(score | first wrong) / P(score | right), clipped to [1/20, 20]; 1 where the score is NaN."""
        log_ratio = ((scores - self.mean_right) ** 2 - (scores - self.mean_wrong) ** 2) / (2 * self.sd**2)
        bound = np.log(HINT_CLIP)
        return np.exp(np.clip(np.nan_to_num(log_ratio, nan=0.0), -bound, bound))

    def likelihoods(self, scores: Array) -> Array:
        """(a, x, z) = (1, ratio, 1) of each step, [..., 3]."""
        factors = np.ones((*scores.shape, 3))
        factors[..., 1] = self.ratio(scores)
        return factors


def fit_hint(scores: Array, p_right: Array, num_steps: NDArray[np.integer]) -> HintModel:
    """Fit the two distributions.

    Args:
        scores: Score of step t at column t - 1, on a scale where normal is fair (logits), [n, steps].
        p_right: P(c > t) for t = 0..steps, [n, steps + 1].
        num_steps: T of each solution; columns beyond it are not read.

    Raises:
        ValueError: The labels hold less than one expected first error.
    """
    columns = np.arange(int(scores.shape[1]), dtype=np.int64)
    inside = np.logical_and(columns < num_steps[:, None], np.isfinite(scores))
    right = np.where(inside, p_right[:, 1:], 0.0)
    wrong = np.where(inside, p_right[:, :-1] - p_right[:, 1:], 0.0)
    values = np.where(inside, scores, 0.0)
    if wrong.sum() < 1:
        raise ValueError(
            f"fitting hints: the labels hold {wrong.sum():.2f} expected first errors; give labels of more solutions"
        )
    mean_right = (right * values).sum() / right.sum()
    mean_wrong = (wrong * values).sum() / wrong.sum()
    spread = (right * (values - mean_right) ** 2 + wrong * (values - mean_wrong) ** 2).sum()
    return HintModel(float(mean_right), float(mean_wrong), float(np.sqrt(spread / (right + wrong).sum())))
