"""Labels again from stored counts, without a model: ``relabel_table`` for a table, ``relabel_dataset`` for a folder.

Counts are never changed, only what is derived from them: value and interval of each prefix, label and
``decided_by`` of each step, ``first_error`` and the labeler. Work is done on whole columns.
"""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportAttributeAccessIssue=false, reportMissingTypeStubs=false
# pyarrow has no type stubs.

import json
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from stepward.labeling.label_rules import RULES, UNKNOWN, LabelRule, Reading
from stepward.prm.dataset.manifest import Manifest, config_hash
from stepward.prm.dataset.schema import SOLUTIONS_SCHEMA, conform
from stepward.prm.dataset.store import Dataset, ShardStore
from stepward.prm.errors import ConfigError
from stepward.prm.types import Allocation, LabelerInfo

TruncatedAs = Literal["exclude", "wrong", "bounds"]
Consensus = Literal["", "strict", "no_contradiction"]
MAX_TRUNCATED = 0.1
"""A prefix with a larger share of truncated draws gets no hard label."""


@dataclass(frozen=True, slots=True)
class Relabeling:
    """How to label again.

    Attributes:
        rule: A name in ``label_rules.RULES``.
        options: The rule's options; those not named keep their defaults.
        truncated_as: Draws without an answer: left out, counted as wrong, or left out where both readings give
            the same label (``bounds``).
        stop_after_first_error: Labels after the first 0 become unknown (Qwen).
        consensus: Keep a solution's labels only where the tool verdicts agree: ``strict`` wants the first
            refuted step to be the first error; ``no_contradiction`` allows that no tool looked at the error,
            but nothing refuted before it, nor in a solution without error.
        verifiers: Whose verdicts count; empty = all.
    """

    rule: str = "hard"
    options: Mapping[str, float] = field(default_factory=dict[str, float])
    truncated_as: TruncatedAs = "bounds"
    stop_after_first_error: bool = False
    consensus: Consensus = ""
    verifiers: Collection[str] = ()

    def checked(self) -> tuple[LabelRule, dict[str, float]]:
        """The rule and all its options. Raises ConfigError, naming every fault."""
        rule = RULES.get(self.rule)
        if rule is None:
            raise ConfigError([f"relabel: no rule {self.rule!r}; there are {', '.join(RULES)}"])
        known = ", ".join(rule.options)
        faults = [
            f"relabel: rule {self.rule!r} has no option {option!r}; it has {known}"
            for option in sorted(set(self.options) - set(rule.options))
        ]
        for name, value, choices in (
            ("truncated_as", self.truncated_as, get_args(TruncatedAs)),
            ("consensus", self.consensus, get_args(Consensus)),
        ):
            if value not in choices:
                listed = ", ".join(repr(c) for c in choices)
                faults.append(f"relabel: {name} is {value!r}; it is one of {listed}")
        if faults:
            raise ConfigError(faults)
        return rule, {**rule.options, **self.options}

    @property
    def labeler(self) -> LabelerInfo:
        """What the rows will name."""
        rule, options = self.checked()
        settings = {**asdict(self), "options": options, "verifiers": sorted(self.verifiers)}
        return LabelerInfo(f"relabel/{rule.name}", rule.version, config_hash(settings))


@dataclass(frozen=True, slots=True)
class RelabelReport:
    """What came out. ``solutions`` = ``decided`` + ``refused`` + ``undecided`` + ``disagreeing``.

    Attributes:
        solutions: Rows in, and out.
        decided: Solutions whose first error, or its absence, is known.
        refused: Solutions by allocation for which the rule is not valid: all labels unknown.
        undecided: Solutions that the counts do not decide.
        disagreeing: Solutions that the consensus took out.
        labels: Steps by label.
    """

    solutions: int = 0
    decided: int = 0
    refused: Mapping[str, int] = field(default_factory=dict[str, int])
    undecided: int = 0
    disagreeing: int = 0
    labels: Mapping[str, int] = field(default_factory=dict[str, int])

    def __add__(self, other: "RelabelReport") -> "RelabelReport":
        return RelabelReport(
            self.solutions + other.solutions,
            self.decided + other.decided,
            dict(Counter(self.refused) + Counter(other.refused)),
            self.undecided + other.undecided,
            self.disagreeing + other.disagreeing,
            dict(Counter(self.labels) + Counter(other.labels)),
        )


