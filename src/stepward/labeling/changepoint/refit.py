"""Empirical Bayes: the grid's weights from a pilot's stored rollouts, no new ones drawn."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np

from stepward.labeling.changepoint.grid import AXES, Array, Grid, flatten, make_grid, marginals
from stepward.labeling.changepoint.problem import posteriors
from stepward.labeling.evidence import SolutionEvidence

ROUNDS = 20
"""Five leave a third of the gain in simulations; a round costs a product."""
MIN_PILOT = 2000
"""Solutions that a pilot needs; 300 helped nothing in simulations."""


def refit(
    theta: Array,
    grid: Grid,
    *,
    num_solutions: int | None = None,
    rounds: int = ROUNDS,
    axes: Collection[str] = AXES,
    prior_solutions: float | None = None,
) -> dict[str, tuple[float, ...]]:
    """Grid weights that explain a pilot: each axis becomes its mean posterior marginal, some rounds over.

    A posterior under new weights is the old one times the ratio of the priors (pooled or not: pooling multiplies
    the prior by likelihoods), so that no round runs the chain again. Every point gets 2 / num_solutions on top:
    none is ever ruled out.

    Args:
        theta: Posteriors over the points of ``grid`` of the pilot's solutions, [n, P].
        grid: The grid they were computed with.
        num_solutions: n, where ``theta`` holds fewer rows than the pilot had.
        rounds: Rounds.
        axes: Those that are refitted; the others keep the weights of ``grid``.
        prior_solutions: What is put on top is the prior, counting as so many solutions, in place of 2 / n a point: for
            a small pilot, where that would be much.

    Returns:
        Weights by axis name, for ``LabelingConstants.axis_weights``.
    """
    first = flatten(grid).prior
    count = num_solutions or len(theta)
    priors: dict[str, tuple[float, ...]] = dict(zip(AXES, grid.weights, strict=True))
    weights: dict[str, tuple[float, ...]] = {}
    for _ in range(rounds):
        now = flatten(_weighted(grid, weights)).prior
        reweighted = theta * (now / first)
        reweighted /= reweighted.sum(axis=1, keepdims=True)
        mean = reweighted.mean(axis=0)
        weights = {
            name: _smooth(values, count)
            if prior_solutions is None
            else _with_prior(values, count, np.asarray(priors[name]), prior_solutions)
            for name, values in marginals(grid, mean).items()
            if name in axes
        }
    return weights


def _weighted(grid: Grid, weights: Mapping[str, tuple[float, ...]]) -> Grid:
    """The grid under other weights, those of missing axes kept."""
    return replace(
        grid, weights=tuple(weights.get(axis, w) for axis, w in zip(AXES, grid.weights, strict=True))
    )


def _smooth(marginal: Array, num_solutions: int) -> tuple[float, ...]:
    raised = marginal + 2 / num_solutions
    return tuple(float(w) for w in raised / raised.sum())


def _with_prior(marginal: Array, count: int, prior: Array, weight: float) -> tuple[float, ...]:
    mixed = (count * marginal + weight * prior) / (count + weight)
    return tuple(float(w) for w in mixed / mixed.sum())


def refit_from_problems(
    problems: Sequence[Sequence[SolutionEvidence]],
    *,
    pool: bool = True,
    precision: Mapping[str, float] | None = None,
    recall: Mapping[str, float] | None = None,
    rounds: int = ROUNDS,
) -> dict[str, tuple[float, ...]]:
    """Grid weights from the evidence on a pilot's problems.

    Raises:
        ValueError: The pilot holds fewer than MIN_PILOT solutions.
    """
    count = sum(map(len, problems))
    if count < MIN_PILOT:
        raise ValueError(
            f"refitting the grid from {count} solutions: a pilot needs {MIN_PILOT}; keep the default weights or "
            "label more first"
        )
    grid = make_grid(on_policy=all(s.on_policy for solutions in problems for s in solutions))
    theta = [
        p.theta
        for solutions in problems
        for p in posteriors(solutions, grid, pool=pool, precision=precision, recall=recall)
    ]
    return refit(np.stack(theta), grid, rounds=rounds)
