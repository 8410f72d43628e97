"""Foreign formats: round trips, what each loses by name, bad rows named, and every count adds up."""

import json
import re
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stepward.prm.dataset.schema import check_solutions, solutions_table
from stepward.prm.errors import ConfigError, FormatError
from stepward.prm.formats.fields import FIELDS, lost, only
from stepward.prm.formats.foreign import contract_row, foreign_problem, labels_to_first_error
from stepward.prm.formats.registry import (
    ExportReport,
    ImportReport,
    export_rows,
    format_named,
    formats,
    import_rows,
)
from stepward.prm.formats.step_credit import step_credits
from stepward.prm.records import Place
from stepward.prm.types import Counts, Estimate, LabeledSolution, Outcome

WORDS = st.text("abc é√\\{}$12", min_size=1, max_size=12).map(str.strip).filter(bool)
LABELS = st.sampled_from([0, 1, None])
BOTH_WAYS = [f.name for f in formats().values() if f.read and f.write]


def made(problem="What?", steps=("a", "b"), labels=(1, 0), **kwargs) -> LabeledSolution:
    row = contract_row(
        foreign_problem(problem, source="s"), steps, labels, labeler="x", decided_by="human", **kwargs
    )
    return replace(row, solution=replace(row.solution, id=row.solution.id or f"{row.problem.id}-0"))


def read_in(name: str, *rows: dict) -> tuple[list[LabeledSolution], ImportReport]:
    report = ImportReport()
    placed = ((Place("set.jsonl", number), row) for number, row in enumerate(rows, 1))
    found = list(import_rows(format_named(name), placed, report, source="s"))
    assert report.rows == report.kept + len(report.rejected) == len(rows)
    assert report.solutions == len(found)
    return found, report


def write_out(name: str, *rows: LabeledSolution) -> tuple[list[dict], ExportReport]:
    report = ExportReport()
    found = list(export_rows(format_named(name), rows, report))
    assert report.solutions == len(rows) == report.written + sum(report.left_out.values())
    assert report.rows == len(found)
    json.dumps(found, allow_nan=False)
    return found, report


@st.composite
def contract_rows(draw) -> LabeledSolution:
    num_steps = draw(st.integers(1, 4))
    many = st.lists(st.integers(0, 5), min_size=num_steps + 1, max_size=num_steps + 1)
    values = draw(
        st.lists(st.none() | st.sampled_from([0.125, 0.5]), min_size=num_steps + 1, max_size=num_steps + 1)
    )
    return made(
        draw(WORDS),
        draw(st.lists(WORDS, min_size=num_steps, max_size=num_steps)),
        draw(st.lists(LABELS, min_size=num_steps, max_size=num_steps)),
        values=values,
        counts=[Counts(right=a, wrong=b) for a, b in zip(draw(many), draw(many), strict=True)],
        outcome=draw(st.none() | st.sampled_from([Outcome.RIGHT, Outcome.WRONG])),
        generator=draw(st.sampled_from(["", "model"])),
    )


@pytest.mark.parametrize("name", BOTH_WAYS)
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(row=contract_rows())
def test_what_a_format_says_it_holds_survives_the_way_out_and_in(name, row):
    written, report = write_out(name, row)
    again, _ = read_in(name, *written)
    if not written:
        assert report.left_out
        return
    (back,) = again
    assert back.problem.text == row.problem.text
    steps = len(back.labels)
    assert [s.text for s in back.solution.steps] == [s.text for s in row.solution.steps][:steps]
    if steps < len(row.labels):
        assert report.lost["steps after the first unknown label"] == 1
        assert row.labels[steps].label is None
        assert [s.label for s in back.labels] == [s.label for s in row.labels[:steps]]
    else:
        held = format_named(name).held(row)
        assert only(back, held) == only(row, held)
    assert set(lost(row, format_named(name).held(row))) <= set(report.lost)


@pytest.mark.parametrize("name", BOTH_WAYS)
def test_rows_that_were_read_are_rows_of_the_contract(name):
    row = made(values=[0.5, 0.5, 0.25], counts=[Counts(right=2, wrong=2)] * 3, outcome=Outcome.WRONG)
    written, _ = write_out(name, row)
    again, _ = read_in(name, *written)
    check_solutions(solutions_table(again))
    assert again[0].solution.id


