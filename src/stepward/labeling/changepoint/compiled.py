"""The same recursions as ``chain``, compiled with numba: for many solutions at once, where milliseconds add up.

Optional (the package does not depend on numba), and used by ``InformationGain`` where numba is installed and a run
is long enough for the compiler's seconds to pay. The posterior equals ``chain``'s to rounding, and
``InformationGain`` compares rounded scores, so that both choose the same rollouts; tests hold them so. The
benchmark's simulator is built on these functions too.
"""

# pyright: basic, reportPrivateUsage=false
# numba brings no types: strict checking would only repeat that.

import numba as nb
import numpy as np

from stepward.labeling.changepoint import sharing

_FAST = {"fastmath": True, "cache": True, "error_model": "numpy"}


@nb.njit(**_FAST)
def normalise(like):
    """Divide the likelihood [2, P] of a prefix by its mean: a factor common to all of it has no meaning."""
    size = like.shape[1]
    total = 0.0
    for p in range(size):  # a sum and not the largest: that loop would not be vectorised
        total += like[0, p] + like[1, p]
    inverse = 2.0 * size / total
    for p in range(size):
        like[0, p] *= inverse
        like[1, p] *= inverse


@nb.njit(**_FAST)
def multiply_in(like, curve, kappa, k, n, right):
    """Multiply one rollout into the likelihood [2, P] of a prefix with k of n right so far; see ``normalise``."""
    before = float(n)
    if right:
        seen = float(k)
        for p in range(kappa.shape[0]):
            weight = 1.0 / (kappa[p] + before)
            like[0, p] *= (kappa[p] * curve[0, p] + seen) * weight
            like[1, p] *= (kappa[p] * curve[1, p] + seen) * weight
    else:
        seen = float(n - k)
        for p in range(kappa.shape[0]):
            weight = 1.0 / (kappa[p] + before)
            like[0, p] *= (kappa[p] * (1.0 - curve[0, p]) + seen) * weight
            like[1, p] *= (kappa[p] * (1.0 - curve[1, p]) + seen) * weight


@nb.njit(**_FAST)
def observe(like, curve, kappa, k, n, right):
    """Multiply one rollout into the likelihood [2, P] of a prefix with k of n right so far."""
    multiply_in(like, curve, kappa, k, n, right)
    normalise(like)


@nb.njit(**_FAST)
def backward(steps, like, seen, back, h, rho, ratio):
    """Backward messages [T+1, 2, P]; prefixes that are not ``seen`` have likelihood 1."""
    size = h.shape[0]
    back[steps] = 1.0
    for t in range(steps, 0, -1):
        r = ratio[t - 1]
        now, out = back[t], back[t - 1]
        if seen[t]:
            for p in range(size):
                good = like[t, 0, p] * now[0, p]
                bad = like[t, 1, p] * now[1, p]
                out[0, p] = good + h[p] * (r * bad - good)
                out[1, p] = bad + rho[p] * (good - bad)
        else:
            for p in range(size):
                good, bad = now[0, p], now[1, p]
                out[0, p] = good + h[p] * (bad - good)
                out[1, p] = bad + rho[p] * (good - bad)
        if t % 8 == 0:
            top = 0.0
            for p in range(size):
                top += out[0, p] + out[1, p]
            inverse = 1.0 / top
            for p in range(size):
                out[0, p] *= inverse
                out[1, p] *= inverse


