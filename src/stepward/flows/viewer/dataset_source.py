"""A labelled dataset as the viewer's source: numbers from summaries, texts from the one row that is shown."""

import threading
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from stepward.flows.viewer.source import Filter, Json, Option, Query, clean, shorten
from stepward.flows.viewer.summaries import ShardSummary, summarize
from stepward.prm.dataset.store import Dataset, open_dataset

if TYPE_CHECKING:
    import polars as pl

_COUNTS = ("right", "wrong", "truncated", "no_answer", "no_gold", "undecided", "timeout", "error")
_OUTCOMES = tuple(Option(name, name.replace("_", " ")) for name in _COUNTS)
FILTERS = (
    Filter("outcome", "outcome", (*_OUTCOMES, Option("none", "not graded"))),
    Filter(
        "labels",
        "labels",
        (
            Option("error", "has a first error"),
            Option("clean", "no wrong step"),
            Option("unknown", "has unknown labels"),
        ),
    ),
    Filter(
        "verdicts",
        "verdicts",
        (
            Option("refuted", "a step refuted"),
            Option("supported", "a step supported"),
            Option("silent", "none decided"),
        ),
    ),
    Filter(
        "conflict",
        "disagreement",
        (
            Option("returns", "returns against verdicts"),
            Option("outcome", "wrong step, right answer"),
            Option("clean_wrong", "no wrong step, wrong answer"),
        ),
    ),
)
SORTS = {
    "conflict": ("disagreement, most first", "conflict", True),
    "largest_drop": ("largest drop of value", "largest_drop", True),
    "widest": ("widest interval", "widest", True),
    "value_lowest": ("lowest value", "value_lowest", False),
    "value_end": ("highest final value", "value_end", True),
    "num_steps": ("most steps", "num_steps", True),
    "generated_tokens": ("most tokens", "generated_tokens", True),
}
_CONFLICT = 0.5


