"""The grid over what rollouts do not show directly, its prior, and the value curves it implies.

theta = (s0, rho, phi, kappa), and off-policy a hazard of its own:

- s0     P(no step is wrong); with T steps each is wrong with the same hazard h = 1 - s0^(1/T);
- rho    P(a step leads from a wrong path back to a right one);
- phi    P(right answer | wrong path at the end);
- kappa  trust in the curves: rollouts at one prefix are Beta-binomial with mean G_t or B_t and kappa pseudo
         counts, which absorbs curves of another shape and correlated rollouts;
- hazard where the completer is not the generator, the h of the steps; s0 then sets only the level of the curves.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import prod

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating]

ETA = 0.02
"""P(wrong answer | never wrong, or recovered, at the end)."""

S0 = (0.02, 0.06, 0.12, 0.2, 0.32, 0.45, 0.6, 0.75, 0.87, 0.95, 0.985)
RHO = (0.003, 0.02, 0.07, 0.2, 0.5)
RHO_WEIGHTS = (0.4, 0.3, 0.18, 0.09, 0.03)
PHI = (0.01, 0.05, 0.15)
PHI_WEIGHTS = (0.35, 0.45, 0.2)
KAPPA = (4.0, 15.0, 100.0)
KAPPA_WEIGHTS = (0.15, 0.35, 0.5)
HAZARD = (0.01, 0.03, 0.08, 0.2)
AXES = ("s0", "rho", "phi", "kappa", "hazard")


@dataclass(frozen=True, slots=True)
class Grid:
    """Points of theta and their prior weights, one axis a field; ``hazard`` is empty on-policy.

    Attributes:
        s0: Values in (0, 1), ascending.
        rho: Values in [0, 1).
        phi: Values in (0, 1).
        kappa: Pseudo counts, positive.
        hazard: Values in (0, 1), or empty where the hazard follows from s0.
        weights: Prior weights of each axis, in the order of AXES; each sums to 1.
    """

    s0: tuple[float, ...]
    rho: tuple[float, ...]
    phi: tuple[float, ...]
    kappa: tuple[float, ...]
    hazard: tuple[float, ...]
    weights: tuple[tuple[float, ...], ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Points an axis: [s0, rho, phi, kappa, hazard]; an empty hazard axis counts as one point."""
        return tuple(len(w) for w in self.weights)

    @property
    def size(self) -> int:
        """P, the number of grid points."""
        return prod(self.shape)


def cell_masses(points: tuple[float, ...], a: float = 0.9, b: float = 0.9) -> tuple[float, ...]:
    """Beta(a, b) mass of each point's cell, bounded by the midpoints to its neighbours and by 0 and 1.

    The mass, not the density at the point: uneven points would otherwise carry a prior nobody chose.
    """
    from scipy.special import betainc  # pyright: ignore[reportMissingTypeStubs]

    middles = [0.0, *((x + y) / 2 for x, y in pairwise(points)), 1.0]
    below = [float(betainc(a, b, m)) for m in middles]
    return tuple(high - low for low, high in pairwise(below))


@lru_cache(maxsize=1)
def default_weights() -> dict[str, tuple[float, ...]]:
    """The prior weights by axis name."""
    return {
        "s0": cell_masses(S0),
        "rho": RHO_WEIGHTS,
        "phi": PHI_WEIGHTS,
        "kappa": KAPPA_WEIGHTS,
        "hazard": (0.25,) * len(HAZARD),
    }


FINE_POINTS: dict[str, tuple[float, ...]] = {
    "rho": (0.0003, 0.003, 0.02, 0.07, 0.2),
    "phi": (0.002, 0.01, 0.05),
    "kappa": (2.0, 6.0, 30.0),
}
"""For a refit to a policy whose wrong paths never come right and whose hazard is uneven over its steps, as short
solutions with a few hard steps have it. As many points as the default, so that it costs the same."""


def make_grid(
    axis_weights: Mapping[str, tuple[float, ...]] | None = None,
    *,
    on_policy: bool = True,
    axis_points: Mapping[str, tuple[float, ...]] | None = None,
) -> Grid:
    """The default grid, with refitted weights and other points where given.

    Args:
        axis_weights: Weights by axis name; an axis that is missing keeps its prior.
        on_policy: False adds the hazard axis.
        axis_points: Points by axis name, such as FINE_POINTS; an axis that is missing keeps its own, and one
            without weights of its own has those of the default, point by point.

    Raises:
        ValueError: An unknown axis, a wrong number of weights, or weights that are no distribution.
    """
    weights, points = (tuple(sorted((x or {}).items())) for x in (axis_weights, axis_points))
    return _make_grid(weights, points, on_policy)


