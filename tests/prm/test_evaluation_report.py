"""The results folder: same bytes, numbers that follow from its items, text that stays text, and comparison."""

import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest

from stepward.prm.evaluation.best_of_n import SamplePool, evaluate_pools
from stepward.prm.evaluation.compare import compare_folders, read_summary, recompute
from stepward.prm.evaluation.errors import DifferentItemsError, EvaluationError
from stepward.prm.evaluation.intervals import Bootstrap, Measure
from stepward.prm.evaluation.items import Item
from stepward.prm.evaluation.page import settings_table, standalone, table
from stepward.prm.evaluation.prmbench import PRMBenchItem, evaluate_prmbench
from stepward.prm.evaluation.processbench import difference, oracle_sweep
from stepward.prm.evaluation.q_alignment import Action, State, q_alignment
from stepward.prm.evaluation.report import render
from stepward.prm.evaluation.results import Results, score_run
from stepward.prm.evaluation.results_folder import PREDICTIONS_SCHEMA, write_results
from stepward.prm.evaluation.svg import Series, interval_chart, line_chart
from stepward.prm.evaluation.thresholds import Threshold

FAST = Bootstrap(num_resamples=100)
EVIL = '<script>alert("x")</script>\'"&'


def make_items(count: int = 60) -> list[Item]:
    rng = np.random.default_rng(0)
    return [
        Item(
            f"i{k}",
            f"problem {k // 2}",
            ("one", "two", "three"),
            int(rng.integers(3)) if k % 2 else None,
            subset="easy" if k % 4 < 2 else "hard",
            generator=EVIL if k % 3 else "plain",
            source="set.jsonl",
        )
        for k in range(count)
    ]


def make_scores(items: list[Item], noise: float, seed: int) -> list[tuple[float, ...]]:
    rng = np.random.default_rng(seed)
    rows = []
    for item in items:
        truth = [0.3 if item.first_error is not None and t >= item.first_error else 0.7 for t in range(3)]
        rows.append(tuple(float(v) for v in np.clip(truth + noise * rng.standard_normal(3), 0, 1)))
    return rows


def make_results(noise: float = 0.2, seed: int = 1, count: int = 60, scorer: str = f"prm {EVIL}") -> Results:
    items = make_items(count)
    threshold = Threshold(0.5, "dev", 0.61, 10, 12)
    runs = tuple(
        score_run(items, make_scores(items, n, s), threshold, scorer=name, fixes={"i1": None}, bootstrap=FAST)
        for name, n, s in ((scorer, noise, seed), ("baseline", 0.5, 9))
    )
    pools = [
        SamplePool(
            f"p{k}", (0, 1, 0, None), (True, False, True, False), (5, 6, 7, 8), scores=((0.5,), (0.6,)) * 2
        )
        for k in range(5)
    ]
    bench = [PRMBenchItem("circular_1", "circular", "q", ("a", "b"), frozenset({1}), "q")]
    state = State("p", 0, (Action(1.0, 8, 8, 1.0), Action(0.0, 1, 8, 0.125)))
    return Results(
        title=f"Evaluation of {EVIL}",
        items=tuple(items),
        runs=runs,
        differences={
            "prm - baseline": difference(items, runs[0].predictions, runs[1].predictions, bootstrap=FAST)
        },
        oracle=oracle_sweep(items, runs[0].scores, scorer="prm", bootstrap=FAST),
        best_of_n=(
            evaluate_pools(pools, [1, 2, 4], bootstrap=FAST),
            evaluate_pools(pools, [20, 60], cut_by="tokens", bootstrap=FAST),
        ),
        prmbench=(evaluate_prmbench(bench, [(True, False)], scorer="prm", threshold=0.5, bootstrap=FAST),),
        q_alignment={"prm": q_alignment([state], bootstrap=FAST)},
        notes=(f"3 rows left out {EVIL}",),
        manifest={"prm": "folder@abc", "seed": 0},
    )


def test_the_same_evaluation_writes_the_same_bytes(tmp_path: Path) -> None:
    results = make_results()
    first, second = write_results(tmp_path / "a", results), write_results(tmp_path / "b", make_results())
    names = ["results.json", "report.html", "predictions.parquet", "items.parquet", "best_of_n.parquet"]
    assert [p.name for p in first] == names
    for mine, theirs in zip(first, second, strict=True):
        assert mine.read_bytes() == theirs.read_bytes()


def test_the_headline_follows_from_the_per_item_file(tmp_path: Path) -> None:
    write_results(tmp_path, make_results())
    told = read_summary(tmp_path)["runs"][0]["result"]
    again = recompute(tmp_path)
    assert told["macro"]["f1"]["value"] == pytest.approx(again.macro.f1.value, abs=1e-9)
    for part, mine in zip(told["subsets"], again.subsets, strict=True):
        assert part["name"] == mine.name
        assert part["f1"]["value"] == pytest.approx(mine.f1.value, abs=1e-9)
    assert told["threshold"]["source"] == "dev"
    assert told["threshold"]["value"] == 0.5
    assert read_summary(tmp_path)["runs"][0]["corrected"]["labels"] == "corrected labels"
    assert recompute(tmp_path, scorer="baseline").scorer == "baseline"


