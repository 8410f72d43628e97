"""Labels from the counts of a table by a rule of ``label_rules``, on whole columns."""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportAttributeAccessIssue=false, reportMissingTypeStubs=false
# pyarrow has no type stubs.

from collections.abc import Mapping
from typing import Literal

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from stepward.labeling.derived import Derived
from stepward.labeling.label_rules import UNBIASED, UNKNOWN, LabelRule, Reading
from stepward.prm.dataset.contract import one_chunk

TruncatedAs = Literal["exclude", "wrong", "bounds"]
MAX_TRUNCATED = 0.1
"""A prefix with a larger share of truncated draws gets no hard label."""
_COUNTED = ("right", "wrong", "truncated", "no_answer")


def derive_from_counts(
    table: pa.Table,
    rule: LabelRule,
    options: Mapping[str, float],
    truncated_as: TruncatedAs,
    valid: pl.Series,
) -> Derived:
    """What a rule says of every prefix and step; nothing where ``valid``, one a solution, is False."""
    labelled = _apply(_long(table), rule, options, truncated_as)
    if not valid.all():
        # k/n of a row whose allocation the rule cannot read is no value either.
        kept = valid.gather(labelled["solution"])
        labelled = labelled.with_columns(
            label=pl.when(kept).then("label").otherwise(UNKNOWN),
            **{name: pl.when(kept).then(name) for name in ("value", "low", "high")},
        )
    steps = labelled.filter(pl.col("t") > 0).select(
        "solution",
        "label",
        step=pl.col("t") - 1,
        decided_by=pl.when(pl.col("label").is_not_null()).then(pl.lit("returns")).otherwise(pl.lit("")),
        p_first_error=pl.lit(None, pl.Float64),
    )
    return Derived(labelled.select("value", "low", "high"), steps, _first_errors(steps, len(table)))


def _long(table: pa.Table) -> pl.DataFrame:
    """One row a prefix, with the counts that rules read, its own and those shared at the root, and the outcome."""
    lists = one_chunk(table["prefixes"])
    flat = lists.flatten()
    lengths = pc.list_value_length(lists).to_numpy()
    solution = np.repeat(np.arange(len(table), dtype=np.int64), lengths)
    starts = np.repeat(np.concatenate([[0], np.cumsum(lengths)[:-1]]), lengths)
    allocation = pl.Series(table["allocation"].to_pylist(), dtype=pl.String)
    outcome = pl.Series(table["outcome"].to_pylist(), dtype=pl.String)
    problem = pl.Series(one_chunk(table["problem_id"]).dictionary_encode().indices.to_numpy())
    counts = {name: pl.Series(name, flat.field(f"num_{name}").to_numpy()).cast(pl.Int64) for name in _COUNTED}
    frame = pl.DataFrame(counts).with_columns(
        solution=pl.Series(solution).set_sorted(),
        t=np.arange(len(flat)) - starts,
        num_steps=np.repeat(lengths - 1, lengths).astype(np.int64),
        outcome=outcome.gather(solution),
        problem=problem.gather(solution),
        biased=(~allocation.is_in(sorted(UNBIASED))).gather(solution),
    )
    at_root = pl.col("t") == 0
    pooled = {
        f"shared_{name}": pl.when(at_root)
        .then(pl.when(at_root).then(name).sum().over("problem"))
        .otherwise(name)
        for name in _COUNTED
    }
    # Columns of their own, since rules use them inside windows and windows do not nest.
    return frame.with_columns(**pooled, first=pl.int_range(pl.len()).over("problem") == 0)


def _reading(
    frame: pl.DataFrame, truncated_as: TruncatedAs, *, as_wrong: bool, share_root: bool
) -> tuple[pl.DataFrame, Reading]:
    """What a rule looks at, as columns: a rule that names one ten times would compute it ten times.

    Args:
        frame: The long table.
        truncated_as: Decides the own outcome of a truncated solution.
        as_wrong: Whether draws without an answer count as trials.
        share_root: Pool the draws at prefix 0 over the problem: it is the same prefix for all its solutions.

    Returns:
        The long table with these columns, and their names.
    """
    prefix = "shared_" if share_root else ""
    right, wrong, truncated, no_answer = (pl.col(prefix + name) for name in _COUNTED)
    ended = right + wrong + truncated + no_answer
    trials = ended if as_wrong else right + wrong
    outcome = pl.col("outcome")
    cut = outcome.is_in(["truncated", "no_answer"]) if truncated_as == "wrong" else pl.lit(False)
    own = (
        pl.when(outcome == "right").then(pl.lit(1, pl.Int8))
        .when((outcome == "wrong") | cut).then(pl.lit(0, pl.Int8))
        .otherwise(UNKNOWN)
    )  # fmt: skip
    is_last = pl.col("t") == pl.col("num_steps")
    drawn = pl.when(trials > 0).then(right / trials)
    columns = {
        "right": right,
        "trials": trials,
        "value": pl.when(is_last).then(own.cast(pl.Float64)).otherwise(drawn),
        "pass_rate": _pass_rate(right, trials, own, is_last, share_root),
        "step": pl.col("t") - 1,
        "is_last": is_last,
        "too_truncated": truncated > MAX_TRUNCATED * ended,
        "own": own,
    }
    mark = f"{'shared' if share_root else 'own'},{'wrong' if as_wrong else 'left out'}"
    named = {name: f"{name} ({mark})" for name in columns}
    frame = frame.with_columns(**{named[name]: expression for name, expression in columns.items()})
    seen = {name: pl.col(column) for name, column in named.items()}
    return frame, Reading(
        right=seen["right"],
        trials=seen["trials"],
        value=seen["value"],
        pass_rate=seen["pass_rate"],
        step=seen["step"],
        is_last=seen["is_last"],
        too_truncated=seen["too_truncated"],
        own=seen["own"],
    )


