"""The peers on the simulator: Math-Shepherd, OmegaPRM, uniform early stopping, random prefixes, the greedy genie."""

from dataclasses import dataclass

import numba as nb
import numpy as np
from numpy.typing import NDArray

from benchmarks.simulator import MAX_STEPS, Sample, f1, rollout_tokens
from stepward.labeling.changepoint.compiled import gain

THRESHOLDS = np.arange(0.0, 0.65, 0.025)


@dataclass(frozen=True, slots=True)
class Result:
    """What a peer gave: decoded c, tokens and rollouts of each solution, [n]."""

    predicted: NDArray[np.int64]
    tokens: NDArray[np.float64]
    rollouts: NDArray[np.int64]


def inner(sample: Sample) -> NDArray[np.bool_]:
    """Prefixes 1..T-1, [n, MAX_STEPS + 1]."""
    column = np.arange(MAX_STEPS + 1)
    return (column >= 1) & (column < sample.num_steps[:, None])


@dataclass(frozen=True, slots=True)
class FixedSamples:
    """K rollouts at each of the prefixes 1..T-1: right ones and tokens, [n, MAX_STEPS + 1]."""

    num_rollouts: int
    right: NDArray[np.int64]
    tokens: NDArray[np.float64]


def fixed_samples(sample: Sample, num_rollouts: int, seed: int) -> FixedSamples:
    """Math-Shepherd's rollouts."""
    rng = np.random.default_rng([seed, num_rollouts, 101])
    at = inner(sample)
    right = rng.binomial(num_rollouts, sample.chance) * at
    # the sum of K independent LogNormal(-1/32, 1/4) factors of mean 1
    factor = np.exp(rng.normal(-0.03125, 0.25, (num_rollouts, *at.shape))).sum(axis=0)
    return FixedSamples(num_rollouts, right, sample.rest * at * factor)


def math_shepherd(sample: Sample, drawn: FixedSamples, threshold: float) -> Result:
    """First prefix with k / K <= threshold; the own outcome decides t = T."""
    low = inner(sample) & (drawn.right <= threshold * drawn.num_rollouts + 1e-9)
    last = np.where(sample.right, sample.num_steps + 1, sample.num_steps)
    predicted = np.where(low.any(axis=1), low.argmax(axis=1), last)
    return Result(predicted, drawn.tokens.sum(axis=1), drawn.num_rollouts * (sample.num_steps - 1))


def tuned_threshold(sample: Sample, drawn: FixedSamples) -> float:
    """The threshold of the best F1 on these solutions."""
    scores = [
        f1(sample.first_error, math_shepherd(sample, drawn, x).predicted, sample.num_steps)
        for x in THRESHOLDS
    ]
    return float(THRESHOLDS[int(np.argmax(scores))])


def omegaprm(sample: Sample, num_rollouts: int, seed: int) -> Result:
    """Binary search with up to K rollouts a midpoint, stopping at the first right one; right outcome: none."""
    rng = np.random.default_rng([seed, num_rollouts, 202])
    low, high = np.zeros(len(sample), np.int64), sample.num_steps.copy()
    tokens, rollouts = np.zeros(len(sample)), np.zeros(len(sample), np.int64)
    while len(live := np.flatnonzero(~sample.right & (high - low > 1))):
        middle = (low[live] + high[live]) // 2
        success = np.zeros(len(live), bool)
        for _ in range(num_rollouts):
            need = np.flatnonzero(~success)
            rows, at = live[need], middle[need]
            tokens[rows] += rollout_tokens(sample, rows, at, rng)
            rollouts[rows] += 1
            success[need] = rng.random(len(need)) < sample.chance[rows, at]
        low[live[success]] = middle[success]
        high[live[~success]] = middle[~success]
    return Result(np.where(sample.right, sample.num_steps + 1, high), tokens, rollouts)


def best_omegaprm(sample: Sample, seed: int) -> tuple[int, Result]:
    """OmegaPRM with the K of the best F1 on these very solutions: generous to it."""
    tried = {k: omegaprm(sample, k, seed) for k in (1, 2, 3, 4, 6, 8)}
    return max(tried.items(), key=lambda item: f1(sample.first_error, item[1].predicted, sample.num_steps))


def early_stop(
    sample: Sample, num_rollouts: int, seed: int
) -> tuple[Result, NDArray[np.int64], NDArray[np.int64]]:
    """Up to K rollouts at every prefix until one is right. Also (right, trials) for the decoder."""
    rng = np.random.default_rng([seed, num_rollouts, 303])
    at = inner(sample)
    right, trials = np.zeros(at.shape, np.int64), np.zeros(at.shape, np.int64)
    tokens = np.zeros(len(sample))
    for _ in range(num_rollouts):
        rows, prefixes = np.nonzero(at & (right == 0))
        np.add.at(tokens, rows, rollout_tokens(sample, rows, prefixes, rng))
        trials[rows, prefixes] += 1
        right[rows, prefixes] += rng.random(len(rows)) < sample.chance[rows, prefixes]
    none = at & (right == 0)
    last = np.where(sample.right, sample.num_steps + 1, sample.num_steps)
    predicted = np.where(none.any(axis=1), none.argmax(axis=1), last)
    return Result(predicted, tokens, trials.sum(axis=1)), right, trials


