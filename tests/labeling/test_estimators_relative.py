"""GenPRM, PAV, SCAN and ReST-MCTS* labels, each by hand."""

import pytest

from stepward.labeling.estimators.progress import prover_advantages
from stepward.labeling.estimators.registry import estimators, make_estimator
from stepward.labeling.estimators.relative import relative_labels
from stepward.labeling.estimators.rest_mcts import quality_values
from stepward.labeling.evidence import SolutionEvidence
from stepward.prm.types import Allocation, Counts, Outcome

R, W = Outcome.RIGHT, Outcome.WRONG


def labels_of(name, draws, outcome, *, others=(), allocation=Allocation.FIXED_K, **options):
    """Labels of the first of a problem's solutions; ``others`` are the outcomes of one-step siblings."""
    solutions = [SolutionEvidence(len(draws) - 1, (5,) * (len(draws) - 1), outcome, tuple(map(tuple, draws)))]
    solutions += [SolutionEvidence(1, (5,), o, ((), ())) for o in others]
    counts = [[Counts(**{o.value: d.count(o) for o in Outcome}) for d in s.draws] for s in solutions]
    return make_estimator(name, allocation=allocation, **options).estimate(solutions, counts)[0]


def mc(right, n):
    return [R] * right + [W] * (n - right)


def test_relative_progress_compares_each_value_with_the_one_before():
    # .8 -> .7: ratio .875; .7 -> .4: .57; .4 -> .4: 1; then 0
    assert relative_labels([0.8, 0.7, 0.4, 0.4, 0.0, 0.5]) == [1, 0, 1, 0, 0]
    assert relative_labels([0.5, None, 0.5]) == [None, None]
    assert relative_labels([0.5, None, 0.0, 0.5]) == [None, 0, 0]


def test_genprm_labels_from_counts_with_the_outcome_at_the_end():
    got = labels_of("genprm_relative", [mc(8, 10), mc(7, 10), mc(4, 10), []], W)
    assert [s.label for s in got.labels] == [1, 0, 0]
    assert got.first_error == 1
    rootless = labels_of("genprm_relative", [[], mc(7, 10), mc(7, 10), []], R)
    assert [s.label for s in rootless.labels] == [None, 1, 1]
    assert not rootless.decided


def test_the_bare_problem_counts_for_every_solution():
    solutions = [
        SolutionEvidence(2, (5, 5), R, (tuple(mc(4, 8)), tuple(mc(4, 8)), ())),
        SolutionEvidence(2, (5, 5), R, ((), tuple(mc(4, 8)), ())),
    ]
    counts = [[Counts(**{o.value: d.count(o) for o in Outcome}) for d in s.draws] for s in solutions]
    rule = make_estimator("genprm_relative", allocation=Allocation.FIXED_K)
    assert [[s.label for s in got.labels] for got in rule.estimate(solutions, counts)] == [[1, 1], [1, 1]]


def test_the_prover_is_the_best_of_k_of_the_completer():
    # K = 2: Q = .5 -> .75, Q = .2 -> .36, Q = 1 -> 1
    assert prover_advantages([0.5, 0.2, 1.0], 2) == pytest.approx([0.36 - 0.75, 1 - 0.36])
    assert prover_advantages([0.5, None, 1.0], 1) == [None, None]
    with pytest.raises(ValueError, match="prover_best_of is 0"):
        prover_advantages([0.5], 0)


def test_pav_calls_a_step_wrong_where_the_loss_outweighs_what_is_left():
    # K = 4: Q = .5 -> .9375, Q = .1 -> .3439: .1 + .5 (.3439 - .9375) = -.197 < 0
    got = labels_of("pav", [mc(5, 10), mc(1, 10), []], R)
    assert [s.label for s in got.labels] == [0, 1]
    assert labels_of("pav", [mc(5, 10), mc(1, 10), []], R, alpha=0.1).labels[0].label == 1  # .1 - .059 > 0


def test_scan_softens_the_two_steps_before_the_first_zero():
    draws = [[], mc(8, 8), mc(6, 8), mc(2, 8), mc(0, 8), mc(0, 8), []]
    got = labels_of("scan", draws, W, others=[R] * 4)  # pass rate 4 of 5 = .8
    assert got.first_error == 3
    assert [s.label for s in got.labels] == [1, None, None, 0, None, None]
    assert got.estimates[2].value == pytest.approx(0.75 / 0.8)
    assert got.estimates[3].value == pytest.approx(0.25 / 0.8)


def test_scan_leaves_hard_problems_and_solutions_without_a_zero_alone():
    assert not labels_of("scan", [[], mc(0, 8), []], W, others=[R]).decided  # pass rate .5
    assert labels_of("scan", [[], mc(8, 8), []], R).first_error is None
    kept = labels_of("scan", [[], mc(1, 8), []], W, others=[R] * 4)
    assert kept.first_error == 1  # the wrong outcome is the zero of the last step
    assert not labels_of("scan", [[], [], []], W, others=[R] * 4).decided


def test_quality_rises_evenly_on_a_right_route_and_falls_at_an_error():
    assert quality_values([1, 1, 1, 1]) == pytest.approx([0.25, 0.5, 0.75, 1.0])
    # K = 3: 1/3; wrong: 1/3 - (2/3)/2 = 0; right: 0 + 1/1
    assert quality_values([1, 0, 1]) == pytest.approx([1 / 3, 0.0, 1.0])
    assert quality_values([1, None, 1]) == [pytest.approx(1 / 3), None, None]


def test_rest_mcts_values_stand_at_the_prefixes():
    got = labels_of("rest_mcts", [[], mc(2, 4), []], R)
    assert [e.value for e in got.estimates] == [0.0, 0.5, 1.0]


@pytest.mark.parametrize("name", ["genprm_relative", "pav", "scan", "math_shepherd_soft"])
def test_rules_on_raw_means_refuse_adaptively_stopped_counts(name):
    got = labels_of(name, [mc(1, 1), mc(1, 1), []], R, allocation=Allocation.INFORMATION_GAIN)
    assert not got.decided
    assert {s.label for s in got.labels} == {None}


def test_every_estimator_says_unknown_where_every_draw_was_a_fault():
    draws = [[], [Outcome.ERROR] * 8, [Outcome.TIMEOUT] * 8, []]
    for name, entry in estimators().items():
        if name == "changepoint":
            continue  # it has a prior, and gives no hard label on it alone
        allocation = sorted(entry.valid_for)[0]
        got = labels_of(name, draws, Outcome.NO_GOLD, allocation=allocation)
        assert not got.decided, name
        assert {s.label for s in got.labels} == {None}, name
