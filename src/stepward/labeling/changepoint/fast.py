"""Information gains of one problem's solutions through the compiled recursions: one compiled call a problem."""

# pyright: basic

import threading
from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from stepward.labeling.changepoint import compiled
from stepward.labeling.changepoint.grid import ETA, Array, Grid, curves, flatten, kappa_first
from stepward.labeling.changepoint.layout import layout_of
from stepward.labeling.changepoint.pooling import BLUR, length_map
from stepward.labeling.changepoint.problem import count_into
from stepward.labeling.changepoint.step_evidence import step_likelihoods
from stepward.labeling.evidence import SolutionEvidence

_MOST_ROWS = 1 << 15
"""Curve rows kept a grid (at the default grid 3 KB each): all lengths to 250, or else it starts anew."""

_NO_FACTORS = np.ones((1, 0, 3))

_MOST_ASKED = 4096
"""Problems whose place in them is remembered."""


class _Workspace(threading.local):
    """Scratch arrays, kept between calls: allocating them anew costs more than the arithmetic."""

    def __init__(self) -> None:
        self.shape = (0, 0, 0, 0)

    def fit(self, solutions: int, prefixes: int, kappas: int, others: int) -> None:
        """Make room for so many solutions, prefixes and grid points: K kappas, Q others."""
        shape = self.shape
        if (kappas, others) == shape[2:] and solutions <= shape[0] and prefixes <= shape[1]:
            return
        solutions, prefixes = max(solutions, shape[0]), max(prefixes, shape[1])
        self.shape = (solutions, prefixes, kappas, others)
        self.sums = np.empty((solutions, 3, prefixes))
        self.arrays = (
            np.empty((solutions, prefixes, 2, kappas, others)),  # like
            np.empty((solutions, prefixes, 2, kappas, others)),  # back
            np.empty((solutions, prefixes, 3, others)),  # head
            np.empty((solutions, prefixes, 2, others)),  # tail
            np.empty((solutions, prefixes, 3)),  # factor
            np.empty((solutions, kappas * others)),  # message
            np.empty(kappas * others),  # prior
            np.empty((3, kappas, others)),  # work
            self.sums,
        )


_WORK = _Workspace()


class _Shapes:
    """What a grid says of solutions of each length met so far, one below the other in growing arrays."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._lock = threading.Lock()
        self._places: dict[int, tuple[int, int]] = {}  # length -> first row of curve, number
        self._asked: dict[tuple[int, ...], tuple] = {}  # what ``of`` gave
        self._rows = 0
        self.place = kappa_first(grid)
        points = flatten(grid)
        self.rho, self.phi, self.kappa = (
            points.rho[self.place[0]],
            points.phi[self.place[0]],
            np.array(grid.kappa),
        )
        self._curve = np.empty((64, 2, self.place.shape[1]))
        self._hazard = np.empty((8, self.place.shape[1]))
        self._below = np.empty((8, 8, len(grid.s0)), np.int64)
        self._part = np.empty((8, 8, len(grid.s0)))

    def of(
        self, lengths: tuple[int, ...]
    ) -> tuple[Array, NDArray[np.int64], Array, NDArray[np.int64], NDArray[np.int64], Array]:
        """``rows``, curve, hazard, number, below and part as ``problem_gains`` reads them."""
        if found := self._asked.get(lengths):
            return found
        with self._lock:
            if self._rows > _MOST_ROWS:
                self._places.clear()
                self._asked.clear()
                self._rows = 0
                # Others may be reading the old arrays: they are left, not written over.
                self._curve, self._hazard = np.empty_like(self._curve), np.empty_like(self._hazard)
                self._below, self._part = np.empty_like(self._below), np.empty_like(self._part)
            for steps in lengths:
                if steps not in self._places:
                    self._asked.clear()  # arrays that grow are replaced
                    self._add(steps)
            rows, numbers = zip(*(self._places[steps] for steps in lengths), strict=True)
            if len(self._asked) >= _MOST_ASKED:
                self._asked.clear()
            found = self._curve, np.array(rows), self._hazard, np.array(numbers), self._below, self._part
            self._asked[lengths] = found
            return found

    def _add(self, steps: int) -> None:
        shape, number, end = curves(self._grid, steps), len(self._places), self._rows + steps + 1
        while end > len(self._curve):
            self._curve = _doubled(self._curve, 1)
        if number == len(self._hazard):
            self._hazard = _doubled(self._hazard, 1)
            self._below, self._part = _doubled(self._below, 2), _doubled(self._part, 2)
        self._curve[self._rows : end] = shape.value[:, :, self.place[0]]
        self._hazard[number] = shape.hazard[self.place[0]]
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
    lengths, gains = _read(solutions, grid, pool, unfinished_as_wrong, precision, recall)
    return [gains[i, : steps + 1] for i, steps in enumerate(lengths)]


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
    lengths, gains = _read(solutions, grid, pool, unfinished_as_wrong, precision, recall)
    sums = _WORK.sums
    return [
        (gains[i, : steps + 1], sums[i, 0, : steps + 1].copy(), sums[i, 1, : steps + 1].copy())
        for i, steps in enumerate(lengths)
    ]


def _read(
    solutions: Sequence[SolutionEvidence],
    grid: Grid,
    pool: bool,
    unfinished_as_wrong: bool,
    precision: Mapping[str, float],
    recall: Mapping[str, float],
) -> tuple[list[int], Array]:
    """T of each solution and its gains, [S, M+1]; leaves what ``problem_gains`` calls ``sums`` in the workspace."""
    shapes, layout = _shapes(grid), layout_of(solutions)
    lengths = [s.num_steps for s in solutions]
    work, count, longest = _WORK, len(solutions), max(lengths)
    work.fit(count, longest + 1, *shapes.place.shape)
    right, trials = np.zeros((2, count, longest + 1), np.int64)
    outcome = np.empty(count, np.int64)
    told = np.zeros(count, np.bool_)
    factors = (
        np.ones((count, longest, 3)) if any(s.verdicts or s.prm_scores for s in solutions) else _NO_FACTORS
    )
    on_policy = True
    for i, evidence in enumerate(solutions):
        outcome[i] = count_into(right[i], trials[i], evidence, unfinished_as_wrong)
        on_policy &= evidence.on_policy
        if factors is not _NO_FACTORS and (evidence.verdicts or evidence.prm_scores):
            told[i] = True
            factors[i, : lengths[i]] = step_likelihoods(evidence, precision, recall)
    gains = np.empty((count, longest + 1))
    compiled.problem_gains(
        pool and not layout.mostly_shared, layout.nodes, on_policy, layout.lengths, outcome, right, trials, factors,
        told, *shapes.of(tuple(lengths)), shapes.rho, shapes.phi, shapes.kappa, shapes.place, flatten(grid).prior, ETA,
        BLUR, len(grid.s0), *work.arrays, gains,
    )  # fmt: skip
    return lengths, gains
