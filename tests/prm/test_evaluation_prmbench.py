"""PRMBench's pooled scores by class, and its traps."""

import json
from pathlib import Path

import pytest

from stepward.prm.evaluation.errors import BenchmarkFileError, ScoreRangeError, StepCountError
from stepward.prm.evaluation.intervals import Bootstrap
from stepward.prm.evaluation.prmbench import PRMBenchItem, call_right, evaluate_prmbench
from stepward.prm.evaluation.readers.prmbench import read_prmbench

NONE = Bootstrap(num_resamples=0)


def item(name: str, kind: str, num_steps: int, *wrong: int) -> PRMBenchItem:
    return PRMBenchItem(name, kind, name, ("x",) * num_steps, frozenset(wrong), name)


ITEMS = [
    item("a", "circular", 4, 2, 3),
    item("b", "circular", 3, 1),
    item("c", "multi_solutions", 2),
    item("d", "correct", 5),
]
CALLED = [(True, True, False, True), (True, False, False), (True, False), (True,) * 5]


def test_counts_are_pooled_over_the_steps_of_a_class() -> None:
    result = evaluate_prmbench(ITEMS, CALLED, scorer="hand", bootstrap=NONE)
    circular = next(c for c in result.classes if c.name == "circular")
    # a: TP TP TN FP; b: TP TN FN -> TP 3, FP 1, TN 2, FN 1
    assert circular.counts == (3, 1, 2, 1)
    assert circular.f1_right.value == pytest.approx(6 / 8)
    assert circular.f1_wrong.value == pytest.approx(4 / 6)
    assert circular.prm_score.value == pytest.approx(0.5 * 0.75 + 0.5 * 2 / 3)
    assert circular.accuracy.value == pytest.approx(5 / 7)


def test_multi_solutions_has_an_accuracy_and_no_score() -> None:
    result = evaluate_prmbench(ITEMS, CALLED, scorer="hand", bootstrap=NONE)
    multi = next(c for c in result.classes if c.name == "multi_solutions")
    assert multi.prm_score.value is None
    assert multi.prm_score.note == "no wrong steps"
    assert multi.accuracy.value == 0.5
    assert result.class_mean == pytest.approx(0.375 + 1 / 3)  # circular alone


def test_correct_items_stay_out_of_the_total_and_multi_solutions_is_in() -> None:
    result = evaluate_prmbench(ITEMS, CALLED, scorer="hand", bootstrap=NONE)
    assert result.total.counts == (4, 1, 2, 2)
    assert [c.name for c in result.classes] == ["circular", "multi_solutions", "correct"]
    assert result.classes[-1].accuracy.value == 1.0


def test_the_first_wrong_step_is_looked_at_alone() -> None:
    # a: step 2 called wrong (hit); b: step 1 called wrong (hit)
    assert evaluate_prmbench(ITEMS, CALLED, scorer="hand", bootstrap=NONE).first_error_accuracy.value == 1.0


def test_the_result_names_threshold_weight_and_source() -> None:
    result = evaluate_prmbench(
        ITEMS, CALLED, scorer="x", threshold=0.3, threshold_source="dev", bootstrap=NONE
    )
    assert (result.threshold, result.threshold_source, result.weight_right) == (0.3, "dev", 0.5)


def test_a_step_is_right_strictly_above_the_threshold() -> None:
    assert call_right([ITEMS[2]], [(0.5, 0.51)]) == [(False, True)]


def test_step_counts_and_scores_are_checked() -> None:
    with pytest.raises(StepCountError, match="item c: 3 scores"):
        call_right([ITEMS[2]], [(0.5, 0.5, 0.5)])
    with pytest.raises(ScoreRangeError, match="item c, step 1"):
        call_right([ITEMS[2]], [(0.5, float("nan"))])
    with pytest.raises(StepCountError, match="item c: 1 predictions"):
        evaluate_prmbench([ITEMS[2]], [(True,)], scorer="x")
    with pytest.raises(StepCountError, match="0 rows"):
        evaluate_prmbench(ITEMS, [], scorer="x")


def test_the_real_file_has_its_traps_handled(data_dir: Path) -> None:
    read = read_prmbench(data_dir / "prmbench" / "all_open_half.jsonl.gz")
    kinds = [i.classification for i in read.items]
    assert kinds.count("correct") == kinds.count("redundency") == 397
    assert len(read.doubled) == 3
    assert {i.split("_prm")[0] for i in read.doubled} == {"multi_solutions"}
    assert len(read.beyond) == 48
    assert all(max(i.wrong, default=0) < len(i.steps) for i in read.items)
    assert not any(i.wrong for i in read.items if i.classification in ("correct", "multi_solutions"))
    assert len({i.id for i in read.items}) == len(read.items) == 3646


def test_calling_every_step_right_scores_half_of_f1_right_on_real_data(data_dir: Path) -> None:
    read = read_prmbench(data_dir / "prmbench" / "subset400_open_half.jsonl")
    called = [(True,) * len(i.steps) for i in read.items]
    result = evaluate_prmbench(read.items, called, scorer="yes", bootstrap=NONE)
    counted = [i for i in read.items if i.classification != "correct"]
    wrong = sum(len(i.wrong) for i in counted)
    right = sum(len(i.steps) for i in counted) - wrong
    assert result.total.counts == (right, wrong, 0, 0)
    assert result.total.prm_score.value == pytest.approx(0.5 * 2 * right / (2 * right + wrong))
    assert result.total.f1_wrong.value == 0.0  # defined and 0: there are wrong steps, none was found


ROW = {
    "original_question": "q", "modified_question": "m", "original_process": ["a", "b"],
    "modified_process": ["a", "c", "d"], "error_steps": [2], "idx": "i1", "classification": "redundency",
}  # fmt: skip


def test_a_redundency_row_gives_a_correct_item_too(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(json.dumps(ROW) + "\n" + json.dumps({**ROW, "error_steps": [1, 9]}) + "\n")
    read = read_prmbench(path)
    assert [(i.id, i.problem, i.steps, set(i.wrong)) for i in read.items] == [
        ("redundency_i1", "m", ("a", "c", "d"), {1}),
        ("correct_i1", "q", ("a", "b"), set()),
    ]
    assert read.doubled == ("redundency_i1", "correct_i1")


@pytest.mark.parametrize(
    "change",
    [
        {"error_steps": [0]},
        {"error_steps": ["1"]},
        {"error_steps": None},
        {"modified_process": []},
        {"idx": 1},
    ],
)
def test_broken_rows_are_named(tmp_path: Path, change: dict[str, object]) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(json.dumps({**ROW, **change}) + "\n")
    with pytest.raises(BenchmarkFileError, match=r"p\.jsonl:1: " + next(iter(change))):
        read_prmbench(path)