def relabel_table(table: pa.Table, how: Relabeling) -> tuple[pa.Table, RelabelReport]:
    """A table of the solutions schema with labels by another rule, and what came out.

    Raises:
        ConfigError: No such rule or option.
        FormatError: The table is not of the contract (counts are missing, for instance).
    """
    rule, options = how.checked()
    table = conform(table).combine_chunks()
    if len(table) == 0:
        return table, RelabelReport()
    prefixes = _long(table)
    refused = _refused(table, rule)
    labelled = _apply(prefixes, rule, options, how.truncated_as)
    steps = labelled.filter(pl.col("t") > 0).select("solution", "t", "label")
    valid = pl.Series("valid", refused.is_null())
    steps = _mask(steps, valid)
    errors = _first_errors(steps, len(table))
    agreeing = _agreement(table, errors, how)
    steps = _mask(steps, agreeing)
    errors = errors.with_columns(
        first_error=pl.when(agreeing).then("first_error"), known=pl.col("known") & agreeing
    )
    if how.stop_after_first_error:
        first = errors["first_error"].gather(steps["solution"])
        steps = steps.with_columns(label=pl.when(first.is_null() | (pl.col("t") - 1 <= first)).then("label"))
    report = RelabelReport(
        solutions=len(table),
        decided=int(errors["known"].sum()),
        refused={str(k): n for k, n in refused.drop_nulls().value_counts().iter_rows()},
        undecided=int((~errors["known"] & valid & agreeing).sum()),
        disagreeing=int((valid & ~agreeing).sum()),
        labels=_label_counts(steps["label"]),
    )
    return _rebuilt(table, labelled, steps, errors, how.labeler), report


def _label_counts(labels: pl.Series) -> dict[str, int]:
    names = {1: "right", 0: "wrong", None: "unknown"}
    return {names[k]: n for k, n in labels.value_counts().iter_rows()}


_COUNTED = ("right", "wrong", "truncated", "no_answer")