def test_the_per_item_file_has_a_declared_schema_and_opens_elsewhere(tmp_path: Path) -> None:
    write_results(tmp_path, make_results())
    path = tmp_path / "predictions.parquet"
    assert pq.read_schema(path).equals(PREDICTIONS_SCHEMA)
    frame = pl.read_parquet(path)
    assert frame.height == 120
    hits = frame.filter(pl.col("scorer") == "baseline")["hit"].sum()
    assert hits == sum(frame.filter(pl.col("scorer") == "baseline").select(
        pl.col("predicted").eq_missing(pl.col("first_error")))["predicted"])  # fmt: skip


class _Scan(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.urls: list[str] = []
        self.open: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.urls += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href", "action")]
        assert not any(name.startswith("on") for name, _ in attrs)
        if tag not in ("meta", "line", "circle", "polygon", "polyline"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("line", "circle", "polygon", "polyline"):
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def test_the_page_runs_nothing_fetches_nothing_and_shows_text_as_text(tmp_path: Path) -> None:
    write_results(tmp_path, make_results())
    source = (tmp_path / "report.html").read_text()
    page = _Scan()
    page.feed(source)
    assert "script" not in page.tags
    assert page.urls == []
    assert page.open == []  # every element is closed
    assert "url(" not in source
    assert "@import" not in source
    assert EVIL in "".join(page.text)  # the very text, as text
    assert "default-src 'none'" in source.replace("&#x27;", "'")
    assert not re.search(r"\b(nan|inf)\b", source)


def test_the_page_names_what_is_no_result(tmp_path: Path) -> None:
    write_results(tmp_path, make_results())
    source = (tmp_path / "report.html").read_text()
    assert "Oracle sweep: an upper bound, not a result" in source
    assert "undefined: no wrong steps" not in source  # the example's class has one
    one_sided = [i for i in make_items() if i.first_error is None]
    run = score_run(
        one_sided, make_scores(one_sided, 0.2, 1), Threshold(0.5, "dev"), scorer="x", bootstrap=FAST
    )
    write_results(tmp_path / "b", Results("One side", tuple(one_sided), (run,)))
    assert "undefined: no erroneous items" in (tmp_path / "b" / "report.html").read_text()
    assert (
        json.loads((tmp_path / "b" / "results.json").read_text())["runs"][0]["result"]["macro"]["f1"]["value"]
        is None
    )


def test_runs_that_do_not_fit_the_items_are_refused(tmp_path: Path) -> None:
    good = make_results()
    with pytest.raises(EvaluationError, match="60 predictions"):
        write_results(tmp_path, Results("x", good.items[:5], good.runs))


def test_a_number_that_is_not_finite_is_never_written(tmp_path: Path) -> None:
    with pytest.raises(EvaluationError, match="nan"):
        write_results(tmp_path, Results("x", manifest={"loss": math.nan}))


# --- compare


def test_two_folders_are_compared_on_the_same_items(tmp_path: Path) -> None:
    write_results(tmp_path / "a", make_results(noise=0.05, scorer="good"))
    write_results(tmp_path / "b", make_results(noise=0.5, seed=3, scorer="bad"))
    got = compare_folders(tmp_path / "a", tmp_path / "b", bootstrap=Bootstrap(400))
    assert (got.a, got.b) == ("good", "bad")
    assert set(got.f1) == {"easy", "hard", "macro"}
    gap = got.f1["macro"]
    a, b = recompute(tmp_path / "a").macro.f1.value, recompute(tmp_path / "b").macro.f1.value
    assert gap.value == pytest.approx(a - b)
    assert gap.low is not None
    assert gap.low > 0
    assert got.both_hit + got.only_a + got.only_b + got.neither == 60
    assert got.only_a > got.only_b
    assert got.best_of_n["majority", "samples", 4].value == 0.0
    back = compare_folders(tmp_path / "b", tmp_path / "a", bootstrap=Bootstrap(400))
    assert back.f1["macro"].value == pytest.approx(-gap.value)


def test_two_scorers_of_one_folder_are_compared(tmp_path: Path) -> None:
    results = make_results(scorer="prm")
    write_results(tmp_path, results)
    got = compare_folders(tmp_path, tmp_path, scorer_b="baseline", bootstrap=FAST)
    assert got.f1["macro"].value == pytest.approx(results.differences["prm - baseline"]["macro"].value)
    with pytest.raises(EvaluationError, match="no scorer 'other'; it has prm, baseline"):
        compare_folders(tmp_path, tmp_path, scorer_b="other")


def test_other_items_or_labels_are_refused(tmp_path: Path) -> None:
    write_results(tmp_path / "a", make_results())
    write_results(tmp_path / "b", make_results(count=58))
    with pytest.raises(DifferentItemsError, match="i58, i59"):
        compare_folders(tmp_path / "a", tmp_path / "b", bootstrap=FAST)
    with pytest.raises(EvaluationError, match="no results folder"):
        compare_folders(tmp_path / "a", tmp_path / "nowhere")
    write_results(tmp_path / "c", Results("empty"))
    with pytest.raises(EvaluationError, match="share nothing"):
        compare_folders(tmp_path / "a", tmp_path / "c")
    with pytest.raises(EvaluationError, match="nothing to compute from"):
        recompute(tmp_path / "c")


# --- plots


def test_plots_place_values_where_they_belong() -> None:
    svg = line_chart(
        [Series("a", ((1, Measure(0.0)), (2, Measure(0.5)), (4, Measure(1.0))))],
        title="t",
        x_name="N",
        y_name="y",
    )
    dots = [(float(x), float(y)) for x, y in re.findall(r'<circle[^>]*cx="([\d.]+)" cy="([\d.]+)"', svg)]
    # log2 spacing: 1, 2, 4 are equally far apart; equal steps of y as well
    assert dots[1][0] - dots[0][0] == pytest.approx(dots[2][0] - dots[1][0], abs=0.2)
    assert dots[0][1] - dots[1][1] == pytest.approx(dots[1][1] - dots[2][1], abs=0.2)
    assert dots[0][1] > dots[2][1]  # up is less in SVG


def test_a_plot_can_stand_alone_as_a_file() -> None:
    alone = standalone(interval_chart([("g", [("r", Measure(0.5, 0.4, 0.6))])], title="t", x_name="x"))
    root = ElementTree.fromstring(alone)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert "--c0" in alone


def test_a_plot_refuses_what_it_cannot_tell_apart() -> None:
    with pytest.raises(ValueError, match="17 series"):
        line_chart(
            [Series(str(k), ((1, Measure(0.5)),)) for k in range(17)], title="t", x_name="x", y_name="y"
        )
    ten = line_chart(
        [Series(str(k), ((1, Measure(0.5)), (2, Measure(0.6)))) for k in range(10)],
        title="t",
        x_name="x",
        y_name="y",
    )
    # A line in the plot and one in the legend: of the first eight once, of the ninth and tenth dashed.
    assert len(re.findall(r'class="line c0"', ten)) == len(re.findall(r'class="line c0 second"', ten)) == 2
    assert 'class="line c2 second"' not in ten
    with pytest.raises(ValueError, match="0 points"):
        line_chart([Series("a", ((1, Measure(None)),))], title="t", x_name="x", y_name="y")


def test_undefined_measures_are_written_out() -> None:
    assert "undefined: no items" in interval_chart(
        [("g", [("r", Measure(None, note="no items"))])], title="t", x_name="x"
    )
    html = table(["a", "b"], [(Measure(0.5, 0.4, 0.6), None), (Measure(None, note="<no>"), 3)])
    assert "0.500" in html
    assert "[0.400, 0.600]" in html
    assert "undefined: &lt;no&gt;" in html


def test_one_subset_is_not_reported_a_second_time_as_its_own_mean() -> None:
    results = make_results()
    assert ">macro<" in render(results)
    easy = [k for k, item in enumerate(results.items) if item.subset == "easy"]
    items = tuple(results.items[k] for k in easy)
    run = score_run(
        items, [results.runs[0].scores[k] for k in easy], Threshold(0.5, "dev"), scorer="prm", bootstrap=FAST
    )
    gap = difference(items, run.predictions, run.predictions, bootstrap=FAST)
    page = render(Results("one", items, (run,), {"prm - prm": gap}))
    assert ">easy<" in page
    assert ">macro<" not in page


def test_a_colour_never_stands_for_two_rows_of_a_group() -> None:
    rows = [(f"scorer {k}", Measure(k / 10, 0.0, 1.0)) for k in range(9)]
    few = interval_chart([("", rows[:8])], title="few", x_name="x")
    many = interval_chart([("", rows)], title="many", x_name="x")
    assert {f"dot c{k}" for k in range(8)} == set(re.findall(r"dot c\d", few))
    assert set(re.findall(r"dot c\d", many)) == {"dot c0"}


def test_settings_are_words_and_not_the_language_they_are_kept_in() -> None:
    page = settings_table(
        [
            ("files", ["a", "b"]),
            ("limit", None),
            ("sampler", {"t": 1.0, "stop": ()}),
            ("on", True),
            ("x", "<b>"),
        ]
    )
    cells = re.findall(r"<td>(.*?)</td>", page)
    assert cells[1::2] == ["a, b", "–", "t = 1.0, stop = none", "yes", "&lt;b&gt;"]
