"""The recursions of ``chain`` for one solution, compiled with numba; see ``compiled``.

kappa is felt only where rollouts were drawn. Before the first and behind the last prefix with rollouts (the head and
the tail of a solution; between them is its middle) messages are the same at every kappa, or are summed over it: there
the arrays have Q points, one for each of the grid's P that differ in more than kappa, and K of these in the middle.

Small functions get whole arrays and numbers: a view of an array handed to a function costs as much as forty points.
"""

# pyright: basic
# numba brings no types: strict checking would only repeat that.

import numba as nb
import numpy as np

FAST = {"fastmath": True, "cache": True, "error_model": "numpy"}


@nb.njit(**FAST)
def total_of(values):
    """Sum of [Q]; numpy's own, compiled, keeps to the order and is not vectorised."""
    total = 0.0
    for q in range(values.shape[0]):
        total += values[q]
    return total


@nb.njit(**FAST)
def scale(values, factor):
    for q in range(values.shape[0]):
        values[q] *= factor


@nb.njit(**FAST)
def _shrink(messages):
    """Divide messages [2 or 3, Q] by the mean of the first two, right and wrong path: a common factor means nothing."""
    factor = 2.0 * messages.shape[1] / (total_of(messages[0]) + total_of(messages[1]))
    for row in range(messages.shape[0]):
        scale(messages[row], factor)


@nb.njit(**FAST)
def _shrink_all(messages):
    """``_shrink`` of messages [2 or 3, K, Q]."""
    total = 0.0
    for c in range(messages.shape[1]):
        total += total_of(messages[0, c]) + total_of(messages[1, c])
    for row in range(messages.shape[0]):
        for c in range(messages.shape[1]):
            scale(messages[row, c], messages[0].size * 2.0 / total)


@nb.njit(**FAST)
def _urn(kappa, k, j):
    """Probability of draw j where the first k of all are right, as slope * G + level."""
    weight = 1.0 / (kappa + j)
    if j < k:
        return kappa * weight, j * weight
    return -kappa * weight, (kappa + j - k) * weight


@nb.njit(**FAST)
def likelihood(curve, kappa, k, n, like, t):
    """Likelihood of k right of n rollouts at prefix t, the right ones first, into ``like`` [T+1, 2, K, Q].

    A Polya urn: the next is right with probability (kappa G + right so far) / (kappa + all so far).
    """
    draws = max(n, 1)  # without any it is 1
    for start in range(0, draws, 32):
        for c in range(kappa.shape[0]):
            for j in range(start, min(start + 32, draws), 2):  # two a pass: memory is the slower side
                slope, level = _urn(kappa[c], k, j) if j < n else (0.0, 1.0)
                then_slope, then_level = _urn(kappa[c], k, j + 1) if j + 1 < n else (0.0, 1.0)
                if j == 0:
                    for q in range(curve.shape[2]):
                        g, b = curve[t, 0, q], curve[t, 1, q]
                        like[t, 0, c, q] = (slope * g + level) * (then_slope * g + then_level)
                        like[t, 1, c, q] = (slope * b + level) * (then_slope * b + then_level)
                else:
                    for q in range(curve.shape[2]):
                        g, b = curve[t, 0, q], curve[t, 1, q]
                        like[t, 0, c, q] *= (slope * g + level) * (then_slope * g + then_level)
                        like[t, 1, c, q] *= (slope * b + level) * (then_slope * b + then_level)
        if n > 16:  # long before a double underflows
            _shrink_all(like[t])


@nb.njit(**FAST)
def _tail_back(tail, t, h, rho, factor):
    """Backward messages at t - 1 from those at t, in the tail."""
    a, x, z = factor[t, 0], factor[t, 1], factor[t, 2]
    for q in range(h.shape[0]):
        g, b = tail[t, 0, q] * a, tail[t, 1, q]
        tail[t - 1, 0, q] = g + h[q] * (x * b - g)
        tail[t - 1, 1, q] = z * b + rho[q] * (g - z * b)


@nb.njit(**FAST)
def _ahead_back(ahead, t, h, rho, factor):
    """Backward messages at t - 1 from those at t, of the head and in place, the likelihoods at t multiplied in."""
    a, x, z = factor[t, 0], factor[t, 1], factor[t, 2]
    for q in range(h.shape[0]):
        g, b = ahead[0, q] * a, ahead[1, q]
        ahead[0, q] = g + h[q] * (x * b - g)
        ahead[1, q] = z * b + rho[q] * (g - z * b)


@nb.njit(**FAST)
def _middle_back(back, like, seen, t, h, rho, factor):
    """Backward messages at t - 1 from those at t, in the middle; without rollouts at t (``seen``) a likelihood is 1."""
    a, x, z = factor[t, 0], factor[t, 1], factor[t, 2]
    for c in range(back.shape[2]):
        if seen:
            for q in range(h.shape[0]):
                g, b = back[t, 0, c, q] * like[t, 0, c, q] * a, back[t, 1, c, q] * like[t, 1, c, q]
                back[t - 1, 0, c, q] = g + h[q] * (x * b - g)
                back[t - 1, 1, c, q] = z * b + rho[q] * (g - z * b)
        else:
            for q in range(h.shape[0]):
                g, b = back[t, 0, c, q] * a, back[t, 1, c, q]
                back[t - 1, 0, c, q] = g + h[q] * (x * b - g)
                back[t - 1, 1, c, q] = z * b + rho[q] * (g - z * b)


