"""The solutions of one problem share theta: the evidence on each is a prior for the others.

What they share is how error-prone a step of this problem is. A solution of T' steps that was likely with
s0' = (1 - h)^T' speaks for s0 = (1 - h)^T in one of T steps, so a message is read at s0' = s0^(T' / T).
Sharing s0 itself instead cost a quarter more tokens at equal F1 in simulations.
"""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from stepward.labeling.changepoint.grid import Array, Grid, curves, flatten

BLUR = 0.2
"""Share of the others' likelihood at an s0 point that moves to each neighbour: solutions of one problem differ
in more than length. The likelihood is blurred and not the prior, so that no evidence gives the prior back."""


@lru_cache(maxsize=65536)
def length_map(s0: tuple[float, ...], steps: int, other_steps: int) -> tuple[NDArray[np.int64], Array]:
    """Where to read the message of a solution of ``other_steps`` for one of ``steps``.

    Returns:
        For each s0 point the index below it on the other's axis, and the fraction of the way to the next, in
        logits of s0. Beyond the ends the end point is read.
    """
    points = np.asarray(s0)
    target = np.clip(points ** (other_steps / steps), 1e-12, 1 - 1e-12)
    position = np.interp(_logit(target), _logit(points), np.arange(len(points)))
    below = np.minimum(position.astype(np.int64), len(points) - 2)
    return below, position - below


def _logit(p: Array) -> Array:
    return np.log(p) - np.log1p(-p)


def pooled_priors(
    grid: Grid,
    messages: Array,
    num_steps: NDArray[np.integer],
    blur: float = BLUR,
    *,
    speaks: NDArray[np.bool_] | None = None,
) -> Array:
    """Each solution's prior: the base prior times the likelihood of all others, blurred along s0.

    Args:
        grid: The grid, P points.
        messages: Likelihood of all that is known of each solution, over the grid, [solutions, P], up to a
            factor a solution.
        num_steps: T of each solution.
        blur: Share of the likelihood at an s0 point that moves to each of its two neighbours, in [0, 1/2].
        speaks: Whose evidence informs whom: [i, j] that of j the prior of i; None = all others do.

    Returns:
        Priors, [solutions, P], each summing to 1.
    """
    count, points = len(num_steps), len(grid.s0)
    cube = messages.reshape(count, points, -1)
    told = np.ones_like(cube)
    lengths = [int(t) for t in num_steps]
    for j, length in enumerate(lengths):
        others = [i for i in range(count) if i != j and (speaks is None or speaks[i, j])]
        if not others:
            continue
        if grid.hazard or len(set(lengths)) == 1:
            told[others] *= cube[j]
        else:
            maps = [length_map(grid.s0, lengths[i], length) for i in others]
            below = np.stack([m[0] for m in maps])  # [others, points]
            part = np.stack([m[1] for m in maps])[:, :, None]
            told[others] *= cube[j][below] * (1 - part) + cube[j][below + 1] * part
        told[others] /= told[others].max(axis=(1, 2), keepdims=True)
    blurred = (1 - 2 * blur) * told
    blurred[:, 1:] += blur * told[:, :-1]
    blurred[:, :-1] += blur * told[:, 1:]
    blurred[:, 0] += blur * told[:, 0]
    blurred[:, -1] += blur * told[:, -1]
    prior = blurred * flatten(grid).prior.reshape(1, points, -1)
    return (prior / prior.sum(axis=(1, 2), keepdims=True)).reshape(count, -1)


def sibling_priors(grid: Grid, others: NDArray[np.integer], num_steps: NDArray[np.integer]) -> Array:
    """Without pooling: the base prior times the likelihood of the other solutions' outcomes only.

    Args:
        grid: The grid, P points.
        others: Right and wrong outcomes of the others, for each solution, [solutions, 2].
        num_steps: T of each solution.

    Returns:
        Priors, [solutions, P], each summing to 1.
    """
    base = flatten(grid).prior
    priors = np.empty((len(others), grid.size))
    for i, steps in enumerate(num_steps):
        start = curves(grid, int(steps)).value[0, 0]
        right, wrong = (int(n) for n in others[i])
        prior = base * start**right * (1 - start) ** wrong
        priors[i] = prior / prior.sum()
    return priors