def _long(table: pa.Table) -> pl.DataFrame:
    """One row a prefix, with the counts that rules read, its own and those shared at the root, and the outcome."""
    lists = table["prefixes"].combine_chunks()
    flat = lists.flatten()
    lengths = pc.list_value_length(lists).to_numpy()
    solution = np.repeat(np.arange(len(table), dtype=np.int64), lengths)
    starts = np.repeat(np.concatenate([[0], np.cumsum(lengths)[:-1]]), lengths)
    outcome = pl.Series(table["outcome"].combine_chunks().to_pylist(), dtype=pl.String)
    problem = pl.Series(table["problem_id"].combine_chunks().dictionary_encode().indices.to_numpy())
    counts = {
        name: pl.Series(name, pc.struct_field(flat, f"num_{name}").to_numpy()).cast(pl.Int64)
        for name in _COUNTED
    }
    frame = pl.DataFrame(counts).with_columns(
        solution=solution,
        t=np.arange(len(flat)) - starts,
        num_steps=np.repeat(lengths - 1, lengths).astype(np.int64),
        outcome=outcome.gather(solution),
        problem=problem.gather(solution),
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


def _refused(table: pa.Table, rule: LabelRule) -> pl.Series:
    """For each solution its allocation where the rule is not valid for it, else null."""
    allocation = pl.Series("allocation", table["allocation"].combine_chunks().to_pylist(), dtype=pl.String)
    valid = [a.value for a in rule.valid_for]
    return (
        allocation.to_frame()
        .select(pl.when(~pl.col("allocation").is_in(valid)).then("allocation"))
        .to_series()
    )


def _reading(truncated_as: TruncatedAs, *, as_wrong: bool, share_root: bool) -> Reading:
    """What a rule looks at.

    Args:
        truncated_as: Decides the own outcome of a truncated solution.
        as_wrong: Whether draws without an answer count as trials.
        share_root: Pool the draws at prefix 0 over the problem: it is the same prefix for all its solutions.
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
    return Reading(
        right=right,
        trials=trials,
        value=pl.when(is_last).then(own.cast(pl.Float64)).otherwise(drawn),
        pass_rate=_pass_rate(right, trials, own, is_last, share_root),
        step=pl.col("t") - 1,
        is_last=is_last,
        too_truncated=truncated > MAX_TRUNCATED * ended,
        own=own,
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
    main = _reading(truncated_as, as_wrong=strict, share_root=False)
    label = rule.label(_reading(truncated_as, as_wrong=strict, share_root=True), options)
    if truncated_as == "bounds":
        other = rule.label(_reading(truncated_as, as_wrong=True, share_root=True), options)
        label = pl.when(label == other).then(label).otherwise(UNKNOWN)
    value = main.value if rule.value is None else rule.value(main, options)
    labelled = prefixes.with_columns(
        label=label,
        value=value,
        n=main.trials,
        n_low=_reading(truncated_as, as_wrong=strict or truncated_as == "bounds", share_root=False).trials,
        is_own=main.is_last & main.own.is_not_null(),
    )
    return _with_intervals(labelled)


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


def _mask(steps: pl.DataFrame, keep: pl.Series) -> pl.DataFrame:
    if keep.all():
        return steps
    return steps.with_columns(label=pl.when(keep.gather(steps["solution"])).then("label").otherwise(UNKNOWN))


def _first_errors(steps: pl.DataFrame, num_solutions: int) -> pl.DataFrame:
    """For each solution the first 0, where no step before it is unknown, and whether that much is known."""
    at = pl.col("t") - 1
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


def _agreement(table: pa.Table, errors: pl.DataFrame, how: Relabeling) -> pl.Series:
    """For each solution whether the tools' verdicts let its labels stand."""
    if not how.consensus:
        return pl.Series("agrees", np.ones(len(table), dtype=bool))
    refuted = _first_refuted(table, how.verifiers)
    found = errors.with_columns(refuted=refuted)
    error, tool = pl.col("first_error"), pl.col("refuted")
    if how.consensus == "strict":
        agrees = error.eq_missing(tool)
    else:
        agrees = tool.is_null() | (error.is_not_null() & (tool >= error))
    return found.select(agrees=~pl.col("known") | agrees).to_series()


def _first_refuted(table: pa.Table, verifiers: Collection[str]) -> pl.Series:
    lists = table["steps"].combine_chunks()
    verdicts = pc.struct_field(lists.flatten(), "verdicts")
    flat = verdicts.flatten()
    refuted = pc.equal(pc.struct_field(flat, "verdict"), "refuted")
    if verifiers:
        named = pc.is_in(pc.struct_field(flat, "verifier"), value_set=pa.array(sorted(verifiers)))
        refuted = pc.and_(refuted, named)
    steps = np.unique(pc.list_parent_indices(verdicts).filter(refuted).to_numpy())
    solution = pc.list_parent_indices(lists).to_numpy()
    starts = np.concatenate([[0], np.cumsum(pc.list_value_length(lists).to_numpy())[:-1]])
    first = np.full(len(table), -1, dtype=np.int64)
    for_steps = solution[steps]
    # Descending, so that the earliest step of a solution is written last.
    first[for_steps[::-1]] = (steps - starts[for_steps])[::-1]
    return pl.Series("refuted", first).replace(-1, None)


def _rebuilt(
    table: pa.Table, labelled: pl.DataFrame, steps: pl.DataFrame, errors: pl.DataFrame, labeler: LabelerInfo
) -> pa.Table:
    label = steps["label"].to_arrow()
    decided_by = steps.select(
        pl.when(pl.col("label").is_not_null()).then(pl.lit("returns")).otherwise(pl.lit(""))
    )
    nothing = pa.nulls(len(steps), pa.float64())
    new_steps = {
        "label": label,
        "decided_by": decided_by.to_series().to_arrow().cast(pa.string()),
        "p_first_error": nothing,
    }
    new_prefixes = {f"value{part}": labelled[name].to_arrow() for part, name in _VALUE_COLUMNS}
    columns: dict[str, pa.Array] = {
        "steps": _with_fields(table["steps"].combine_chunks(), new_steps),
        "prefixes": _with_fields(table["prefixes"].combine_chunks(), new_prefixes),
        "first_error": errors["first_error"].cast(pl.Int32).to_arrow(),
        "labeler": pa.array([asdict(labeler)], SOLUTIONS_SCHEMA.field("labeler").type).take(
            pa.array(np.zeros(len(table), dtype=np.int64))
        ),
    }
    arrays = [columns.get(name, table[name]) for name in SOLUTIONS_SCHEMA.names]
    return pa.Table.from_arrays(arrays, schema=SOLUTIONS_SCHEMA)


_VALUE_COLUMNS = (("", "value"), ("_low", "low"), ("_high", "high"))


def _with_fields(lists: pa.Array, new: Mapping[str, pa.Array]) -> pa.Array:
    """A list<struct> column with some fields of its structs replaced."""
    structs = lists.flatten()
    fields = list(structs.type)
    children = [
        new[f.name].cast(f.type) if f.name in new else child
        for f, child in zip(fields, structs.flatten(), strict=True)
    ]
    offsets = np.concatenate([[0], np.cumsum(pc.list_value_length(lists).to_numpy())]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.StructArray.from_arrays(children, fields=fields))


def relabel_dataset(
    source: Dataset, folder: str | Path, how: Relabeling, *, resume: bool = False, overwrite: bool = False
) -> tuple[Manifest, RelabelReport]:
    """A new dataset with other labels; the one it is made from stays as it is. Shard by shard, memory flat.

    Args:
        source: The dataset; its rollouts are copied along.
        folder: Where the new one goes.
        how: The rule.
        resume: As in ``ShardStore.create_or_resume``.
        overwrite: As there.

    Returns:
        The sealed manifest, whose ``derived_from`` names the source, and what came out.
    """
    settings: dict[str, Any] = json.loads(json.dumps({**asdict(how), "verifiers": sorted(how.verifiers)}))
    manifest = replace(
        source.manifest,
        config={"relabel": settings, "labelled_with": source.manifest.config},
        labeler=how.labeler,
        derived_from={"fingerprint": source.manifest.fingerprint, "run_id": source.manifest.run_id},
        totals=None,
        shards=(),
        fingerprint=None,
    )
    report = RelabelReport()
    with ShardStore.create_or_resume(folder, manifest, resume=resume, overwrite=overwrite) as store:
        finished = store.finished()
        for index in range(len(source.manifest.shards)):
            table, part = relabel_table(source.shard("solutions", index), how)
            report += part
            if index not in finished:
                store.write_tables(index, table, source.shard("rollouts", index))
        return store.seal(), report


def valid_allocations(rule: str) -> list[Allocation]:
    """The allocations that a rule of ``relabel`` is valid for, in order."""
    return sorted(RULES[rule].valid_for)
