"""Counts of a shard for its receipt, from the columns and not row by row."""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportAttributeAccessIssue=false, reportMissingTypeStubs=false
# pyarrow has no type stubs.

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stepward.prm.dataset.contract import one_chunk
from stepward.prm.dataset.manifest import Totals
from stepward.prm.types import Outcome

_LABELS: dict[Any, str] = {1: "right", 0: "wrong", None: "unknown"}


def totals_of(solutions: pa.Table, num_rollouts: int) -> Totals:
    """What a table of the solutions schema holds, beside ``num_rollouts`` rollouts."""
    if len(solutions) == 0:
        return Totals(rollouts=num_rollouts)
    # No column is copied: a copy of the steps costs more than all the counting.
    lists = one_chunk(solutions["steps"])
    labels = lists.flatten().field("label")
    prefixes = one_chunk(solutions["prefixes"]).flatten()
    draws = {o.value: _sum(prefixes.field(f"num_{o.value}")) for o in Outcome}
    tokens = one_chunk(solutions["tokens"])
    return Totals(
        problems=len(pc.run_end_encode(one_chunk(solutions["problem_id"])).values),
        solutions=len(solutions),
        rollouts=num_rollouts,
        steps=len(labels),
        labels={_LABELS[k]: n for k, n in _tally(labels).items()},
        first_errors=_first_errors(solutions, lists, labels),
        outcomes={k or "not_graded": n for k, n in _tally(solutions["outcome"]).items()},
        draws={k: n for k, n in draws.items() if n},
        prompt_tokens=_sum(tokens.field("prompt")),
        generated_tokens=_sum(tokens.field("generated")),
        sources=_tally(solutions["source"]),
        licences=_tally(solutions["licence"]),
    )


def _sum(values: pa.Array) -> int:
    return int(values.to_numpy().sum(dtype=np.int64))


def _tally(values: pa.Array | pa.ChunkedArray) -> dict[Any, int]:
    return {v["values"]: v["counts"] for v in pc.value_counts(values).to_pylist()}


def _first_errors(solutions: pa.Table, lists: pa.Array, labels: pa.Array) -> dict[str, int]:
    """``some`` where there is a first error, ``none`` where every step is right, ``unknown`` otherwise."""
    some = solutions["first_error"].is_valid().to_numpy()
    not_right = pc.fill_null(labels, 0).to_numpy() != 1
    before = np.concatenate([[0], np.cumsum(not_right)])
    ends = np.cumsum(pc.list_value_length(lists).to_numpy())
    in_row = np.diff(before[ends], prepend=0)
    num_some, num_none = int(some.sum()), int((~some & (in_row == 0)).sum())
    named = {"some": num_some, "none": num_none, "unknown": len(solutions) - num_some - num_none}
    return {k: n for k, n in named.items() if n}