def test_a_field_that_says_something_and_cannot_be_held_is_counted_by_name():
    row = made(values=[0.5] * 3, generator="m", outcome=Outcome.RIGHT)
    _, report = write_out("math_shepherd", row, row)
    assert report.lost["value"] == report.lost["policy"] == report.lost["outcome"] == 2
    assert "token_ids" not in report.lost


def test_only_puts_every_other_field_to_its_default_once():
    row = made(values=[0.5] * 3, generator="m", outcome=Outcome.RIGHT)
    bare = only(row, ())
    assert lost(bare, ()) == []
    assert only(bare, ()) == bare
    assert only(row, FIELDS) == row


@settings(max_examples=30, deadline=None)
@given(contract_rows())
def test_a_field_says_something_exactly_where_clearing_it_changes_the_row(row):
    for name, field in FIELDS.items():
        assert field.says(row) == (field.clear(row) != row), name


def test_more_labels_than_steps_are_rejected_with_the_place_and_counted():
    # mukhal/ThinkPRM#4: 2 in, 1 kept, 1 rejected
    good = {"prompt": "p", "completions": ["Step1", "Step2"], "labels": [1, 0]}
    bad = {"prompt": "p", "completions": ["Step1", "Step2"], "labels": [1, 0, 1]}
    rows, report = read_in("trl_stepwise", good, bad)
    assert (report.rows, report.kept, len(rows)) == (2, 1, 1)
    assert report.rejected[0][0] == "set.jsonl:2"
    assert "3 labels for 2" in report.rejected[0][1]


def test_blank_pieces_of_a_text_are_no_steps():
    # mukhal/ThinkPRM#4: "Step1\n\n\n\nStep2\n\n" is two steps
    from stepward.prm.steps import StepFormat

    pieces = StepFormat("blank_line").split("Step1\n\n\n\nStep2\n\n")
    row = contract_row(
        foreign_problem("p", source="s"), [p.text for p in pieces], [1, 0], labeler="x", decided_by="x"
    )
    assert [s.text for s in row.solution.steps] == ["Step1", "Step2"]


TRL = {"prompt": "p", "completions": ["a", "b"], "labels": [True, False]}
SHEPHERD = {"input": "q Step 1: a ки\nStep 2: b ки", "label": "q Step 1: a +\nStep 2: b -", "task": "t"}
BENCH = {"id": "i", "problem": "p", "steps": ["a", "b"], "label": 1, "generator": "g"}
PRMB = {"modified_question": "q", "modified_process": ["a", "b"], "error_steps": [2]}
P800 = {
    "question": {"problem": "p", "ground_truth_answer": "1"},
    "label": {"steps": [{"completions": [{"text": "a", "rating": 1}], "chosen_completion": 0}]},
}
FLAT = {
    "question": "q",
    "final_answer": "1",
    "reasoning_steps": [{"solution_prefix": "q\n\na", "mc_value": 0.5}],
}
CHAT = {"conversations": [{"role": "user", "content": "q Step 1: a"}, {"role": "assistant", "content": "+"}]}
QWEN = {
    "messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a<extra_0>"}],
    "labels": [1],
}
BETA = {"question": "q", "answer": "1", "steps": ["a"], "k": [1], "n": [2]}