def _pass_rate(right: pl.Expr, trials: pl.Expr, own: pl.Expr, is_last: pl.Expr, shared: bool) -> pl.Expr:
    """Right among the known outcomes of the problem's solutions and its draws at prefix 0."""
    # Pooled draws stand in every solution's row: they are counted in the first one alone.
    first = pl.col("first") if shared else pl.col("t") == 0
    known = (is_last & own.is_not_null()).cast(pl.Int64)
    asked = (pl.when(first).then(trials).otherwise(0) + known).sum().over("problem")
    good = (pl.when(first).then(right).otherwise(0) + known * own.fill_null(0)).sum().over("problem")
    return pl.when(asked > 0).then(good / asked)


def _apply(
    prefixes: pl.DataFrame, rule: LabelRule, options: Mapping[str, float], truncated_as: TruncatedAs
) -> pl.DataFrame:
    """The long table with ``label`` (of the step that ends there), ``value``, ``low`` and ``high``."""
    strict = truncated_as == "wrong"
    frame, main = _reading(prefixes, truncated_as, as_wrong=strict, share_root=False)
    frame, shared = _reading(frame, truncated_as, as_wrong=strict, share_root=True)
    label = rule.label(shared, options)
    if truncated_as == "bounds" and rule.in_both_readings:
        frame, other = _reading(frame, truncated_as, as_wrong=True, share_root=True)
        label_too = rule.label(other, options)
        label = pl.when(label == label_too).then(label).otherwise(UNKNOWN)
    frame = frame.with_columns(label=label)
    # No rule reads k/n where sampling stopped at a success: the posterior does not depend on when it stopped.
    posterior = pl.when(main.trials > 0).then((main.right + 0.5) / (main.trials + 1))
    plain = pl.when(pl.col("biased") & ~main.is_last).then(posterior).otherwise(main.value)
    ended = pl.sum_horizontal(_COUNTED)
    labelled = frame.with_columns(
        value=plain if rule.value is None else rule.value(main, options),
        n=main.trials,
        n_low=ended if truncated_as == "bounds" else main.trials,
        is_own=main.is_last & main.own.is_not_null(),
    )
    if rule.has_intervals:
        return _with_intervals(labelled)
    return labelled.with_columns(low=pl.lit(None, pl.Float64), high=pl.lit(None, pl.Float64))


def _with_intervals(labelled: pl.DataFrame) -> pl.DataFrame:
    """90 % equal-tailed interval of Beta(k + 1/2, n - k + 1/2), covering both readings of truncated draws."""
    from scipy.special import betaincinv  # pyright: ignore[reportMissingTypeStubs]

    pairs = labelled.select("right", "n", "n_low").unique()
    k, n, n_low = (pairs[c].to_numpy().astype(float) for c in ("right", "n", "n_low"))
    pairs = pairs.with_columns(
        low=betaincinv(k + 0.5, n_low - k + 0.5, 0.05), high=betaincinv(k + 0.5, n - k + 0.5, 0.95)
    )
    known = (pl.col("n") > 0) & pl.col("value").is_not_null()
    ends = {name: pl.when(pl.col("is_own")).then("value").when(known).then(name) for name in ("low", "high")}
    joined = labelled.join(pairs, on=["right", "n", "n_low"], how="left", maintain_order="left")
    return joined.with_columns(**ends)


def _first_errors(steps: pl.DataFrame, num_solutions: int) -> pl.DataFrame:
    """For each solution the first 0, where no step before it is unknown, and whether that much is known."""
    at = pl.col("step")
    grouped = steps.group_by("solution").agg(
        zero=at.filter(pl.col("label") == 0).min(), unknown=at.filter(pl.col("label").is_null()).min()
    )
    every = pl.DataFrame({"solution": np.arange(num_solutions)})
    known = pl.col("unknown").is_null() | (pl.col("zero") < pl.col("unknown")).fill_null(False)
    return (
        every.join(grouped, on="solution", how="left", maintain_order="left")
        .with_columns(known=known)
        .with_columns(first_error=pl.when("known").then("zero"))
    )
