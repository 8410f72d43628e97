"""What does not change while the solutions of a problem are labelled: read once a problem and not once a round."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from stepward.labeling.changepoint.grid import Array
from stepward.labeling.changepoint.sharing import Ints, mostly_shared, node_table
from stepward.labeling.evidence import SolutionEvidence
from stepward.prm.types import Outcome

_KEPT = 4096
"""Problems whose layout is kept, some kilobytes each: more than are in flight at once."""


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """Shapes of S solutions, the longest of M steps.

    Attributes:
        lengths: T of each solution, [S].
        nodes: As of ``node_table``, [S, M+1].
        inner: Where a rollout may be drawn, 1 <= t < T, [S, M+1].
        rest: Tokens that a rollout is expected to cost: those of the solution's own steps behind the prefix; in a
            state of several solutions their mean. [S, M+1]
        shared: Whether an inner prefix is a state of more solutions than one.
        mostly_shared: As of ``sharing.mostly_shared``.
    """

    lengths: Ints
    nodes: Ints
    inner: NDArray[np.bool_]
    rest: Array
    shared: bool
    mostly_shared: bool


def layout_of(solutions: Sequence[SolutionEvidence]) -> Layout:
    """The layout of a problem's solutions."""
    return _layout(tuple([(s.step_tokens, s.nodes) for s in solutions]))


@lru_cache(maxsize=_KEPT)
def _layout(shapes: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]) -> Layout:
    solutions = [
        SolutionEvidence(len(tokens), tokens, Outcome.NO_GOLD, (), nodes=nodes) for tokens, nodes in shapes
    ]
    lengths, nodes = np.array([s.num_steps for s in solutions]), node_table(solutions)
    prefix: Ints = np.arange(nodes.shape[1], dtype=np.int64)
    inner: NDArray[np.bool_] = (prefix >= 1) & (prefix < lengths[:, None])
    rest = np.zeros(nodes.shape)
    for row, evidence in enumerate(solutions):
        rest[row, : evidence.num_steps] = np.cumsum(evidence.step_tokens[::-1])[::-1]
    shared = False
    at: NDArray[np.bool_] = (nodes >= 0) & inner
    if at.any():
        through = np.bincount(nodes[at])[nodes[at]]
        shared = bool((through > 1).any())
        rest[at] = np.bincount(nodes[at], rest[at])[nodes[at]] / through
    return Layout(lengths, nodes, inner, rest, shared, mostly_shared(nodes))
