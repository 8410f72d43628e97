"""A results folder: what was evaluated, item by item, so that every headline can be computed again.

``results.json``       headline numbers with intervals, thresholds, weights and their sources, the manifest
``predictions.parquet``  one row an item and scorer: label, prediction, step scores
``items.parquet``        the items themselves, so that the viewer can show them
``best_of_n.parquet``    one row a problem, method and cut: accuracy (where samples were evaluated)
``report.html``        the same for a person, without any file beside it

Nothing in it depends on time or machine: the same evaluation writes the same bytes.
"""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingTypeStubs=false
# pyarrow has no type stubs.

import hashlib
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq

from stepward.prm.durable import write_durably
from stepward.prm.evaluation.best_of_n import BestOfNResult
from stepward.prm.evaluation.errors import EvaluationError
from stepward.prm.evaluation.items import Item
from stepward.prm.evaluation.report import render
from stepward.prm.evaluation.results import Results

RESULTS_VERSION = 1

PREDICTIONS_SCHEMA = pa.schema(
    [
        pa.field("scorer", pa.string(), nullable=False),
        pa.field("id", pa.string(), nullable=False),
        pa.field("subset", pa.string(), nullable=False),
        pa.field("generator", pa.string(), nullable=False),
        pa.field("problem_key", pa.string(), nullable=False),
        pa.field("num_steps", pa.int32(), nullable=False),
        pa.field("first_error", pa.int32()),
        pa.field("predicted", pa.int32()),
        pa.field("undecided", pa.bool_(), nullable=False),
        pa.field("hit", pa.bool_(), nullable=False),
        pa.field("scores", pa.list_(pa.float64())),
    ]
)
ITEMS_SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("problem", pa.string(), nullable=False),
        pa.field("steps", pa.list_(pa.string()), nullable=False),
        pa.field("final_answer_correct", pa.bool_()),
        pa.field("source", pa.string(), nullable=False),
    ]
)
BEST_OF_N_SCHEMA = pa.schema(
    [
        pa.field("cut_by", pa.string(), nullable=False),
        pa.field("problem_id", pa.string(), nullable=False),
        pa.field("method", pa.string(), nullable=False),
        pa.field("cut", pa.int64(), nullable=False),
        pa.field("accuracy", pa.float64(), nullable=False),
    ]
)


def write_results(folder: str | Path, results: Results) -> list[Path]:
    """Write the folder; files of an earlier evaluation are replaced, each whole.

    Returns:
        The files written.

    Raises:
        EvaluationError: Runs do not fit the items.
        StoreError: The folder cannot be written.
    """
    folder = Path(folder)
    for run in results.runs:
        if len(run.predictions) != len(results.items) or len(run.scores) not in (0, len(results.items)):
            raise EvaluationError(
                f"run {run.result.scorer!r} has {len(run.predictions)} predictions and {len(run.scores)} rows of "
                f"scores for {len(results.items)} items; one each (or no scores at all) is needed"
            )
    files = {"results.json": json_bytes(summary(results)), "report.html": render(results).encode()}
    if results.runs:
        files["predictions.parquet"] = parquet_bytes(predictions_table(results))
        files["items.parquet"] = parquet_bytes(items_table(results))
    if results.best_of_n:
        files["best_of_n.parquet"] = parquet_bytes(best_of_n_table(results.best_of_n))
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        write_durably(folder / name, data)
    return [folder / name for name in files]


def summary(results: Results) -> dict[str, Any]:
    """``results.json`` as a dict: all numbers, no items."""
    return {
        "results_version": RESULTS_VERSION,
        "title": results.title,
        "num_items": len(results.items),
        "sources": sorted({item.source for item in results.items}),
        "runs": [plain(run) for run in results.runs],
        "differences": plain(results.differences),
        "oracle": plain(results.oracle),
        "best_of_n": plain(results.best_of_n),
        "prmbench": plain(results.prmbench),
        "q_alignment": plain(results.q_alignment),
        "notes": list(results.notes),
        "manifest": plain(results.manifest),
    }


# Per-item data stands in the Parquet files, sets of problems only as their number.
_ELSEWHERE = frozenset({"predictions", "scores", "undecided", "accuracies", "problem_ids"})


def plain(value: Any) -> Any:
    """Records as JSON values; numbers that are not finite are refused rather than written as NaN."""
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value) if f.name not in _ELSEWHERE}
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in cast(Mapping[Any, Any], value).items()}
    if isinstance(value, frozenset):
        return {"num_problems": len(cast(frozenset[Any], value))}
    if isinstance(value, list | tuple):
        return [plain(v) for v in cast(Sequence[Any], value)]
    if isinstance(value, float) and not math.isfinite(value):
        raise EvaluationError(f"a result is {value!r}; results are finite numbers or None with a note")
    return value


def json_bytes(value: Any) -> bytes:
    """A JSON file; a number that is not finite is refused."""
    return (json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def parquet_bytes(rows: pa.Table) -> bytes:
    """A Parquet file of a table."""
    buffer = io.BytesIO()
    pq.write_table(rows, buffer, compression="zstd")
    return buffer.getvalue()


def problem_key(item: Item) -> str:
    """16 hex digits that items of one problem share."""
    return hashlib.sha256(item.cluster.encode()).hexdigest()[:16]


def predictions_table(results: Results) -> pa.Table:
    """One row an item and scorer."""
    rows = [
        {
            "scorer": run.result.scorer,
            "id": item.id,
            "subset": item.subset,
            "generator": item.generator,
            "problem_key": problem_key(item),
            "num_steps": len(item.steps),
            "first_error": item.first_error,
            "predicted": run.predictions[i],
            "undecided": item.id in run.undecided,
            "hit": run.predictions[i] == item.first_error and item.id not in run.undecided,
            "scores": run.scores[i] if run.scores else None,
        }
        for run in results.runs
        for i, item in enumerate(results.items)
    ]
    return pa.Table.from_pylist(rows, schema=PREDICTIONS_SCHEMA)


def items_table(results: Results) -> pa.Table:
    """One row an item, in the order of the predictions."""
    rows = [
        {
            "id": item.id,
            "problem": item.problem,
            "steps": list(item.steps),
            "final_answer_correct": item.final_answer_correct,
            "source": item.source,
        }
        for item in results.items
    ]
    return pa.Table.from_pylist(rows, schema=ITEMS_SCHEMA)


def best_of_n_table(results: Sequence[BestOfNResult]) -> pa.Table:
    """One row a problem, method and cut."""
    rows = [
        {
            "cut_by": r.cut_by,
            "problem_id": problem,
            "method": method,
            "cut": cut,
            "accuracy": float(table[i, c]),
        }
        for r in results
        for method, table in r.accuracies.items()
        for i, problem in enumerate(r.problem_ids)
        for c, cut in enumerate(r.cuts)
    ]
    return pa.Table.from_pylist(rows, schema=BEST_OF_N_SCHEMA)
