"""The change-point labeller of ``stepward.labeling.changepoint`` compiled for simulations of many solutions.

The same recursions, in float64, one problem at a time; ``tests/labeling/test_benchmark_labeling.py`` holds both
implementations equal. Its recursions are the compiled ones of the package.
"""

import numba as nb
import numpy as np

from stepward.labeling.changepoint.compiled import gain, outcome_prior, pooled_prior
from stepward.labeling.changepoint.compiled_chain import messages, posterior_sums


@nb.njit(cache=True)
def label(first, last, steps, right, siblings, chance, true_value, rest, likelihoods, use_evidence, pooled,
          prices, overhead, seed, below, part, blur, num_s0, rho, phi, kappa, place, base, hazards, curves, eta,
          given_k, given_n, out_predicted, out_confidence, out_tokens, out_rollouts, out_mse,
          theta, out_p_right, out_k, out_n):  # fmt: skip
    """Label solutions first..last-1 of one problem at falling prices; see ``active.run``.

    ``given_k`` of ``given_n`` [solutions, prefixes] rollouts are taken in before the first price (a peer's
    samples under this decoder). ``theta``, ``out_p_right``, ``out_k`` and ``out_n`` get the posterior over
    the grid, P(c > t) and the counts at the last price.
    """
    np.random.seed(seed)
    count, size = last - first, base.shape[0]
    longest = 0
    for i in range(first, last):
        longest = max(longest, steps[i])
    like = np.empty((count, longest + 1, 2, kappa.shape[0], rho.shape[0]))
    back = np.empty_like(like)
    head = np.empty((count, longest + 1, 3, rho.shape[0]))
    tail = np.empty((count, longest + 1, 2, rho.shape[0]))
    factor = np.empty((count, longest + 1, 3))
    work = np.empty((3, kappa.shape[0], rho.shape[0]))
    middle = np.empty((count, 2), np.int64)
    k = np.zeros((count, longest + 1), np.int64)
    n = np.zeros((count, longest + 1), np.int64)
    message = np.zeros((count, size))
    p_right = np.zeros((count, longest + 1))
    value = np.zeros((count, longest + 1))
    value_right = np.zeros((count, longest + 1))
    prior = np.empty(size)
    tokens = np.zeros(count)
    rollouts = np.zeros(count, np.int64)
    best = np.zeros(count, np.int64)
    top = np.zeros(count)
    dirty = np.ones(count, np.bool_)

    for i in range(count):
        for t in range(steps[first + i]):
            k[i, t], n[i, t] = given_k[first + i, t], given_n[first + i, t]
    others = np.ones((count, count), np.bool_)
    for i in range(count):
        others[i, i] = False
    level = 0
    while level < prices.shape[0]:
        changed = False
        for i in range(count):
            if dirty[i]:
                end = steps[first + i]
                factors = likelihoods[first + i if use_evidence else 0]
                middle[i] = messages(end, k[i], n[i], right[first + i], factors, use_evidence, curves[end],
                                     hazards[end], rho, phi, kappa, eta, place, like[i], back[i], head[i], tail[i],
                                     factor[i], message[i])  # fmt: skip
                changed = True
        for i in range(count):
            row = first + i
            end = steps[row]
            if not (changed and (pooled or dirty[i])):
                continue
            if pooled:
                pooled_prior(i, message, others, steps[first:last], below, part, base, blur, num_s0, prior)
            else:
                wrong = siblings[row, 1] - siblings[row, 0]
                outcome_prior(curves[end, 0, 0], place, base, siblings[row, 0], wrong, prior)
            posterior_sums(end, middle[i, 0], middle[i, 1], k[i], n[i], curves[end], hazards[end], rho, kappa, place,
                           like[i], back[i], head[i], tail[i], factor[i], prior, work, p_right[i], value[i],
                           value_right[i])  # fmt: skip
            theta[row] = prior * message[i] / np.sum(prior * message[i])
            top[i] = -1.0
            if rollouts[i] < max(200, 20 * end):
                for t in range(1, end):
                    score = gain(p_right[i, t], value[i, t], value_right[i, t]) / (rest[row, t] + overhead)
                    if score > top[i]:
                        top[i] = score
                        best[i] = t
        dirty[:] = False
        any_drawn = False
        for i in range(count):
            if top[i] >= prices[level]:
                row, t = first + i, best[i]
                any_drawn = True
                tokens[i] += rest[row, t] * np.exp(np.random.normal(-0.03125, 0.25))
                rollouts[i] += 1
                success = np.random.random() < chance[row, t]
                k[i, t] += success
                n[i, t] += 1
                dirty[i] = True
        if any_drawn:
            continue
        for i in range(count):
            row = first + i
            end = steps[row]
            choice, confidence = end + 1, p_right[i, end]
            for t in range(1, end + 1):
                p = p_right[i, t - 1] - p_right[i, t]
                if p > confidence:
                    choice, confidence = t, p
            out_predicted[level, row] = choice
            out_confidence[level, row] = confidence
            out_tokens[level, row] = tokens[i]
            out_rollouts[level, row] = rollouts[i]
            out_p_right[row, : end + 1] = p_right[i, : end + 1]
            out_k[row, : end + 1] = k[i, : end + 1]
            out_n[row, : end + 1] = n[i, : end + 1]
            if end > 1:
                error = 0.0
                for t in range(1, end):
                    error += (value[i, t] - true_value[row, t]) ** 2
                out_mse[level, row] = error / (end - 1)
        level += 1
