"""Votes over the first samples of many orders at once, as array operations.

Shapes: ``n`` samples of one problem, ``orders`` of them, ``cuts`` (how many samples of each order are used).
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from stepward.prm.evaluation.intervals import Floats

Ints = NDArray[np.int64]


def random_orders(n: int, num_orders: int, rng: np.random.Generator) -> Ints:
    """Random orders of n samples, shape [orders, n]: rotations of random permutations.

    Each order alone is uniform; the rotations of one permutation put every sample first equally often, which
    makes the average over orders much less noisy than as many independent permutations.
    """
    a_block = min(n, num_orders)
    shifts = [k * n // a_block for k in range(a_block)]
    rows: list[Ints] = []
    while len(rows) < num_orders:
        permutation = rng.permutation(n)
        rows += [np.roll(permutation, -shift) for shift in shifts[: num_orders - len(rows)]]
    return np.stack(rows)


def ends_of(spent: Ints, cuts: Sequence[int], cut_by: str) -> Ints:
    """How many samples each order may use at each cut, shape [orders, cuts]."""
    if cut_by == "samples":
        return np.broadcast_to(np.array(cuts, dtype=np.int64), (len(spent), len(cuts)))
    return np.stack([(spent <= cut).sum(axis=1) for cut in cuts], axis=1)


def total_at(cumulative: Ints, ends: Ints) -> Ints:
    """The running total after the first ``ends`` samples, 0 for none."""
    padded = np.concatenate([np.zeros((len(cumulative), 1), dtype=cumulative.dtype), cumulative], axis=1)
    return np.take_along_axis(padded, ends, axis=1)


def vote_is_right(
    orders: Ints, classes: Ints, weights: Floats, right: NDArray[np.bool_], ends: Ints, ties: Floats
) -> NDArray[np.bool_]:
    """Whether the class of greatest summed weight is right, shape [orders, cuts]; no votes is wrong."""
    names, first = np.unique(classes[classes >= 0], return_index=True)
    if len(names) == 0:
        return np.zeros(ends.shape, dtype=bool)
    member = classes[:, None] == names[None, :]
    class_right = right[np.flatnonzero(classes >= 0)[first]]
    zero = np.zeros((len(orders), 1, len(names)))
    sums = np.concatenate([zero, (member * weights[:, None])[orders].cumsum(axis=1)], axis=1)
    votes = np.concatenate([zero, member.astype(np.float64)[orders].cumsum(axis=1)], axis=1)
    index = ends[:, :, None]
    sums, votes = np.take_along_axis(sums, index, axis=1), np.take_along_axis(votes, index, axis=1)
    sums = np.where(votes > 0, sums, -np.inf)
    top = sums.max(axis=2, keepdims=True)
    # Sums of the same scores in another order differ in the last bits: that is a tie.
    tied = (votes > 0) & (sums >= top - 1e-12 * np.maximum(1e-300, np.abs(top)))
    chosen = np.where(tied, ties[:, None, : len(names)], -1.0).argmax(axis=2)
    return class_right[chosen] & (votes.sum(axis=2) > 0)


def best_is_right(
    orders: Ints, classes: Ints, values: Floats, right: NDArray[np.bool_], ends: Ints, ties: Floats
) -> NDArray[np.bool_]:
    """Whether the sample of greatest aggregate score is right, shape [orders, cuts]; only answers compete."""
    # Aggregates that differ only in the last bits are ties: (.6 + .7) / 2 and (.4 + .9) / 2.
    rounded = np.array([float(f"{value:.12g}") for value in values])
    ranks = np.unique(rounded, return_inverse=True)[1].astype(np.float64)
    keys = np.where(classes[orders] >= 0, ranks[orders] + ties, -1.0)
    running: Floats = np.maximum.accumulate(keys, axis=1)
    indices: Ints = np.arange(keys.shape[1], dtype=np.int64)
    places: Ints = np.maximum.accumulate(np.where(keys == running, indices, 0), axis=1)
    hits = (running >= 0) & np.take_along_axis(right[orders], places, axis=1)
    padded = np.concatenate([np.zeros((len(hits), 1), dtype=bool), hits], axis=1)
    return np.take_along_axis(padded, ends, axis=1)