@nb.njit(**_FAST)
def forward_sums(steps, like, seen, back, curve, h, rho, kappa, ratio, k, n, prior, p_right, value, value_right,
                 never, good, bad):  # fmt: skip
    """P(c > t), E[V_t] and E[V_t 1(c > t)] for t = 0..T under one prior [P]; three scratch arrays [P]."""
    size = h.shape[0]
    for p in range(size):
        good[p] = prior[p] * like[0, 0, p]
        never[p] = good[p]
        bad[p] = 0.0
    for t in range(steps + 1):
        if t:
            r = ratio[t - 1]
            if seen[t]:
                for p in range(size):
                    lost, recovered = good[p] * h[p], bad[p] * rho[p]
                    bad[p] = (bad[p] - recovered + r * lost) * like[t, 1, p]
                    good[p] = (good[p] - lost + recovered) * like[t, 0, p]
                    never[p] = (never[p] - never[p] * h[p]) * like[t, 0, p]
            else:
                for p in range(size):
                    lost, recovered = good[p] * h[p], bad[p] * rho[p]
                    bad[p] = bad[p] - recovered + lost
                    good[p] = good[p] - lost + recovered
                    never[p] = never[p] - never[p] * h[p]
        total = right = mean = mean_right = 0.0
        now, here = back[t], curve[t]
        if n[t] == 0:
            for p in range(size):
                gb, bb, nvb = good[p] * now[0, p], bad[p] * now[1, p], never[p] * now[0, p]
                total += gb + bb
                right += nvb
                mean += gb * here[0, p] + bb * here[1, p]
                mean_right += nvb * here[0, p]
        else:
            kt, nt = float(k[t]), float(n[t])
            for p in range(size):
                weight = 1.0 / (kappa[p] + nt)
                vg = (kappa[p] * here[0, p] + kt) * weight
                vb = (kappa[p] * here[1, p] + kt) * weight
                gb, bb, nvb = good[p] * now[0, p], bad[p] * now[1, p], never[p] * now[0, p]
                total += gb + bb
                right += nvb
                mean += gb * vg + bb * vb
                mean_right += nvb * vg
        p_right[t] = right / total
        value[t] = mean / total
        value_right[t] = mean_right / total
        if t % 8 == 7:
            top = 0.0
            for p in range(size):
                top += good[p] + bad[p]
            inverse = 1.0 / top
            for p in range(size):
                good[p] *= inverse
                bad[p] *= inverse
                never[p] *= inverse


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


@nb.njit(**_FAST)
def pooled_prior(i, messages, speaks, steps, below, part, base, blur, num_s0, out):
    """Base prior times the others' evidence [solutions, P] where it ``speaks`` [solutions, solutions] for i, read at
    equal hazard and blurred along s0."""
    size = base.shape[0]
    inner = size // num_s0
    out[:] = 1.0
    for j in range(messages.shape[0]):
        if not speaks[i, j]:
            continue
        total = 0.0
        for s in range(num_s0):
            low, f = below[steps[i], steps[j], s], part[steps[i], steps[j], s]
            here, after = low * inner, (low + 1) * inner
            for q in range(inner):
                x = messages[j, here + q] * (1 - f) + messages[j, after + q] * f
                x *= out[s * inner + q]
                out[s * inner + q] = x
                total += x
        inverse = 1.0 / total
        for p in range(size):
            out[p] *= inverse
    for q in range(inner):
        last = out[q]
        for s in range(num_s0):
            here = out[s * inner + q]
            after = out[(s + 1) * inner + q] if s + 1 < num_s0 else here
            out[s * inner + q] = (1 - 2 * blur) * here + blur * (last + after)
            last = here
    total = 0.0
    for p in range(size):
        out[p] *= base[p]
        total += out[p]
    for p in range(size):
        out[p] /= total


@nb.njit(**_FAST)
def messages(steps, right, trials, outcome, factors, use_factors, curve, h, rho, phi, kappa, eta, like, seen, back,
             ratio, message):  # fmt: skip
    """Likelihoods and backward messages of one solution from its counts; ``message`` [P] gets LG_0 bG_0.

    Args:
        steps: T.
        right: k_t, [T+1].
        trials: n_t, [T+1].
        outcome: 1 right, 0 wrong, -1 unknown.
        factors: (a_t, x_t, z_t), [T, 3], read where ``use_factors``.
        curve: [T+1, 2, P]; h, rho, phi, kappa: [P].
        like, back: Scratch of at least [T+1, 2, P]; seen, ratio: of at least [T+1].
    """
    size = rho.shape[0]
    for t in range(steps + 1):
        seen[t] = use_factors or trials[t] > 0 or t == steps or t == 0
        ratio[t] = 1.0
        if not seen[t]:
            continue
        like[t] = 1.0
        for j in range(trials[t]):
            multiply_in(like[t], curve[t], kappa, min(j, right[t]), j, j < right[t])
            if j % 32 == 31:  # long before a double underflows
                normalise(like[t])
        if trials[t]:
            normalise(like[t])
        if use_factors and t:
            for p in range(size):
                like[t, 0, p] *= factors[t - 1, 0]
                like[t, 1, p] *= factors[t - 1, 2]
    if use_factors:
        for t in range(steps):
            ratio[t] = factors[t, 1] / factors[t, 2]
    if outcome >= 0:
        for p in range(size):
            like[steps, 0, p] *= 1.0 - eta if outcome == 1 else eta
            like[steps, 1, p] *= phi[p] if outcome == 1 else 1.0 - phi[p]
    backward(steps, like, seen, back, h, rho, ratio)
    for p in range(size):
        message[p] = like[0, 0, p] * back[0, 0, p]


