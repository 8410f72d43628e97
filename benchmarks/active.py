"""The change-point labeller over simulated solutions: one run to the lowest price serves every higher one.

Without pooling a solution's decisions depend on nothing but itself, and what it does at a price is what it does
at a lower price, cut short. With pooling the price falls in steps a problem; at each step its solutions are
drawn from, one rollout each a round, until none is worth the price.
"""

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from benchmarks import kernel
from benchmarks.peers import FixedSamples, inner
from benchmarks.simulator import MAX_STEPS, Sample
from stepward.labeling.changepoint.grid import ETA, Grid, curves, flatten, kappa_first
from stepward.labeling.changepoint.pooling import BLUR, length_map

DECODE_ONLY = np.array([1e30])
"""The price at which nothing is bought."""


@dataclass(frozen=True, slots=True)
class Curve:
    """What a labeller gave at each price, [prices, n].

    Attributes:
        prices: Nats a token, falling.
        tokens: Tokens of rollouts spent.
        predicted: Decoded c.
        confidence: P(c = predicted).
        value_mse: Mean over prefixes 1..T-1 of (E[V_t] - V_t)^2.
        rollouts: Number of rollouts.
        theta: Posterior over the grid at the last price, [n, P].
        p_right: P(c > t) at the last price, [n, MAX_STEPS + 1].
        right: Right rollouts at the last price, [n, MAX_STEPS + 1].
        trials: All rollouts at the last price.
    """

    prices: NDArray[np.float64]
    tokens: NDArray[np.float64]
    predicted: NDArray[np.int64]
    confidence: NDArray[np.float64]
    value_mse: NDArray[np.float64]
    rollouts: NDArray[np.int64]
    theta: NDArray[np.float32]
    p_right: NDArray[np.float64]
    right: NDArray[np.int64]
    trials: NDArray[np.int64]


_TABLES: dict[Grid, tuple[NDArray[np.float64], NDArray[np.float64]]] = {}


def tables(grid: Grid) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Hazards [T, Q] and curves [T, t, 2, Q] of every length up to MAX_STEPS; Q points differ in more than kappa."""
    key = Grid(grid.s0, grid.rho, grid.phi, grid.kappa, grid.hazard, ())
    if key not in _TABLES:
        points = kappa_first(grid)[0]
        hazards = np.zeros((MAX_STEPS + 1, len(points)))
        values = np.zeros((MAX_STEPS + 1, MAX_STEPS + 1, 2, len(points)))
        for steps in range(1, MAX_STEPS + 1):
            shape = curves(grid, steps)
            hazards[steps], values[steps, : steps + 1] = shape.hazard[points], shape.value[:, :, points]
        _TABLES[key] = hazards, values
    return _TABLES[key]


@lru_cache(maxsize=4)
def length_maps(s0: tuple[float, ...]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """``length_map`` of all pairs of lengths, [T, T', points]."""
    below = np.zeros((MAX_STEPS + 1, MAX_STEPS + 1, len(s0)), np.int64)
    part = np.zeros(below.shape)
    for steps in range(1, MAX_STEPS + 1):
        for other in range(1, MAX_STEPS + 1):
            below[steps, other], part[steps, other] = length_map(s0, steps, other)
    return below, part


def run(
    sample: Sample,
    prices: NDArray[np.float64],
    grid: Grid,
    seed: int,
    *,
    pooled: bool = False,
    use_siblings: bool = True,
    overhead: float = 0.0,
    evidence: NDArray[np.float64] | None = None,
    given: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None,
    blur: float = BLUR,
) -> Curve:
    """Label every solution at each price.

    Args:
        sample: The solutions.
        prices: Nats a token, falling; ``DECODE_ONLY`` buys nothing.
        grid: Grid and prior.
        seed: Seed of the rollouts.
        pooled: Solutions of a problem share theta; else each is labelled by itself.
        use_siblings: Without pooling: count the siblings' outcomes (charging them is the caller's).
        overhead: Tokens that a rollout costs beside its own, in the choice; charging is the caller's too.
        evidence: Likelihoods (a, x, z) of each step, [n, MAX_STEPS, 3].
        given: (right, trials) of rollouts that are known beforehand, each [n, MAX_STEPS + 1].
        blur: See ``pooled_priors``.
    """
    n, levels, points = len(sample), len(prices), flatten(grid)
    hazards, values = tables(grid)
    place = kappa_first(grid)
    siblings = sample.siblings if use_siblings else np.zeros_like(sample.siblings)
    empty = np.zeros((n, MAX_STEPS + 1), np.int64)
    given_right, given_trials = given or (empty, empty)
    right, trials = empty.copy(), empty.copy()
    out = (
        np.zeros((levels, n), np.int64), np.zeros((levels, n)), np.zeros((levels, n)),
        np.zeros((levels, n), np.int64), np.full((levels, n), np.nan),
    )  # fmt: skip
    theta = np.zeros((n, grid.size), np.float32)
    p_right = np.zeros((n, MAX_STEPS + 1))
    right_outcome = sample.right.astype(np.int64)
    below, part = length_maps(grid.s0)
    bounds = np.flatnonzero(np.diff(sample.problem, prepend=-1, append=-1))
    for first, last in pairwise(bounds):
        kernel.label(
            first, last, sample.num_steps, right_outcome, siblings, sample.chance, sample.value, sample.rest,
            np.zeros((1, 1, 3)) if evidence is None else evidence, evidence is not None, pooled,
            prices, overhead, (seed * 1_000_003 + int(first)) % 2**32, below, part, blur, len(grid.s0),
            points.rho[place[0]], points.phi[place[0]], np.array(grid.kappa), place, points.prior, hazards, values, ETA,
            given_right, given_trials, *out, theta, p_right, right, trials,
        )  # fmt: skip
    predicted, confidence, tokens, rollouts, mse = out
    return Curve(prices, tokens, predicted, confidence, mse, rollouts, theta, p_right, right, trials)


def decode(sample: Sample, drawn: FixedSamples, grid: Grid, **options) -> NDArray[np.int64]:
    """Math-Shepherd's samples under our decoder; ``options`` are those of ``run``."""
    trials = inner(sample) * drawn.num_rollouts
    return run(sample, DECODE_ONLY, grid, 1, given=(drawn.right, trials), **options).predicted[0]
