"""The compiled posterior is the plain one wherever rollouts are; kappa is read only between the first and the last."""

from importlib.util import find_spec

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepward.labeling.changepoint.grid import FINE_POINTS, curves, flatten, kappa_first, make_grid
from stepward.labeling.changepoint.layout import layout_of
from stepward.labeling.changepoint.problem import posteriors
from stepward.labeling.evidence import SolutionEvidence
from stepward.prm.types import Outcome, Verdict, VerdictKind

R, W = Outcome.RIGHT, Outcome.WRONG
FLAG = Verdict(VerdictKind.REFUTED, "arithmetic", "1")
needs_numba = pytest.mark.skipif(
    find_spec("numba") is None,
    reason="the compiled form needs numba: pip install 'stepward[fast]'",
)


@st.composite
def solutions(draw):
    """One to four solutions with rollouts nowhere, at one prefix (the first or the last too) or at many."""
    found = []
    for _ in range(draw(st.integers(1, 4))):
        steps = draw(st.integers(1, 12))
        outcomes = st.lists(st.sampled_from([R, W, Outcome.TRUNCATED]), max_size=5).map(tuple)
        at = draw(st.sets(st.integers(0, steps), max_size=4))
        draws = tuple(draw(outcomes) if t in at else () for t in range(steps + 1))
        flagged = draw(st.sets(st.integers(0, steps - 1), max_size=2))
        verdicts = tuple((FLAG,) if t in flagged else () for t in range(steps)) if flagged else ()
        outcome = draw(st.sampled_from([R, W, Outcome.TRUNCATED]))
        found.append(SolutionEvidence(steps, (10,) * steps, outcome, draws, verdicts))
    return found


@needs_numba
@settings(max_examples=30, deadline=None)
@given(solutions(), st.booleans(), st.booleans(), st.sampled_from(["default", "fine", "off policy"]))
def test_wherever_the_rollouts_are_the_compiled_posterior_is_the_plain_one(problem, pool, as_wrong, which):
    from stepward.labeling.changepoint.fast import readings

    grid = {
        "default": make_grid(),
        "fine": make_grid(axis_points=FINE_POINTS),
        "off policy": make_grid(on_policy=False),
    }[which]
    options = {"pool": pool, "unfinished_as_wrong": as_wrong, "precision": {}, "recall": {}}
    plain = posteriors(problem, grid, **options)
    for (gain, p_right, value), expected in zip(readings(problem, grid, **options), plain, strict=True):
        np.testing.assert_allclose(gain, expected.gain, rtol=0, atol=1e-11)
        np.testing.assert_allclose(p_right, expected.p_right, rtol=0, atol=1e-11)
        np.testing.assert_allclose(value, expected.value, rtol=0, atol=1e-11)


@needs_numba
@pytest.mark.parametrize(("k", "n"), [(0, 0), (1, 1), (0, 2), (3, 5), (40, 90)])
def test_the_likelihood_of_a_prefix_is_polya_s_urn(k, n):
    from stepward.labeling.changepoint.compiled_chain import likelihood

    value, kappa = np.array([0.2, 0.7]), np.array([4.0, 15.0])
    like = np.empty((1, 2, 2, 2))  # [T+1, right and wrong path, kappa, point]
    likelihood(np.stack([value, value / 2])[None], kappa, k, n, like, 0)
    expected = np.ones((2, 2, 2))
    for side, mean in enumerate((value, value / 2)):
        for c, pseudo in enumerate(kappa):
            for j in range(n):  # (kappa m + right so far) / (kappa + all so far), or its complement
                right = (pseudo * mean + min(j, k)) / (pseudo + j)
                expected[side, c] *= right if j < k else 1 - right
    np.testing.assert_allclose(like[0] / like[0, 0, 0, 0], expected / expected[0, 0, 0], rtol=1e-10)


def test_columns_of_kappa_first_have_one_curve_and_rows_one_kappa():
    for grid in (make_grid(), make_grid(on_policy=False)):
        place, points, value = kappa_first(grid), flatten(grid), curves(grid, 3).value
        assert sorted(place.ravel().tolist()) == list(range(grid.size))
        assert all(set(points.kappa[row]) == {kappa} for row, kappa in zip(place, grid.kappa, strict=True))
        for row in place[1:]:
            np.testing.assert_array_equal(value[:, :, row], value[:, :, place[0]])


def test_a_rollout_is_expected_to_cost_the_steps_behind_it_and_in_a_shared_state_their_mean():
    one = SolutionEvidence(3, (5, 20, 30), W, ((),) * 4, nodes=(0, 1, 2, 3))
    other = SolutionEvidence(2, (5, 10), W, ((),) * 3, nodes=(0, 1, 4))
    alone = layout_of([one])
    assert alone.rest.tolist() == [[55, 50, 30, 0]]
    assert alone.inner.tolist() == [[False, True, True, False]]
    assert not alone.shared
    both = layout_of([one, other])
    assert both.shared
    assert both.rest[:, 1].tolist() == [30, 30]  # (50 + 10) / 2
    assert both.rest[0, 2] == 30
