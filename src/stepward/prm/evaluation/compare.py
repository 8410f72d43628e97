"""Two results folders on the same items: paired differences with intervals, and a folder's headline again."""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false
# pyarrow has no type stubs.

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow.parquet as pq

from stepward.prm.evaluation.errors import DifferentItemsError, EvaluationError
from stepward.prm.evaluation.intervals import Bootstrap, Measure, bootstrap_ratio
from stepward.prm.evaluation.items import Item, check_unique
from stepward.prm.evaluation.processbench import ProcessBenchResult, difference, evaluate, same_items

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class SearchGap:
    """One search minus another on the same problems.

    Attributes:
        accuracy: Difference of the weighted votes' accuracies.
        tokens: Difference of generated plus scored tokens a problem.
        num_left_out: Problems whose outcome one side does not know: in the tokens, not in the accuracy.
    """

    accuracy: Measure
    tokens: Measure
    num_left_out: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """A minus B.

    Attributes:
        a: Scorer of the first folder.
        b: Scorer of the second.
        f1: Difference of F1 by subset and macro.
        both_hit: Items that both judge rightly.
        only_a: Items that only A judges rightly.
        only_b: Items that only B judges rightly.
        neither: Items that both judge wrongly.
        best_of_n: Difference of accuracy by (method, cut_by, cut), paired by problem.
        searches: Difference by (run of A, run of B): those of one name, or where no name is shared those of one
            budget.
    """

    a: str
    b: str
    f1: dict[str, Measure]
    both_hit: int
    only_a: int
    only_b: int
    neither: int
    best_of_n: dict[tuple[str, str, int], Measure]
    searches: dict[tuple[str, str], SearchGap] = field(default_factory=dict["tuple[str, str]", "SearchGap"])


def compare_folders(
    a: str | Path,
    b: str | Path,
    *,
    scorer_a: str | None = None,
    scorer_b: str | None = None,
    bootstrap: Bootstrap | None = None,
) -> Comparison:
    """Paired differences of two results folders.

    Args:
        a: First folder.
        b: Second folder; the same one compares two scorers of it.
        scorer_a: Which scorer of A; the first where None.
        scorer_b: Which scorer of B.
        bootstrap: How intervals are drawn.

    Raises:
        EvaluationError: A folder is no results folder, or the two share neither predictions nor samples.
        DifferentItemsError: Items, labels or problems differ.
    """
    bootstrap = bootstrap or Bootstrap()
    left, right = _predictions(a, scorer_a), _predictions(b, scorer_b)
    samples, searches = _best_of_n(a, b, bootstrap), _searches(a, b, bootstrap)
    if (not left or not right) and not samples and not searches:
        raise EvaluationError(
            f"{Path(a).name} and {Path(b).name} share nothing to compare: both need predictions.parquet, "
            "searched.parquet, or best_of_n.parquet with a method and cut in common"
        )
    if not left or not right:
        return Comparison(Path(a).name, Path(b).name, {}, 0, 0, 0, 0, samples, searches)
    items, others = _items(left), _items(right)
    same_items(items, others)
    by_id = {row["id"]: row for row in right}
    right = [by_id[item.id] for item in items]
    hits = [(bool(x["hit"]), bool(y["hit"])) for x, y in zip(left, right, strict=True)]
    return Comparison(
        a=str(left[0]["scorer"]),
        b=str(right[0]["scorer"]),
        f1=difference(
            items,
            [row["predicted"] for row in left],
            [row["predicted"] for row in right],
            undecided_a=_undecided(left),
            undecided_b=_undecided(right),
            bootstrap=bootstrap,
        ),
        both_hit=hits.count((True, True)),
        only_a=hits.count((True, False)),
        only_b=hits.count((False, True)),
        neither=hits.count((False, False)),
        best_of_n=samples,
        searches=searches,
    )


def recompute(folder: str | Path, *, scorer: str | None = None) -> ProcessBenchResult:
    """The ProcessBench headline of a folder from its per-item file alone, without intervals.

    Raises:
        EvaluationError: The folder has no predictions, or not of that scorer.
    """
    rows = _predictions(folder, scorer)
    if not rows:
        raise EvaluationError(
            f"{Path(folder).name} has no predictions.parquet with rows; nothing to compute from"
        )
    return evaluate(
        _items(rows),
        [row["predicted"] for row in rows],
        scorer=str(rows[0]["scorer"]),
        undecided=_undecided(rows),
        bootstrap=Bootstrap(num_resamples=0),
    )


def read_summary(folder: str | Path) -> dict[str, Any]:
    """``results.json`` of a folder.

    Raises:
        EvaluationError: It is not a results folder.
    """
    path = Path(folder) / "results.json"
    if not path.is_file():
        raise EvaluationError(
            f"{folder} is no results folder: no results.json; give a folder that evaluate wrote"
        )
    return cast(dict[str, Any], json.loads(path.read_text(encoding="utf-8")))