BAD_ROWS = [
    ("trl_stepwise", {**TRL, "labels": [True]}, "1 labels for 2"),
    ("trl_stepwise", {**TRL, "labels": [True, "good"]}, r"labels\[1\] is 'good'"),
    ("trl_stepwise", {**TRL, "labels": [True, 2]}, r"labels\[1\] is 2"),
    ("trl_stepwise", {**TRL, "labels": [True, float("nan")]}, r"labels\[1\] is nan"),
    ("trl_stepwise", {**TRL, "labels": "10"}, "a list is wanted"),
    ("trl_stepwise", {**TRL, "completions": ["a", 3]}, r"completions\[1\] is 3"),
    ("trl_stepwise", {**TRL, "completions": ["a", " "]}, "step 1 is empty"),
    ("trl_stepwise", {**TRL, "prompt": ""}, "problem"),
    ("trl_stepwise", {}, "completions"),
    ("math_shepherd", {**SHEPHERD, "label": "q Step 1: a +\nStep 2: b ?"}, "label of step 1 is"),
    ("math_shepherd", {**SHEPHERD, "label": "q Step 1: a +\nStep 2: c -"}, "differ within step 1"),
    ("math_shepherd", {**SHEPHERD, "input": SHEPHERD["input"] + " more"}, "after the last mark"),
    ("math_shepherd", {"input": "q a ки", "label": "q a +"}, "Step 1"),
    ("math_shepherd", {"input": 3, "label": "q"}, "texts"),
    ("processbench", {**BENCH, "label": 2}, "2 is not one of the 2 steps"),
    ("processbench", {**BENCH, "label": -2}, "label is -2"),
    ("processbench", {**BENCH, "label": "1"}, "label is '1'"),
    ("processbench", {**BENCH, "label": True}, "label is True"),
    ("processbench", {**BENCH, "steps": [], "label": -1}, "no steps"),
    ("prmbench", {**PRMB, "error_steps": [3]}, "error_steps holds 3"),
    ("prmbench", {**PRMB, "error_steps": [0]}, "error_steps holds 0"),
    ("prmbench", {**PRMB, "error_steps": ["2"]}, "error_steps holds '2'"),
    ("prm800k", {"question": {"problem": "p"}}, "label"),
    (
        "prm800k",
        {**P800, "label": {"steps": [{"completions": [{"text": "a", "rating": 2}], "chosen_completion": 0}]}},
        "rating 2",
    ),
    (
        "prm800k",
        {**P800, "label": {"steps": [{"completions": [{"text": "a", "rating": 1}], "chosen_completion": 1}]}},
        "chosen_completion 1 of 1",
    ),
    ("prm800k", {**P800, "label": {"steps": []}}, "no solution"),
    (
        "openr",
        {**FLAT, "reasoning_steps": [{"solution_prefix": "other", "mc_value": 1}]},
        "begins with the question",
    ),
    ("openr", {**FLAT, "reasoning_steps": [{"solution_prefix": "q\n\na", "mc_value": 1.5}]}, "1.5"),
    ("openr_tree", {**FLAT, "reasoning_steps": {"text": "q", "mc_value": 1, "children": [3]}}, "child"),
    ("openr_tree", {**FLAT, "reasoning_steps": []}, "object"),
    ("rlhflow", {"conversations": CHAT["conversations"][:1]}, "pairs"),
    ("rlhflow", {"conversations": CHAT["conversations"][::-1]}, "turn 0"),
    (
        "rlhflow",
        {"conversations": [CHAT["conversations"][0], {"role": "assistant", "content": "ok"}]},
        "'ok'",
    ),
    ("qwen", {**QWEN, "labels": [1, 0]}, "2 labels for 1"),
    ("qwen", {**QWEN, "messages": [{"role": "assistant", "content": "a<extra_0>b"}]}, "must end with"),
    ("betaprm", {**BETA, "k": [3]}, "k = 3 of n = 2"),
    ("betaprm", {**BETA, "n": [2, 2]}, "2 n for 1 steps"),
    ("betaprm", {**BETA, "k": [0.5]}, "whole numbers"),
]


@pytest.mark.parametrize(("name", "row", "what"), BAD_ROWS)
def test_a_bad_row_is_rejected_with_its_place_and_reason(name, row, what):
    rows, report = read_in(name, row)
    assert rows == []
    ((place, reason),) = report.rejected
    assert place == "set.jsonl:1"
    assert re.search(what, reason), reason


def test_soft_and_missing_labels_are_kept_as_values_and_unknown():
    (row,), report = read_in(
        "trl_stepwise", {"prompt": "p", "completions": ["a", "b", "c"], "labels": [0.5, None, 1.0]}
    )
    assert [s.label for s in row.labels] == [None, None, 1]
    assert [e.value for e in row.prefixes] == [None, 0.5, None, None]
    assert report.unknown_labels == 2


def test_trl_rows_hold_what_its_trainer_turns_into_integers():
    (row,), _ = write_out("trl_stepwise", made(steps=("a", "b", "c"), labels=(1, 0, None)))
    assert row == {"prompt": "What?", "completions": ["a", "b"], "labels": [True, False]}
    assert [int(label) for label in row["labels"]] == [1, 0]


def test_a_conversation_stays_one_in_trl_rows():
    turns = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    written, _ = write_out("trl_stepwise", made(problem=turns))
    assert written[0]["prompt"] == turns
    assert read_in("trl_stepwise", *written)[0][0].problem == made(problem=turns).problem


def test_math_shepherd_rows_differ_only_in_their_marks():
    (row,), _ = write_out("math_shepherd", made(labels=(1, 0)))
    assert row["input"] == "What? Step 1: a ки\nStep 2: b ки"
    assert row["label"] == "What? Step 1: a +\nStep 2: b -"


