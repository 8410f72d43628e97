"""The grid that a pilot's rollouts choose, by likelihood alone."""

import numpy as np
import pytest

from stepward.labeling.changepoint.choice import choose_grid
from stepward.labeling.changepoint.grid import ETA, FINE_POINTS, Grid, curves, flatten
from stepward.labeling.changepoint.problem import posteriors
from stepward.labeling.evidence import SolutionEvidence
from stepward.prm.types import Outcome

R, W = Outcome.RIGHT, Outcome.WRONG


def drawn(problems, rho, phi, seed, k=8, steps=6):
    """Problems of four solutions each, from the model itself with one hazard, and k rollouts at every prefix."""
    rng = np.random.default_rng(seed)

    def walk(good, num_steps, hazard):
        path = [good]
        for _ in range(num_steps):
            good = rng.random() > hazard if good else rng.random() < rho
            path.append(good)
        return path

    def outcome(good):
        return R if rng.random() < (1 - ETA if good else phi) else W

    found = []
    for hazard in rng.uniform(0.02, 0.3, problems):
        solutions = []
        for _ in range(4):
            path = walk(True, steps, hazard)
            draws = [
                tuple(outcome(walk(g, steps - t, hazard)[-1]) for _ in range(k)) if 0 < t < steps else ()
                for t, g in enumerate(path)
            ]
            solutions.append(SolutionEvidence(steps, (10,) * steps, outcome(path[-1]), tuple(draws)))
        found.append(solutions)
    return found


def test_the_log_evidence_is_the_likelihood_summed_over_theta_and_paths():
    """One step, one rollout at the question and a wrong answer; right steps answer wrong with eta."""
    grid = Grid((0.3, 0.8), (0.1,), (0.2,), (5.0,), (), ((0.25, 0.75), (1.0,), (1.0,), (1.0,), (1.0,)))
    points, total = flatten(grid), 0.0
    for i, s0 in enumerate((0.3, 0.8)):
        # V_0 = s0 (1 - eta) + (1 - s0) phi; the step is right with s0.
        v = s0 * (1 - ETA) + (1 - s0) * 0.2
        assert curves(grid, 1).value[0, 0, i] == pytest.approx(v)
        total += points.prior[i] * v * (s0 * ETA + (1 - s0) * 0.8)
    found = posteriors([SolutionEvidence(1, (5,), W, ((R,), ()))], grid)[0]
    assert found.log_evidence == pytest.approx(np.log(total), abs=1e-12)


def test_a_policy_that_never_recovers_gets_points_or_weights_that_say_so():
    chosen = choose_grid(drawn(8, rho=0.0, phi=0.0, seed=1))
    assert chosen.nats > 3
    assert chosen.axis_points == FINE_POINTS or chosen.axis_weights["rho"][0] > 0.6


def test_a_policy_that_recovers_often_does_not_get_the_points_of_one_that_never_does():
    assert choose_grid(drawn(8, rho=0.3, phi=0.15, seed=2)).axis_points != FINE_POINTS


def test_too_few_problems_leave_the_default():
    chosen = choose_grid(drawn(3, rho=0.0, phi=0.0, seed=3))
    assert (chosen.axis_points, chosen.axis_weights, chosen.nats) == ({}, {}, 0.0)