class DatasetSource:
    """See ``Source``. Summaries of shards are made when they are first needed and kept.

    Args:
        folder: A dataset folder; a run that is not finished shows its finished shards.
        name: Name on the page.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._name = name
        self._dataset: Dataset = open_dataset(folder, partial=True)
        self._files = self._dataset.files("solutions")
        self._sizes = [shard.totals.solutions for shard in self._dataset.manifest.shards]
        self._shards: dict[int, ShardSummary] = {}
        self._whole: pl.DataFrame | None = None
        self._lock = threading.Lock()
        self._texts = lru_cache(maxsize=32)(self._read_problems)

    @property
    def name(self) -> str:
        """Name on the page."""
        return self._name

    def describe(self) -> Json:
        """What the page needs to begin; no row is read."""
        manifest = self._dataset.manifest
        return {
            "kind": "dataset",
            "name": self._name,
            "count": len(self._dataset),
            "filters": [_filter_json(f) for f in FILTERS],
            "sorts": [{"name": name, "label": label} for name, (label, _, _) in SORTS.items()],
            "facts": {
                "labeler": f"{manifest.labeler.name} {manifest.labeler.version}",
                "allocation": str(manifest.allocation),
                "finished": manifest.fingerprint is not None,
            },
        }

    def warm(self) -> None:
        """Summarize all shards; the server does it beside its first answers."""
        self._frame()

    def page(self, query: Query) -> Json:
        """Rows of the list."""
        if query.takes_all:
            places = list(self._in_order(query.offset, query.limit))
            return {"total": len(self._dataset), "rows": [self._row(shard, row) for shard, row in places]}
        found = self._select(query)
        window = found.slice(query.offset, query.limit)
        rows = [self._row(shard, row) for shard, row in zip(window["shard"], window["row"], strict=True)]
        return {"total": found.height, "rows": rows}

    def solution(self, solution_id: str) -> Json | None:
        """One row with everything in it but token ids."""
        place = self._place(solution_id)
        if place is None:
            return None
        row = self._read_row(*place)
        return clean(_solution_json(row))

    def rollouts(self, solution_id: str, prefix: int) -> list[Json]:
        """Rollouts of a prefix, in request order; token ids are not read."""
        import polars as pl

        place = self._place(solution_id)
        if place is None:
            return []
        path = self._dataset.files("rollouts")[place[0]]
        scan = pl.scan_parquet if path.suffix == ".parquet" else pl.scan_ipc
        found = (
            scan(path)
            .filter((pl.col("solution_id") == solution_id) & (pl.col("num_steps") == prefix))
            .select("index", "seed", "text", "finish_reason", "outcome", "answer", "error")
            .sort("index")
            .collect()
        )
        # Seeds have 63 bits, more than a number of the page can hold.
        return [clean({**row, "seed": str(row["seed"])}) for row in found.to_dicts()]

    def problem(self, problem_id: str) -> Json:
        """Step texts and values of the problem's solutions, for the tree."""
        import polars as pl

        frame = self._frame().filter(pl.col("problem_id") == problem_id).head(64)
        solutions: list[Json] = []
        for shard, row in zip(frame["shard"], frame["row"], strict=True):
            stored = self._read_row(int(shard), int(row))
            solutions.append(
                {
                    "id": stored["solution_id"],
                    "outcome": stored["outcome"],
                    "answer": stored["final_answer"],
                    "start": stored["prefixes"][0]["value"],
                    "steps": [
                        {"text": step["text"], "label": step["label"], "value": prefix["value"]}
                        for step, prefix in zip(stored["steps"], stored["prefixes"][1:], strict=True)
                    ],
                }
            )
        return clean({"problem_id": problem_id, "solutions": solutions})

    # --- finding rows

    def _shard(self, shard: int) -> ShardSummary:
        with self._lock:
            if shard not in self._shards:
                self._shards[shard] = summarize(self._files[shard], shard)
            return self._shards[shard]

    def _frame(self) -> "pl.DataFrame":
        import polars as pl

        if self._whole is None:
            parts = [self._shard(k).frame for k in range(len(self._files))]
            self._whole = pl.concat(parts) if parts else pl.DataFrame(schema=_EMPTY)
        return self._whole

    def _in_order(self, offset: int, limit: int) -> Iterator[tuple[int, int]]:
        first = 0
        for shard, size in enumerate(self._sizes):
            for row in range(max(0, offset - first), min(size, offset + limit - first)):
                yield shard, row
            first += size

    def _select(self, query: Query) -> "pl.DataFrame":
        import polars as pl

        rows = self._frame().lazy()
        for condition in _conditions(query):
            rows = rows.filter(condition)
        if query.search:
            rows = rows.join(self._matching(query.search), on=["shard", "row"], how="semi")
        if query.sort in SORTS:
            _, column, descending = SORTS[query.sort]
            # Rows where the quantity is not known cannot lead a list that is sorted by it.
            rows = rows.filter(pl.col(column).is_not_null()) if column == "conflict" else rows
            rows = rows.sort([column, "shard", "row"], descending=[descending, False, False], nulls_last=True)
        return rows.select("shard", "row").collect()

    def _matching(self, text: str) -> "pl.LazyFrame":
        """Places of rows whose problem or id has the text; only these two columns are read, shard by shard."""
        import polars as pl

        scan = pl.scan_parquet if all(f.suffix == ".parquet" for f in self._files) else pl.scan_ipc
        parts = [
            scan(path)
            .select("problem", "solution_id")
            .with_row_index("row")
            .filter(
                pl.col("problem").str.contains_any([text], ascii_case_insensitive=True)
                | pl.col("solution_id").str.starts_with(text)
            )
            .select(pl.lit(shard, dtype=pl.Int32).alias("shard"), pl.col("row").cast(pl.Int32))
            for shard, path in enumerate(self._files)
        ]
        return pl.concat(parts)

    def _place(self, solution_id: str) -> tuple[int, int] | None:
        import polars as pl

        for shard in [*self._shards, *(k for k in range(len(self._files)) if k not in self._shards)]:
            found = self._shard(shard).frame.filter(pl.col("solution_id") == solution_id)
            if found.height:
                return shard, int(found["row"][0])
        return None

    # --- reading rows

    def _row(self, shard: int, row: int) -> Json:
        shard, row = int(shard), int(row)
        summary = self._shard(shard)
        numbers = summary.frame.row(row, named=True)
        badges = [numbers["outcome"] or "not graded"]
        if numbers["first_error"] is not None:
            badges.append(f"first error {numbers['first_error']}")
        if numbers["num_refuted"]:
            badges.append(f"{numbers['num_refuted']} refuted")
        if (numbers["conflict"] or 0.0) > _CONFLICT:
            badges.append("disagreement")
        return {
            "id": numbers["solution_id"],
            "problem_id": numbers["problem_id"],
            "snippet": shorten(self._texts(shard)[row]),
            "badges": badges,
            "strip": summary.strip(row),
        }

    def _read_problems(self, shard: int) -> list[str]:
        path = self._files[shard]
        if path.suffix == ".parquet":
            with pq.ParquetFile(path) as file:
                return [shorten(text) for text in file.read(columns=["problem"])["problem"].to_pylist()]
        return [shorten(text) for text in self._dataset.shard("solutions", shard)["problem"].to_pylist()]

    def _read_row(self, shard: int, row: int) -> Json:
        """One stored row; batches before it are passed over without becoming Python values."""
        first = 0
        if self._files[shard].suffix == ".parquet":
            with pq.ParquetFile(self._files[shard]) as file:
                for batch in file.iter_batches(256, columns=_shown_columns(file)):
                    if row < first + len(batch):
                        return batch.slice(row - first, 1).to_pylist()[0]
                    first += len(batch)
        return self._dataset.shard("solutions", shard).slice(row, 1).to_pylist()[0]


