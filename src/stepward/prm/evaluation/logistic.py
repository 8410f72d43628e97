"""Logistic regression by Newton's method (IRLS) with a small ridge: a dozen weights need no optimiser library."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stepward.prm.evaluation.errors import EmptySideError
from stepward.prm.evaluation.intervals import Floats


@dataclass(frozen=True, slots=True)
class Logistic:
    """P(y = 1 | x) = 1 / (1 + exp(-(bias + weights . (x - mean) / scale))).

    Attributes:
        bias: Intercept.
        weights: One a feature, of the standardised features.
        mean: Feature means of the fitted rows.
        scale: Their standard deviations, 1 where a feature is constant.
    """

    bias: float
    weights: tuple[float, ...]
    mean: tuple[float, ...]
    scale: tuple[float, ...]

    def probability(self, features: Floats) -> Floats:
        """Probabilities, shape [rows], of features of shape [rows, features]."""
        logit = self.bias + ((features - np.array(self.mean)) / np.array(self.scale)) @ np.array(self.weights)
        return 0.5 * (1.0 + np.tanh(0.5 * logit))  # the logistic function without overflow


def fit_logistic(
    features: Floats, targets: Sequence[bool] | Floats, *, ridge: float = 1.0, max_iterations: int = 50
) -> Logistic:
    """Maximum penalised likelihood.

    Args:
        features: Shape [rows, features].
        targets: Shape [rows], 0 or 1.
        ridge: Weight of the squared penalty on the standardised weights (not on the bias). It keeps
            separable rows finite.
        max_iterations: Newton steps at most; a step is halved until the objective falls.

    Raises:
        EmptySideError: Only one of the two classes occurs.
        ValueError: Shapes do not match or a feature is not finite.
    """
    y = np.asarray(targets, dtype=np.float64)
    if features.ndim != 2 or len(features) != len(y) or not np.isfinite(features).all():
        raise ValueError(
            f"features of shape {features.shape} and {len(y)} targets: finite features of shape [rows, features] "
            "and one target a row are needed"
        )
    if not 0 < y.sum() < len(y):
        raise EmptySideError(
            f"fitting on {len(y)} rows of which {int(y.sum())} are right: rows of both kinds are needed"
        )
    mean, scale = features.mean(axis=0), features.std(axis=0)
    scale = np.where(scale > 1e-12, scale, 1.0)
    x = np.column_stack([np.ones(len(y)), (features - mean) / scale])
    penalty = np.full(x.shape[1], ridge)
    penalty[0] = 0.0
    w = np.zeros(x.shape[1])
    objective = _objective(x, y, w, penalty)
    for _ in range(max_iterations):
        p = 0.5 * (1.0 + np.tanh(0.5 * (x @ w)))
        gradient = x.T @ (p - y) + penalty * w
        hessian = (x * (p * (1 - p))[:, None]).T @ x + np.diag(penalty + 1e-10)
        step = np.linalg.solve(hessian, gradient)
        size = 1.0
        while _objective(x, y, w - size * step, penalty) > objective and size > 1e-8:
            size /= 2
        w = w - size * step
        previous, objective = objective, _objective(x, y, w, penalty)
        if previous - objective < 1e-12 * max(1.0, abs(objective)):
            break
    return Logistic(
        float(w[0]),
        tuple(float(v) for v in w[1:]),
        tuple(float(v) for v in mean),
        tuple(float(v) for v in scale),
    )


def _objective(x: Floats, y: Floats, w: Floats, penalty: Floats) -> float:
    logit = x @ w
    return float(np.logaddexp(0.0, logit).sum() - y @ logit + 0.5 * (penalty * w * w).sum())
