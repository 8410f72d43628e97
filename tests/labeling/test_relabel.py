"""Labels again from stored counts: each rule by hand, the same as the labelling gave, refused where not valid."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepward.labeling.estimators.registry import make_estimator
from stepward.labeling.evidence import SolutionEvidence
from stepward.labeling.label_rules import RULES
from stepward.labeling.relabel import Relabeling, relabel_dataset, relabel_table
from stepward.prm.dataset.schema import rows_of, solution_of, solutions_table
from stepward.prm.dataset.store import Manifest, ShardStore, open_dataset, verify
from stepward.prm.errors import ConfigError, FormatError
from stepward.prm.types import (
    Allocation,
    Counts,
    Estimate,
    LabeledSolution,
    LabelerInfo,
    Outcome,
    PolicyInfo,
    Problem,
    Solution,
    Step,
    StepLabel,
    Verdict,
    VerdictKind,
)

NOBODY = PolicyInfo("", "", "scripted")


def solution(
    *counts: Counts,
    outcome: Outcome = Outcome.WRONG,
    allocation: Allocation = Allocation.FIXED_K,
    refuted: tuple[int, ...] = (),
) -> LabeledSolution:
    """Counts at prefixes 0..T-1; prefix T gets none: the outcome stands for it."""
    verdict = Verdict(VerdictKind.REFUTED, "arithmetic", "1")
    labels = tuple(StepLabel(verdicts=(verdict,) if t in refuted else ()) for t in range(len(counts)))
    return LabeledSolution(
        Problem("p", "?", ("1",)),
        Solution("p-0", "p", tuple(Step(f"s{t}") for t in range(len(counts))), outcome=outcome),
        tuple(Estimate(c) for c in (*counts, Counts())),
        labels, None, NOBODY, NOBODY, "", 0, allocation, 0, 0, LabelerInfo("", "", ""),
    )  # fmt: skip


def k_of_8(*rights: int) -> list[Counts]:
    return [Counts(right=k, wrong=8 - k) for k in rights]


def relabelled(row: LabeledSolution, rule: str = "hard", **how) -> LabeledSolution:
    table, _ = relabel_table(solutions_table([row]), Relabeling(rule, **how))
    (record,) = map(solution_of, rows_of(table))
    return record


def labels(row: LabeledSolution, rule: str = "hard", **how) -> list[int | None]:
    return [s.label for s in relabelled(row, rule, **how).labels]


def test_one_success_in_eight_keeps_its_counts_and_gives_a_soft_value_and_a_hard_label():
    # openreasoner/openr#57
    row = solution(*k_of_8(8, 1))
    hard, soft = relabelled(row, "hard"), relabelled(row, "soft_mean")
    assert hard.prefixes[1].counts == soft.prefixes[1].counts == Counts(right=1, wrong=7)
    assert soft.prefixes[1].value == 0.125
    assert hard.labels[0].label == 1
    assert hard.labeler.name == "relabel/hard"
    assert soft.labeler.name == "relabel/soft_mean"


def test_a_node_with_six_right_of_eight_has_value_three_quarters_and_its_count():
    # ADaM-BJTU/O1-CODER#3: a value never leaves without its n
    estimate = relabelled(solution(*k_of_8(8, 6)), "soft_mean").prefixes[1]
    assert (estimate.value, estimate.counts.decided) == (0.75, 8)
    table = solutions_table([solution(*k_of_8(8, 6))]).drop(["prefixes"])
    with pytest.raises(FormatError, match="prefixes"):
        relabel_table(table, Relabeling())


def test_hard_calls_a_step_wrong_where_every_draw_after_it_was():
    row = solution(*k_of_8(5, 4, 0))
    assert labels(row) == [1, 0, 0]
    assert relabelled(row).first_error == 1


def test_hard_k_asks_for_k_right_draws():
    assert labels(solution(*k_of_8(5, 2, 1)), "hard_k", options={"min_right": 2}) == [1, 0, 0]


def test_the_solutions_own_outcome_decides_its_last_step():
    right = solution(*k_of_8(5, 4), outcome=Outcome.RIGHT)
    assert labels(right) == [1, 1]
    assert labels(replace(right, solution=replace(right.solution, outcome=Outcome.TIMEOUT))) == [1, None]


def test_relative_progress_is_the_ratio_to_the_prefix_before():
    # MC 8/8, 7/8, 4/8, 4/8, 0, 3/8, own 0: ratios 7/8, 4/7, 1, 0, then 0 for ever
    row = solution(*k_of_8(8, 7, 4, 4, 0, 3))
    assert labels(row, "relative_progress") == [1, 0, 1, 0, 0, 0]
    assert relabelled(row, "relative_progress").first_error == 1


def test_progress_advantage_rewards_a_rise_of_the_best_of_k_value():
    # k = 2: Q = 1 - (1 - MC)^2; MC 1/2 -> 1/4: Q 3/4 -> 7/16, 1/4 + 2 (7/16 - 3/4) = -3/8 -> wrong
    # 1/4 -> 1/2: 1/2 + 2 (5/16) > 0 -> right; own outcome 0: 0 + 2 (0 - 3/4) -> wrong
    row = solution(*k_of_8(4, 2, 4))
    assert labels(row, "progress_advantage", options={"k": 2, "alpha": 2}) == [0, 1, 0]


def test_posterior_mean_is_that_of_jeffreys_prior():
    row = relabelled(solution(*k_of_8(8, 3)), "posterior_mean")
    assert row.prefixes[1].value == pytest.approx(3.5 / 9)
    assert row.prefixes[1].low is not None
    assert row.prefixes[1].low < 3.5 / 9 < (row.prefixes[1].high or 0)


def test_scan_labels_the_first_zero_and_leaves_the_two_steps_before_it_soft():
    # pass rate 7 of 8 draws and 0 of 1 solution, 7/9; MC 8, 5, 7, 0, 0 of 8: the error is step 3
    row = relabelled(solution(*k_of_8(7, 8, 5, 7, 0, 0)), "scan")
    # the two before it are soft: min(1, (5/8) / (7/9)) has no label, min(1, (7/8) / (7/9)) is a 1
    assert [s.label for s in row.labels] == [1, None, 1, 0, None, None]
    assert row.prefixes[2].value == pytest.approx(45 / 56)
    assert row.prefixes[3].value == 1.0


def test_scan_leaves_hard_problems_and_solutions_without_a_zero_unknown():
    assert labels(solution(*k_of_8(5, 0)), "scan") == [None, None]
    # an unknown prefix before the first zero
    assert labels(solution(Counts(right=8), Counts(wrong=2), Counts(wrong=8)), "scan") == [None, None, None]
    assert labels(solution(*k_of_8(8, 4), outcome=Outcome.RIGHT), "scan") == [1, 1]


def test_truncated_draws_are_read_as_asked():
    # 0 right of 4 decided, 0 truncated beyond a tenth: 1 of 11 truncated is 9 %
    few = Counts(wrong=10, truncated=1)
    many = Counts(wrong=4, truncated=4)
    assert labels(solution(Counts(right=8), few)) == [0, 0]
    assert labels(solution(Counts(right=8), many), truncated_as="exclude") == [None, 0]
    # at threshold .5: 6 of 10, or 6 of 12 where no_answer counts as wrong
    mixed = solution(Counts(right=8), Counts(right=6, wrong=4, no_answer=2))
    by = {"options": {"threshold": 0.5}}
    assert labels(mixed, "soft_mean", truncated_as="exclude", **by) == [1, 0]
    assert labels(mixed, "soft_mean", truncated_as="wrong", **by) == [0, 0]
    assert labels(mixed, "soft_mean", truncated_as="bounds", **by) == [None, 0]


def test_truncated_draws_leave_the_denominator_and_a_prefix_of_nothing_else_has_no_label():
    # vllm-project/speculators#835: 3 right, 3 wrong, 2 cut by length; then 8 of 8 cut
    some, all_cut = Counts(right=3, wrong=3, truncated=2), Counts(truncated=8)
    row = relabelled(solution(Counts(right=8), some, all_cut), "soft_mean", truncated_as="exclude")
    assert row.prefixes[1].value == 0.5
    assert row.prefixes[1].counts == some
    assert (row.prefixes[2].value, row.labels[1].label) == (None, None)


def test_problems_without_a_usable_reference_get_no_label():
    # huggingface/open-r1#86: the reward was 1 where the reference could not be parsed
    row = solution(*[Counts(no_gold=4)] * 3, outcome=Outcome.NO_GOLD)
    for rule in RULES:
        assert labels(row, rule) == [None] * 3, rule


def test_the_binary_search_is_replayed_on_its_counts():
    # T = 5: mid 2 right > 0 -> lo 2; mid 3 all wrong -> hi 3: step 2 (from 0) is the first error; 1 and 4 untested
    searched = [Counts(), Counts(), Counts(right=1, wrong=2), Counts(wrong=8), Counts()]
    row = solution(*searched, allocation=Allocation.BINARY_SEARCH)
    assert labels(row, "omegaprm") == [1, 1, 0, None, None]
    again = relabelled(row, "omegaprm")
    # stopped at a success: (1 + 1/2) / (3 + 1), not 1/3
    assert [e.value for e in again.prefixes] == [None, None, 0.375, pytest.approx(0.5 / 9), None, 0.0]
    stuck = [Counts(), Counts(), Counts(), Counts(wrong=8), Counts()]
    assert labels(solution(*stuck, allocation=Allocation.BINARY_SEARCH), "omegaprm") == [None] * 5
    right = solution(*searched, outcome=Outcome.RIGHT, allocation=Allocation.BINARY_SEARCH)
    assert labels(right, "omegaprm") == [1] * 5


def test_quality_values_rise_by_the_steps_left_and_fall_after_a_wrong_one():
    # K = 4, labels 1 1 0 0: v1 = 1/4; v2 = 1/4 + (3/4)/3 = 1/2; v3 = 1/2 - (1/2)/2 = 1/4; v4 = 1/4 - 3/4 -> 0
    row = relabelled(solution(*k_of_8(8, 4, 2, 0)), "rest_mcts")
    assert [s.label for s in row.labels] == [1, 1, 0, 0]
    assert [e.value for e in row.prefixes] == pytest.approx([0, 0.25, 0.5, 0.25, 0])
    assert {e.low for e in row.prefixes} == {None}
    unknown = relabelled(solution(Counts(right=8), Counts(wrong=1), Counts(wrong=8)), "rest_mcts")
    assert [e.value for e in unknown.prefixes] == [0, None, None, None]


def test_sampling_that_stopped_at_a_success_gives_posterior_means_and_never_k_of_n():
    stopped = [Counts(right=1), Counts(right=1, wrong=3)]
    row = relabelled(solution(*stopped, allocation=Allocation.STOP_AT_FIRST_RIGHT), "hard")
    assert [s.label for s in row.labels] == [1, 0]
    # (1 + 1/2) / (1 + 1) and (1 + 1/2) / (4 + 1); the own outcome is known
    assert [e.value for e in row.prefixes] == [0.75, 0.3, 0.0]


def test_faults_never_count_as_wrong():
    broken = Counts(error=5, timeout=5, undecided=5, no_gold=5)
    assert labels(solution(Counts(right=8), broken)) == [None, 0]
    assert relabelled(solution(Counts(right=8), broken)).first_error is None


def test_an_unknown_step_before_the_first_wrong_one_leaves_the_first_error_unknown():
    row = relabelled(solution(Counts(right=8), Counts(wrong=1), Counts(wrong=8)))
    assert [s.label for s in row.labels] == [None, 0, 0]
    assert row.first_error is None


@pytest.mark.parametrize("rule", [r for r in RULES if r != "posterior_mean"])
def test_share_rules_refuse_adaptively_stopped_counts_and_count_them(rule):
    rows = [
        solution(*k_of_8(8, 4), allocation=Allocation.INFORMATION_GAIN),
        solution(*k_of_8(8, 4), outcome=Outcome.RIGHT),
    ]
    table, report = relabel_table(solutions_table(rows), Relabeling(rule))
    first, second = map(solution_of, rows_of(table))
    assert [s.label for s in first.labels] == [None, None]
    assert first.first_error is None
    assert report.refused == {"information_gain": 1}
    assert (report.solutions, report.decided + report.undecided) == (2, 1)
    assert second.labels[-1].label is not None


def test_stop_after_first_error_makes_later_labels_unknown():
    row = relabelled(solution(*k_of_8(8, 4, 0, 4)), stop_after_first_error=True)
    assert [s.label for s in row.labels] == [1, 0, None, None]
    assert row.first_error == 1


def test_consensus_keeps_only_what_the_tools_agree_with():
    rows = [
        solution(*k_of_8(8, 4, 0), refuted=(1,)),  # both say step 1
        solution(*k_of_8(8, 4, 0), refuted=(0,)),  # the tool says an earlier one
        solution(*k_of_8(8, 4, 0)),  # no tool looked
        solution(*k_of_8(8, 4), outcome=Outcome.RIGHT, refuted=(1,)),  # the tool refutes a right solution
    ]
    strict, report = relabel_table(solutions_table(rows), Relabeling(consensus="strict"))
    assert [solution_of(r).first_error for r in rows_of(strict)] == [1, None, None, None]
    assert (report.decided, report.disagreeing) == (1, 3)
    loose, report = relabel_table(solutions_table(rows), Relabeling(consensus="no_contradiction"))
    assert [[s.label for s in solution_of(r).labels] for r in rows_of(loose)] == [
        [1, 0, 0], [None] * 3, [1, 0, 0], [None] * 2,
    ]  # fmt: skip
    assert (report.decided, report.disagreeing) == (2, 2)
    _, report = relabel_table(solutions_table(rows), Relabeling(consensus="strict", verifiers={"algebra"}))
    assert report.disagreeing == 3


def test_an_unknown_rule_or_option_is_named_with_those_that_exist():
    with pytest.raises(ConfigError, match="hard_k"):
        Relabeling("harder").checked()
    with pytest.raises(ConfigError, match="min_trials"):
        Relabeling("hard", {"k": 3}).checked()
    with pytest.raises(ConfigError, match=r"(?s)truncated_as is 'cut'.*consensus is 'all'"):
        Relabeling("hard", truncated_as="cut", consensus="all").checked()  # type: ignore[arg-type]


COUNTS = st.builds(
    Counts, *[st.integers(0, 6)] * 2, st.integers(0, 1), st.integers(0, 1), error=st.integers(0, 2)
)


SAME = {
    "hard": "math_shepherd",
    "soft_mean": "math_shepherd_soft",
    "relative_progress": "genprm_relative",
    "progress_advantage": "pav",
    "scan": "scan",
    "omegaprm": "omegaprm",
    "rest_mcts": "rest_mcts",
}


@pytest.mark.parametrize("rule", SAME)
@settings(max_examples=12, deadline=None)
@given(
    cases=st.lists(
        st.tuples(st.lists(COUNTS, min_size=1, max_size=5), st.sampled_from(Outcome)), min_size=1, max_size=4
    ),
    truncated_as=st.sampled_from(["exclude", "wrong", "bounds"]),
)
def test_relabelling_gives_what_the_labelling_gave(rule, cases, truncated_as):
    rows = [solution(*counts, outcome=outcome) for counts, outcome in cases]
    table, _ = relabel_table(solutions_table(rows), Relabeling(rule, truncated_as=truncated_as))
    made = make_estimator(SAME[rule], allocation=Allocation.FIXED_K, truncated_as=truncated_as)
    counts = [[e.counts for e in row.prefixes] for row in rows]
    evidence = [
        SolutionEvidence(n, (1,) * n, row.solution.outcome or Outcome.ERROR, ((),) * (n + 1))
        for row in rows
        for n in [len(row.labels)]
    ]
    wanted = made.estimate(evidence, counts)
    for again, expected in zip(map(solution_of, rows_of(table)), wanted, strict=True):
        assert [s.label for s in again.labels] == [s.label for s in expected.labels]
        assert again.first_error == expected.first_error or not expected.decided or rule == "scan"
        for mine, theirs in zip(again.prefixes, expected.estimates, strict=True):
            assert mine.counts == theirs.counts
            assert mine.value == (theirs.value if theirs.value is None else pytest.approx(theirs.value))


def test_a_relabelled_dataset_is_a_new_one_that_names_where_it_comes_from(tmp_path):
    manifest = Manifest({"k": 8}, "1", Allocation.FIXED_K, LabelerInfo("x", "1", ""))
    rows = [replace(solution(*k_of_8(8, 4, 0)), labels=(StepLabel(1),) * 3)]
    with ShardStore.create_or_resume(tmp_path / "old", manifest) as store:
        store.write_shard(0, rows)
        store.write_shard(1, rows)
        before = store.seal()
    made, report = relabel_dataset(open_dataset(tmp_path / "old"), tmp_path / "new", Relabeling())
    assert made.derived_from["fingerprint"] == before.fingerprint
    assert report.labels == {"right": 2, "wrong": 4}
    assert [s.label for s in next(open_dataset(tmp_path / "new").solutions()).labels] == [1, 0, 0]
    assert list(open_dataset(tmp_path / "old").solutions()) == rows * 2
    assert verify(tmp_path / "new").ok
