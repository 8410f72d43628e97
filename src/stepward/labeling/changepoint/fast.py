"""Information gains of one problem's solutions through the compiled recursions."""

# pyright: basic

import threading
from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from stepward.labeling.changepoint import compiled
from stepward.labeling.changepoint.grid import ETA, Array, Grid, curves, flatten
from stepward.labeling.changepoint.pooling import BLUR, length_map, sibling_priors
from stepward.labeling.changepoint.problem import observe
from stepward.labeling.changepoint.step_evidence import step_likelihoods
from stepward.labeling.evidence import SolutionEvidence

_NO_FACTORS = np.ones((1, 3))


class _Workspace(threading.local):
    """Scratch arrays, kept between calls: allocating them anew costs more than the arithmetic."""

    def __init__(self) -> None:
        self.shape = (0, 0, 0)

    def fit(self, solutions: int, prefixes: int, points: int) -> None:
        """Make room for so many solutions, prefixes and grid points."""
        if points == self.shape[2] and solutions <= self.shape[0] and prefixes <= self.shape[1]:
            return
        solutions, prefixes = max(solutions, self.shape[0]), max(prefixes, self.shape[1])
        self.shape = (solutions, prefixes, points)
        self.like = np.empty((solutions, prefixes, 2, points))
        self.back = np.empty((solutions, prefixes, 2, points))
        self.seen = np.empty((solutions, prefixes), np.bool_)
        self.ratio = np.empty((solutions, prefixes))
        self.message = np.empty((solutions, points))
        self.vectors = np.empty((4, points))
        self.sums = np.empty((4, prefixes))


_WORK = _Workspace()


@lru_cache(maxsize=8)
def _maps(s0: tuple[float, ...], lengths: tuple[int, ...]) -> tuple[NDArray[np.int64], Array]:
    """``length_map`` between all pairs of the given lengths, [lengths, lengths, points]."""
    pairs = [[length_map(s0, a, b) for b in lengths] for a in lengths]
    return np.array([[m[0] for m in row] for row in pairs]), np.array([[m[1] for m in row] for row in pairs])


def information_gains(
    solutions: Sequence[SolutionEvidence],
    grid: Grid,
    *,
    pool: bool,
    unfinished_as_wrong: bool,
    precision: Mapping[str, float],
    recall: Mapping[str, float],
) -> list[Array]:
    """``gain`` of ``posteriors`` for each solution, [T+1]; the arguments are its own."""
    points = flatten(grid)
    lengths = tuple(s.num_steps for s in solutions)
    work, count = _WORK, len(solutions)
    work.fit(count, max(lengths) + 1, grid.size)
    seen = [observe(s, unfinished_as_wrong=unfinished_as_wrong) for s in solutions]
    shapes = [curves(grid, steps) for steps in lengths]
    for i, (evidence, steps, shape) in enumerate(zip(solutions, lengths, shapes, strict=True)):
        told = bool(evidence.verdicts or evidence.prm_scores)
        factors = step_likelihoods(evidence, precision, recall) if told else _NO_FACTORS
        compiled.messages(
            steps, seen[i].right, seen[i].trials, seen[i].outcome, factors, told, shape.value, shape.hazard,
            points.rho, points.phi, points.kappa, ETA, work.like[i], work.seen[i], work.back[i], work.ratio[i],
            work.message[i],
        )  # fmt: skip
    own = None
    if not pool:
        own = sibling_priors(grid, np.array([o.outcome for o in seen]), np.array(lengths))
    below, part = _maps(grid.s0, (1,) * count if grid.hazard else lengths)
    prior, never, good, bad = work.vectors
    found: list[Array] = []
    for i, (steps, shape) in enumerate(zip(lengths, shapes, strict=True)):
        if own is None:
            compiled.pooled_prior(
                i,
                work.message[:count],
                np.arange(count),
                below,
                part,
                points.prior,
                BLUR,
                len(grid.s0),
                prior,
            )
        else:
            prior[:] = own[i]
        p_right, value, value_right, _ = work.sums[:, : steps + 1]
        compiled.forward_sums(
            steps, work.like[i], work.seen[i], work.back[i], shape.value, shape.hazard, points.rho, points.kappa,
            work.ratio[i], seen[i].right, seen[i].trials, prior, p_right, value, value_right, never, good, bad,
        )  # fmt: skip
        gain = np.empty(steps + 1)
        compiled.gains(p_right, value, value_right, gain)
        found.append(gain)
    return found
