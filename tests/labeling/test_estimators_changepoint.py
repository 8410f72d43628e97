"""The change-point label rule and the allocation that it shares its posterior with."""

import numpy as np
import pytest

from stepward.labeling.allocation.information_gain import (
    InformationGain,
    price_for_budget,
    scale_free_price,
)
from stepward.labeling.estimators.registry import make_estimator
from stepward.labeling.evidence import Draw, LabelingConstants, SolutionEvidence
from stepward.prm.types import Allocation, Counts, Outcome

R, W = Outcome.RIGHT, Outcome.WRONG


def evidence(draws, outcome, tokens=50):
    steps = len(draws) - 1
    return SolutionEvidence(steps, (tokens,) * steps, outcome, tuple(map(tuple, draws)))


def label(solutions, **options):
    counts = [[Counts(**{o.value: d.count(o) for o in Outcome}) for d in s.draws] for s in solutions]
    return make_estimator("changepoint", allocation=Allocation.INFORMATION_GAIN, **options).estimate(
        solutions, counts
    )


def test_a_clear_drop_of_the_value_is_the_first_error():
    draws = [[], [R] * 6, [R] * 6, [R] * 6, [W] * 6, [W] * 6, []]
    got = label([evidence(draws, W)])[0]
    assert got.first_error == 3  # prefix 4 is the first that fails: step number 4, index 3
    assert [s.label for s in got.labels] == [1, 1, 1, 0, None, None]
    assert sum(s.p_first_error for s in got.labels) <= 1
    for t, e in enumerate(got.estimates[:-1]):
        assert e.low < e.value < e.high, t
    assert (got.estimates[-1].value, got.estimates[-1].low) == (0.0, 0.0)


def test_a_right_answer_with_good_prefixes_has_no_error():
    got = label([evidence([[], [R] * 4, [R] * 4, []], R)])[0]
    assert got.first_error is None
    assert [s.label for s in got.labels] == [1, 1, 1]


def test_without_rollouts_an_unsure_step_has_a_probability_and_no_hard_label():
    got = label([evidence([[]] * 6, W)])[0]
    assert all(s.label is None for s in got.labels[:-1])
    assert all(0 < s.p_first_error < 1 for s in got.labels)


def test_a_prefix_with_truncated_draws_has_no_hard_label_and_a_wider_interval():
    clean = label([evidence([[], [R] * 6, [R] * 6, []], R)])[0]
    cut = label([evidence([[], [R] * 6 + [Outcome.TRUNCATED] * 2, [R] * 6, []], R)])[0]
    assert clean.labels[0].label == 1
    assert cut.labels[0].label is None
    assert cut.estimates[1].low < clean.estimates[1].low
    assert cut.estimates[1].value == pytest.approx(clean.estimates[1].value)


def test_one_step_solutions_get_no_rollout_and_a_label():
    assert InformationGain().next_draws([evidence([[], []], W)]) == []
    assert label([evidence([[], []], W)])[0].first_error == 0
    assert label([]) == []


def play(rule, solutions, answer):
    log = []
    while batch := rule.next_draws(solutions):
        log.append(batch)
        assert len({d.solution for d in batch}) == len(batch)
        for draw in batch:
            draws = list(solutions[draw.solution].draws)
            draws[draw.prefix] = (*draws[draw.prefix], answer(draw))
            old = solutions[draw.solution]
            solutions[draw.solution] = SolutionEvidence(
                old.num_steps, old.step_tokens, old.outcome, tuple(draws)
            )
    return log


def test_information_gain_finds_the_drop_with_few_rollouts_and_twice_the_same_way():
    def answer(draw):
        return R if draw.prefix <= 7 else W

    runs = []
    for _ in range(2):
        solutions = [evidence([[]] * 13, W), evidence([[]] * 9, R)]
        runs.append((play(InformationGain(), solutions, answer), solutions))
    assert runs[0][0] == runs[1][0]
    solutions = runs[0][1]
    assert label(solutions)[0].first_error == 7
    assert sum(map(len, solutions[0].draws)) < 30  # Math-Shepherd: 11 prefixes of 8


def test_a_higher_price_buys_less_and_the_most_rollouts_bind():
    def spent(price, **options):
        solutions = [evidence([[]] * 13, W)]
        rule = InformationGain(LabelingConstants(price=price), **options)
        play(rule, solutions, lambda d: R if d.prefix <= 7 else W)
        return sum(map(len, solutions[0].draws))

    assert spent(1.0) == 0
    assert spent(4e-4) < spent(4e-5)
    assert spent(1e-7, max_rollouts=5) == 5


def test_rollouts_after_a_fault_are_asked_for_again():
    solutions = [evidence([[]] * 6, W)]
    rule = InformationGain(max_rollouts=3)
    log = play(rule, solutions, lambda d: Outcome.ERROR)
    assert len(log) == 3  # every draw counts against the most, none informs
    assert len({(d.solution, d.prefix) for batch in log for d in batch}) == 1


def test_the_price_that_meets_a_budget_is_found_by_bisection():
    # tokens = 1 / price: a budget of 1000 tokens is met at 1e-3 and above
    assert price_for_budget(lambda p: 1 / p, 1000) == pytest.approx(1e-3, rel=1e-6)
    assert price_for_budget(lambda p: 1.0, 1000) == 1e-7  # even the lowest price keeps within it
    with pytest.raises(ValueError, match="give a larger budget"):
        price_for_budget(lambda p: 1 / p, 10)


def test_the_scale_free_price_is_a_fortieth_of_a_nat_a_solution_length():
    assert scale_free_price(500) == pytest.approx(5e-5)
    with pytest.raises(ValueError, match="mean solution length"):
        scale_free_price(0)


def test_pooled_solutions_inform_each_other():
    alone = label([evidence([[]] * 8, W)])[0]
    bad_company = label([evidence([[]] * 8, W)] + [evidence([[]] * 8, W) for _ in range(7)])[0]
    assert bad_company.estimates[0].value < alone.estimates[0].value


def test_constants_that_a_pilot_fixed_change_the_posterior():
    weights = {"rho": (0.96, 0.01, 0.01, 0.01, 0.01)}
    draws = [[], [R, W], [W, W], [R, W], []]
    got = label([evidence(draws, W)], constants=LabelingConstants(axis_weights=weights))[0]
    base = label([evidence(draws, W)])[0]
    assert not np.isclose(got.labels[0].p_first_error, base.labels[0].p_first_error)
    with pytest.raises(ValueError, match="unknown axis"):
        label([evidence(draws, W)], constants=LabelingConstants(axis_weights={"rhoo": (1.0,)}))


def test_a_draw_is_asked_for_by_solution_and_prefix():
    (draw,) = InformationGain(LabelingConstants(price=1e-4)).next_draws([evidence([[]] * 6, W)])
    assert isinstance(draw, Draw)
    assert 1 <= draw.prefix < 5
