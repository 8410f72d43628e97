"""Contamination, duplicates, splits, statistics, and our labels against those that people gave."""

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepward.prm.audit.contamination import benchmarks_in, build_index, check_problems
from stepward.prm.audit.hygiene import find_duplicates, split_of, statistics
from stepward.prm.audit.labels import apply_corrections, audit_labels, sample_rows
from stepward.prm.audit.text_match import key_of, words
from stepward.prm.dataset.store import Manifest, ShardStore, open_dataset, verify
from stepward.prm.errors import ConfigError, FormatError
from stepward.prm.evaluation.intervals import Bootstrap
from stepward.prm.evaluation.items import Item
from stepward.prm.formats.foreign import contract_row, foreign_problem, labels_to_first_error
from stepward.prm.problems import read_problems
from stepward.prm.types import Allocation, LabeledSolution, LabelerInfo, Problem

DUCKS = (
    "Janet's ducks lay 16 eggs per day. She eats three for breakfast every morning and bakes muffins for her friends "
    "every day with four. How much does she make every day?"
)
TRAIN = "A train travels 270 miles in 3 hours at a steady speed. How many hours does it need for another 180 miles?"


def problem(text: str, name: str = "p") -> Problem:
    return Problem(name, text)


def test_case_blanks_latex_signs_and_commas_do_not_make_another_problem():
    assert key_of("Find  $x$ if\n1,000 = x.") == key_of("find x if 1000 = x")
    assert key_of("a + b") != key_of("a - b")
    assert words("It’s 3.5, no") == words("It's 3.5 , no")


def test_a_benchmark_problem_is_found_exactly_and_with_other_numbers():
    index = build_index({"gsm": [DUCKS], "math": ["Find the number of ways to seat five people."]})
    exact = index.find(problem("JANET's ducks lay 16 eggs per day." + DUCKS[34:]))
    assert exact is not None
    assert (exact.benchmark, exact.kind, exact.overlap) == ("gsm", "exact", 1.0)
    near = index.find(problem(DUCKS.replace("16", "23").replace("four", "many")))
    assert near is not None
    assert (near.benchmark, near.kind) == ("gsm", "near")
    assert 0.5 <= near.overlap < 1
    assert index.find(problem(TRAIN)) is None


def test_a_short_problem_matches_exactly_or_not_at_all():
    index = build_index({"b": ["What is 3 + 4 and then 5?"]})
    assert index.find(problem("What is 6 + 7 and then 8?")) is None
    assert index.find(problem("what is 3+4 and then 5")) is not None


def test_a_report_counts_by_benchmark_and_kind_and_names_the_problems():
    index = build_index({"gsm": [DUCKS, TRAIN]})
    asked = [problem(DUCKS, "a"), problem(TRAIN.replace("270", "360"), "b"), problem("Something else.", "c")]
    note = check_problems([*asked, asked[0]], index).note()
    assert (note["checked"], note["exact"], note["near"]) == (3, {"gsm": 1}, {"gsm": 1})
    assert [m[0] for m in note["matches"]] == ["a", "b"]


@pytest.mark.slow
def test_public_benchmarks_find_themselves_and_not_the_training_set(data_dir):
    index = build_index(benchmarks_in(data_dir))
    assert index.sizes["gsm8k_test"] == 1319
    tests = check_problems(read_problems(data_dir / "problems" / "math500_test.jsonl"), index)
    assert sum(m.kind == "exact" for m in tests.matches) == 500
    train = check_problems(read_problems(data_dir / "problems" / "gsm8k_train.jsonl"), index)
    assert len(train.matches) < 10


def test_duplicates_are_grouped_exactly_and_paired_nearly():
    texts = {
        "a": DUCKS,
        "b": DUCKS.upper(),
        "c": TRAIN,
        "d": TRAIN.replace("train", "bus"),
        "e": "Other text here.",
    }
    found = find_duplicates(problem(text, name) for name, text in texts.items())
    assert found.exact == [("a", "b")]
    assert [pair[:2] for pair in found.near] == [("c", "d")]
    assert found.checked == 5


@given(st.text(max_size=40), st.integers(0, 5))
def test_the_same_problem_is_always_in_the_same_split(text, seed):
    shares = {"train": 0.8, "test": 0.2}
    assert split_of(text, shares, seed=seed) == split_of(f"  {text.upper()}\n", shares, seed=seed) or (
        key_of(text) != key_of(text.upper())
    )


def test_splits_have_about_their_shares_and_refuse_shares_that_do_not_add_up():
    counts = Counter(split_of(f"problem {i}", {"train": 0.9, "test": 0.1}) for i in range(2000))
    # binomial, n = 2000, p = .1: mean 200, three standard deviations are 40
    assert 160 <= counts["test"] <= 240
    with pytest.raises(ConfigError, match="add up"):
        split_of("a", {"train": 0.9, "test": 0.2})


def solution(number: int, first_error: int | None, num_steps: int = 3, **kwargs) -> LabeledSolution:
    return contract_row(
        foreign_problem(f"Problem {number}", source="s"),
        [f"step {number}.{t}" for t in range(num_steps)],
        kwargs.pop("labels", labels_to_first_error(first_error, num_steps)),
        solution_id=f"s{number}",
        labeler="x",
        decided_by="returns",
        **kwargs,
    )


def item(number: int, first_error: int | None, num_steps: int = 3) -> Item:
    steps = tuple(f"step {number}.{t}" for t in range(num_steps))
    return Item(f"i{number}", f"problem {number}", steps, first_error, subset="human")


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    manifest = Manifest({}, "1", Allocation.FIXED_K, LabelerInfo("x", "1", ""))
    with ShardStore.create_or_resume(tmp_path / "d", manifest) as store:
        store.write_shard(0, [solution(0, 1), solution(1, None)])
        store.write_shard(1, [solution(2, 0, 2), solution(3, None, 2, labels=[None, None])])
        store.seal()
    return tmp_path / "d"