def test_windows_line_ends_do_not_change_a_math_shepherd_row():
    crlf = {k: v.replace("\n", "\r\n") for k, v in SHEPHERD.items()}
    assert read_in("math_shepherd", crlf)[0] == read_in("math_shepherd", SHEPHERD)[0]


@pytest.mark.parametrize(("name", "mark"), [("math_shepherd", "ки"), ("qwen", "<extra_0>")])
def test_a_text_that_holds_the_mark_itself_is_left_out_and_counted(name, mark):
    written, report = write_out(name, made(steps=(f"a{mark}", "b")), made())
    assert len(written) == 1
    assert list(report.left_out.values()) == [1]


def test_qwen_rows_have_one_label_for_each_mark_and_null_where_it_is_unknown():
    row = made(steps=("a", "b", "c"), labels=(1, None, None), values=[None, None, 0.25, None])
    (written,), _ = write_out("qwen", row)
    assert written["messages"][-1]["content"].count("<extra_0>") == len(written["labels"]) == 3
    assert written["labels"] == [1, 0.25, None]


def test_processbench_leaves_out_what_is_not_known_to_be_right_or_wrong():
    unknown = made(labels=(1, None))
    right, wrong = made(labels=(1, 1)), made(labels=(1, 0))
    written, report = write_out("processbench", right, wrong, unknown)
    assert [row["label"] for row in written] == [-1, 1]
    assert report.left_out == {"it is not known whether a step is wrong": 1}


def test_processbench_loses_labels_only_behind_the_first_error_and_who_sampled_only_beyond_a_name():
    row = made(labels=(1, 0, None), steps=("a", "b", "c"), generator="m", outcome=Outcome.WRONG)
    row = replace(row, labeler=replace(row.labeler, name="human"))
    _, report = write_out("processbench", row)
    assert set(report.lost) == {"problem_id", "source"}
    more = replace(
        row,
        labels=(*row.labels[:2], replace(row.labels[2], label=1, decided_by="human")),
        policy=replace(row.policy, revision="abc"),
        solution=replace(row.solution, outcome=Outcome.TRUNCATED),
    )
    _, report = write_out("processbench", more)
    assert set(report.lost) == {"problem_id", "source", "label", "decided_by", "policy", "outcome"}


def test_labels_up_to_the_first_error_say_nothing_of_what_follows():
    assert labels_to_first_error(1, 4) == [1, 0, None, None]
    assert labels_to_first_error(None, 2) == [1, 1]
    with pytest.raises(FormatError, match="2 is not one of"):
        labels_to_first_error(2, 2)


def test_an_unchosen_prm800k_completion_ends_a_solution_of_its_own():
    row = {
        "question": {"problem": "p", "ground_truth_answer": "1"},
        "label": {
            "steps": [
                {"completions": [{"text": "a", "rating": 1}], "chosen_completion": 0},
                {
                    "completions": [{"text": "b", "rating": -1}, {"text": "c", "rating": 0}],
                    "chosen_completion": None,
                    "human_completion": {"text": "h", "rating": None},
                },
                {
                    "completions": [{"text": "d", "rating": 1}, {"text": "e", "rating": -1}],
                    "chosen_completion": 0,
                },
            ]
        },
    }
    rows, _ = read_in("prm800k", row)
    assert [([s.text for s in r.solution.steps], [s.label for s in r.labels]) for r in rows] == [
        (["a", "h", "d"], [1, None, 1]),
        (["a", "b"], [1, 0]),
        (["a", "c"], [1, None]),
        (["a", "h", "e"], [1, None, 0]),
    ]
    assert len({r.solution.id for r in rows}) == 4


def test_solutions_that_share_steps_are_one_tree_and_come_apart_again():
    rows = [
        made(steps=("a", "b"), labels=(None, None), values=[0.5, 0.25, 0.0]),
        made(steps=("a", "c"), labels=(None, None), values=[0.5, 0.25, 1.0]),
        made(steps=("d",), labels=(None,), values=[0.5, 0.75]),
        made(steps=("a",), labels=(None,), values=[0.5, 0.25]),
    ]
    for name in ("openr", "openr_tree"):
        written, report = write_out(name, *rows)
        assert len(written) == 1
        assert sum(report.left_out.values()) == 1  # the one that is the beginning of others
        again, _ = read_in(name, *written)
        held = format_named(name).holds
        assert {str(only(r, held)) for r in again} == {str(only(r, held)) for r in rows[:3]}


