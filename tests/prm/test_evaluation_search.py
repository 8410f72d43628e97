"""Results of searches: measures by hand, the folder, its page, and two folders compared."""

import json

import pyarrow.parquet as pq
import pytest

from stepward.prm.evaluation.compare import compare_folders
from stepward.prm.evaluation.errors import DifferentItemsError, DoubledItemsError, EvaluationError
from stepward.prm.evaluation.intervals import Bootstrap
from stepward.prm.evaluation.search_folder import write_search
from stepward.prm.evaluation.search_results import (
    SearchedProblem,
    SearchResults,
    SearchRun,
    summaries,
)


def searched(name, right, *, best=None, generated=10, scored=20, answer="7", fault=None):
    row = {
        "steps": ["a <b>step</b>"], "complete": True, "step_scores": [0.5], "score": 0.5, "answer": answer,
        "num_votes": 1, "right": right,
    }  # fmt: skip
    return SearchedProblem(
        name, right, right if best is None else best, right, answer, generated, scored, 1, 0, 2, 3, 0, fault, (row,)
    )  # fmt: skip


def results(*runs, title="Search"):
    return SearchResults(title, runs, Bootstrap(200), {"policy": "script"})


FIRST = SearchRun("majority", {}, 40, tuple(searched(f"p{i}", i < 2, scored=0) for i in range(4)))
SECOND = SearchRun("beam", {"beams": 2}, 40, tuple(searched(f"p{i}", i != 3) for i in range(4)))


def test_accuracy_tokens_and_the_paired_difference_to_the_first_run_of_the_same_budget():
    first, second = summaries(results(FIRST, SECOND))
    assert (first.accuracy.value, first.over_first) == (0.5, None)
    assert second.accuracy.value == 0.75
    # right on p0, p1, p2 against p0, p1: one of four more
    assert second.over_first is not None
    assert second.over_first.value == 0.25
    assert (second.generated_tokens, second.scored_tokens, second.most_tokens) == (10, 20, 30)


def test_a_problem_of_unknown_outcome_leaves_the_accuracy_and_is_counted():
    run = SearchRun(
        "beam",
        {},
        40,
        (searched("p0", True), searched("p1", None, answer=None, fault="500"), searched("p2", False)),
    )
    (found,) = summaries(results(run))
    # 1 of 2 known, not 1 of 3
    assert found.accuracy.value == 0.5
    assert (found.num_problems, found.num_unknown, found.num_without_answer) == (3, 1, 1)


def test_the_folder_holds_every_problem_and_candidate_and_the_same_bytes_again(tmp_path):
    files = write_search(tmp_path / "a", results(FIRST, SECOND))
    assert [f.name for f in files] == [
        "results.json",
        "searched.parquet",
        "candidates.parquet",
        "report.html",
    ]
    rows = pq.read_table(tmp_path / "a" / "searched.parquet").to_pylist()
    assert len(rows) == 8
    assert {r["run"] for r in rows} == {"majority 40", "beam 40"}
    assert pq.read_table(tmp_path / "a" / "candidates.parquet").num_rows == 8
    summary = json.loads((tmp_path / "a" / "results.json").read_text())
    assert summary["runs"][1]["accuracy"]["value"] == 0.75
    write_search(tmp_path / "b", results(FIRST, SECOND))
    for file in files:
        assert file.read_bytes() == (tmp_path / "b" / file.name).read_bytes()


def test_the_page_shows_plots_needs_nothing_from_outside_and_escapes_what_a_model_wrote(tmp_path):
    again = SearchRun("beam", {}, 80, SECOND.problems)
    write_search(tmp_path, results(FIRST, SECOND, again, title="<script>alert(1)</script>"))
    page = (tmp_path / "report.html").read_text()
    assert page.count("<svg") == 3
    assert "Accuracy against tokens" in page
    assert "<script" not in page
    assert "http" not in page.replace("http-equiv", "")


def test_two_searches_are_compared_problem_by_problem(tmp_path):
    write_search(tmp_path / "a", results(SECOND))
    write_search(tmp_path / "b", results(FIRST))
    found = compare_folders(tmp_path / "a", tmp_path / "b")
    gap = found.searches["beam 40", "majority 40"]
    assert gap.accuracy.value == 0.25
    # 30 tokens a problem against 10
    assert gap.tokens.value == 20
    assert gap.num_left_out == 0
    assert found.f1 == {}


def test_runs_of_one_name_are_compared_with_each_other_and_unknown_pairs_are_left_out(tmp_path):
    write_search(tmp_path / "a", results(FIRST, SECOND))
    unknown = tuple(searched(f"p{i}", None if i == 0 else False) for i in range(4))
    write_search(tmp_path / "b", results(FIRST, SearchRun("beam", {}, 40, unknown)))
    found = compare_folders(tmp_path / "a", tmp_path / "b").searches
    assert set(found) == {("majority 40", "majority 40"), ("beam 40", "beam 40")}
    # p1, p2 right against wrong, p3 wrong twice
    assert found["beam 40", "beam 40"].accuracy.value == pytest.approx(2 / 3)
    assert found["beam 40", "beam 40"].num_left_out == 1


def test_other_problems_doubled_problems_and_empty_searches_are_refused(tmp_path):
    write_search(tmp_path / "a", results(FIRST))
    write_search(tmp_path / "b", results(SearchRun("majority", {}, 40, FIRST.problems[:3])))
    with pytest.raises(DifferentItemsError, match="p3"):
        compare_folders(tmp_path / "a", tmp_path / "b")
    with pytest.raises(DoubledItemsError):
        results(SearchRun("beam", {}, 40, (FIRST.problems[0], FIRST.problems[0])))
    with pytest.raises(DoubledItemsError):
        results(FIRST, FIRST)
    with pytest.raises(EvaluationError, match="search something"):
        results()


def test_p058_four_problems_give_four_records_and_a_summary_over_four(tmp_path):
    write_search(tmp_path, results(FIRST))
    assert pq.read_table(tmp_path / "searched.parquet").num_rows == 4
    run = json.loads((tmp_path / "results.json").read_text())["runs"][0]
    assert run["num_problems"] == run["accuracy"]["n"] == 4
