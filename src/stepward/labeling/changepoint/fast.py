"""Information gains of one problem's solutions through the compiled recursions: one compiled call a problem."""

# pyright: basic

import threading
from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from stepward.labeling.changepoint import compiled
from stepward.labeling.changepoint.grid import ETA, Array, Grid, curves, flatten
from stepward.labeling.changepoint.pooling import BLUR, length_map
from stepward.labeling.changepoint.problem import count_into
from stepward.labeling.changepoint.sharing import mostly_shared, node_table
from stepward.labeling.changepoint.step_evidence import step_likelihoods
from stepward.labeling.evidence import SolutionEvidence

_MOST_ROWS = 1 << 15
"""Curve rows kept a grid (at the default grid 8 KB each): all lengths to 250, or else it starts anew."""


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
        self.sums = np.empty((solutions, 3, prefixes))


_WORK = _Workspace()


class _Shapes:
    """What a grid says of solutions of each length met so far, one below the other in growing arrays."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._lock = threading.Lock()
        self._places: dict[int, tuple[int, int]] = {}  # length -> first row of curve, number
        self._rows = 0
        self._curve = np.empty((64, 2, grid.size))
        self._hazard = np.empty((8, grid.size))
        self._below = np.empty((8, 8, len(grid.s0)), np.int64)
        self._part = np.empty((8, 8, len(grid.s0)))

    def of(
        self, lengths: Sequence[int]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], Array, Array, NDArray[np.int64], Array]:
        """(first row, number) of each length, then curve, hazard, below and part as ``problem_gains`` reads them."""
        with self._lock:
            if self._rows > _MOST_ROWS:
                self._places.clear()
                self._rows = 0
                # Others may be reading the old arrays: they are left, not written over.
                self._curve, self._hazard = np.empty_like(self._curve), np.empty_like(self._hazard)
                self._below, self._part = np.empty_like(self._below), np.empty_like(self._part)
            for steps in lengths:
                if steps not in self._places:
                    self._add(steps)
            rows, numbers = zip(*(self._places[steps] for steps in lengths), strict=True)
            return np.array(rows), np.array(numbers), self._curve, self._hazard, self._below, self._part

    def _add(self, steps: int) -> None:
        shape, number, end = curves(self._grid, steps), len(self._places), self._rows + steps + 1
        while end > len(self._curve):
            self._curve = _doubled(self._curve, 1)
        if number == len(self._hazard):
            self._hazard = _doubled(self._hazard, 1)
            self._below, self._part = _doubled(self._below, 2), _doubled(self._part, 2)
        self._curve[self._rows : end], self._hazard[number] = shape.value, shape.hazard
        self._places[steps] = self._rows, number
        self._rows = end
        for other, (_, place) in self._places.items():
            for a, b, own, others in ((number, place, steps, other), (place, number, other, steps)):
                # With a hazard axis s0 does not depend on the length.
                found = (
                    length_map(self._grid.s0, 1, 1)
                    if self._grid.hazard
                    else length_map(self._grid.s0, own, others)
                )
                self._below[a, b], self._part[a, b] = found


def _doubled(array: NDArray, axes: int) -> NDArray:
    """A copy with room for twice as many along the first ``axes`` axes."""
    grown = np.empty((*(2 * n for n in array.shape[:axes]), *array.shape[axes:]), array.dtype)
    grown[tuple(slice(n) for n in array.shape[:axes])] = array
    return grown


@lru_cache(maxsize=4)
def _shapes(grid: Grid) -> _Shapes:
    return _Shapes(grid)


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
    return [gain for gain, _, _ in readings(solutions, grid, pool=pool, unfinished_as_wrong=unfinished_as_wrong,
                                            precision=precision, recall=recall)]  # fmt: skip


def readings(
    solutions: Sequence[SolutionEvidence],
    grid: Grid,
    *,
    pool: bool,
    unfinished_as_wrong: bool,
    precision: Mapping[str, float],
    recall: Mapping[str, float],
) -> list[tuple[Array, Array, Array]]:
    """``gain``, ``p_right`` and ``value`` of ``posteriors`` for each solution, each [T+1]."""
    points = flatten(grid)
    lengths = [s.num_steps for s in solutions]
    work, count, longest = _WORK, len(solutions), max(lengths)
    work.fit(count, longest + 1, grid.size)
    right = np.zeros((count, longest + 1), np.int64)
    trials = np.zeros((count, longest + 1), np.int64)
    outcome = np.empty(count, np.int64)
    told = np.array([bool(s.verdicts or s.prm_scores) for s in solutions])
    factors = np.ones((count, longest if told.any() else 0, 3))
    for i, evidence in enumerate(solutions):
        outcome[i] = count_into(right[i], trials[i], evidence, unfinished_as_wrong)
        if told[i]:
            factors[i, : lengths[i]] = step_likelihoods(evidence, precision, recall)
    rows, number, curve, hazard, below, part = _shapes(grid).of(lengths)
    gains = np.empty((count, longest + 1))
    on_policy = all(s.on_policy for s in solutions)
    nodes = node_table(solutions)
    pooled = pool and not mostly_shared(nodes)
    compiled.problem_gains(
        pooled, nodes, on_policy, np.array(lengths), outcome, right, trials, factors, told, curve, rows,
        hazard, number, below, part, points.rho, points.phi, points.kappa, points.prior, ETA, BLUR, len(grid.s0),
        work.like, work.seen, work.back, work.ratio, work.message, work.vectors, work.sums, gains,
    )  # fmt: skip
    return [
        (gains[i, : steps + 1], work.sums[i, 0, : steps + 1].copy(), work.sums[i, 1, : steps + 1].copy())
        for i, steps in enumerate(lengths)
    ]