def test_a_tree_that_would_need_two_values_at_one_node_says_so():
    rows = [made(steps=("a", s), values=[v, 0.5, 0.5]) for s, v in (("b", 0.25), ("c", 0.75))]
    _, report = write_out("openr_tree", *rows)
    assert report.lost["value, where another solution gave a shared prefix another one"] == 1


def test_flat_prefixes_that_could_be_cut_in_two_ways_are_left_out():
    rows = [made(steps=("a", "b")), made(steps=("a\n\nb", "c"))]
    written, report = write_out("openr", *rows)
    assert written == []
    assert sum(report.left_out.values()) == 2


def test_a_deep_tree_is_refused_and_does_not_end_the_process():
    node: dict = {"text": "leaf", "mc_value": 1, "children": []}
    for _ in range(3000):
        node = {"text": "n", "mc_value": 1, "children": [node]}
    _, report = read_in("openr_tree", {"question": "q", "reasoning_steps": node})
    assert "deeper" in report.rejected[0][1]


def test_preference_pairs_come_from_one_prefix_and_say_which_is_right():
    rows = [
        made(steps=("a", "b"), labels=(1, 1)),
        made(steps=("a", "c"), labels=(1, 0)),
        made(steps=("d", "b"), labels=(1, 1)),
    ]
    pairs, report = write_out("dpo", *rows)
    assert pairs == [{"prompt": "What?\n\na\n\n", "chosen": "b", "rejected": "c"}]
    assert sum(report.left_out.values()) == 1
    single, _ = write_out("kto", *rows)
    assert Counter((r["prompt"], r["completion"], r["label"]) for r in single) == {
        ("What?\n\n", "a", True): 1, ("What?\n\n", "d", True): 1, ("What?\n\na\n\n", "b", True): 1,
        ("What?\n\na\n\n", "c", False): 1, ("What?\n\nd\n\n", "b", True): 1,
    }  # fmt: skip


def test_unlabelled_steps_are_paired_where_their_values_lie_far_apart():
    rows = [
        made(steps=(s,), labels=(None,), values=[0.5, v]) for s, v in (("a", 0.875), ("b", 0.25), ("c", 0.5))
    ]
    pairs, _ = write_out("dpo", *rows)
    assert [(p["chosen"], p["rejected"]) for p in pairs] == [("a", "b")]


def test_credit_is_the_change_of_value_and_null_where_a_value_is_unknown():
    row = made(
        steps=("ab", "c", "d"), labels=(1, 1, 1), values=[0.5, 0.75, 0.25, None], outcome=Outcome.RIGHT
    )
    assert step_credits(row) == [0.25, -0.5, None]
    (trl,), _ = write_out("trl_credit", row)
    text = trl["completion"][0]["content"]
    starts = [0, *(end + 2 for end in trl["step_ends"][:-1])]
    assert [text[a:b] for a, b in zip(starts, trl["step_ends"], strict=True)] == ["ab", "c", "d"]
    assert trl["reward"] == 1.0
    (verl,), _ = write_out("verl_credit", row)
    assert verl["extra_info"]["step_rewards"] == [0.25, -0.5, None]
    assert verl["reward_model"] == {"style": "rule", "ground_truth": None}
    _, report = write_out("verl_credit", made())
    assert sum(report.left_out.values()) == 1


def test_counts_survive_as_how_many_of_how_many():
    counts = [Counts(right=1), Counts(right=2, wrong=6, truncated=1, error=3), Counts(wrong=8)]
    (row,), report = write_out("betaprm", made(counts=counts))
    assert (row["k"], row["n"]) == ([2, 0], [8, 8])
    assert report.lost["counts"] == 1
    (back,), _ = read_in("betaprm", row)
    assert [e.counts for e in back.prefixes] == [Counts(), Counts(right=2, wrong=6), Counts(wrong=8)]


def test_a_format_of_no_such_name_or_way_is_a_configuration_fault():
    with pytest.raises(ConfigError, match="trl_stepwise"):
        format_named("trl")
    with pytest.raises(ConfigError, match="only written"):
        list(import_rows(format_named("dpo"), [], ImportReport(), source="s"))
    with pytest.raises(ConfigError, match="only read"):
        list(export_rows(format_named("prmbench"), [], ExportReport()))


def test_every_rate_of_a_value_keeps_its_range():
    with pytest.raises(FormatError, match="not in"):
        made(values=[0.5, 1.5, 0.5])
    assert made().prefixes[0] == Estimate()
