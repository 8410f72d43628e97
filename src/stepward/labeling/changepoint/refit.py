"""Empirical Bayes: the grid's weights from a pilot's stored rollouts, no new ones drawn."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from stepward.labeling.changepoint.grid import Array, Grid, make_grid, marginals
from stepward.labeling.changepoint.problem import posteriors
from stepward.labeling.evidence import SolutionEvidence

ROUNDS = 5
MIN_PILOT = 2000
"""Solutions that a pilot needs; 300 helped nothing in simulations."""


def refit(
    theta_posteriors: Callable[[Grid], Array],
    num_solutions: int,
    *,
    on_policy: bool = True,
    rounds: int = ROUNDS,
) -> dict[str, tuple[float, ...]]:
    """Grid weights that explain a pilot: each axis becomes its mean posterior marginal, some rounds over.

    Every point gets 2 / num_solutions on top, so that no point is ever ruled out.

    Args:
        theta_posteriors: Posteriors over the points, [n, P], of the pilot's solutions under a grid.
        num_solutions: n.
        on_policy: Whether the completer is the generator.
        rounds: Rounds of recomputing.

    Returns:
        Weights by axis name, for ``LabelingConstants.axis_weights``.
    """
    weights: dict[str, tuple[float, ...]] = {}
    for _ in range(rounds):
        grid = make_grid(weights, on_policy=on_policy)
        mean = theta_posteriors(grid).mean(axis=0)
        weights = {name: _smooth(values, num_solutions) for name, values in marginals(grid, mean).items()}
    return weights


def _smooth(marginal: Array, num_solutions: int) -> tuple[float, ...]:
    raised = marginal + 2 / num_solutions
    return tuple(float(w) for w in raised / raised.sum())


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
    on_policy = all(s.on_policy for solutions in problems for s in solutions)

    def theta(grid: Grid) -> Array:
        return np.stack(
            [
                p.theta
                for solutions in problems
                for p in posteriors(solutions, grid, pool=pool, precision=precision, recall=recall)
            ]
        )

    return refit(theta, count, on_policy=on_policy, rounds=rounds)
