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
from typing import Any, get_args

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from stepward.labeling.constants import from_json
from stepward.labeling.derived import Derived
from stepward.labeling.estimators.registry import RegisteredEstimator, estimators
from stepward.labeling.evidence import LabelingConstants
from stepward.labeling.fusion import RULES as FUSIONS
from stepward.labeling.label_rules import RULES, LabelRule
from stepward.labeling.relabel_consensus import (
    Consensus,
    agrees_with_second,
    agrees_with_verdicts,
    second_opinion,
)
from stepward.labeling.relabel_counts import TruncatedAs, derive_from_counts
from stepward.labeling.relabel_evidence import derive_from_evidence, options_of
from stepward.labeling.relabel_recovery import with_recoveries_again
from stepward.prm.dataset.contract import one_chunk
from stepward.prm.dataset.manifest import Manifest, config_hash
from stepward.prm.dataset.schema import SCHEMA_VERSION, SOLUTIONS_SCHEMA, conform
from stepward.prm.dataset.store import Dataset, ShardStore
from stepward.prm.errors import ConfigError
from stepward.prm.types import Allocation, LabelerInfo


@dataclass(frozen=True, slots=True)
class Relabeling:
    """How to label again.

    Attributes:
        rule: A name in ``label_rules.RULES`` (whole columns, seconds a million steps), or of any labeler of the
            registry, such as ``changepoint`` (problem by problem, what a labelling run computes).
        options: The rule's options; those not named keep their defaults.
        truncated_as: Draws without an answer: left out, counted as wrong, or left out where both readings give
            the same label (``bounds``).
        stop_after_first_error: Labels after the first 0 become unknown (Qwen).
        consensus: Keep a solution's labels only where others agree: the tools' verdicts in the rows, or, where
            ``consensus_with`` is set, a second dataset. ``strict`` wants the same first error; ``no_contradiction``
            allows that the others say nothing of the solution, or of the place of its error.
        verifiers: Whose verdicts count; empty = all.
        consensus_with: Fingerprint of the second dataset; ``relabel_dataset`` fills it in.
        fusion: How verdicts and hints enter a labeler of the registry (``fusion.RULES``); rules on columns read
            returns alone.
    """

    rule: str = "hard"
    options: Mapping[str, float] = field(default_factory=dict[str, float])
    truncated_as: TruncatedAs = "bounds"
    stop_after_first_error: bool = False
    consensus: Consensus = ""
    verifiers: Collection[str] = ()
    consensus_with: str = ""
    fusion: str = "returns"

    def checked(self) -> tuple[LabelRule | RegisteredEstimator, dict[str, float]]:
        """The rule and all its options. Raises ConfigError, naming every fault."""
        rule = RULES.get(self.rule) or estimators().get(self.rule)
        if rule is None:
            raise ConfigError([f"relabel: no rule {self.rule!r}; there are {', '.join(rule_names())}"])
        defaults = dict(rule.options) if isinstance(rule, LabelRule) else options_of(rule)
        known = ", ".join(defaults) or "none"
        faults = [
            f"relabel: rule {self.rule!r} has no option {option!r}; it has {known}"
            for option in sorted(set(self.options) - set(defaults))
        ]
        for name, value, choices in (
            ("truncated_as", self.truncated_as, get_args(TruncatedAs)),
            ("consensus", self.consensus, get_args(Consensus)),
            ("fusion", self.fusion, tuple(FUSIONS)),
        ):
            if value not in choices:
                listed = ", ".join(repr(c) for c in choices)
                faults.append(f"relabel: {name} is {value!r}; it is one of {listed}")
        if isinstance(rule, LabelRule) and self.fusion != "returns":
            faults.append(
                f"relabel: rule {self.rule!r} reads returns alone; fusion {self.fusion!r} needs a labeler"
            )
        if self.consensus_with and not self.consensus:
            faults.append("relabel: a second dataset needs a consensus, strict or no_contradiction")
        if faults:
            raise ConfigError(faults)
        return rule, {**defaults, **self.options}

    @property
    def labeler(self) -> LabelerInfo:
        """What the rows will name."""
        rule, options = self.checked()
        return LabelerInfo(
            f"relabel/{rule.name}", rule.version, config_hash({**self.settings(), "options": options})
        )

    def settings(self) -> dict[str, Any]:
        """As the manifest holds them."""
        settings: dict[str, Any] = json.loads(
            json.dumps({**asdict(self), "verifiers": sorted(self.verifiers)})
        )
        # What is not asked for is not named: the hash of settings from before an option existed stays.
        return {
            k: v for k, v in settings.items() if (k, v) not in (("consensus_with", ""), ("fusion", "returns"))
        }


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


