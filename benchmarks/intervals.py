"""F1 and token curves with paired bootstrap intervals: one set of resampled problems serves every method."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.simulator import Sample

FRACTIONS = (0.01, 0.03, 0.05, 0.10, 0.15, 0.30, 1.0)
"""Budgets, as shares of the tokens of Math-Shepherd K=8."""
REPLICATES = 200


@dataclass(frozen=True, slots=True)
class Resample:
    """Weights of each solution: row 0 is all ones, the others a bootstrap over problems. [1 + B, n]"""

    weights: NDArray[np.float32]
    wrong: NDArray[np.bool_]
    first_error: NDArray[np.int64]
    length: NDArray[np.int64]

    @classmethod
    def of(cls, sample: Sample, seed: int, replicates: int = REPLICATES) -> "Resample":
        """Draw the bootstrap; solutions of one problem stay together."""
        rng = np.random.default_rng([seed, 505])
        problems = int(sample.problem.max()) + 1
        drawn = rng.multinomial(problems, np.full(problems, 1 / problems), replicates)
        weights = np.concatenate([np.ones((1, len(sample))), drawn[:, sample.problem]]).astype(np.float32)
        return cls(weights, sample.first_error <= sample.num_steps, sample.first_error, sample.num_steps)

    def f1(self, predicted: NDArray[np.int64]) -> NDArray[np.float64]:
        """F1 of each replicate, [1 + B, levels], for predictions [levels, n] or [n]."""
        hit = (np.atleast_2d(predicted) == self.first_error).astype(np.float32)
        on_wrong = (
            self.weights @ (hit * self.wrong).T / (self.weights @ self.wrong.astype(np.float32))[:, None]
        )
        on_right = (
            self.weights @ (hit * ~self.wrong).T / (self.weights @ (~self.wrong).astype(np.float32))[:, None]
        )
        return (2 * on_wrong * on_right / np.maximum(on_wrong + on_right, 1e-12)).astype(np.float64)

    def mean(self, values: NDArray[np.floating]) -> NDArray[np.float64]:
        """Mean of each replicate, [1 + B, levels], for values [levels, n] or [n]."""
        total = self.weights @ np.atleast_2d(values).astype(np.float32).T
        return (total / self.weights.sum(axis=1, keepdims=True)).astype(np.float64)


def tokens_at(f1: NDArray[np.floating], tokens: NDArray[np.floating], target: float) -> float:
    """Tokens at which a curve reaches a target F1; NaN where it needs none or never gets there."""
    rising = np.maximum.accumulate(f1)
    if target <= rising[0] or target > rising[-1]:
        return float("nan")
    after = int(np.searchsorted(rising, target))
    low, high = rising[after - 1], rising[after]
    return float(tokens[after - 1] + (target - low) / (high - low) * (tokens[after] - tokens[after - 1]))


def f1_at(f1: NDArray[np.floating], tokens: NDArray[np.floating], budget: float) -> float:
    """F1 of a curve at a budget; NaN beyond its end."""
    return (
        float(np.interp(budget, tokens, np.maximum.accumulate(f1))) if budget <= tokens[-1] else float("nan")
    )


def interval(values: NDArray[np.floating], digits: int = 2) -> dict[str, float | None]:
    """Value and 95 % interval from an array whose first entry is the sample itself."""
    if np.isnan(values[0]):
        return {"value": None, "low": None, "high": None}
    low, high = np.nanquantile(values[1:], [0.025, 0.975])
    return {
        "value": round(float(values[0]), digits),
        "low": round(float(low), digits),
        "high": round(float(high), digits),
    }


def ratios(
    f1: NDArray[np.floating],
    tokens: NDArray[np.floating],
    target: NDArray[np.floating],
    peer: NDArray[np.floating],
) -> dict[str, float | None]:
    """How many times fewer tokens than a peer at the peer's F1, with a paired interval."""
    each = [p / tokens_at(f, t, x) for f, t, x, p in zip(f1, tokens, target, peer, strict=True)]
    return interval(np.array(each))


def map_calibration_error(confidence: NDArray[np.floating], hit: NDArray[np.bool_], bins: int = 10) -> float:
    """Expected calibration error of the decoded c, equal-width bins."""
    number = np.minimum((confidence * bins).astype(int), bins - 1)
    gaps = [abs(confidence[number == b].sum() - hit[number == b].sum()) for b in range(bins)]
    return float(sum(gaps) / len(hit))