_EMPTY: dict[str, Any] = {"shard": int, "row": int, "solution_id": str, "problem_id": str}
_HEAVY = ("token_ids", "token_logprobs")


def _shown_columns(file: pq.ParquetFile) -> list[str]:
    """Leaf columns of a solution without its token ids."""
    paths = [file.schema.column(i).path for i in range(len(file.schema))]
    return [path for path in paths if not any(f".{name}" in path for name in _HEAVY)]


def _filter_json(f: Filter) -> Json:
    return {
        "name": f.name,
        "label": f.label,
        "options": [{"value": o.value, "label": o.label} for o in f.options],
    }


def _conditions(query: Query) -> "list[pl.Expr]":
    import polars as pl

    c = pl.col
    made: list[pl.Expr] = [c("problem_id") == query.problem] if query.problem else []
    outcome = query.filters.get("outcome", "")
    if outcome:
        made.append(c("outcome").is_null() if outcome == "none" else c("outcome") == outcome)
    choices: dict[tuple[str, str], pl.Expr] = {
        ("labels", "error"): c("first_error").is_not_null(),
        ("labels", "clean"): c("first_error").is_null() & (c("num_unknown_labels") == 0),
        ("labels", "unknown"): c("num_unknown_labels") > 0,
        ("verdicts", "refuted"): c("num_refuted") > 0,
        ("verdicts", "supported"): c("num_supported") > 0,
        ("verdicts", "silent"): (c("num_refuted") == 0) & (c("num_supported") == 0),
        ("conflict", "returns"): c("conflict") > _CONFLICT,
        ("conflict", "outcome"): c("first_error").is_not_null() & (c("outcome") == "right"),
        ("conflict", "clean_wrong"): c("first_error").is_null()
        & (c("num_unknown_labels") == 0)
        & (c("outcome") == "wrong"),
    }
    made += [e for (name, value), e in choices.items() if query.filters.get(name) == value]
    return made


def _solution_json(row: Json) -> Json:
    """A stored row in the page's shape."""
    prefixes = [
        {
            "value": p["value"],
            "low": p["value_low"],
            "high": p["value_high"],
            "counts": {name: p[f"num_{name}"] for name in _COUNTS if p.get(f"num_{name}")},
            "unique": p["n_unique"],
        }
        for p in row["prefixes"]
    ]
    steps = [
        {
            "text": s["text"],
            "phase": s["phase"],
            "label": s["label"],
            "decided_by": s["decided_by"],
            "p_first_error": s["p_first_error"],
            "verdicts": s["verdicts"],
            "rationale": s["rationale"],
        }
        for s in row["steps"]
    ]
    policy, completer = row["policy"], row["completer"]
    return {
        "id": row["solution_id"],
        "problem_id": row["problem_id"],
        "problem": row["problem"],
        "answers": row["answers"],
        "final_answer": row["final_answer"],
        "outcome": row["outcome"],
        "first_error": row["first_error"],
        "prefixes": prefixes,
        "steps": steps,
        "facts": {
            "source": row["source"],
            "licence": row["licence"],
            "policy": f"{policy['name']} ({policy['engine']})",
            "rollouts by": f"{completer['name']} ({completer['engine']})",
            "allocation": row["allocation"],
            "labeler": f"{row['labeler']['name']} {row['labeler']['version']}",
            "tokens": f"{row['tokens']['generated']:,} generated, {row['tokens']['prompt']:,} prompt",
            "finish": row["finish_reason"],
        },
        "has_rollouts": True,
    }
