"""Counts of a shard for its receipt, from the columns and not row by row."""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportAttributeAccessIssue=false, reportMissingTypeStubs=false
# pyarrow has no type stubs.

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stepward.prm.dataset.manifest import Totals
from stepward.prm.types import Outcome

_LABELS: dict[Any, str] = {1: "right", 0: "wrong", None: "unknown"}


def totals_of(solutions: pa.Table, num_rollouts: int) -> Totals:
    """What a table of the solutions schema holds, beside ``num_rollouts`` rollouts."""
    if len(solutions) == 0:
        return Totals(rollouts=num_rollouts)
    lists = solutions["steps"].combine_chunks()
    steps = lists.flatten()
    labels = pc.struct_field(steps, "label")
    prefixes = solutions["prefixes"].combine_chunks().flatten()
    draws = {o.value: pc.sum(pc.struct_field(prefixes, f"num_{o.value}")).as_py() or 0 for o in Outcome}
    tokens = solutions["tokens"].combine_chunks()
    return Totals(
        problems=len(pc.run_end_encode(solutions["problem_id"].combine_chunks()).values),
        solutions=len(solutions),
        rollouts=num_rollouts,
        steps=len(steps),
        labels={_LABELS[k]: n for k, n in _tally(labels).items()},
        first_errors=_first_errors(solutions, labels),
        outcomes={k or "not_graded": n for k, n in _tally(solutions["outcome"]).items()},
        draws={k: n for k, n in draws.items() if n},
        prompt_tokens=pc.sum(pc.struct_field(tokens, "prompt")).as_py(),
        generated_tokens=pc.sum(pc.struct_field(tokens, "generated")).as_py(),
        sources=_tally(solutions["source"]),
        licences=_tally(solutions["licence"]),
    )


def _tally(values: pa.Array | pa.ChunkedArray) -> dict[Any, int]:
    return {v["values"]: v["counts"] for v in pc.value_counts(values).to_pylist()}


def _first_errors(solutions: pa.Table, labels: pa.Array) -> dict[str, int]:
    """``some`` where there is a first error, ``none`` where every step is right, ``unknown`` otherwise."""
    some = pc.is_valid(solutions["first_error"]).to_numpy()
    rows = pc.list_parent_indices(solutions["steps"].combine_chunks()).to_numpy()
    right = pc.fill_null(pc.equal(labels, 1), False).to_numpy(zero_copy_only=False)
    doubtful = np.zeros(len(solutions), dtype=bool)
    doubtful[rows[~right]] = True
    num_some, num_none = int(some.sum()), int((~some & ~doubtful).sum())
    named = {"some": num_some, "none": num_none, "unknown": len(solutions) - num_some - num_none}
    return {k: n for k, n in named.items() if n}
