"""Who must agree before a label stands: the tools' verdicts in the rows, or a second dataset of the same solutions."""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportAttributeAccessIssue=false, reportMissingTypeStubs=false
# pyarrow has no type stubs.

from collections.abc import Collection
from typing import Literal

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from stepward.prm.dataset.contract import one_chunk
from stepward.prm.dataset.store import Dataset

Consensus = Literal["", "strict", "no_contradiction"]
_KEY = ("key", "key_too")
_READ = ("problem", "steps", "first_error")


def agrees_with_verdicts(
    table: pa.Table, errors: pl.DataFrame, mode: Consensus, verifiers: Collection[str]
) -> pl.Series:
    """For each solution whether the tools' verdicts let its labels stand; True where there are none to stand.

    Args:
        table: The solutions, with verdicts.
        errors: ``Derived.errors``.
        mode: ``strict``: the first refuted step is the first error. ``no_contradiction``: no tool need have looked,
            but nothing is refuted before the error, nor in a solution without one.
        verifiers: Whose verdicts count; empty = all.
    """
    error, tool = pl.col("first_error"), pl.col("refuted")
    if mode == "strict":
        agrees = error.eq_missing(tool)
    else:
        agrees = tool.is_null() | (error.is_not_null() & (tool >= error))
    found = errors.with_columns(refuted=_first_refuted(table, verifiers))
    return found.select(agrees=~pl.col("known") | agrees).to_series()


def _first_refuted(table: pa.Table, verifiers: Collection[str]) -> pl.Series:
    lists = one_chunk(table["steps"])
    verdicts = lists.flatten().field("verdicts")
    flat = verdicts.flatten()
    refuted = pc.equal(flat.field("verdict"), "refuted")
    if verifiers:
        named = pc.is_in(flat.field("verifier"), value_set=pa.array(sorted(verifiers)))
        refuted = pc.and_(refuted, named)
    steps = np.unique(pc.list_parent_indices(verdicts).filter(refuted).to_numpy())
    solution = pc.list_parent_indices(lists).to_numpy()
    starts = np.concatenate([[0], np.cumsum(pc.list_value_length(lists).to_numpy())[:-1]])
    first = np.full(len(table), -1, dtype=np.int64)
    for_steps = solution[steps]
    # Descending, so that the earliest step of a solution is written last.
    first[for_steps[::-1]] = (steps - starts[for_steps])[::-1]
    return pl.Series("refuted", first).replace(-1, None)


def second_opinion(dataset: Dataset) -> pl.DataFrame:
    """First errors of another dataset by solution, a few dozen bytes each. A solution is its problem and step texts.

    Returns:
        One row a solution: its key, ``theirs`` (first error) and ``sure``: whether that much is known. Of a solution
        that stands there twice with different labels nothing is known.
    """
    parts = [
        _keyed(pa.Table.from_batches([batch])).select(*_KEY, theirs="first_error", sure=_is_known())
        for batch in dataset.batches("solutions", columns=_READ)
    ]
    schema = {"key": pl.UInt64, "key_too": pl.UInt64, "theirs": pl.Int32, "sure": pl.Boolean}
    found = pl.concat(parts) if parts else pl.DataFrame(schema=schema)
    same = (pl.col("theirs").n_unique() == 1) & pl.col("sure").all()
    return found.group_by(_KEY, maintain_order=True).agg(pl.col("theirs").first(), sure=same)


def _keyed(table: pa.Table) -> pl.DataFrame:
    frame = pl.DataFrame(pl.from_arrow(table.select(_READ)))
    texts = pl.col("steps").list.eval(pl.element().struct.field("text")).list.join("\x00")
    whole = pl.concat_str("problem", texts, separator="\x01")
    return frame.with_columns(key=whole.hash(0), key_too=whole.hash(1))


def _is_known() -> pl.Expr:
    labels = pl.col("steps").list.eval(pl.element().struct.field("label").eq_missing(1))
    return pl.col("first_error").is_not_null() | labels.list.all()


def agrees_with_second(
    table: pa.Table, errors: pl.DataFrame, mode: Consensus, opinion: pl.DataFrame
) -> pl.Series:
    """For each solution whether a second dataset lets its labels stand; True where there are none to stand.

    Args:
        table: The solutions.
        errors: ``Derived.errors``.
        mode: ``strict``: the other has the solution and the same first error, or none as here.
            ``no_contradiction``: the other may lack it or not know.
        opinion: ``second_opinion`` of the other dataset.
    """
    found = _keyed(table).select(*_KEY).join(opinion, on=_KEY, how="left", maintain_order="left")
    both = found.with_columns(errors.select("first_error", "known"))
    sure = pl.col("sure").fill_null(False)
    same = pl.col("first_error").eq_missing(pl.col("theirs").cast(pl.Int64))
    agrees = sure & same if mode == "strict" else ~sure | same
    return both.select(agrees=~pl.col("known") | agrees).to_series()