@nb.njit(**_FAST)
def outcome_prior(start, base, num_right, num_wrong, out):
    """Base prior times the likelihood of other solutions' outcomes, ``start`` = V_0: all [P]; out sums to 1."""
    total = 0.0
    for p in range(base.shape[0]):
        x = base[p]
        for _ in range(num_right):
            x *= start[p]
        for _ in range(num_wrong):
            x *= 1.0 - start[p]
        out[p] = x
        total += x
    for p in range(base.shape[0]):
        out[p] /= total


merged_counts = nb.njit(cache=True)(sharing.merge)


@nb.njit(cache=True)
def problem_gains(pool, nodes, on_policy, steps, outcome, right, trials, factors, told, curve, rows, hazard, number,
                  below, part, rho, phi, kappa, base, eta, blur, num_s0, like, seen, back, ratio, message, vectors,
                  sums, out):  # fmt: skip
    """Information gain at each prefix of each of a problem's S solutions, into ``out`` [S, M+1], M = longest.

    Args:
        pool: Each solution's whole evidence informs the others; else their outcomes do.
        nodes, on_policy: As ``sharing.merge`` reads them.
        steps, outcome: [S]; right, trials: [S, M+1]; factors: [S, M, 3], read where ``told`` [S].
        curve: Curves of several lengths one below the other, [rows, 2, P]; solution i's begin at ``rows[i]``.
        hazard: [lengths, P]; solution i has the length ``number[i]``.
        below, part: ``length_map`` between the lengths, [lengths, lengths, s0].
        like, back: Scratch, at least [S, M+1, 2, P]; seen, ratio: [S, M+1]; message: [S, P]; vectors: [4, P].
        sums: Also a result: P(c > t), E[V_t] and E[V_t 1(c > t)], at least [S, 3, M+1].
    """
    count = steps.shape[0]
    own_right, own_trials = right, trials
    right, trials = np.zeros_like(own_right), np.zeros_like(own_trials)
    root, speaks = np.empty((count, 2), np.int64), np.empty((count, count), np.bool_)
    merged_counts(nodes, steps, outcome, own_right, own_trials, on_policy, right, trials, root, speaks)
    for i in range(count):
        here = curve[rows[i] : rows[i] + steps[i] + 1]
        messages(steps[i], right[i], trials[i], outcome[i], factors[i], told[i], here, hazard[number[i]], rho, phi,
                 kappa, eta, like[i], seen[i], back[i], ratio[i], message[i])  # fmt: skip
    prior, never, good, bad = vectors[0], vectors[1], vectors[2], vectors[3]
    for i in range(count):
        here = curve[rows[i] : rows[i] + steps[i] + 1]
        if pool:
            pooled_prior(i, message[:count], speaks, number, below, part, base, blur, num_s0, prior)
        else:
            outcome_prior(here[0, 0], base, root[i, 0], root[i, 1], prior)
        forward_sums(steps[i], like[i], seen[i], back[i], here, hazard[number[i]], rho, kappa, ratio[i], right[i],
                     trials[i], prior, sums[i, 0], sums[i, 1], sums[i, 2], never, good, bad)  # fmt: skip
        for t in range(steps[i] + 1):
            out[i, t] = gain(sums[i, 0, t], sums[i, 1, t], sums[i, 2, t])
