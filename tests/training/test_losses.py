"""Each loss against a value computed by hand."""

from math import exp, log

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stepward.training import losses

ONE = torch.ones(1)


def t(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def owners(*values: int) -> torch.Tensor:
    return torch.tensor(values)


def test_cross_entropy_of_an_undecided_logit_is_log_two_and_a_weight_scales_it():
    got = losses.binary_cross_entropy(t(0.0, 0.0), t(1.0, 0.0), t(1.0, 2.0))
    assert got.tolist() == pytest.approx([log(2), 2 * log(2)])


def test_a_soft_target_is_not_rounded():
    # p = sigmoid(ln 3) = 3/4 = target: the entropy -(3/4 ln 3/4 + 1/4 ln 1/4).
    got = losses.binary_cross_entropy(t(log(3)), t(0.75), t(1.0))
    assert got.item() == pytest.approx(-(0.75 * log(0.75) + 0.25 * log(0.25)))


def test_two_class_cross_entropy_is_that_of_the_difference_of_the_logits():
    raw = torch.tensor([[0.3, 1.1], [2.0, -1.0]], dtype=torch.float64)
    two = torch.nn.functional.cross_entropy(raw, torch.tensor([1, 0]), reduction="none")
    one = losses.binary_cross_entropy(raw[:, 1] - raw[:, 0], t(1.0, 0.0), t(1.0, 1.0))
    assert torch.allclose(one, two)


def test_squared_error_is_the_squared_difference_times_the_weight():
    # (.8 - .5)^2 = .09, twice.
    assert losses.mean_squared_error(t(0.8), t(0.5), t(2.0)).item() == pytest.approx(0.18)


def test_three_outcomes_of_equal_logits_cost_log_three():
    raw = torch.zeros(2, 3, dtype=torch.float64)
    got = losses.outcome_cross_entropy(raw, torch.tensor([0, 2]), t(1.0, 0.5))
    assert got.tolist() == pytest.approx([log(3), log(3) / 2])


def test_an_ensemble_pays_the_mean_of_its_members():
    # Members say 1/2 and 3/4 of a right step: (ln 2 + ln 4/3) / 2.
    raw = torch.tensor([[0.0, log(3)]], dtype=torch.float64)
    assert losses.ensemble_cross_entropy(raw, t(1.0), t(1.0)).item() == pytest.approx(
        (log(2) + log(4 / 3)) / 2
    )


def test_q_ranking_counts_the_empty_prefix_only_beside_a_wrong_step():
    # Solution 0: right Q = 0, wrong Q = -4, zeta 4: t=0: -log 1/(1+1), t=1: -log 1/(1+1+1); mean.
    # Solution 1: right Q = 0 alone: t=1: -log 1/(1+1).
    # Solution 2: wrong Q = -4 alone: t=0: -log 1/(1+1).
    q = t(0.0, -4.0, 0.0, -4.0)
    right = torch.tensor([True, False, True, False])
    got = losses.q_ranking(q, right, owners(0, 0, 1, 2), 3)
    assert got.tolist() == pytest.approx([(log(2) + log(3)) / 2, log(2), log(2)])


def test_q_ranking_orders_right_steps_by_position():
    # Q = (1, 2): t=1: -log e/(1+e); t=2: -log e^2/(1+e+e^2); mean.
    expected = (log(1 + exp(1)) - 1 + log(1 + exp(1) + exp(2)) - 2) / 2
    got = losses.q_ranking(t(1.0, 2.0), torch.tensor([True, True]), owners(0, 0), 1)
    assert got.item() == pytest.approx(expected)


def test_a_solution_without_labels_adds_nothing_to_q_ranking():
    q = t(1.0).requires_grad_()
    got = losses.q_ranking(q, torch.tensor([True]), owners(0), 2)
    assert got[1].item() == 0.0
    got.sum().backward()


def test_a_tied_pair_costs_log_two():
    got = losses.pairwise_ranking(t(1.0, log(3)), t(1.0, 0.0), t(1.0, 1.0))
    assert got.tolist() == pytest.approx([log(2), log(4 / 3)])


def test_beta_binomial_with_a_uniform_prior_gives_each_count_the_same_chance():
    # mu = 1/2, kappa = 2: Beta(1, 1), so P(K of 3) = 1/4; penalty .01 * |1/2 - 1/3| * 2.
    got = losses.beta_binomial(t(0.0), t(2.0), t(1.0), t(3.0), t(1.0))
    assert got.item() == pytest.approx(log(4) + 0.01 * (1 / 6) * 2, abs=1e-5)


def test_no_gradient_of_the_penalty_reaches_mu():
    logit, kappa = t(0.0).requires_grad_(), t(2.0).requires_grad_()
    args = (t(1.0), t(3.0), t(1.0))
    low = torch.autograd.grad(losses.beta_binomial(logit, kappa, *args, penalty=0.0).sum(), logit)[0]
    high = torch.autograd.grad(losses.beta_binomial(logit, kappa, *args, penalty=5.0).sum(), logit)[0]
    assert torch.equal(low, high)


def test_the_soft_minimum_weighs_low_rewards_more():
    # T = 1, r = (0, ln 2): weights (1, 1/2) / 1.5, so the sum is ln 2 / 3.
    assert losses.soft_minimum(t(0.0, log(2)), owners(0, 0), 1, 1.0).item() == pytest.approx(log(2) / 3)


@settings(deadline=None)
@given(st.lists(st.floats(-1, 1), min_size=1, max_size=8))
def test_a_cold_soft_minimum_is_the_minimum(rewards: list[float]):
    got = losses.soft_minimum(t(*rewards), torch.zeros(len(rewards), dtype=torch.long), 1, 1e-3)
    assert got.item() == pytest.approx(min(rewards), abs=0.01)


def test_min_form_weights_sum_to_one_in_each_solution():
    got = losses.min_form_weights(t(0.1, -0.5, 0.9, 0.2), owners(0, 0, 1, 1), 2)
    assert got[:2].sum().item() == pytest.approx(1)
    assert got[2:].sum().item() == pytest.approx(1)
    assert got[1] > got[0]


def test_a_wrong_outcome_blames_the_weakest_step():
    p = t(0.9, 0.4).requires_grad_()
    losses.soft_minimum_outcome(p, t(0.0), owners(0, 0), t(1.0)).sum().backward()
    assert p.grad is not None
    # Pushing P down: the gradient is positive, nearly all of it at the weak step.
    assert p.grad[1] > 10 * abs(p.grad[0])


def test_steps_at_one_half_say_nothing_of_the_outcome():
    assert losses.soft_minimum_outcome(t(0.5, 0.5), t(1.0), owners(0, 0), t(1.0)).item() == pytest.approx(
        log(2)
    )


def test_the_implicit_reward_is_beta_times_the_log_ratio():
    # beta .05 * 20 ln 3 = ln 3: sigmoid 3/4.
    got = losses.implicit_outcome(t(0.0, 20 * log(3)), t(1.0, 1.0), t(1.0, 1.0))
    assert got.tolist() == pytest.approx([log(2), log(4 / 3)])


def test_the_effective_reward_adds_the_provers_advantage():
    # K = 1: A = .25, .75 + .5 * .25 = .875, mapped to (.875 + .5) / 2.
    assert losses.effective_reward((0.5, 0.75), 0.5, 1) == pytest.approx((0.6875,))
    # K = 4: prover 1 - .5^4 = .9375 and 1 - .25^4 = .99609375, A = .05859375.
    assert losses.effective_reward((0.5, 0.75), 0.5, 4) == pytest.approx(
        ((0.75 + 0.5 * 0.05859375 + 0.5) / 2,)
    )


@settings(deadline=None)
@given(st.lists(st.floats(0, 1), min_size=2, max_size=6), st.floats(0, 5), st.integers(1, 32))
def test_effective_rewards_stay_in_the_unit_interval(values: list[float], alpha: float, k: int):
    assert all(-1e-9 <= x <= 1 + 1e-9 for x in losses.effective_reward(values, alpha, k))
