"""The baselines without mathematics, the logistic fit beneath them, and intervals."""

import math

import numpy as np
import pytest

from stepward.prm.evaluation.baselines import (
    fit_position,
    labels_up_to_first_error,
    logprob_scores,
    position_features,
    sibling_scores,
)
from stepward.prm.evaluation.errors import EmptySideError, StepCountError
from stepward.prm.evaluation.intervals import (
    Bootstrap,
    bootstrap_ratio,
    bootstrap_statistic,
    wilson,
)
from stepward.prm.evaluation.logistic import fit_logistic
from stepward.prm.evaluation.thresholds import choose_threshold


def test_logistic_regression_solves_a_case_with_a_closed_form() -> None:
    # One binary feature, no penalty: the fitted probabilities are the two groups' shares, 1/4 and 3/5.
    x = np.array([[0.0]] * 4 + [[1.0]] * 5)
    y = [True, False, False, False, True, True, True, False, False]
    p = fit_logistic(x, y, ridge=0.0).probability(np.array([[0.0], [1.0]]))
    assert p == pytest.approx([0.25, 0.6], abs=1e-6)


def test_separable_rows_stay_finite_under_the_ridge() -> None:
    model = fit_logistic(np.array([[0.0], [1.0], [2.0], [3.0]]), [False, False, True, True])
    p = model.probability(np.array([[0.0], [3.0], [1e9], [-1e9]]))
    assert np.isfinite(p).all()
    assert p[0] < 0.5 < p[1]
    assert (p >= 0).all()
    assert (p <= 1).all()


def test_a_gradient_of_zero_marks_the_maximum() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((300, 3)) * [1, 10, 0.1] + [0, 5, 0]
    y = rng.random(300) < 1 / (1 + np.exp(-(x[:, 0] - 0.1 * x[:, 1])))
    model = fit_logistic(x, y, ridge=0.7)
    z = (x - np.array(model.mean)) / np.array(model.scale)
    residual = model.probability(x) - y
    assert residual.sum() == pytest.approx(0, abs=1e-5)
    assert z.T @ residual + 0.7 * np.array(model.weights) == pytest.approx(0, abs=1e-5)


def test_rows_of_one_kind_or_of_odd_shape_are_refused() -> None:
    with pytest.raises(EmptySideError, match="2 are right"):
        fit_logistic(np.zeros((2, 1)), [True, True])
    with pytest.raises(ValueError, match="finite"):
        fit_logistic(np.array([[np.nan], [0.0]]), [True, False])


def test_labels_stop_at_the_first_error() -> None:
    assert labels_up_to_first_error(4, 2) == (1, 1, 0, None)
    assert labels_up_to_first_error(3, None) == (1, 1, 1)


def test_the_position_baseline_learns_that_late_steps_fail() -> None:
    rng = np.random.default_rng(0)
    lengths = [[int(v) for v in rng.integers(5, 50, size=8)] for _ in range(400)]
    errors = [5 if rng.random() < 0.7 else None for _ in lengths]
    labels = [labels_up_to_first_error(8, e) for e in errors]
    baseline = fit_position(lengths[:300], labels[:300])
    scores = [baseline.score(row) for row in lengths[300:]]
    assert all(0 < s < 1 for row in scores for s in row)
    assert np.mean([row[0] for row in scores]) > np.mean([row[5] for row in scores])
    assert choose_threshold(scores, errors[300:]).f1 is not None


def test_position_features_by_hand() -> None:
    table = position_features([math.e - 1, math.e - 1])  # type: ignore[list-item]
    # index 0 and 1 of 2; log1p(length) = 1 for both, so the deviation is 0
    assert np.allclose(table, [[0, 0, 0, math.log(2), 1, 0], [math.log(2), 0.5, 1, math.log(2), 1, 0]])


def test_position_rows_must_fit() -> None:
    with pytest.raises(StepCountError, match="solution 0"):
        fit_position([[3, 4]], [[1]])
    with pytest.raises(StepCountError, match="no step has a known label"):
        fit_position([[3]], [[None]])
    with pytest.raises(StepCountError, match="without steps"):
        position_features([])


def test_log_probabilities_become_geometric_means() -> None:
    # (.5 * .125)^(1/2) = .25 ; a certain token gives 1
    assert logprob_scores([[math.log(0.5), math.log(0.125)], [0.0]]) == pytest.approx((0.25, 1.0))
    with pytest.raises(StepCountError, match="step 1"):
        logprob_scores([[-1.0], []])


def test_the_sibling_baseline_is_the_same_at_every_step() -> None:
    assert sibling_scores(3, 2, 6) == (0.375, 0.375, 0.375)
    assert sibling_scores(1, 0, 0) == (0.5,)
    with pytest.raises(ValueError, match="3 right of 2"):
        sibling_scores(1, 3, 2)


# --- intervals


def test_wilson_by_hand() -> None:
    # p = .8, n = 10, z = 1.96: centre (.8 + .19208)/1.38416 = .71674, half .22657
    got = wilson(8, 10)
    assert (got.low, got.high) == pytest.approx((0.4902, 0.9433), abs=1e-4)
    assert wilson(0, 0).value is None
    with pytest.raises(ValueError, match="3 hits in 2"):
        wilson(3, 2)


def test_bootstrap_intervals_cover_the_truth_about_as_often_as_they_say() -> None:
    rng = np.random.default_rng(5)
    covered = 0
    for trial in range(300):
        rates = np.repeat(rng.random(60), 3)  # 60 problems, three solutions each, mean rate .5
        hits = (rng.random(180) < rates).astype(float)
        clusters = [str(k // 3) for k in range(180)]
        got = bootstrap_ratio(hits, np.ones(180), clusters, Bootstrap(400, seed=trial))
        assert got.low is not None
        assert got.high is not None
        covered += got.low <= 0.5 <= got.high
    # Binomial(300, .95) has 5 standard deviations = 19 below 285
    assert 266 <= covered <= 300


def test_a_general_statistic_agrees_with_the_ratio_it_equals() -> None:
    rng = np.random.default_rng(2)
    values = rng.random(80)
    clusters = [str(k // 2) for k in range(80)]
    ratio = bootstrap_ratio(values, np.ones(80), clusters, Bootstrap(2000))
    general = bootstrap_statistic(lambda w: float((w * values).sum() / w.sum()), clusters, Bootstrap(2000))
    assert general.value == pytest.approx(ratio.value)
    assert (general.low, general.high) == pytest.approx((ratio.low, ratio.high), abs=0.01)


def test_undefined_resamples_are_counted_not_taken_for_zero() -> None:
    # One problem of eight has an item in the denominator: about (7/8)^8 = 34 % of resamples have none.
    numerator, denominator = np.zeros(8), np.zeros(8)
    numerator[0] = denominator[0] = 1
    got = bootstrap_ratio(numerator, denominator, [str(k) for k in range(8)], Bootstrap(1000))
    assert (got.value, got.low, got.high) == (1.0, 1.0, 1.0)
    left_out = int(got.note.split("undefined in ")[1].split()[0])
    assert 250 < left_out < 450
    none = bootstrap_ratio(np.zeros(2), np.zeros(2), ["a", "b"], Bootstrap(10))
    assert none.value is None
    assert none.note == "no items"


def test_bootstrap_settings_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="level=1"):
        Bootstrap(level=1)