def random_prefixes(
    sample: Sample, num_rollouts: int, seed: int
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
    """The given number of rollouts a solution at random prefixes: tokens [n], right and trials for the decoder."""
    rng = np.random.default_rng([seed, num_rollouts, 404])
    right = np.zeros((len(sample), MAX_STEPS + 1), np.int64)
    trials, tokens = np.zeros_like(right), np.zeros(len(sample))
    rows = np.flatnonzero(sample.num_steps > 1)
    for _ in range(num_rollouts):
        prefixes = 1 + (rng.random(len(rows)) * (sample.num_steps[rows] - 1)).astype(np.int64)
        tokens[rows] += rollout_tokens(sample, rows, prefixes, rng)
        trials[rows, prefixes] += 1
        right[rows, prefixes] += rng.random(len(rows)) < sample.chance[rows, prefixes]
    return tokens, right, trials


@nb.njit(cache=True)
def _genie(steps, outcome, good, bad, error_rate, rho, eta, phi, chance, rest, prices, overhead, seed,
           predicted, tokens, rollouts):  # fmt: skip
    np.random.seed(seed)
    for row in range(steps.shape[0]):
        end = steps[row]
        likelihood = np.ones((end + 1, 2))
        likelihood[end, 0] = 1 - eta if outcome[row] else eta
        likelihood[end, 1] = phi if outcome[row] else 1 - phi
        never, right, wrong = np.empty(end + 1), np.empty(end + 1), np.empty(end + 1)
        back = np.empty((end + 1, 2))
        spent, drawn, level = 0.0, 0, 0
        while level < prices.shape[0]:
            back[end] = 1.0
            for t in range(end, 0, -1):
                g, b, e = likelihood[t, 0] * back[t, 0], likelihood[t, 1] * back[t, 1], error_rate[row, t]
                back[t - 1, 0] = (1 - e) * g + e * b
                back[t - 1, 1] = rho[row] * g + (1 - rho[row]) * b
            never[0] = right[0] = 1.0
            wrong[0] = 0.0
            for t in range(1, end + 1):
                e = error_rate[row, t]
                never[t] = never[t - 1] * (1 - e) * likelihood[t, 0]
                right[t] = (right[t - 1] * (1 - e) + wrong[t - 1] * rho[row]) * likelihood[t, 0]
                wrong[t] = (right[t - 1] * e + wrong[t - 1] * (1 - rho[row])) * likelihood[t, 1]
            total = back[0, 0]
            best, top = 0, -1.0
            if drawn < max(200, 20 * end):
                for t in range(1, end):
                    p = never[t] * back[t, 0] / total
                    y = (right[t] * back[t, 0] * good[row, t] + wrong[t] * back[t, 1] * bad[row, t]) / total
                    score = gain(p, y, p * good[row, t]) / (rest[row, t] + overhead)
                    if score > top:
                        best, top = t, score
            if top >= prices[level]:
                spent += rest[row, best] * np.exp(np.random.normal(-0.03125, 0.25))
                drawn += 1
                if np.random.random() < chance[row, best]:
                    likelihood[best, 0] *= good[row, best]
                    likelihood[best, 1] *= bad[row, best]
                else:
                    likelihood[best, 0] *= 1 - good[row, best]
                    likelihood[best, 1] *= 1 - bad[row, best]
                continue
            choice, confidence = end + 1, never[end]
            for t in range(1, end + 1):
                p = never[t - 1] * back[t - 1, 0] - never[t] * back[t, 0]
                if p > confidence:
                    choice, confidence = t, p
            predicted[level, row] = choice
            tokens[level, row] = spent
            rollouts[level, row] = drawn
            level += 1


def greedy_genie(
    sample: Sample, prices: NDArray[np.float64], seed: int, overhead: float = 0.0
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.int64]]:
    """Information gain by one who knows every error rate, rho, phi and eta: predicted, tokens, rollouts a price."""
    shape = (len(prices), len(sample))
    predicted, tokens = np.zeros(shape, np.int64), np.zeros(shape)
    rollouts = np.zeros(shape, np.int64)
    _genie(
        sample.num_steps, sample.right, sample.good, sample.bad, sample.error_rate, sample.rho, sample.eta,
        sample.phi, sample.chance, sample.rest, prices, overhead, seed, predicted, tokens, rollouts,
    )  # fmt: skip
    return predicted, tokens, rollouts
