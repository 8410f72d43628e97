"""Numbers of every solution of a shard, from the leaf columns that hold them: no text is read.

A solution's row takes some hundred bytes here, so that 100,000 of them can be filtered and sorted in memory while
texts stay on the disk until a row is shown.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

# pyright: reportUnknownParameterType=false
# pyarrow has no type stubs.

if TYPE_CHECKING:
    import polars as pl

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

LEAVES = (
    "solution_id", "problem_id", "outcome", "first_error", "tokens.generated",
    "prefixes.list.element.value", "prefixes.list.element.value_low", "prefixes.list.element.value_high",
    "steps.list.element.label", "steps.list.element.verdicts.list.element.verdict",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ShardSummary:
    """One shard.

    Attributes:
        frame: One row a solution, see ``summarize``.
        values: Values of all prefixes, flat; NaN where not known.
        starts: Where each solution's values begin in ``values``, and one end more.
    """

    frame: "pl.DataFrame"
    values: Floats
    starts: Ints

    def strip(self, row: int) -> list[float | None]:
        """Value after each step of a solution."""
        after = self.values[self.starts[row] + 1 : self.starts[row + 1]]
        return [None if np.isnan(v) else round(float(v), 4) for v in after]


def summarize(path: Path, shard: int) -> ShardSummary:
    """The summary of a shard file.

    The frame's columns: shard, row (within it), solution_id, problem_id, outcome, first_error, num_steps,
    generated_tokens, value_start, value_end, value_lowest, largest_drop (from a step to the next), widest
    (interval), num_wrong_labels, num_unknown_labels, num_refuted, num_supported, and conflict: how far returns and
    verdicts disagree, the greatest over steps of the value after a refuted step and of the drop at a supported
    one; null where no step has a verdict and a value.
    """
    import polars as pl

    table = _read(path)
    prefixes, steps = _one(table["prefixes"]), _one(table["steps"])
    starts, step_starts = _offsets(prefixes), _offsets(steps)
    flat, step_flat = prefixes.flatten(), steps.flatten()
    values, low, high = (_floats(flat.field(name)) for name in ("value", "value_low", "value_high"))
    labels = _floats(step_flat.field("label"))
    refuted, supported = _verdict_counts(step_flat.field("verdicts"))
    num_steps = np.diff(step_starts)
    owner = np.repeat(np.arange(len(num_steps)), num_steps)
    # Step t of solution i stands between its prefixes t and t + 1.
    before = starts[:-1][owner] + np.arange(len(owner)) - np.repeat(step_starts[:-1], num_steps)
    drop = values[before] - values[before + 1]
    conflict = np.fmax(
        np.where(refuted > 0, values[before + 1], np.nan), np.where(supported > 0, drop, np.nan)
    )
    count = len(num_steps)
    prefix_owner = np.repeat(np.arange(count), np.diff(starts))
    frame = pl.DataFrame(
        {
            "shard": np.full(count, shard, dtype=np.int32),
            "row": np.arange(count, dtype=np.int32),
            "solution_id": pl.Series(table["solution_id"].to_pylist(), dtype=pl.String),
            "problem_id": pl.Series(table["problem_id"].to_pylist(), dtype=pl.String),
            "outcome": pl.Series(table["outcome"].to_pylist(), dtype=pl.String),
            "first_error": pl.Series(table["first_error"].to_pylist(), dtype=pl.Int32),
            "num_steps": num_steps.astype(np.int32),
            "generated_tokens": _ints(_one(table["tokens"]).field("generated")),
            "value_start": values[starts[:-1]],
            "value_end": values[starts[1:] - 1],
            "value_lowest": _reduce(np.fmin, values, prefix_owner, count),
            "largest_drop": _reduce(np.fmax, drop, owner, count),
            "widest": _reduce(np.fmax, high - low, prefix_owner, count),
            "num_wrong_labels": np.bincount(owner, labels == 0, count).astype(np.int32),
            "num_unknown_labels": np.bincount(owner, np.isnan(labels), count).astype(np.int32),
            "num_refuted": np.bincount(owner, refuted, count).astype(np.int32),
            "num_supported": np.bincount(owner, supported, count).astype(np.int32),
            "conflict": _reduce(np.fmax, conflict, owner, count),
        }
    )
    return ShardSummary(frame.fill_nan(None), values, starts)


def _read(path: Path) -> pa.Table:
    if path.suffix == ".parquet":
        with pq.ParquetFile(path) as file:
            return file.read(columns=list(LEAVES), use_threads=False)
    with pa.memory_map(str(path)) as source:
        names = list(dict.fromkeys(leaf.split(".")[0] for leaf in LEAVES))
        return pa.ipc.open_file(source).read_all().select(names)


def _one(column: pa.ChunkedArray) -> Any:
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)


def _offsets(array: Any) -> Ints:
    offsets = array.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
    return offsets - offsets[0]


def _floats(array: Any) -> Floats:
    return array.cast(pa.float64()).to_numpy(zero_copy_only=False).astype(np.float64)


def _ints(array: Any) -> Ints:
    return array.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)


def _verdict_counts(array: Any) -> tuple[Floats, Floats]:
    """Refuted and supported verdicts of each step."""
    starts = _offsets(array)
    kinds = array.flatten().field("verdict").dictionary_encode()
    names = kinds.dictionary.to_pylist()
    codes = kinds.indices.to_numpy(zero_copy_only=False)
    owner = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    refuted, supported = (
        np.bincount(owner, codes == (names.index(kind) if kind in names else -1), len(starts) - 1)
        for kind in ("refuted", "supported")
    )
    return refuted.astype(np.float64), supported.astype(np.float64)


def _reduce(reduce: np.ufunc, values: Floats, owner: Ints, count: int) -> Floats:
    """A reduction within each solution that passes over NaN; NaN where nothing is known."""
    out = np.full(count, np.nan)
    reduce.at(out, owner, values)
    return out
