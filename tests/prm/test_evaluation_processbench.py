"""ProcessBench: published figures from real scores, thresholds, intervals and bad input."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepward.prm.evaluation.errors import (
    BenchmarkFileError,
    DifferentItemsError,
    DoubledItemsError,
    EmptySideError,
    ExtraItemsError,
    MissingItemsError,
    ScoreAfterErrorError,
    ScoreRangeError,
    StepCountError,
    TunedOnTestError,
)
from stepward.prm.evaluation.intervals import Bootstrap
from stepward.prm.evaluation.items import Item, apply_fixes, check_scores, join
from stepward.prm.evaluation.processbench import (
    difference,
    evaluate,
    oracle_sweep,
    predict,
    same_items,
    tune_threshold,
)
from stepward.prm.evaluation.readers.processbench import item_from_row, read_fixes, read_folder, read_items
from stepward.prm.evaluation.thresholds import choose_threshold, first_below, harmonic_mean

NONE = Bootstrap(num_resamples=0)


def make_item(name: str, first_error: int | None, num_steps: int = 4, **fields: str) -> Item:
    return Item(name, fields.get("problem", name), ("x",) * num_steps, first_error, fields.get("subset", "s"))


# P138's example: error items hit 2 of 4, correct items 3 of 4, F1 = 2 * .5 * .75 / 1.25 = .6
GOLD = [2, 0, 3, 1, None, None, None, None]
PRED = [2, None, 3, 0, None, None, None, 2]
ITEMS = [make_item(f"i{k}", gold) for k, gold in enumerate(GOLD)]


def test_f1_is_the_harmonic_mean_of_exact_error_accuracy_and_correct_accuracy() -> None:
    score = evaluate(ITEMS, PRED, scorer="hand", bootstrap=NONE).subsets[0]
    assert score.error_accuracy.value == 0.5
    assert score.correct_accuracy.value == 0.75
    assert score.f1.value == pytest.approx(0.6, abs=1e-15)
    assert (score.error_accuracy.n, score.correct_accuracy.n, score.f1.n) == (4, 4, 8)


def test_misses_are_told_apart() -> None:
    misses = evaluate(ITEMS, PRED, scorer="hand", bootstrap=NONE).misses
    # gold 2, 3 exact; gold 0 predicted none; gold 1 predicted 0; three correct kept; one correct flagged
    assert misses == {
        "exact": 2, "missed": 1, "too_early": 1, "too_late": 0, "none_right": 3, "false_alarm": 1, "undecided": 0,
    }  # fmt: skip


def test_an_undecided_item_is_a_miss_on_either_side_and_is_counted() -> None:
    result = evaluate(ITEMS, PRED, scorer="critic", undecided=frozenset({"i0", "i4"}), bootstrap=NONE)
    assert result.subsets[0].error_accuracy.value == 0.25  # i0 was a hit
    assert result.subsets[0].correct_accuracy.value == 0.5  # i4 was a hit
    assert result.num_undecided == 2
    assert result.misses["undecided"] == 2
    # Of the three decided erroneous ones one is hit (i2), of the three decided correct ones two: F1 = 2 / 3 * 2 / 3.
    for part in result.decided:
        assert (part.error_accuracy.value, part.correct_accuracy.value) == pytest.approx((1 / 3, 2 / 3))
        assert (part.f1.value, part.f1.n) == (pytest.approx(4 / 9), 6)
    assert [part.name for part in result.decided] == ["s", "macro"]
    assert evaluate(ITEMS, PRED, scorer="critic", bootstrap=NONE).decided == ()


def test_a_scorer_that_decided_nothing_has_not_reached_zero() -> None:
    nothing = frozenset(item.id for item in ITEMS)
    result = evaluate(ITEMS, PRED, scorer="critic", undecided=nothing, bootstrap=Bootstrap(50))
    for part in (*result.subsets, result.macro, *result.by_position, *result.by_generator):
        for found in (part.error_accuracy, part.correct_accuracy, part.f1):
            assert found.value is None
            assert found.note == "nothing was decided"
    assert result.decided == ()
    assert (result.num_undecided, result.misses["undecided"]) == (8, 8)
    gap = difference(ITEMS, PRED, PRED, undecided_b=nothing, bootstrap=Bootstrap(50))
    assert [(name, m.value, m.note) for name, m in gap.items()] == [
        ("s", None, "nothing was decided"),
        ("macro", None, "nothing was decided"),
    ]


def test_a_macro_whose_items_all_agree_has_an_interval_with_width() -> None:
    # Four erroneous items missed, four correct ones kept; Wilson's interval of 0 of 4 ends at z^2 / (4 + z^2) = .4899.
    result = evaluate(ITEMS, [None] * 8, scorer="never", bootstrap=Bootstrap(50))
    error, correct, f1 = result.macro.error_accuracy, result.macro.correct_accuracy, result.macro.f1
    assert (error.value, error.low, error.high) == pytest.approx((0.0, 0.0, 0.4899), abs=1e-4)
    assert (correct.value, correct.low, correct.high) == pytest.approx((1.0, 0.5101, 1.0), abs=1e-4)
    # F1 is 0 at both lower ends and 2 * .4899 / 1.4899 at both upper ends.
    assert (f1.value, f1.low, f1.high) == pytest.approx((0.0, 0.0, 0.6576), abs=1e-4)
    assert result.subsets[0].f1.high == f1.high


def test_an_empty_side_leaves_f1_undefined_and_says_so() -> None:
    result = evaluate(ITEMS[:4], PRED[:4], scorer="hand", bootstrap=Bootstrap(50))
    assert result.subsets[0].f1.value is None
    assert "no correct items" in result.subsets[0].f1.note
    assert result.subsets[0].error_accuracy.value == 0.5
    assert result.macro.f1.value is None
    assert "undefined" in str(result.macro.f1)


def test_f1_is_zero_and_defined_where_both_accuracies_are_zero() -> None:
    result = evaluate(ITEMS[3:5], [0, 0], scorer="hand", bootstrap=NONE)
    assert result.subsets[0].f1.value == 0.0


def test_macro_is_the_mean_over_subsets_not_over_items() -> None:
    a = [make_item(f"a{k}", e, subset="a") for k, e in enumerate([0, None])]
    b = [make_item(f"b{k}", e, subset="b") for k, e in enumerate([0, 0, 0, None, None, None])]
    result = evaluate([*a, *b], [0, None, 1, 1, 0, 1, None, None], scorer="hand", bootstrap=NONE)
    # a: 1, 1 -> 1.  b: 1/3 and 2/3 -> 2 * 2/9 / 1 = 4/9.  macro F1 = 13/18
    assert result.macro.f1.value == pytest.approx(13 / 18)
    assert result.macro.error_accuracy.value == pytest.approx(2 / 3)


def test_generators_and_positions_are_broken_down_in_order() -> None:
    items = [
        Item("a", "a", ("x",) * 20, 17, "s", "beta"),
        Item("b", "b", ("x",) * 20, 10, "s", "alpha"),
        Item("c", "c", ("x",) * 20, 0, "s", "alpha"),
        Item("d", "d", ("x",) * 20, None, "s", "alpha"),
    ]
    result = evaluate(items, [17, 3, 0, None], scorer="hand", bootstrap=NONE)
    assert [g.name for g in result.by_generator] == ["alpha", "beta"]
    assert result.by_generator[0].error_accuracy.value == 0.5
    assert [p.name for p in result.by_position] == ["step 0", "steps 9-16", "steps 17+", "no error"]
    assert [p.error_accuracy.value for p in result.by_position] == [1.0, 0.0, 1.0, None]


# --- thresholds


def test_a_threshold_lies_midway_between_wrong_and_right_scores() -> None:
    chosen = choose_threshold([[0.2], [0.4], [0.6], [0.8]], [0, 0, None, None], source="dev")
    assert chosen.value == 0.5
    assert chosen.source == "dev"
    assert chosen.f1 == 1.0


def test_a_step_at_the_threshold_is_not_below_it() -> None:
    assert first_below([0.5, 0.4999], 0.5) == 1
    assert first_below([0.5, 0.5], 0.5) is None


def test_scores_of_one_everywhere_can_still_be_called_wrong() -> None:
    # The only way to hit the erroneous item is a threshold above 1, which loses every correct item: F1 = 0
    # anyway, so the threshold is one that at least keeps a width.
    chosen = choose_threshold([[1.0], [1.0]], [0, None])
    assert chosen.f1 == 0.0
    # Here flagging scores of exactly 1 is not needed: .9 wrong against 1 right.
    assert choose_threshold([[0.9], [1.0]], [0, None]).value == pytest.approx(0.95)


@st.composite
def solutions(draw: st.DrawFn) -> tuple[list[list[float]], list[int | None]]:
    grid = st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0])
    scores = draw(st.lists(st.lists(grid, min_size=1, max_size=4), min_size=2, max_size=8))
    labels: list[int | None] = [draw(st.integers(0, len(row) - 1)) for row in scores[:-1]]
    labels = [draw(st.sampled_from([e, None])) for e in labels] + [None]
    labels[0] = draw(st.integers(0, len(scores[0]) - 1))
    return scores, labels


def f1_at(scores: list[list[float]], labels: list[int | None], threshold: float) -> float:
    hits = [first_below(row, threshold) == label for row, label in zip(scores, labels, strict=True)]
    error = [h for h, label in zip(hits, labels, strict=True) if label is not None]
    correct = [h for h, label in zip(hits, labels, strict=True) if label is None]
    return harmonic_mean(sum(error) / len(error), sum(correct) / len(correct))


@given(solutions())
def test_no_threshold_beats_the_chosen_one(case: tuple[list[list[float]], list[int | None]]) -> None:
    scores, labels = case
    chosen = choose_threshold(scores, labels)
    tried = [k / 200 for k in range(203)]
    assert chosen.f1 is not None
    assert f1_at(scores, labels, chosen.value) == pytest.approx(chosen.f1, abs=1e-12)
    assert max(f1_at(scores, labels, t) for t in tried) <= chosen.f1 + 1e-12


@pytest.mark.parametrize(("labels", "empty"), [([None, None], "0 erroneous"), ([0, 0], "0 correct")])
def test_no_threshold_is_chosen_without_both_sides(labels: list[int | None], empty: str) -> None:
    with pytest.raises(EmptySideError, match=empty):
        choose_threshold([[0.1], [0.2]], labels, source="dev")


def test_minus_one_is_no_label_inside_the_package() -> None:
    with pytest.raises(StepCountError, match="None for no error"):
        choose_threshold([[0.1], [0.2]], [-1, 0])


def test_a_threshold_that_saw_the_problems_is_refused_until_it_is_called_an_oracle() -> None:
    items = [make_item("a", 0, problem="Two  plus two?"), make_item("b", None, problem="three?")]
    scores = [(0.1, 0.9, 0.9, 0.9), (0.9,) * 4]
    tuned = tune_threshold(items, scores, source="dev")
    # Another solution of the same problem, under another name and another spacing.
    other = [make_item("c", 0, problem="two plus TWO?")]
    with pytest.raises(TunedOnTestError, match="oracle=True"):
        evaluate(other, [0], scorer="hand", threshold=tuned)
    assert evaluate(other, [0], scorer="hand", threshold=tuned, oracle=True, bootstrap=NONE).oracle
    with pytest.raises(TunedOnTestError):
        evaluate([make_item("d", 0, subset="dev")], [0], scorer="hand", threshold=tuned)
    assert not evaluate([make_item("e", 0)], [0], scorer="hand", threshold=tuned, bootstrap=NONE).oracle


# --- real scores


Logs = tuple[dict[str, Item], dict[tuple[str, str], list[dict]]]


@pytest.fixture(scope="module")
def logged(data_dir: Path) -> Logs:
    items = {item.id: item for item in read_folder(data_dir / "processbench")}
    groups: dict[tuple[str, str], list[dict]] = {}
    with (data_dir / "processbench_logs" / "fover_step_scores.jsonl").open() as file:
        for row in map(json.loads, file):
            groups.setdefault((row["model"], row["split"]), []).append(row)
    return items, groups


@pytest.mark.parametrize("which", ["thr_0_5", "at_best_gsm8k"])
def test_real_step_scores_of_eleven_models_reproduce(logged: Logs, data_dir: Path, which: str) -> None:
    items, groups = logged
    expected = json.loads((data_dir / "processbench_logs" / "expected_metrics_open_half.json").read_text())
    assert len(expected) == 44
    for row in expected:
        rows = groups[row["model"], row["split"]]
        part = [items[r["id"]] for r in rows]
        assert [-1 if i.first_error is None else i.first_error for i in part] == [r["label"] for r in rows]
        scores = check_scores(part, [r["scores_to_first_error"] for r in rows], extent="to_first_error")
        threshold = 0.5 if which == "thr_0_5" else row["thr_best_gsm8k"]
        score = evaluate(part, predict(scores, threshold), scorer=row["model"], bootstrap=NONE).subsets[0]
        want = row[which]
        assert (score.error_accuracy.n, score.correct_accuracy.n) == (want["n_error"], want["n_correct"])
        for got, name in (
            (score.error_accuracy, "acc_error"),
            (score.correct_accuracy, "acc_correct"),
            (score.f1, "f1"),
        ):
            assert got.value == pytest.approx(want[name], abs=1e-9)


def test_the_threshold_found_on_gsm8k_is_at_least_as_good_there_as_upstreams(
    logged: Logs, data_dir: Path
) -> None:
    items, groups = logged
    expected = json.loads((data_dir / "processbench_logs" / "expected_metrics_open_half.json").read_text())
    for row in (r for r in expected if r["split"] == "gsm8k"):
        rows = groups[row["model"], "gsm8k"]
        part = [items[r["id"]] for r in rows]
        tuned = tune_threshold(part, [r["scores_to_first_error"] for r in rows], source="gsm8k")
        assert tuned.f1 is not None
        assert tuned.f1 >= row["at_best_gsm8k"]["f1"] - 1e-12


def test_published_f1_follows_from_the_published_accuracies(data_dir: Path) -> None:
    table = json.loads((data_dir / "processbench" / "published_table.json").read_text())["results"]
    off_by_more_than_a_digit = []
    for model, subsets in table.items():
        for subset, row in subsets.items():
            a, b = row["error"], row["correct"]
            # Accuracies are rounded to .1, so F1 is known to lie between the two corners' values.
            low, high = harmonic_mean(a - 0.05, b - 0.05), harmonic_mean(a + 0.05, b + 0.05)
            assert low - 0.05 <= row["F1"] <= high + 0.05, (model, subset)
            if abs(harmonic_mean(a, b) - row["F1"]) > 0.1:
                off_by_more_than_a_digit.append((model, subset))
    assert off_by_more_than_a_digit == [("Meta-Llama-3-8B-Instruct", "olympiadbench")]


def test_the_real_files_are_read_whole_and_the_final_answer_is_not_the_label(data_dir: Path) -> None:
    items = read_folder(data_dir / "processbench")
    sizes = {s: sum(i.subset == s for i in items) for s in ("gsm8k", "math", "olympiadbench", "omnimath")}
    assert sizes == {"gsm8k": 192, "math": 489, "olympiadbench": 509, "omnimath": 485}
    assert sum(i.final_answer_correct is True and i.first_error is not None for i in items) == 254
    assert sum(i.final_answer_correct is False and i.first_error is None for i in items) == 0


def test_label_fixes_give_a_second_named_score(data_dir: Path) -> None:
    items = list(read_items(data_dir / "processbench" / "math.jsonl"))
    fixes = read_fixes(data_dir / "processbench" / "label_fixes.json")
    assert fixes == {"math-688": 0}
    if "math-688" not in {i.id for i in items}:
        items.append(make_item("math-688", 2, subset="math"))
    fixed = apply_fixes(items, fixes)
    predictions = [i.first_error for i in items]  # a scorer that agrees with the published labels everywhere
    published = evaluate(items, predictions, scorer="x", bootstrap=NONE)
    corrected = evaluate(fixed, predictions, scorer="x", bootstrap=NONE, labels="label_fixes.json")
    assert published.subsets[0].f1.value == 1.0
    assert corrected.subsets[0].f1.value is not None
    assert corrected.subsets[0].f1.value < 1.0
    assert (published.labels, corrected.labels) == ("published", "label_fixes.json")
    with pytest.raises(DifferentItemsError, match="math-688"):
        same_items(items, fixed)


def test_the_oracle_sweep_is_marked(logged: Logs) -> None:
    items, groups = logged
    rows = groups["Qwen2.5-Math-PRM-7B", "math"]
    part = [items[r["id"]] for r in rows]
    (result,) = oracle_sweep(
        part, [tuple(r["scores_to_first_error"]) for r in rows], scorer="q", bootstrap=NONE
    )
    assert result.oracle
    assert result.threshold is not None
    assert "oracle" in result.threshold.source


# --- intervals


def test_intervals_are_seeded_and_hold_the_point() -> None:
    rng = np.random.default_rng(0)
    items = [make_item(f"i{k}", int(rng.integers(4)) if k % 2 else None) for k in range(200)]
    predictions = [i.first_error if rng.random() < 0.7 else 3 for i in items]
    a, b, c = (
        evaluate(items, predictions, scorer="x", bootstrap=Bootstrap(400, seed)).subsets[0].f1
        for seed in (1, 1, 2)
    )
    assert (a.low, a.high) == (b.low, b.high)
    assert (a.low, a.high) != (c.low, c.high)
    assert a.low is not None
    assert a.high is not None
    assert a.value is not None
    assert a.low < a.value < a.high


def test_solutions_of_one_problem_are_resampled_together() -> None:
    # 40 problems with 10 equal solutions each tell as much as 40 solutions, not as 400.
    alone = [make_item(f"a{k}", 0 if k % 2 else None) for k in range(40)]
    hits = [item.first_error if k % 4 < 2 else 1 for k, item in enumerate(alone)]
    copies = [make_item(f"{i.id}-{c}", i.first_error, problem=i.problem) for i in alone for c in range(10)]
    one = evaluate(alone, hits, scorer="x", bootstrap=Bootstrap(4000)).subsets[0].f1
    ten = (
        evaluate(copies, [h for h in hits for _ in range(10)], scorer="x", bootstrap=Bootstrap(4000))
        .subsets[0]
        .f1
    )
    assert one.value == ten.value
    assert one.low is not None and one.high is not None and ten.low is not None and ten.high is not None  # noqa: PT018
    assert ten.high - ten.low == pytest.approx(one.high - one.low, rel=0.1)


def test_perfect_accuracy_on_few_items_has_an_interval_with_width() -> None:
    items = [make_item(f"i{k}", None) for k in range(6)] + [make_item("e", 0)]
    score = evaluate(items, [None] * 6 + [0], scorer="x", bootstrap=Bootstrap(100)).subsets[0]
    # Wilson for 6 of 6 at 95 %: low = 1 / (1 + 1.959964^2 / 6) = 0.6097
    assert score.correct_accuracy.low == pytest.approx(0.6097, abs=1e-4)
    assert score.correct_accuracy.high == 1.0


def test_the_difference_of_a_scorer_with_itself_is_exactly_zero() -> None:
    gaps = difference(ITEMS, PRED, PRED, bootstrap=Bootstrap(100))
    assert all((m.value, m.low, m.high) == (0.0, 0.0, 0.0) for m in gaps.values())


def test_a_paired_difference_is_sharper_than_two_intervals() -> None:
    rng = np.random.default_rng(3)
    items = [make_item(f"i{k}", int(rng.integers(4)) if k % 2 else None) for k in range(400)]
    b = [i.first_error if rng.random() < 0.5 else 3 for i in items]
    a = [i.first_error if k % 10 == 0 else p for k, (i, p) in enumerate(zip(items, b, strict=True))]
    gap = difference(items, a, b, bootstrap=Bootstrap(1000))["s"]
    f1_a = evaluate(items, a, scorer="a", bootstrap=Bootstrap(1000)).subsets[0].f1
    assert gap.low is not None and gap.high is not None and f1_a.low is not None and f1_a.high is not None  # noqa: PT018
    assert gap.low > 0
    assert gap.high - gap.low < (f1_a.high - f1_a.low) * 0.8


# --- bad input


def test_missing_extra_and_doubled_items_are_named() -> None:
    items = [make_item("a", 0), make_item("b", None)]
    assert join(items, {"b": 1, "a": 2}) == [2, 1]
    with pytest.raises(MissingItemsError, match="b") as missing:
        join(items, {"a": 1})
    assert missing.value.ids == ("b",)
    with pytest.raises(ExtraItemsError, match="zz"):
        join(items, {"a": 1, "b": 2, "zz": 3})
    with pytest.raises(DoubledItemsError, match="a"):
        join(items, [("a", 1), ("b", 2), ("a", 3)])
    with pytest.raises(DoubledItemsError):
        join([*items, items[0]], {"a": 1, "b": 2})


@pytest.mark.parametrize("count", [0, 3, 5])
def test_another_number_of_scores_than_steps_is_refused(count: int) -> None:
    with pytest.raises(StepCountError, match="item a"):
        check_scores([make_item("a", 1)], [[0.5] * count])


def test_scores_behind_the_first_error_are_refused_where_scores_stop_there() -> None:
    item = make_item("a", 1)
    assert check_scores([item], [[0.5, 0.4]], extent="to_first_error") == [(0.5, 0.4)]
    with pytest.raises(ScoreAfterErrorError, match="first error is step 1"):
        check_scores([item], [[0.5, 0.4, 0.3]], extent="to_first_error")
    with pytest.raises(StepCountError):
        check_scores([item], [[0.5]], extent="to_first_error")


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -0.01, 1.01, None, "0.5", True])
def test_a_score_that_is_no_probability_is_refused_with_its_step(bad: object) -> None:
    with pytest.raises(ScoreRangeError, match="item a, step 2"):
        check_scores([make_item("a", 1)], [[0.5, 0.5, bad, 0.5]])  # type: ignore[list-item]


def test_numpy_scores_are_numbers_too() -> None:
    assert check_scores([make_item("a", 1)], [np.array([0.5, 0.25, 0, 1], dtype=np.float32)]) == [
        (0.5, 0.25, 0, 1)
    ]


def test_as_many_predictions_as_items_are_needed() -> None:
    with pytest.raises(StepCountError, match="1 predictions for 8 items"):
        evaluate(ITEMS, [None], scorer="x")


ROW = {
    "id": "x-1",
    "generator": "g",
    "problem": "p",
    "steps": ["a", "b"],
    "final_answer_correct": True,
    "label": 1,
}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"label": 2}, "first_error 2 with 2 steps"),
        ({"label": -2}, "label -2"),
        ({"label": "1"}, "label is '1'"),
        ({"label": True}, "label is True"),
        ({"steps": []}, "no steps"),
        ({"steps": ["a", None]}, "list of texts"),
        ({"steps": "ab"}, "steps is 'ab'"),
        ({"id": 3}, "id is 3"),
    ],
)
def test_a_broken_row_is_named_with_file_and_line(
    tmp_path: Path, change: dict[str, object], named: str
) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text(json.dumps(ROW) + "\n\n" + json.dumps({**ROW, "id": "x-2", **change}) + "\n")
    with pytest.raises(BenchmarkFileError, match=named) as fault:
        read_items(path)
    assert str(fault.value).startswith("mine.jsonl:3: ")


def test_rows_may_stand_in_one_json_list(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps([ROW, {**ROW, "id": "x-2", "label": -1}]))
    assert [i.first_error for i in read_items(path, subset="own")] == [1, None]
    path.write_text("[1]")
    with pytest.raises(BenchmarkFileError, match="no object"):
        read_items(path)
    path.write_text("[{")
    with pytest.raises(BenchmarkFileError, match="not JSON"):
        read_items(path)
    path.write_text("")
    with pytest.raises(BenchmarkFileError, match="no rows"):
        read_items(path)


def test_doubled_ids_in_a_file_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text(json.dumps(ROW) + "\n" + json.dumps(ROW) + "\n")
    with pytest.raises(DoubledItemsError, match="x-1"):
        read_items(path)


def test_a_row_without_a_known_final_answer_keeps_it_unknown() -> None:
    row = {k: v for k, v in ROW.items() if k != "final_answer_correct"}
    assert item_from_row(row, subset="s").final_answer_correct is None


def test_fixes_without_a_label_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "fixes.json"
    path.write_text('{"a": {"to": null}}')
    with pytest.raises(BenchmarkFileError, match="a: 'to' is None"):
        read_fixes(path)
    path.write_text('{"a": {"to": -1}}')
    assert read_fixes(path) == {"a": None}