def relabel_table(
    table: pa.Table,
    how: Relabeling,
    *,
    rollouts: pa.Table | None = None,
    constants: LabelingConstants | None = None,
    opinion: pl.DataFrame | None = None,
) -> tuple[pa.Table, RelabelReport]:
    """A table of the solutions schema with labels by another rule, and what came out.

    Args:
        table: The solutions; those of one problem stand together.
        how: The rule.
        rollouts: Their rollouts, for a labeler of the registry; where None the counts stand for them.
        constants: What a pilot fixed, for such a labeler; None = the defaults.
        opinion: ``second_opinion`` of the dataset that ``how.consensus_with`` names.

    Raises:
        ConfigError: No such rule or option.
        FormatError: The table is not of the contract (counts are missing, for instance), or its rollouts are not
            those that are counted.
    """
    rule, options = how.checked()
    table = conform(table).combine_chunks()
    if len(table) == 0:
        return table, RelabelReport()
    refused = _refused(table, rule.valid_for)
    valid = refused.is_null()
    if isinstance(rule, LabelRule):
        derived = derive_from_counts(table, rule, options, how.truncated_as, valid)
    else:
        derived = derive_from_evidence(
            table, rollouts, rule, options, truncated_as=how.truncated_as,
            constants=constants or LabelingConstants(), fusion=FUSIONS[how.fusion],
        )  # fmt: skip
    derived = with_recoveries_again(table, derived.without(valid))
    agreeing = _agreement(table, derived, how, opinion)
    derived = derived.without(agreeing)
    if how.stop_after_first_error:
        derived = derived.up_to_first_error()
    known = derived.errors["known"]
    report = RelabelReport(
        solutions=len(table),
        decided=int(known.sum()),
        refused={str(k): n for k, n in refused.drop_nulls().value_counts().iter_rows()},
        undecided=int((~known & valid & agreeing).sum()),
        disagreeing=int((valid & ~agreeing).sum()),
        labels=_label_counts(derived.steps["label"]),
    )
    return _rebuilt(table, derived, how.labeler), report


def _label_counts(labels: pl.Series) -> dict[str, int]:
    names = {1: "right", 0: "wrong", None: "unknown"}
    return {names[k]: n for k, n in labels.value_counts().iter_rows()}


def _refused(table: pa.Table, valid_for: Collection[Allocation]) -> pl.Series:
    """For each solution its allocation where the rule is not valid for it, else null."""
    allocation = pl.DataFrame({"allocation": pl.Series(table["allocation"].to_pylist(), dtype=pl.String)})
    valid = [a.value for a in valid_for]
    return allocation.select(pl.when(~pl.col("allocation").is_in(valid)).then("allocation")).to_series()


def _agreement(table: pa.Table, derived: Derived, how: Relabeling, opinion: pl.DataFrame | None) -> pl.Series:
    """For each solution whether those who must agree let its labels stand."""
    if not how.consensus:
        return pl.Series("agrees", np.ones(len(table), dtype=bool))
    if opinion is not None:
        return agrees_with_second(table, derived.errors, how.consensus, opinion)
    return agrees_with_verdicts(table, derived.errors, how.consensus, how.verifiers)


def _rebuilt(table: pa.Table, derived: Derived, labeler: LabelerInfo) -> pa.Table:
    steps = derived.steps
    new_steps = {
        "label": steps["label"].to_arrow(),
        "decided_by": steps["decided_by"].to_arrow().cast(pa.string()),
        "p_first_error": steps["p_first_error"].to_arrow(),
    }
    new_prefixes = {f"value{part}": derived.prefixes[name].to_arrow() for part, name in _VALUE_COLUMNS}
    columns: dict[str, pa.Array] = {
        "steps": _with_fields(one_chunk(table["steps"]), new_steps),
        "prefixes": _with_fields(one_chunk(table["prefixes"]), new_prefixes),
        "first_error": derived.errors["first_error"].cast(pl.Int32).to_arrow(),
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
    source: Dataset,
    folder: str | Path,
    how: Relabeling,
    *,
    second: Dataset | None = None,
    constants: LabelingConstants | None = None,
    resume: bool = False,
    overwrite: bool = False,
) -> tuple[Manifest, RelabelReport]:
    """A new dataset with other labels; the one it is made from stays as it is. Shard by shard, memory flat.

    Args:
        source: The dataset; its rollouts are copied along.
        folder: Where the new one goes.
        how: The rule.
        second: Who must agree under ``how.consensus``, in place of the tools' verdicts.
        constants: What the run's pilot fixed, for a labeler of the registry; None = those of the source's manifest.
        resume: As in ``ShardStore.create_or_resume``.
        overwrite: As there.

    Returns:
        The sealed manifest, whose ``derived_from`` names the source, and what came out.
    """
    if second is not None:
        how = replace(how, consensus_with=second.manifest.fingerprint or second.manifest.run_id)
    manifest = replace(
        source.manifest,
        config={"relabel": how.settings(), "labelled_with": source.manifest.config},
        labeler=how.labeler,
        derived_from={"fingerprint": source.manifest.fingerprint, "run_id": source.manifest.run_id},
        schema_version=SCHEMA_VERSION,
        totals=None,
        shards=(),
        fingerprint=None,
    )
    if constants is None:
        constants = from_json(source.manifest.constants)
    opinion = second_opinion(second) if second is not None else None
    report = RelabelReport()
    with ShardStore.create_or_resume(folder, manifest, resume=resume, overwrite=overwrite) as store:
        finished = store.finished()
        for index in range(len(source.manifest.shards)):
            rollouts = source.shard("rollouts", index)
            table, part = relabel_table(
                source.shard("solutions", index), how, rollouts=rollouts, constants=constants, opinion=opinion
            )
            report += part
            if index not in finished:
                store.write_tables(index, table, rollouts)
        return store.seal(), report


def rule_names() -> list[str]:
    """Rules on columns first, then labelers of the registry that are not among them."""
    return [*RULES, *(name for name in estimators() if name not in RULES)]


def valid_allocations(rule: str) -> list[Allocation]:
    """The allocations that a rule of ``relabel`` is valid for, in order. Raises ConfigError: no such rule."""
    return sorted(Relabeling(rule).checked()[0].valid_for)
