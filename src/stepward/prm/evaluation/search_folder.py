"""The results folder of searches at test time.

``results.json``        accuracy and tokens of every run with intervals, paired differences, the manifest
``searched.parquet``    one row a problem and run: right or not, the answer, tokens generated and scored
``candidates.parquet``  one row a candidate: its steps, their scores, its answer
``report.html``         the same for a person
"""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingTypeStubs=false
# pyarrow has no type stubs.

from pathlib import Path

import pyarrow as pa

from stepward.prm.durable import write_durably
from stepward.prm.evaluation.results_folder import json_bytes, parquet_bytes, plain
from stepward.prm.evaluation.search_report import render_search
from stepward.prm.evaluation.search_results import SearchResults, summaries

SEARCH_VERSION = 1

SEARCHED_SCHEMA = pa.schema(
    [
        pa.field("run", pa.string(), nullable=False),
        pa.field("method", pa.string(), nullable=False),
        pa.field("budget_tokens", pa.int64()),
        pa.field("problem_id", pa.string(), nullable=False),
        pa.field("right", pa.bool_()),
        pa.field("best_right", pa.bool_()),
        pa.field("any_right", pa.bool_()),
        pa.field("answer", pa.string()),
        pa.field("generated_tokens", pa.int64(), nullable=False),
        pa.field("scored_tokens", pa.int64(), nullable=False),
        pa.field("num_complete", pa.int32(), nullable=False),
        pa.field("num_incomplete", pa.int32(), nullable=False),
        pa.field("num_draws", pa.int32(), nullable=False),
        pa.field("num_scored", pa.int32(), nullable=False),
        pa.field("num_faults", pa.int32(), nullable=False),
        pa.field("fault", pa.string()),
    ]
)
CANDIDATES_SCHEMA = pa.schema(
    [
        pa.field("run", pa.string(), nullable=False),
        pa.field("problem_id", pa.string(), nullable=False),
        pa.field("steps", pa.list_(pa.string()), nullable=False),
        pa.field("complete", pa.bool_(), nullable=False),
        pa.field("step_scores", pa.list_(pa.float64()), nullable=False),
        pa.field("score", pa.float64()),
        pa.field("answer", pa.string()),
        pa.field("num_votes", pa.int32(), nullable=False),
        pa.field("right", pa.bool_()),
    ]
)


def write_search(folder: str | Path, results: SearchResults) -> list[Path]:
    """Write the folder; files of an earlier search are replaced, each whole.

    Raises:
        StoreError: The folder cannot be written.
    """
    found = summaries(results)
    summary = {
        "search_version": SEARCH_VERSION,
        "title": results.title,
        "runs": [plain(s) for s in found],
        "manifest": plain(results.manifest),
    }
    files = {
        "results.json": json_bytes(summary),
        "searched.parquet": parquet_bytes(searched_table(results)),
        "candidates.parquet": parquet_bytes(candidates_table(results)),
        "report.html": render_search(results, found).encode(),
    }
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        write_durably(folder / name, data)
    return [folder / name for name in files]


def searched_table(results: SearchResults) -> pa.Table:
    """One row a problem and run."""
    names = [f.name for f in SEARCHED_SCHEMA if f.name not in ("run", "method", "budget_tokens")]
    rows = [
        {
            "run": run.name,
            "method": run.method,
            "budget_tokens": run.budget_tokens,
            **{name: getattr(p, name) for name in names},
        }
        for run in results.runs
        for p in run.problems
    ]
    return pa.Table.from_pylist(rows, schema=SEARCHED_SCHEMA)


def candidates_table(results: SearchResults) -> pa.Table:
    """One row a candidate."""
    rows = [
        {"run": run.name, "problem_id": p.problem_id, **candidate}
        for run in results.runs
        for p in run.problems
        for candidate in p.candidates
    ]
    return pa.Table.from_pylist(rows, schema=CANDIDATES_SCHEMA)
