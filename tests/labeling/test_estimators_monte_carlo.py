"""Math-Shepherd and OmegaPRM labels from counts written out by hand."""

import pytest

from stepward.labeling.estimators.registry import estimators, make_estimator
from stepward.labeling.evidence import SolutionEvidence
from stepward.prm.errors import ConfigError
from stepward.prm.types import Allocation, Counts, Outcome

R, W, TR = Outcome.RIGHT, Outcome.WRONG, Outcome.TRUNCATED


def solution(draws: list[list[Outcome]], outcome: Outcome) -> tuple[SolutionEvidence, list[Counts]]:
    """Evidence with the given draws at prefixes 0..T, ten tokens a step, and its counts."""
    steps = len(draws) - 1
    evidence = SolutionEvidence(steps, (10,) * steps, outcome, tuple(tuple(d) for d in draws))
    return evidence, [Counts(**{o.value: d.count(o) for o in Outcome}) for d in draws]


def labels_of(name, draws, outcome, allocation=Allocation.FIXED_K, **options):
    evidence, counts = solution(draws, outcome)
    return make_estimator(name, allocation=allocation, **options).estimate([evidence], [counts])[0]


def test_any_right_completion_makes_a_step_right_and_the_outcome_decides_the_last():
    got = labels_of("math_shepherd", [[], [W, W, R, W], [W] * 4, []], W)
    assert [s.label for s in got.labels] == [1, 0, 0]
    assert (got.first_error, got.decided) == (1, True)
    assert got.estimates[1].value == 0.25  # 1 of 4
    assert got.estimates[3].value == 0.0  # the own outcome


def test_a_step_without_trials_is_unknown_and_so_is_the_first_error_behind_it():
    got = labels_of("math_shepherd", [[], [Outcome.TIMEOUT] * 8, [W] * 8, []], W)
    assert [s.label for s in got.labels] == [None, 0, 0]
    assert (got.first_error, got.decided) == (None, False)
    assert got.estimates[1].value is None


def test_faults_are_no_trials():
    # three wrong and five faults: 3 trials < 4, so no hard 0; k/n = 0/3
    got = labels_of("math_shepherd", [[], [W] * 3 + [Outcome.ERROR] * 5, []], R)
    assert got.labels[0].label is None
    assert got.estimates[1].value == 0.0


def test_more_than_a_tenth_truncated_gives_no_hard_label():
    nine = [W] * 9
    assert labels_of("math_shepherd", [[], [*nine, TR], []], W).labels[0].label == 0  # exactly a tenth
    assert labels_of("math_shepherd", [[], [*nine, TR, TR], []], W).labels[0].label is None
    assert labels_of("math_shepherd_soft", [[], [R, TR, TR, R, R], []], W).labels[0].label is None


def test_bounds_cover_both_readings_of_truncated_draws():
    draws = [[], [R, R, W, TR], []]
    exclude = labels_of("math_shepherd", draws, R, truncated_as="exclude").estimates[1]
    wrong = labels_of("math_shepherd", draws, R, truncated_as="wrong").estimates[1]
    bounds = labels_of("math_shepherd", draws, R).estimates[1]
    assert (exclude.value, wrong.value, bounds.value) == (2 / 3, 0.5, 2 / 3)
    assert (bounds.low, bounds.high) == (wrong.low, exclude.high)


def test_an_unfinished_solution_is_wrong_only_where_truncated_counts_as_wrong():
    assert labels_of("math_shepherd", [[], []], TR).labels[0].label is None
    assert labels_of("math_shepherd", [[], []], TR, truncated_as="wrong").labels[0].label == 0


def test_soft_labels_ask_for_more_than_the_threshold():
    draws = [[], [R, R, W, W], [R, W, W, W], []]
    got = labels_of("math_shepherd_soft", draws, R, threshold=0.25)
    assert [s.label for s in got.labels] == [1, 0, 1]
    assert got.first_error == 1


def test_a_rule_that_does_not_suit_the_allocation_says_unknown_and_keeps_the_counts():
    got = labels_of("math_shepherd_soft", [[], [W, R], []], R, allocation=Allocation.STOP_AT_FIRST_RIGHT)
    assert [s.label for s in got.labels] == [None, None]
    assert not got.decided
    assert got.estimates[1].counts.right == 1
    assert all(e.value is None for e in got.estimates)


def test_where_sampling_stopped_at_a_success_the_value_is_a_posterior_mean():
    got = labels_of("math_shepherd", [[], [W, R], []], R, allocation=Allocation.STOP_AT_FIRST_RIGHT)
    assert got.estimates[1].value == 0.5  # (1 + 1/2) / (2 + 1)
    assert got.labels[0].label == 1


def test_binary_search_replays_to_the_first_wrong_step():
    # T = 5: middle 2 is right, then 3 is wrong, so step number 3 (index 2) is the first wrong one
    got = labels_of("omegaprm", [[], [], [R], [W, W], [], []], W, allocation=Allocation.BINARY_SEARCH)
    assert got.first_error == 2
    assert [s.label for s in got.labels] == [1, 1, 0, None, None]


def test_binary_search_calls_a_right_answer_free_of_errors_and_an_unknown_one_unknown():
    right = labels_of("omegaprm", [[], [], []], R, allocation=Allocation.BINARY_SEARCH)
    assert (right.first_error, right.decided, [s.label for s in right.labels]) == (None, True, [1, 1])
    unknown = labels_of("omegaprm", [[], [W], []], Outcome.NO_GOLD, allocation=Allocation.BINARY_SEARCH)
    assert (unknown.first_error, unknown.decided) == (None, False)


def test_binary_search_without_draws_at_a_midpoint_is_undecided():
    got = labels_of("omegaprm", [[], [], [Outcome.TIMEOUT], [], []], W, allocation=Allocation.BINARY_SEARCH)
    assert not got.decided
    assert {s.label for s in got.labels} == {None}


def test_one_step_solutions_are_decided_by_their_outcome():
    assert labels_of("math_shepherd", [[], []], W).first_error == 0
    assert labels_of("omegaprm", [[], []], W, allocation=Allocation.BINARY_SEARCH).first_error == 0


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(ConfigError, match="math_shepherd"):
        make_estimator("math_sheperd", allocation=Allocation.FIXED_K)
    assert {"math_shepherd", "math_shepherd_soft", "omegaprm"} <= set(estimators())


def test_evidence_and_counts_that_do_not_pair_are_refused():
    evidence, counts = solution([[], [], []], R)
    with pytest.raises(ValueError, match="one entry a prefix, 3"):
        make_estimator("math_shepherd", allocation=Allocation.FIXED_K).estimate([evidence], [counts[:-1]])
