"""Hints learned from labels, and grid weights learned from a pilot."""

import numpy as np
import pytest

from stepward.labeling.changepoint.grid import FINE_POINTS, flatten, make_grid
from stepward.labeling.changepoint.hints import HintModel, fit_hint
from stepward.labeling.changepoint.refit import refit, refit_from_problems


def test_a_hint_is_the_ratio_of_two_normal_densities_and_clipped():
    model = HintModel(mean_right=0.0, mean_wrong=1.0, sd=1.0)
    # N(z; 1, 1) / N(z; 0, 1) = exp(z - 1/2)
    np.testing.assert_allclose(model.ratio(np.array([0.5, 1.5, np.nan])), [1.0, np.e, 1.0])
    np.testing.assert_allclose(model.ratio(np.array([50.0, -50.0])), [20.0, 1 / 20])
    assert model.likelihoods(np.zeros((2, 3))).shape == (2, 3, 3)


def test_hints_are_fitted_with_the_posteriors_weights_and_padding_is_not_read():
    # certain labels: first error at step 2 of 2 and none in 1 step; right scores 0, 2 and wrong score 5
    scores = np.array([[0.0, 5.0], [2.0, 99.0]])
    p_right = np.array([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0]])
    model = fit_hint(scores, p_right, np.array([2, 1]))
    assert (model.mean_right, model.mean_wrong) == (1.0, 5.0)
    assert model.sd == pytest.approx(np.sqrt(2 / 3))  # squares 1, 1, 0 over three steps


def test_hints_need_an_expected_first_error():
    with pytest.raises(ValueError, match="labels of more solutions"):
        fit_hint(np.zeros((1, 1)), np.array([[1.0, 0.9]]), np.array([1]))


def test_refit_moves_the_weights_to_what_the_pilot_shows_and_rules_nothing_out():
    grid = make_grid()
    points = flatten(grid)
    theta = np.where(points.rho == 0.02, points.prior, points.prior * 1e-6)  # all mass on one rho
    weights = refit(np.tile(theta / theta.sum(), (2000, 1)), grid)
    assert weights["rho"][1] > 0.99
    assert min(weights["rho"]) > 0.0009  # 2 / 2000, renormalised
    np.testing.assert_allclose(weights["phi"], grid.weights[2], atol=1e-2)
    assert make_grid(weights).weights[1] == weights["rho"]


def test_a_refit_of_the_prior_itself_changes_nothing_but_the_floor():
    grid = make_grid()
    weights = refit(np.tile(flatten(grid).prior, (5, 1)), grid, num_solutions=10**9)
    np.testing.assert_allclose(weights["s0"], grid.weights[0], atol=1e-6)


def test_a_small_pilot_is_refused():
    with pytest.raises(ValueError, match="a pilot needs 2000"):
        refit_from_problems([])


def test_a_grid_with_finer_points_keeps_its_points_through_a_refit():

    grid = make_grid(axis_points=FINE_POINTS)
    assert grid.rho == (0.0003, 0.003, 0.02, 0.07, 0.2)
    assert grid.size == make_grid().size
    # All posterior mass at the first point of every axis: the refit goes there, and the points stay.
    theta = np.zeros((4, grid.size))
    theta[:, 0] = 1.0
    weights = refit(theta, grid, num_solutions=1000)
    fitted = make_grid(weights, axis_points=FINE_POINTS)
    assert fitted.rho == grid.rho
    assert fitted.weights[1][0] > 0.98


def test_points_that_do_not_match_their_weights_are_refused():

    with pytest.raises(ValueError, match="axis 'rho' has weights"):
        make_grid(axis_points={"rho": (0.1, 0.2)})
    with pytest.raises(ValueError, match="unknown axis 'eta'"):
        make_grid(axis_points={"eta": (0.1,)})
