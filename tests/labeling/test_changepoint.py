"""The change-point posterior against enumeration of every path, and what must hold of any posterior."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepward.labeling.changepoint.chain import ChainBatch
from stepward.labeling.changepoint.grid import ETA, Grid, cell_masses, curves, flatten, make_grid
from stepward.labeling.changepoint.pooling import length_map, pooled_priors, sibling_priors
from stepward.labeling.changepoint.problem import posteriors
from stepward.labeling.changepoint.step_evidence import hint_likelihood, step_likelihoods, tool_likelihoods
from stepward.labeling.evidence import SolutionEvidence
from stepward.prm.types import Outcome, Reason, Verdict, VerdictKind

R, W = Outcome.RIGHT, Outcome.WRONG
SMALL = Grid(
    (0.2, 0.6, 0.95), (0.02, 0.3), (0.04, 0.2), (4.0, 60.0), (),
    ((0.3, 0.3, 0.4), (0.7, 0.3), (0.6, 0.4), (0.5, 0.5), (1.0,)),
)  # fmt: skip


def enumerate_paths(grid, steps, outcome, draws, factors):
    """Posterior of c, values and rollout predictions by summing over theta and over all 3^T state paths.

    Written from the model's definition, with no recursion: states N, B, R after each step.
    """
    points, shape = flatten(grid), curves(grid, steps)
    p_c = np.zeros(steps + 1)
    value = np.zeros(steps + 1)
    for i in range(grid.size):
        h, rho, phi, kappa = shape.hazard[i], points.rho[i], points.phi[i], points.kappa[i]
        move = {
            "NN": 1 - h, "NB": h, "BB": 1 - rho, "BR": rho, "RR": 1 - h, "RB": h,
        }  # fmt: skip
        for path in itertools.product("NBR", repeat=steps):
            states = ("N", *path)
            p = points.prior[i]
            for t in range(1, steps + 1):
                p *= move.get(states[t - 1] + states[t], 0.0)
                a, x, z = factors[t - 1]
                if states[t] in "NR":
                    p *= a
                else:
                    p *= z if states[t - 1] == "B" else x
            if p == 0:
                continue
            curve = [shape.value[t, int(states[t] == "B"), i] for t in range(steps + 1)]
            predicted = []
            for t, seen in enumerate(draws):
                k = n = 0
                for y in seen:
                    urn = (kappa * curve[t] + k) / (kappa + n)
                    p *= urn if y else 1 - urn
                    k, n = k + y, n + 1
                predicted.append((kappa * curve[t] + k) / (kappa + n))
            end = phi if states[-1] == "B" else 1 - ETA
            p *= {1: end, 0: 1 - end, -1: 1.0}[outcome]
            first = next((t for t in range(1, steps + 1) if states[t] == "B"), None)
            p_c[steps if first is None else first - 1] += p
            value += p * np.array(predicted)
    return p_c / p_c.sum(), value / p_c.sum()


@pytest.mark.parametrize("steps", [1, 2, 3, 5])
@pytest.mark.parametrize("outcome", [1, 0, -1])
@pytest.mark.parametrize("with_evidence", [False, True])
def test_the_posterior_equals_the_sum_over_all_paths(steps, outcome, with_evidence):
    rng = np.random.default_rng(steps)
    draws = [rng.integers(0, 2, rng.integers(0, 4)).tolist() for _ in range(steps)] + [[]]
    factors = rng.uniform(0.2, 3, (steps, 3)) if with_evidence else np.ones((steps, 3))
    expected, value = enumerate_paths(SMALL, steps, outcome, draws, factors)
    batch = ChainBatch(SMALL, np.array([steps]), np.array([outcome]), [factors] if with_evidence else None)
    for t, seen in enumerate(draws):
        for y in seen:
            batch.observe(np.array([0]), np.array([t]), np.array([bool(y)]))
    batch.refresh()
    got = batch.summary(flatten(SMALL).prior)
    np.testing.assert_allclose(got.p_first_error[0], expected, atol=1e-9)
    np.testing.assert_allclose(got.value[0], value, atol=1e-9)


def test_solutions_of_different_lengths_share_a_batch_and_nothing_else():
    solutions = [
        evidence([[], [R, W], [W], []], W),
        evidence([[]] * 20 + [[R], [W, W], []], W),
        evidence([[R], []], R),
    ]
    together = posteriors(solutions, SMALL, pool=False)
    others = np.array([[1, 1], [1, 1], [0, 2]])  # right and wrong outcomes beside the own one
    assert [len(p.value) for p in together] == [4, 23, 2]
    for number, steps in enumerate((3, 22, 1)):
        batch = ChainBatch(SMALL, np.array([steps]), np.array([int(solutions[number].outcome is R)]))
        for t, seen in enumerate(solutions[number].draws):
            for y in sorted(seen):  # right before wrong
                batch.observe(np.array([0]), np.array([t]), np.array([y is R]))
        batch.refresh()
        alone = batch.summary(sibling_priors(SMALL, others, np.array([3, 22, 1]))[number])
        np.testing.assert_allclose(together[number].p_right, alone.p_right[0], atol=1e-12)
        np.testing.assert_allclose(together[number].value, alone.value[0], atol=1e-12)


def test_off_policy_the_hazard_is_an_axis_of_its_own():
    grid = Grid(
        (0.2, 0.9), (0.05,), (0.1,), (20.0,), (0.01, 0.2), ((0.5, 0.5), (1.0,), (1.0,), (1.0,), (0.4, 0.6))
    )
    expected, _ = enumerate_paths(grid, 4, 0, [[], [1], [0, 0], [], []], np.ones((4, 3)))
    got = posteriors([evidence([[], [R], [W, W], [], []], W)], grid)[0]
    np.testing.assert_allclose(got.p_first_error, expected, atol=1e-9)
    assert make_grid(on_policy=False).size == 4 * make_grid().size


def evidence(draws, outcome, verdicts=(), tokens=10):
    steps = len(draws) - 1
    return SolutionEvidence(steps, (tokens,) * steps, outcome, tuple(map(tuple, draws)), verdicts)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.lists(st.booleans(), max_size=6), min_size=2, max_size=7),
    st.randoms(use_true_random=False),
)
def test_the_order_of_rollouts_does_not_matter(draws, random):
    def shuffled(seen):
        seen = list(seen)
        random.shuffle(seen)
        return seen

    outcomes = [[R if y else W for y in seen] for seen in [*draws, []]]
    first = posteriors([evidence(outcomes, W)], make_grid())[0]
    second = posteriors([evidence([shuffled(s) for s in outcomes], W)], make_grid())[0]
    np.testing.assert_array_equal(first.p_first_error, second.p_first_error)


def test_without_evidence_the_prior_comes_back():
    grid = make_grid()
    got = posteriors([evidence([[]] * 6, Outcome.NO_GOLD)], grid)[0]
    points = flatten(grid)
    hazard = curves(grid, 5).hazard
    for t in range(6):  # P(c > t) = E[(1 - h)^t]
        assert got.p_right[t] == pytest.approx((points.prior * (1 - hazard) ** t).sum(), abs=1e-12)
    np.testing.assert_allclose(got.theta, points.prior, atol=1e-12)
    assert got.value[0] == pytest.approx((points.prior * curves(grid, 5).value[0, 0]).sum(), abs=1e-12)


def test_faults_and_unfinished_draws_leave_the_likelihood_unless_asked_otherwise():
    base = evidence([[], [R, W], [W], []], W)
    noisy = evidence([[], [R, Outcome.TIMEOUT, W], [W, Outcome.TRUNCATED, Outcome.ERROR], []], W)
    same = posteriors([noisy], make_grid())[0]
    np.testing.assert_array_equal(posteriors([base], make_grid())[0].p_right, same.p_right)
    as_wrong = posteriors([noisy], make_grid(), unfinished_as_wrong=True)[0]
    np.testing.assert_array_equal(
        as_wrong.p_right, posteriors([evidence([[], [R, W], [W, W], []], W)], make_grid())[0].p_right
    )


def test_the_expected_posterior_after_a_rollout_is_the_posterior_before_it():
    grid = make_grid()
    before = posteriors([evidence([[], [R], [], [W], []], W)], grid)[0]
    for t in (1, 2, 3):
        after = {}
        for y in (R, W):
            draws = [[], [R], [], [W], []]
            draws[t] = [*draws[t], y]
            after[y] = posteriors([evidence(draws, W)], grid)[0].p_first_error
        p = before.value[t]  # the probability of a right one
        np.testing.assert_allclose(p * after[R] + (1 - p) * after[W], before.p_first_error, atol=1e-12)


def test_the_gain_is_the_expected_fall_of_the_entropy_of_the_event():
    def entropy(p):
        return -(p * np.log(p) + (1 - p) * np.log(1 - p))

    grid = make_grid()
    before = posteriors([evidence([[]] * 6, W)], grid)[0]
    t = 2
    p = before.value[t]
    after = [posteriors([evidence([[], [], [y], [], [], []], W)], grid)[0].p_right[t] for y in (R, W)]
    expected = entropy(before.p_right[t]) - p * entropy(after[0]) - (1 - p) * entropy(after[1])
    assert before.gain[t] == pytest.approx(expected, abs=1e-10)
    assert before.gain[0] == pytest.approx(0, abs=1e-10)  # at the bare problem the event is certain


def test_two_hundred_steps_and_many_rollouts_stay_finite():
    draws = [[]] + [[R] * 12] * 120 + [[W] * 12] * 79 + [[]]
    got = posteriors([evidence(draws, W)], make_grid(), with_variance=True)[0]
    assert np.isfinite(got.p_first_error).all()
    assert np.isfinite(got.variance).all()
    assert int(got.p_first_error.argmax()) == 120  # step number 121 is the first whose prefix fails


def test_the_prior_weight_of_a_point_is_the_mass_of_its_cell():
    # uniform distribution: cells of .2, .5, .9 end at .35 and .7
    np.testing.assert_allclose(cell_masses((0.2, 0.5, 0.9), 1, 1), (0.35, 0.35, 0.30), atol=1e-12)
    assert sum(make_grid().weights[0]) == pytest.approx(1)


def test_the_value_curves_are_a_martingale_under_the_hazard():
    shape = curves(make_grid(), 7)
    good, bad = shape.value[:, 0], shape.value[:, 1]
    np.testing.assert_allclose(good[:-1], (1 - shape.hazard) * good[1:] + shape.hazard * bad[1:], atol=1e-15)


def test_a_message_of_a_longer_solution_is_read_at_the_same_hazard():
    s0 = (0.1, 0.25, 0.5, 0.75)
    below, part = length_map(s0, 4, 8)  # s0^(8/4): .5 -> .25 is point 1 exactly, .1 -> .01 is below all
    assert below[2] + part[2] == pytest.approx(1)
    assert below[0] + part[0] == 0
    np.testing.assert_allclose(sum(length_map(s0, 5, 5)), [0, 1, 2, 3], atol=1e-12)


def test_pooling_gives_each_solution_the_others_evidence_and_not_its_own():
    grid = make_grid()
    rng = np.random.default_rng(0)
    messages = rng.uniform(0.1, 1, size=(3, grid.size))
    steps = np.array([5, 5, 9])
    first = pooled_priors(grid, messages, steps)
    messages[0] *= rng.uniform(0.1, 1, size=grid.size)
    second = pooled_priors(grid, messages, steps)
    np.testing.assert_allclose(first[0], second[0])
    assert np.abs(first[1] - second[1]).max() > 1e-4
    np.testing.assert_allclose(first.sum(axis=1), 1)


def test_one_solution_alone_has_the_base_prior():
    grid = make_grid()
    np.testing.assert_allclose(
        pooled_priors(grid, np.ones((1, grid.size)), np.array([4]), blur=0.0)[0], flatten(grid).prior
    )


def test_a_flag_makes_its_step_the_likely_first_error():
    flag = Verdict(VerdictKind.REFUTED, "arithmetic", "1")
    dumb = Verdict(VerdictKind.UNKNOWN, "arithmetic", "1", Reason.TIMEOUT)
    plain = posteriors([evidence([[]] * 6, W)], make_grid())[0]
    flagged = posteriors([evidence([[]] * 6, W, ((), (), (flag, dumb), (), ()))], make_grid())[0]
    unknown = posteriors([evidence([[]] * 6, W, ((dumb,),) * 5)], make_grid())[0]
    assert flagged.p_first_error[2] > 3 * plain.p_first_error[2]
    np.testing.assert_allclose(unknown.p_first_error, plain.p_first_error, atol=1e-12)


def test_tool_likelihoods_follow_from_precision_and_recall():
    # fpr = .6 * .06 * .1 / (.9 * .94)
    fpr = 0.6 * 0.06 * 0.1 / (0.9 * 0.94)
    assert tool_likelihoods(True, 0.9, 0.6) == pytest.approx((fpr, 0.6, 0.05))
    assert tool_likelihoods(False, 0.9, 0.6) == pytest.approx((1 - fpr, 0.4, 0.95))
    with pytest.raises(ValueError, match="precision 0"):
        tool_likelihoods(True, 0.0, 0.6)


def test_two_claims_of_one_tool_count_once_and_two_tools_twice():
    flag = Verdict(VerdictKind.REFUTED, "a", "1")
    ok = Verdict(VerdictKind.SUPPORTED, "a", "1")
    other = Verdict(VerdictKind.REFUTED, "b", "1")
    got = step_likelihoods(evidence([[]] * 4, W, ((flag, flag, ok), (flag, other), ())), {}, {})
    one = np.array(tool_likelihoods(True, 0.9, 0.6))
    np.testing.assert_allclose(got, [one, one * one, [1, 1, 1]])


def test_hints_are_odds_over_the_prior_odds_and_clipped():
    assert hint_likelihood(0.94) == pytest.approx(1.0)  # says what the prior says: .06 wrong
    assert hint_likelihood(0.0) == 20.0
    assert hint_likelihood(1.0) == 1 / 20
