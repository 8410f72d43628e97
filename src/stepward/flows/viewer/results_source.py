"""Evaluation results as the viewer's source: gold first errors beside step scores and predictions."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepward.flows.viewer.source import Filter, Json, Option, Query, clean, shorten
from stepward.prm.evaluation.compare import read_summary

if TYPE_CHECKING:
    import polars as pl

KINDS = {
    "exact": "first error named",
    "too_early": "an earlier step named",
    "too_late": "a later step named",
    "missed": "error missed",
    "none_right": "rightly nothing named",
    "false_alarm": "false alarm",
    "undecided": "undecided",
}
SORTS = {
    "disagreement": ("against the human, surest first", "disagreement", True),
    "lowest": ("lowest step score", "lowest", False),
    "num_steps": ("most steps", "num_steps", True),
}


class ResultsSource:
    """See ``Source``. Rows come from ``predictions.parquet`` and ``items.parquet`` through lazy queries.

    Args:
        folder: A results folder.
        name: Name on the page.
    """

    def __init__(self, folder: Path, name: str) -> None:
        import polars as pl

        self._folder, self._name = folder, name
        self._summary = read_summary(folder)
        self._scorers = [run["result"]["scorer"] for run in self._summary["runs"]]
        self._predictions = _with_kind(pl.scan_parquet(folder / "predictions.parquet"))
        self._items = pl.scan_parquet(folder / "items.parquet")

    @property
    def name(self) -> str:
        """Name on the page."""
        return self._name

    def describe(self) -> Json:
        """What the page needs to begin."""
        import polars as pl

        parts = self._predictions.select(pl.col("subset").unique().sort().implode(),
                                         pl.col("generator").unique().sort().implode()).collect().row(0)  # fmt: skip
        menus = [
            Filter("scorer", "scorer", tuple(Option(s, s) for s in self._scorers)),
            Filter("kind", "against the human", (Option("disagree", "any disagreement"),
                                                 *(Option(k, words) for k, words in KINDS.items()))),
            Filter("subset", "subset", tuple(Option(s, s) for s in parts[0] if s)),
            Filter("generator", "generator", tuple(Option(g, g) for g in parts[1] if g)),
        ]  # fmt: skip
        return {
            "kind": "results",
            "name": self._name,
            "count": self._summary["num_items"],
            "filters": [
                {
                    "name": f.name,
                    "label": f.label,
                    "options": [{"value": o.value, "label": o.label} for o in f.options],
                }
                for f in menus
                if f.options
            ],
            "sorts": [{"name": name, "label": label} for name, (label, _, _) in SORTS.items()],
            "facts": {"title": self._summary["title"], "scorers": ", ".join(self._scorers)},
        }

    def warm(self) -> None:
        """Nothing to prepare."""

    def page(self, query: Query) -> Json:
        """Rows of the list, of one scorer."""
        import polars as pl

        rows = self._predictions.filter(pl.col("scorer") == self._scorer(query))
        for name in ("subset", "generator"):
            if query.filters.get(name):
                rows = rows.filter(pl.col(name) == query.filters[name])
        kind = query.filters.get("kind", "")
        if kind == "disagree":
            rows = rows.filter(~pl.col("hit"))
        elif kind:
            rows = rows.filter(pl.col("kind") == kind)
        if query.problem:
            rows = rows.filter(pl.col("problem_key") == query.problem)
        if query.search:
            matching = self._items.filter(
                pl.col("problem").str.contains_any([query.search], ascii_case_insensitive=True)
                | pl.col("id").str.starts_with(query.search)
            ).select("id")
            rows = rows.join(matching, on="id", how="semi", maintain_order="left")
        if query.sort in SORTS:
            _, column, descending = SORTS[query.sort]
            rows = rows.sort(column, descending=descending, nulls_last=True, maintain_order=True)
        total = rows.select(pl.len()).collect().item()
        window = rows.slice(query.offset, query.limit).collect()
        texts = (
            self._items.filter(pl.col("id").is_in(window["id"].to_list())).select("id", "problem").collect()
        )
        snippets = dict(zip(texts["id"], texts["problem"], strict=True))
        return {"total": total, "rows": [_row(r, snippets.get(r["id"], "")) for r in window.to_dicts()]}

    def solution(self, solution_id: str) -> Json | None:
        """One item with the scores of every scorer."""
        import polars as pl

        found = self._items.filter(pl.col("id") == solution_id).collect().to_dicts()
        if not found:
            return None
        item = found[0]
        runs = {
            r["scorer"]: r for r in self._predictions.filter(pl.col("id") == solution_id).collect().to_dicts()
        }
        first = next(iter(runs.values()))
        scores = {name: r["scores"] for name, r in runs.items() if r["scores"]}
        steps = [
            {
                "text": text,
                "label": None,
                "gold": _gold(t, first["first_error"]),
                "scores": {name: row[t] for name, row in scores.items() if t < len(row)},
                "verdicts": [],
            }
            for t, text in enumerate(item["steps"])
        ]
        leading = next(iter(scores), None)
        values = scores[leading] if leading else []
        answer = item["final_answer_correct"]
        return clean(
            {
                "id": item["id"],
                "problem_id": first["problem_key"],
                "problem": item["problem"],
                "answers": [],
                "final_answer": None,
                "outcome": None if answer is None else "right" if answer else "wrong",
                "human": {"first_error": first["first_error"]},
                "predictions": {
                    name: {"first_error": r["predicted"], "kind": KINDS[r["kind"]]} for name, r in runs.items()
                },
                "prefixes": [{"value": None}, *({"value": v} for v in values),
                             *({"value": None} for _ in range(len(steps) - len(values)))],
                "steps": steps,
                "facts": {"subset": first["subset"], "generator": first["generator"], "from": item["source"]},
                "has_rollouts": False,
            }
        )  # fmt: skip

    def rollouts(self, solution_id: str, prefix: int) -> list[Json]:
        """Evaluated items have no rollouts."""
        return []

    def problem(self, problem_id: str) -> Json:
        """The items of one problem, for the tree."""
        import polars as pl

        rows = self._predictions.filter(
            (pl.col("problem_key") == problem_id) & (pl.col("scorer") == self._scorers[0])
        ).head(64)
        found = rows.join(self._items, on="id", maintain_order="left").collect().to_dicts()
        solutions = []
        for row in found:
            values = [*(row["scores"] or []), *([None] * len(row["steps"]))]
            solutions.append(
                {
                    "id": row["id"],
                    "outcome": None,
                    "answer": None,
                    "start": None,
                    "steps": [
                        {"text": text, "label": _gold(t, row["first_error"]), "value": values[t]}
                        for t, text in enumerate(row["steps"])
                    ],
                }
            )
        return clean({"problem_id": problem_id, "solutions": solutions})

    def _scorer(self, query: Query) -> str:
        chosen = query.filters.get("scorer") or self._scorers[0]
        return str(chosen)


def _gold(step: int, first_error: int | None) -> int | None:
    """1 before the first error, 0 at it, None after it."""
    if first_error is None or step < first_error:
        return 1
    return 0 if step == first_error else None


def _with_kind(rows: "pl.LazyFrame") -> "pl.LazyFrame":
    """Adds what happened, the lowest score, and how sure the scorer was where it disagrees with the human."""
    import polars as pl

    c = pl.col
    kind = (
        pl.when(c("undecided"))
        .then(pl.lit("undecided"))
        .when(c("first_error").is_null())
        .then(pl.when(c("predicted").is_null()).then(pl.lit("none_right")).otherwise(pl.lit("false_alarm")))
        .when(c("predicted").is_null())
        .then(pl.lit("missed"))
        .when(c("predicted") == c("first_error"))
        .then(pl.lit("exact"))
        .when(c("predicted") < c("first_error"))
        .then(pl.lit("too_early"))
        .otherwise(pl.lit("too_late"))
    )
    at_gold = c("scores").list.get(c("first_error"), null_on_oob=True)
    at_named = c("scores").list.get(c("predicted"), null_on_oob=True)
    # Sure of a step that is wrong, or sure against one that is right.
    sure = pl.max_horizontal(at_gold, 1 - at_named)
    return rows.with_columns(
        kind.alias("kind"),
        c("scores").list.min().alias("lowest"),
        pl.when(c("hit")).then(None).otherwise(sure).alias("disagreement"),
    )


def _row(row: dict[str, Any], problem: str) -> Json:
    gold = "no error" if row["first_error"] is None else f"error at {row['first_error']}"
    badges = [gold, KINDS[row["kind"]], row["subset"]]
    return {
        "id": row["id"],
        "problem_id": row["problem_key"],
        "snippet": shorten(problem),
        "badges": [b for b in badges if b],
        "strip": clean([None if s is None else round(s, 4) for s in row["scores"] or []]),
    }
