"""The posterior of all solutions of a problem, compiled with numba: for many at once, where milliseconds add up.

Optional (the package does not depend on numba), and used by ``InformationGain`` where numba is installed and a run
is long enough for the compiler's seconds to pay. The posterior equals ``chain``'s to rounding, and
``InformationGain`` compares rounded scores, so that both choose the same rollouts; tests hold them so. The
benchmark's simulator is built on these functions too.
"""

# pyright: basic
# numba brings no types: strict checking would only repeat that.

import numba as nb
import numpy as np

from stepward.labeling.changepoint import sharing
from stepward.labeling.changepoint.compiled_chain import FAST, messages, posterior_sums, scale, total_of


@nb.njit(cache=True)
def entropy(p):
    """Of a coin, in nats."""
    p = min(max(p, 1e-12), 1 - 1e-12)
    return -(p * np.log(p) + (1 - p) * np.log(1 - p))


@nb.njit(cache=True)
def gain(p, y, y_right):
    """Mutual information of a rollout and the event c > t."""
    p = min(max(p, 1e-12), 1 - 1e-12)
    g = entropy(y) - p * entropy(y_right / p) - (1 - p) * entropy((y - y_right) / (1 - p))
    return max(g, 0.0)


@nb.njit(**FAST)
def pooled_prior(i, messages, speaks, steps, below, part, base, blur, num_s0, out):
    """Base prior times the others' evidence [solutions, P], of mean 1, read at equal hazard and blurred along s0.

    It is that of solutions j where ``speaks`` [i, j]."""
    size = base.shape[0]
    inner = size // num_s0
    out[:] = 1.0
    taken = 0
    for j in range(messages.shape[0]):
        if not speaks[i, j]:
            continue
        for s in range(num_s0):
            at, f = below[steps[i], steps[j], s] * inner, part[steps[i], steps[j], s]
            # Slices: an index that might be negative is looked at point by point.
            row, low, high = out[s * inner :], messages[j, at:], messages[j, at + inner :]
            for q in range(inner):
                row[q] *= low[q] * (1 - f) + high[q] * f
        taken += 1
        if taken % 8 == 0:
            scale(out, size / total_of(out))
    last = out[:inner].copy()
    for s in range(num_s0):
        row, after = out[s * inner :], out[min(s + 1, num_s0 - 1) * inner :]
        for q in range(inner):
            here = row[q]
            row[q] = (1 - 2 * blur) * here + blur * (last[q] + after[q])
            last[q] = here
    for p in range(size):
        out[p] *= base[p]
    scale(out, 1.0 / total_of(out))


@nb.njit(**FAST)
def outcome_prior(start, place, base, num_right, num_wrong, out):
    """Base prior [P] times the likelihood of other solutions' outcomes, ``start`` = V_0 [Q]; out [P] sums to 1."""
    total = 0.0
    for q in range(start.shape[0]):
        told = 1.0
        for _ in range(num_right):
            told *= start[q]
        for _ in range(num_wrong):
            told *= 1.0 - start[q]
        for c in range(place.shape[0]):
            x = base[place[c, q]] * told
            out[place[c, q]] = x
            total += x
    for p in range(out.shape[0]):
        out[p] /= total


merged_counts = nb.njit(cache=True)(sharing.merge)


@nb.njit(cache=True)
def problem_gains(pool, nodes, on_policy, steps, outcome, right, trials, factors, told, curve, rows, hazard, number,
                  below, part, rho, phi, kappa, place, base, eta, blur, num_s0, like, back, head, tail, factor, message,
                  prior, work, sums, out):  # fmt: skip
    """Information gain at each prefix of each of a problem's S solutions, into ``out`` [S, M+1], M = longest.

    Args:
        pool: Each solution's whole evidence informs the others; else their outcomes do.
        nodes, on_policy: As ``sharing.merge`` reads them.
        steps, outcome: [S]; right, trials: [S, M+1]; factors: [S, M, 3], or no step where no solution
            is ``told`` [S].
        curve: Curves of several lengths one below the other, [rows, 2, Q]; solution i's begin at ``rows[i]``.
        hazard: [lengths, Q]; solution i has the length ``number[i]``.
        below, part: ``length_map`` between the lengths, [lengths, lengths, s0].
        rho, phi: [Q]; kappa: [K]; place: [K, Q], numbers of the points in the order of ``base`` [P].
        like, back: Scratch, at least [S, M+1, 2, K, Q]; head: [S, M+1, 3, Q]; tail: [S, M+1, 2, Q]; factor:
            [S, M+1, 3]; message: [S, P]; prior: [P]; work: [3, K, Q].
        sums: Also a result: P(c > t), E[V_t] and E[V_t 1(c > t)], at least [S, 3, M+1].
    """
    count = steps.shape[0]
    own_right, own_trials = right, trials
    right, trials = np.zeros_like(own_right), np.zeros_like(own_trials)
    root, speaks = np.empty((count, 2), np.int64), np.empty((count, count), np.bool_)
    merged_counts(nodes, steps, outcome, own_right, own_trials, on_policy, right, trials, root, speaks)
    middle = np.empty((count, 2), np.int64)
    for i in range(count):
        here = curve[rows[i] : rows[i] + steps[i] + 1]
        middle[i] = messages(steps[i], right[i], trials[i], outcome[i], factors[i if told[i] else 0], told[i], here,
                             hazard[number[i]], rho, phi, kappa, eta, place, like[i], back[i], head[i], tail[i],
                             factor[i], message[i])  # fmt: skip
    for i in range(count):
        here = curve[rows[i] : rows[i] + steps[i] + 1]
        if pool:
            pooled_prior(i, message[:count], speaks, number, below, part, base, blur, num_s0, prior)
        else:
            outcome_prior(here[0, 0], place, base, root[i, 0], root[i, 1], prior)
        posterior_sums(steps[i], middle[i, 0], middle[i, 1], right[i], trials[i], here, hazard[number[i]], rho, kappa,
                       place, like[i], back[i], head[i], tail[i], factor[i], prior, work, sums[i, 0], sums[i, 1],
                       sums[i, 2])  # fmt: skip
        for t in range(steps[i] + 1):
            out[i, t] = gain(sums[i, 0, t], sums[i, 1, t], sums[i, 2, t])