def test_statistics_count_labels_by_position(stored):
    found = statistics(open_dataset(stored))
    # steps 3, 3, 2, 2; labels 1 0 ? | 1 1 1 | 0 ? | ? ?
    assert found["steps"]["mean"] == 2.5
    assert found["label_by_position"] == {
        0: {"right": 2, "wrong": 1, "unknown": 1},
        1: {"wrong": 1, "right": 1, "unknown": 2},
        2: {"unknown": 1, "right": 1},
    }
    assert found["first_error_by_position"] == {None: 2, 0: 1, 1: 1}
    assert found["decided_by"] == {"returns": 6, "unknown": 4}
    assert found["solutions_per_problem"] == {1: 4}


def test_our_labels_are_scored_against_those_that_people_gave():
    rows = [
        solution(0, 1),  # they say 1: right
        solution(1, 2),  # they say 1: too late
        solution(2, None),  # they say none: right
        solution(3, None, labels=[1, None, 1]),  # they say none: we do not know
        solution(9, 0),  # nobody annotated it
    ]
    items = [item(0, 1), item(1, 1), item(2, None), item(3, None), item(8, None)]
    found = audit_labels(rows, items, bootstrap=Bootstrap(num_resamples=50))
    assert (found.paired, found.undecided, found.only_ours, found.only_theirs) == (4, 1, 1, 1)
    assert found.confusion == {("1", "1"): 1, ("1", "2"): 1, ("none", "none"): 1, ("none", "unknown"): 1}
    # errors 1 of 2, correct 1 of 2: the harmonic mean of .5 and .5
    assert found.score.subsets[0].f1.value == pytest.approx(0.5)
    assert found.disagreements == {("1", "2", "returns"): ["s1"], ("none", "unknown", "nothing"): ["s3"]}
    assert found.calibration is None


def test_an_audit_calibrates_what_the_rows_say_of_each_step():
    values = [[None, 0.9, 0.1, 0.0], [None, 0.9, 0.9, 0.8]]
    rows = [solution(0, 1, values=values[0]), solution(1, None, values=values[1])]
    found = audit_labels(rows, [item(0, 1), item(1, None)], bootstrap=Bootstrap(num_resamples=50))
    assert found.calibrated == "value"
    assert found.calibration is not None
    # steps up to the first error: .9 right, .1 wrong; then .9 .9 .8 right
    assert found.calibration.num_steps == 5
    assert found.calibration.brier.value == pytest.approx((0.01 + 0.01 + 0.01 + 0.01 + 0.04) / 5)
    by_error = [
        replace(row, labels=tuple(replace(s, p_first_error=p) for s, p in zip(row.labels, ps, strict=True)))
        for row, ps in zip(rows, ((0.25, 0.5, 0.25), (0.0, 0.0, 0.5)), strict=True)
    ]
    found = audit_labels(by_error, [item(0, 1), item(1, None)], bootstrap=Bootstrap(num_resamples=50))
    assert found.calibrated == "p_first_error"
    assert found.calibration is not None
    # P(right): .75, .25 | 1, 1, .5
    assert found.calibration.brier.value == pytest.approx((0.0625 + 0.0625 + 0 + 0 + 0.25) / 5)


def test_an_audit_of_other_solutions_says_how_they_are_paired():
    with pytest.raises(FormatError, match="paired by problem and step texts"):
        audit_labels([solution(0, 1)], [item(5, 1)])


def test_a_sample_of_fifty_does_not_depend_on_the_order_of_rows():
    # openai/prm800k#12
    rows = [solution(i, i % 3) for i in range(400)]
    shuffled = rows[:]
    random.Random(1).shuffle(shuffled)
    sample = sample_rows(rows, 50, seed=0)
    assert sample == sample_rows(shuffled, 50, seed=0)
    assert len(sample) == len({r["solution_id"] for r in sample}) == 50
    assert sample != sample_rows(rows, 50, seed=1)
    assert {"problem", "steps", "first_error", "corrected_first_error"} <= set(sample[0])
    assert {"label", "evidence", "decided_by"} <= set(sample[0]["steps"][0])


def test_corrections_make_a_new_dataset_and_leave_the_old_one(stored, tmp_path):
    # openai/prm800k#12
    before = open_dataset(stored)
    rows = [
        {"solution_id": "s0", "corrected_first_error": -1},
        {"solution_id": "s1", "corrected_first_error": None},
    ]
    sealed = apply_corrections(before, rows, tmp_path / "new")
    assert sealed.derived_from["fingerprint"] == before.manifest.fingerprint
    first, *others = open_dataset(tmp_path / "new").solutions()
    assert first.first_error is None
    assert [(s.label, s.decided_by) for s in first.labels] == [(1, "correction")] * 3
    assert others == list(before.solutions())[1:]
    assert next(before.solutions()).first_error == 1
    assert verify(stored).ok


@pytest.mark.parametrize(
    ("correction", "what"),
    [
        ({"solution_id": "s0", "corrected_first_error": 3}, "from 0 to 2"),
        ({"solution_id": "s0", "corrected_first_error": "1"}, "'1'"),
        ({"solution_id": "gone", "corrected_first_error": 0}, "gone"),
    ],
)
def test_a_correction_that_fits_nothing_is_named(stored, tmp_path, correction, what):
    with pytest.raises(FormatError, match=what):
        apply_corrections(open_dataset(stored), [correction], tmp_path / "new")