@nb.njit(**FAST)
def _head_on(head, t, h, rho, factor):
    """Forward messages at t from those at t - 1, in the head."""
    a, x, z = factor[t, 0], factor[t, 1], factor[t, 2]
    for q in range(h.shape[0]):
        good, bad, never = head[t - 1, 0, q], head[t - 1, 1, q], head[t - 1, 2, q]
        lost, recovered = good * h[q], bad * rho[q]
        head[t, 0, q] = (good - lost + recovered) * a
        head[t, 1, q] = (bad - recovered) * z + x * lost
        head[t, 2, q] = (never - never * h[q]) * a


@nb.njit(**FAST)
def _head_sums(head, ahead, t, curve, out):
    """(total, right, mean, mean_right) at t of the head into ``out``."""
    total = right = mean = mean_right = 0.0
    for q in range(head.shape[2]):
        gb, bb, nvb = head[t, 0, q] * ahead[0, q], head[t, 1, q] * ahead[1, q], head[t, 2, q] * ahead[0, q]
        total += gb + bb
        right += nvb
        mean += gb * curve[t, 0, q] + bb * curve[t, 1, q]
        mean_right += nvb * curve[t, 0, q]
    out[0], out[1], out[2], out[3] = total, right, mean, mean_right


@nb.njit(**FAST)
def _move(work, c, t, h, rho, factor, like, seen):
    """Forward messages at t from those at t - 1, in place, of one kappa."""
    a, x, z = factor[t, 0], factor[t, 1], factor[t, 2]
    if seen:
        for q in range(h.shape[0]):
            lost, recovered, keep = work[0, c, q] * h[q], work[1, c, q] * rho[q], a * like[t, 0, c, q]
            work[1, c, q] = ((work[1, c, q] - recovered) * z + x * lost) * like[t, 1, c, q]
            work[0, c, q] = (work[0, c, q] - lost + recovered) * keep
            work[2, c, q] = (work[2, c, q] - work[2, c, q] * h[q]) * keep
    else:
        for q in range(h.shape[0]):
            lost, recovered = work[0, c, q] * h[q], work[1, c, q] * rho[q]
            work[1, c, q] = (work[1, c, q] - recovered) * z + x * lost
            work[0, c, q] = (work[0, c, q] - lost + recovered) * a
            work[2, c, q] = (work[2, c, q] - work[2, c, q] * h[q]) * a


@nb.njit(**FAST)
def _middle_sums(work, back, t, curve, kappa, k, n, out):
    """(total, right, mean, mean_right) at t of the middle; a rollout succeeds with (kappa G + k) / (kappa + n)."""
    out[0] = out[1] = out[2] = out[3] = 0.0
    for c in range(kappa.shape[0]):
        total = right = mean = mean_right = 0.0
        for q in range(curve.shape[2]):
            gb, bb = work[0, c, q] * back[t, 0, c, q], work[1, c, q] * back[t, 1, c, q]
            nvb = work[2, c, q] * back[t, 0, c, q]
            total += gb + bb
            right += nvb
            mean += gb * curve[t, 0, q] + bb * curve[t, 1, q]
            mean_right += nvb * curve[t, 0, q]
        weight = 1.0 / (kappa[c] + n)
        slope, level = kappa[c] * weight, k * weight
        out[0] += total
        out[1] += right
        out[2] += slope * mean + level * total
        out[3] += slope * mean_right + level * right


@nb.njit(**FAST)
def _tail_sums(work, tail, t, curve, out):
    """(total, right, mean, mean_right) at t of the tail into ``out``."""
    total = right = mean = mean_right = 0.0
    for q in range(curve.shape[2]):
        gb, bb, nvb = (
            work[0, 0, q] * tail[t, 0, q],
            work[1, 0, q] * tail[t, 1, q],
            work[2, 0, q] * tail[t, 0, q],
        )
        total += gb + bb
        right += nvb
        mean += gb * curve[t, 0, q] + bb * curve[t, 1, q]
        mean_right += nvb * curve[t, 0, q]
    out[0], out[1], out[2], out[3] = total, right, mean, mean_right


