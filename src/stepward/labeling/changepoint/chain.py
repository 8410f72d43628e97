"""Exact inference of the three-state chain for several solutions at once.

A solution is never wrong (N), on a wrong path (B) or recovered (R) after each step. From N or R a step goes
wrong with probability h, from B it recovers with rho. c is the first wrong step, counted from 1 as prefixes
are: c > t says that the first t steps are right. Rollouts at prefix t are Beta-binomial around G_t (N, R) or
B_t (B). Step evidence multiplies the transitions into step t: a_t into N or R, x_t into a first or new wrong
step, z_t into staying wrong.

Per grid point, with LG_t and LB_t the likelihoods of all that was seen at t (Baum-Welch's messages):

    forward    N_t = N_{t-1} (1-h) a_t LG_t
               M_t = [M_{t-1} (1-h) + B_{t-1} rho] a_t LG_t                        (M = N + R)
               B_t = [M_{t-1} h x_t + B_{t-1} (1-rho) z_t] LB_t
    backward   bG_{t-1} = (1-h) a_t LG_t bG_t + h x_t LB_t bB_t
               bB_{t-1} = rho a_t LG_t bG_t + (1-rho) z_t LB_t bB_t

a_t is folded into LG_t, z_t into LB_t (which leaves x_t / z_t), the own outcome into LG_T and LB_T. The
forward messages start from 1 and not from the prior, so that a new prior (pooling, refit) costs sums only.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stepward.labeling.changepoint.grid import ETA, Array, Grid, curves, flatten

_RESCALE_EVERY = 8
"""Steps between rescalings of the messages; likelihoods are at most 1, so nothing overflows between."""


@dataclass(frozen=True, slots=True, eq=False)
class Summary:
    """Posterior sums under one prior a solution, aligned at the ends as in ``ChainBatch``.

    Shapes [solutions, T+1] but for ``log_evidence``; what stands before a solution's prefix 0 has no meaning.

    Attributes:
        p_right: P(c > t): all of the first t steps are right.
        value: E[V_t], the posterior mean of the value, which is also P(next rollout at t is right).
        value_right: E[V_t 1(c > t)].
        log_evidence: Log of the likelihood of all that was seen, under the prior, [solutions].
    """

    p_right: Array
    value: Array
    value_right: Array
    log_evidence: Array

    @property
    def p_first_error(self) -> Array:
        """P(c = t) for t = 1..T, then P(no step is wrong): [solutions, T+1]."""
        inner = np.maximum(self.p_right[:, :-1] - self.p_right[:, 1:], 0.0)
        return np.concatenate([inner, self.p_right[:, -1:]], axis=1)

    def information_gain(self) -> Array:
        """Mutual information in nats of one rollout at t and the event c > t, [solutions, T+1]."""
        p = np.clip(self.p_right, 1e-12, 1 - 1e-12)
        y = np.clip(self.value, 1e-12, 1 - 1e-12)
        y_right = np.clip(self.value_right / p, 1e-12, 1 - 1e-12)
        y_wrong = np.clip((self.value - self.value_right) / (1 - p), 1e-12, 1 - 1e-12)
        gain = _entropy(y) - p * _entropy(y_right) - (1 - p) * _entropy(y_wrong)
        return np.maximum(gain, 0.0)


def _entropy(p: Array) -> Array:
    return -(p * np.log(p) + (1 - p) * np.log1p(-p))


class ChainBatch:
    """Messages of S solutions of up to T steps over a grid of P points.

    Arrays are laid out [T+1, 2, S, P] (index 0 = right path, 1 = wrong path), so that one step of the recursion
    runs over contiguous memory. Solutions are aligned at their ends: prefix t of one of T' steps stands at
    T - T' + t, and what stands before its start is never read.

    Args:
        grid: The grid.
        num_steps: T' of each solution, [S]; T is the largest.
        outcomes: The own outcome of each solution: 1 right, 0 wrong, -1 unknown. [S]
        step_likelihoods: (a_t, x_t, z_t) for t = 1..T' of each solution, S arrays [T', 3], or None where no step
            of any has evidence.
    """

    def __init__(
        self,
        grid: Grid,
        num_steps: NDArray[np.integer],
        outcomes: NDArray[np.integer],
        step_likelihoods: Sequence[Array] | None = None,
    ) -> None:
        points = flatten(grid)
        size, longest = len(num_steps), int(np.max(num_steps))
        self.grid, self.num_steps, self.longest = grid, np.asarray(num_steps), longest
        self.start = longest - self.num_steps
        self._rows = np.arange(size)
        self._rho, self._kappa = points.rho, points.kappa
        self._h = np.empty((size, grid.size))
        self._curve = np.full((longest + 1, 2, size, grid.size), 0.5)
        for row, steps in enumerate(self.num_steps.tolist()):
            shape = curves(grid, steps)
            self._h[row] = shape.hazard
            self._curve[longest - steps :, :, row] = shape.value
        self.right = np.zeros((size, longest + 1), np.int64)
        self.trials = np.zeros((size, longest + 1), np.int64)
        self._value = self._curve.copy()
        self._likelihood = np.ones_like(self._value)
        self._x_over_z: Array | None = None
        if step_likelihoods is not None:
            self._x_over_z = np.ones((longest, size))
            for row, steps in enumerate(step_likelihoods):
                first = longest - len(steps)
                self._likelihood[first + 1 :, 0, row] *= steps[:, 0, None]
                self._likelihood[first + 1 :, 1, row] *= steps[:, 2, None]
                self._x_over_z[first:, row] = steps[:, 1] / steps[:, 2]
        ends = np.stack([np.full(grid.size, 1 - ETA), points.phi])[:, None]
        known = np.asarray(outcomes)
        self._likelihood[-1][:, known == 1] *= ends
        self._likelihood[-1][:, known == 0] *= 1 - ends
        self._forward = np.empty_like(self._value)
        self._backward = np.empty_like(self._value)
        self._never = np.empty((longest + 1, size, grid.size))
        self._log_scale = np.zeros((2, longest + 1, size))  # of forward and of backward
        self._log_factor = np.zeros(size)  # taken out of the likelihoods

    def observe(
        self, rows: NDArray[np.integer], prefixes: NDArray[np.integer], right: NDArray[np.bool_]
    ) -> None:
        """Take in one rollout for each (row, prefix) pair, all pairs different. Call ``refresh`` after the last.

        The Polya urn: with k of n right so far, P(right) = (kappa G + k) / (kappa + n), and likewise for B.
        """
        at = self.start[rows] + prefixes
        value = self._value[at, :, rows]  # [R, 2, P]
        factor = np.where(right[:, None, None], value, 1 - value)
        factor *= self._likelihood[at, :, rows]
        top = factor.max(axis=(1, 2), keepdims=True)
        factor /= top
        np.add.at(self._log_factor, rows, np.log(top[:, 0, 0]))
        self._likelihood[at, :, rows] = factor
        self.right[rows, at] += right
        self.trials[rows, at] += 1
        k = self.right[rows, at][:, None, None]
        n = self.trials[rows, at][:, None, None]
        self._value[at, :, rows] = (self._kappa * self._curve[at, :, rows] + k) / (self._kappa + n)

    def refresh(self) -> None:
        """Recompute the messages from the likelihoods; needed before any result is read."""
        self._run_backward()
        self._run_forward()

    def _run_backward(self) -> None:
        likelihood, message, scale = self._likelihood, self._backward, self._log_scale[1]
        message[-1] = 1.0
        scale[-1] = 0.0
        h, rho = self._h, self._rho
        seen = np.empty_like(message[0])
        good, bad = seen
        step = np.empty_like(good)
        for t in range(self.longest, 0, -1):
            np.multiply(likelihood[t], message[t], out=seen)
            to_good, to_bad = message[t - 1]
            np.subtract(bad, good, out=step)
            np.multiply(step, rho, out=to_bad)
            np.subtract(bad, to_bad, out=to_bad)
            if self._x_over_z is not None:
                np.multiply(self._x_over_z[t - 1][:, None], bad, out=step)
                step -= good
            np.multiply(step, h, out=to_good)
            to_good += good
            scale[t - 1] = scale[t]
            if t % _RESCALE_EVERY == 0:
                top = message[t - 1].max(axis=(0, 2))
                message[t - 1] /= top[:, None]
                scale[t - 1] = scale[t] + np.log(top)

    def _run_forward(self) -> None:
        likelihood, message, never = self._likelihood, self._forward, self._never
        scale = self._log_scale[0]
        self._begin(0)
        h, rho, stay = self._h, self._rho, 1 - self._h
        lost, recovered = np.empty_like(message[0])
        beginnings = set(self.start.tolist())
        for t in range(1, self.longest + 1):
            good, bad = message[t - 1]
            to_good, to_bad = message[t]
            np.multiply(bad, rho, out=recovered)
            np.multiply(good, h, out=lost)
            np.subtract(good, lost, out=to_good)
            to_good += recovered
            np.subtract(bad, recovered, out=to_bad)
            if self._x_over_z is not None:
                lost *= self._x_over_z[t - 1][:, None]
            to_bad += lost
            message[t] *= likelihood[t]
            np.multiply(never[t - 1], stay, out=never[t])
            never[t] *= likelihood[t, 0]
            scale[t] = scale[t - 1]
            if t % _RESCALE_EVERY == 0:
                top = message[t].max(axis=(0, 2))
                message[t] /= top[:, None]
                never[t] /= top[:, None]
                scale[t] = scale[t - 1] + np.log(top)
            if t in beginnings:
                self._begin(t)

    def _begin(self, t: int) -> None:
        """Start the forward messages of the solutions whose prefix 0 stands at t, and give others before it 1."""
        rows = self._rows[self.start >= t]
        self._forward[t, 0, rows] = self._never[t, rows] = self._likelihood[t, 0, rows]
        self._forward[t, 1, rows] = 0.0
        self._log_scale[0, t, rows] = 0.0

    def evidence(self) -> Array:
        """Likelihood of all that was seen, per grid point and up to a factor a solution: bG_0 LG_0. [S, P]"""
        return self._likelihood[self.start, 0, self._rows] * self._backward[self.start, 0, self._rows]

    def summary(self, prior: Array) -> Summary:
        """Posterior sums.

        Args:
            prior: Prior over the grid, [P] or one a solution [S, P]; need not be normalised.
        """
        prior = np.broadcast_to(prior, (len(self._rows), self.grid.size))
        never = self._never * self._backward[:, 0]
        p_right = np.einsum("tsp,sp->ts", never, prior)
        never *= self._value[:, 0]
        value_right = np.einsum("tsp,sp->ts", never, prior)
        both = self._forward * self._backward
        both *= self._value
        value = np.einsum("tksp,sp->ts", both, prior)
        scale = self._log_scale.sum(axis=0)
        at_start = (self.start, self._rows)
        log_total = np.log(p_right[at_start]) + scale[at_start]  # the same at every t, but for the scales
        factor = np.exp(scale - log_total)
        return Summary(
            p_right=np.minimum(p_right * factor, 1.0).T,
            value=(value * factor).T,
            value_right=(value_right * factor).T,
            log_evidence=log_total + self._log_factor,
        )

    def theta_posterior(self, prior: Array) -> Array:
        """Posterior over the grid points, [S, P]."""
        weighted = self.evidence() * prior
        return weighted / weighted.sum(axis=1, keepdims=True)

    def value_variance(self, prior: Array) -> Array:
        """Posterior variance of V_t, [S, T+1]: of its mean over paths and grid, plus the Beta's own."""
        prior = np.broadcast_to(prior, (len(self._rows), self.grid.size))
        both = self._forward * self._backward * prior
        total = both.sum(axis=(1, 3))
        mean = (both * self._value).sum(axis=(1, 3)) / total
        trials = self.trials.T[:, None, :, None] + self._kappa + 1.0
        second = self._value**2 + self._value * (1 - self._value) / trials
        return np.maximum((both * second).sum(axis=(1, 3)) / total - mean**2, 0.0).T