def _predictions(folder: str | Path, scorer: str | None) -> list[Row]:
    """Rows of one scorer, in the folder's order; empty where there are none."""
    read_summary(folder)
    path = Path(folder) / "predictions.parquet"
    if not path.is_file():
        return []
    rows = cast(list[Row], pq.read_table(path).to_pylist())
    names = list(dict.fromkeys(str(row["scorer"]) for row in rows))
    if scorer is not None and scorer not in names:
        raise EvaluationError(f"{Path(folder).name} has no scorer {scorer!r}; it has {', '.join(names)}")
    chosen = scorer if scorer is not None else names[0] if names else None
    rows = [row for row in rows if row["scorer"] == chosen]
    check_unique(str(row["id"]) for row in rows)
    return rows


def _items(rows: Sequence[Row]) -> list[Item]:
    """Items as far as the metrics need them: step texts stay in the benchmark's own file."""
    return [
        Item(
            str(row["id"]),
            str(row["problem_key"]),
            ("",) * int(row["num_steps"]),
            row["first_error"],
            str(row["subset"]),
            str(row["generator"]),
        )
        for row in rows
    ]


def _undecided(rows: Sequence[Row]) -> frozenset[str]:
    return frozenset(str(row["id"]) for row in rows if row["undecided"])


def _best_of_n(a: str | Path, b: str | Path, bootstrap: Bootstrap) -> dict[tuple[str, str, int], Measure]:
    """Differences of accuracy where both folders have the method and the cut."""
    left, right = _accuracies(a), _accuracies(b)
    out: dict[tuple[str, str, int], Measure] = {}
    for key in [k for k in left if k in right]:
        mine, theirs = left[key], right[key]
        odd = [p for p in {**mine, **theirs} if p not in mine or p not in theirs]
        if odd:
            raise DifferentItemsError(
                f"best-of-N problems of {key[0]} at {key[2]} differ",
                odd,
                "evaluate both on the same problems",
            )
        gaps = np.array([mine[p] - theirs[p] for p in mine])
        out[key] = bootstrap_ratio(gaps, np.ones(len(gaps)), list(mine), bootstrap, "best_of_n")
    return out


def _accuracies(folder: str | Path) -> dict[tuple[str, str, int], dict[str, float]]:
    path = Path(folder) / "best_of_n.parquet"
    out: dict[tuple[str, str, int], dict[str, float]] = {}
    if path.is_file():
        for row in cast(list[Row], pq.read_table(path).to_pylist()):
            key = (str(row["method"]), str(row["cut_by"]), int(row["cut"]))
            out.setdefault(key, {})[str(row["problem_id"])] = float(row["accuracy"])
    return out


def _searches(a: str | Path, b: str | Path, bootstrap: Bootstrap) -> dict[tuple[str, str], SearchGap]:
    """Differences of searches on the same problems."""
    left, right = _searched(a), _searched(b)
    pairs = [(name, name) for name in left if name in right]
    if not pairs:
        budgets = {name: next(iter(rows.values()))["budget_tokens"] for name, rows in (left | right).items()}
        pairs = [(m, n) for m in left for n in right if budgets[m] == budgets[n]] or [
            (m, n) for m in left for n in right
        ]
    out: dict[tuple[str, str], SearchGap] = {}
    for mine, theirs in pairs:
        x, y = left[mine], right[theirs]
        odd = [p for p in {**x, **y} if p not in x or p not in y]
        if odd:
            raise DifferentItemsError(
                f"problems of the searches {mine} and {theirs} differ", odd, "search the same problems"
            )
        known = [p for p in x if x[p]["right"] is not None and y[p]["right"] is not None]
        gaps = np.array([float(x[p]["right"]) - float(y[p]["right"]) for p in known])
        spent = np.array([_spent(x[p]) - _spent(y[p]) for p in x])
        out[mine, theirs] = SearchGap(
            bootstrap_ratio(gaps, np.ones(len(known)), known, bootstrap, "search"),
            bootstrap_ratio(spent, np.ones(len(x)), list(x), bootstrap, "search"),
            len(x) - len(known),
        )
    return out


def _spent(row: Row) -> float:
    return float(row["generated_tokens"] + row["scored_tokens"])


def _searched(folder: str | Path) -> dict[str, dict[str, Row]]:
    """Rows by run and problem; empty where the folder holds no search."""
    path = Path(folder) / "searched.parquet"
    out: dict[str, dict[str, Row]] = {}
    if path.is_file():
        for row in cast(list[Row], pq.read_table(path).to_pylist()):
            out.setdefault(str(row["run"]), {})[str(row["problem_id"])] = row
    return out