@lru_cache(maxsize=32)
def _make_grid(
    axis_weights: tuple[tuple[str, tuple[float, ...]], ...],
    axis_points: tuple[tuple[str, tuple[float, ...]], ...],
    on_policy: bool,
) -> Grid:
    weights = {**default_weights(), **dict(axis_weights)}
    points = {"s0": S0, "rho": RHO, "phi": PHI, "kappa": KAPPA, "hazard": HAZARD, **dict(axis_points)}
    for axis in (*weights, *points):
        if axis not in AXES:
            raise ValueError(f"building the grid: unknown axis {axis!r}; one of {', '.join(AXES)}")
    for axis, values in weights.items():
        if len(values) != len(points[axis]) or min(values) < 0 or abs(sum(values) - 1) > 1e-6:
            raise ValueError(
                f"building the grid: axis {axis!r} has weights {values}; give {len(points[axis])} "
                "non-negative ones that sum to 1"
            )
    axes = (points["s0"], points["rho"], points["phi"], points["kappa"])
    if not on_policy:
        return Grid(*axes, points["hazard"], tuple(weights[axis] for axis in AXES))
    return Grid(*axes, (), (*(weights[axis] for axis in AXES[:-1]), (1.0,)))


@dataclass(frozen=True, slots=True, eq=False)
class Points:
    """The grid, flattened: arrays of shape [P].

    Attributes:
        s0, rho, phi, kappa: Coordinates.
        hazard: Coordinates, or None where the hazard follows from s0.
        prior: Product of the axis weights; sums to 1.
    """

    s0: Array
    rho: Array
    phi: Array
    kappa: Array
    hazard: Array | None
    prior: Array


@lru_cache(maxsize=32)
def flatten(grid: Grid) -> Points:
    """The points of a grid, s0 slowest and hazard fastest."""
    mesh = np.meshgrid(grid.s0, grid.rho, grid.phi, grid.kappa, grid.hazard or (0.0,), indexing="ij")
    s0, rho, phi, kappa, hazard = (axis.ravel() for axis in mesh)
    prior = np.ones(grid.shape)
    for axis, weights in enumerate(grid.weights):
        prior = prior * np.asarray(weights).reshape([-1 if a == axis else 1 for a in range(len(grid.shape))])
    return Points(s0, rho, phi, kappa, hazard if grid.hazard else None, prior.ravel())


def kappa_first(grid: Grid) -> NDArray[np.uintp]:
    """Numbers of the points by kappa and then by all else, [K, Q]: curves and hazards are the same in a column."""
    numbers = np.arange(grid.size, dtype=np.uintp).reshape(-1, len(grid.kappa), len(grid.hazard) or 1)
    return np.ascontiguousarray(numbers.transpose(1, 0, 2).reshape(len(grid.kappa), -1))


@dataclass(frozen=True, slots=True, eq=False)
class Curves:
    """What a grid says of a solution of T steps.

    Attributes:
        hazard: h, P(a step is wrong | none before it), [P].
        value: G_t (index 0) and B_t (index 1) for t = 0..T, [T+1, 2, P].
    """

    hazard: Array
    value: Array


@lru_cache(maxsize=512)
def curves(grid: Grid, num_steps: int) -> Curves:
    """G_T = 1 - eta, B_T = phi; G_{t-1} = (1-h) G_t + h B_t, B_{t-1} = rho G_t + (1-rho) B_t.

    The first recursion is the martingale property of the value under the policy.
    """
    points = flatten(grid)
    hazard = 1 - points.s0 ** (1 / num_steps)
    value = np.empty((num_steps + 1, 2, grid.size))
    value[-1, 0], value[-1, 1] = 1 - ETA, points.phi
    for t in range(num_steps, 0, -1):
        good, bad = value[t]
        value[t - 1, 0] = (1 - hazard) * good + hazard * bad
        value[t - 1, 1] = points.rho * good + (1 - points.rho) * bad
    return Curves(hazard if points.hazard is None else points.hazard, value)


def marginals(grid: Grid, posterior: Array) -> dict[str, Array]:
    """Marginals of each axis from posteriors over the points, [..., P] -> {axis: [..., points]}."""
    cube = posterior.reshape(*posterior.shape[:-1], *grid.shape)
    lead = posterior.ndim - 1
    axes = range(lead, lead + len(grid.shape))
    kept = AXES if grid.hazard else AXES[:-1]
    return {
        name: cube.sum(axis=tuple(a for a in axes if a != lead + number)) for number, name in enumerate(kept)
    }