@nb.njit(**FAST)
def messages(steps, right, trials, outcome, factors, use_factors, curve, h, rho, phi, kappa, eta, place, like, back,
             head, tail, factor, message):  # fmt: skip
    """Messages of one solution from its counts; ``message`` [P] gets the likelihood of all that was seen,
    up to a factor that makes its mean 1.

    Args:
        steps: T.
        right: k_t, [T+1].
        trials: n_t, [T+1].
        outcome: 1 right, 0 wrong, -1 unknown.
        factors: (a_t, x_t, z_t), [T, 3], read where ``use_factors``.
        curve: [T+1, 2, Q]; h, rho, phi: [Q]; kappa: [K].
        place: Number of each point in the grid's own order, [K, Q].
        like, back: Scratch of at least [T+1, 2, K, Q], used in the middle.
        head: Forward messages of the head, at least [T+1, 3, Q]: right path, wrong path, never wrong.
        tail: Backward messages of the tail, at least [T+1, 2, Q].
        factor: Result, [T+1, 3]: a_t, x_t, z_t of step t at row t, or ones.

    Returns:
        First and last prefix of the middle.
    """
    first, last = steps, 0
    for t in range(steps + 1):
        if trials[t]:
            first, last = min(first, t), t
        for c in range(3):
            factor[t, c] = factors[t - 1, c] if use_factors and t else 1.0
    first = min(first, last)
    size = h.shape[0]
    for q in range(size):
        tail[steps, 0, q] = 1.0 if outcome < 0 else 1.0 - eta if outcome == 1 else eta
        tail[steps, 1, q] = 1.0 if outcome < 0 else phi[q] if outcome == 1 else 1.0 - phi[q]
        head[0, 0, q], head[0, 1, q], head[0, 2, q] = 1.0, 0.0, 1.0
    for t in range(1, first + 1):
        _head_on(head, t, h, rho, factor)
        if t % 8 == 0:
            _shrink(head[t])
    for t in range(steps, last, -1):
        _tail_back(tail, t, h, rho, factor)
        if t % 8 == 0:
            _shrink(tail[t - 1])
    for c in range(kappa.shape[0]):
        for q in range(size):
            back[last, 0, c, q], back[last, 1, c, q] = tail[last, 0, q], tail[last, 1, q]
    for t in range(last, first, -1):
        if trials[t]:
            likelihood(curve, kappa, right[t], trials[t], like, t)
        _middle_back(back, like, trials[t] > 0, t, h, rho, factor)
        if t % 8 == 0:
            _shrink_all(back[t - 1])
    likelihood(curve, kappa, right[first], trials[first], like, first)
    for c in range(kappa.shape[0]):
        for q in range(size):
            message[place[c, q]] = (
                head[first, 0, q] * like[first, 0, c, q] * back[first, 0, c, q]
                + head[first, 1, q] * like[first, 1, c, q] * back[first, 1, c, q]
            )
    scale(message, message.shape[0] / total_of(message))
    return first, last


@nb.njit(**FAST)
def posterior_sums(steps, first, last, right, trials, curve, h, rho, kappa, place, like, back, head, tail, factor,
                   prior, work, p_right, value, value_right):  # fmt: skip
    """P(c > t), E[V_t] and E[V_t 1(c > t)] for t = 0..T under one prior [P], of what ``messages`` left.

    ``work``: scratch, [3, K, Q]: forward messages of right path, wrong path, never wrong.
    """
    size, kappas, four = h.shape[0], kappa.shape[0], np.empty(4)
    for c in range(kappas):
        for q in range(size):
            weight = prior[place[c, q]]
            work[0, c, q], work[1, c, q] = weight * like[first, 0, c, q], weight * like[first, 1, c, q]
    if first > 0:
        ahead = tail[0]  # free where there is a head: the tail begins behind it
        for q in range(size):
            ahead[0, q] = ahead[1, q] = 0.0
        for c in range(kappas):
            for q in range(size):
                ahead[0, q] += work[0, c, q] * back[first, 0, c, q]
                ahead[1, q] += work[1, c, q] * back[first, 1, c, q]
        for t in range(first - 1, -1, -1):
            _ahead_back(ahead, t + 1, h, rho, factor)
            if t % 8 == 7:
                _shrink(ahead)
            _head_sums(head, ahead, t, curve, four)
            p_right[t], value[t], value_right[t] = four[1] / four[0], four[2] / four[0], four[3] / four[0]
    for c in range(kappas):
        for q in range(size):
            work[2, c, q] = work[0, c, q] * head[first, 2, q]
            work[0, c, q] *= head[first, 0, q]
            work[1, c, q] *= head[first, 1, q]
    for t in range(first, last + 1):
        if t > first:
            for c in range(kappas):
                _move(work, c, t, h, rho, factor, like, trials[t] > 0)
        if t % 8 == 7:
            _shrink_all(work)
        _middle_sums(work, back, t, curve, kappa, right[t], trials[t], four)
        p_right[t], value[t], value_right[t] = four[1] / four[0], four[2] / four[0], four[3] / four[0]
    for c in range(1, kappas):
        for state in range(3):
            for q in range(size):
                work[state, 0, q] += work[state, c, q]
    for t in range(last + 1, steps + 1):
        _move(work, 0, t, h, rho, factor, like, False)
        if t % 8 == 7:
            _shrink(work[:, 0])
        _tail_sums(work, tail, t, curve, four)
        p_right[t], value[t], value_right[t] = four[1] / four[0], four[2] / four[0], four[3] / four[0]
