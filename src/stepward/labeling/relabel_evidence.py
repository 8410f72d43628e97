"""Labels by a labeler of the registry, from evidence that is rebuilt out of stored rows: what the run itself computed.

Slower than the rules on columns, and the only way for labelers that read more than counts: the change-point
posterior with verdicts and hints, and labelers of other packages.
"""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportAttributeAccessIssue=false, reportMissingTypeStubs=false
# pyarrow has no type stubs.

import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from stepward.labeling.derived import Derived
from stepward.labeling.estimators.registry import (
    BoundEstimator,
    RegisteredEstimator,
    TruncatedAs,
    make_estimator,
    undecided,
)
from stepward.labeling.evidence import LabelingConstants, SolutionEvidence, SolutionLabels, prefix_nodes
from stepward.labeling.fusion import FusionRule
from stepward.labeling.source_quality import read_through
from stepward.prm.dataset.contract import one_chunk
from stepward.prm.dataset.schema import estimate_of, verdict_of
from stepward.prm.errors import FormatError
from stepward.prm.types import Allocation, Counts, Outcome, StepLabel

_OUTCOMES = tuple(Outcome)
_COMMON = ("solutions", "counts", "allocation", "truncated_as", "constants")


@dataclass(frozen=True, slots=True)
class StoredSolution:
    """One row as a labeler sees it.

    Attributes:
        problem_id: Its problem; the solutions of one problem are labelled together.
        allocation: How its rollouts were spread.
        evidence: Everything that is known, verdicts and hints included.
        counts: T+1, as stored.
    """

    problem_id: str
    allocation: Allocation
    evidence: SolutionEvidence
    counts: tuple[Counts, ...]


def options_of(entry: RegisteredEstimator) -> dict[str, float]:
    """A labeler's own options with their defaults."""
    parameters = inspect.signature(entry.rule).parameters.values()
    return {p.name: p.default for p in parameters if p.name not in _COMMON and p.default is not p.empty}


def derive_from_evidence(
    table: pa.Table,
    rollouts: pa.Table | None,
    entry: RegisteredEstimator,
    options: Mapping[str, float],
    *,
    truncated_as: TruncatedAs,
    constants: LabelingConstants,
    fusion: FusionRule,
) -> Derived:
    """What a labeler says of a table of the solutions schema, problem by problem.

    Args:
        table: The solutions; those of one problem stand together.
        rollouts: Their rollouts; where there are none the counts stand for them, right ones first.
        entry: The labeler.
        options: Its options; a number is taken as the type of its default.
        truncated_as: How draws without an answer are read.
        constants: What the run's pilot fixed (its manifest holds them).
        fusion: How verdicts and hints enter, as in the run.

    Raises:
        FormatError: Rollouts and counts of a solution are not the same draws.
    """
    given = options_of(entry)
    typed: dict[str, Any] = {name: type(given[name])(value) for name, value in options.items()}
    bound: dict[Allocation, BoundEstimator] = {}
    found: list[SolutionLabels] = []
    stored = stored_solutions(table, rollouts)
    for (_, allocation), group in groupby(stored, key=lambda s: (s.problem_id, s.allocation)):
        if allocation not in bound:
            bound[allocation] = make_estimator(
                entry.name, allocation=allocation, truncated_as=truncated_as, constants=constants, **typed
            )
        found += _labels(list(group), bound[allocation], fusion, constants)
    return _as_columns(found)


def _labels(
    stored: Sequence[StoredSolution],
    estimator: BoundEstimator,
    fusion: FusionRule,
    constants: LabelingConstants,
) -> list[SolutionLabels]:
    """The labels of one problem; a solution without steps has none."""
    whole = [s for s in stored if s.evidence.num_steps]
    everything = [_hints_read(s.evidence, constants) for s in whole]
    seen = (
        everything
        if fusion.in_posterior
        else [_returns_alone(e, s) for e, s in zip(everything, whole, strict=True)]
    )
    returns = estimator.estimate(seen, [s.counts for s in whole])
    if estimator.valid:
        returns = [fusion.fuse(labels, e) for labels, e in zip(returns, everything, strict=True)]
    labelled = iter(returns)
    return [next(labelled) if s.evidence.num_steps else undecided(s.evidence, s.counts) for s in stored]


def _hints_read(evidence: SolutionEvidence, constants: LabelingConstants) -> SolutionEvidence:
    if constants.hint is None or not evidence.prm_scores:
        return evidence
    return replace(evidence, prm_scores=read_through(constants.hint, evidence.prm_scores))


def _returns_alone(evidence: SolutionEvidence, stored: StoredSolution) -> SolutionEvidence:
    # Two-fidelity allocation reads the hints itself, whatever the fusion.
    scores = evidence.prm_scores if stored.allocation is Allocation.TWO_FIDELITY else ()
    return replace(evidence, verdicts=(), prm_scores=scores)


def stored_solutions(table: pa.Table, rollouts: pa.Table | None = None) -> list[StoredSolution]:
    """The rows of a solutions table as labelers see them. Raises FormatError as ``derive_from_evidence`` does."""
    rows = _lean(table).to_pylist()
    drawn = _drawn(rollouts) if rollouts is not None else {}
    samples = _sampled_outcomes(rows)
    nodes = _nodes(rows)
    return [
        _stored(row, drawn.get(row["solution_id"]), samples[row["problem_id"]], path)
        for row, path in zip(rows, nodes, strict=True)
    ]


def _nodes(rows: Sequence[Mapping[str, Any]]) -> list[tuple[int, ...]]:
    """The state that each prefix of each solution is; none of a problem whose draws are copies (as in the run)."""
    nodes: list[tuple[int, ...]] = []
    for _, group in groupby(rows, key=lambda row: row["problem_id"]):
        found = list(group)
        if any("degenerate" in (row["marks"] or ()) for row in found):
            nodes += [()] * len(found)
        else:
            nodes += prefix_nodes([[tuple(s["token_ids"]) for s in row["steps"]] for row in found])
    return nodes


def _lean(table: pa.Table) -> pa.Table:
    """What evidence is made of, without texts."""
    lists = one_chunk(table["steps"])
    steps = lists.flatten()
    # Offsets of a slice do not begin at 0; those of the flattened values do.
    lengths = pc.list_value_length(lists).to_numpy()
    offsets = pa.array([0, *lengths.cumsum().tolist()], pa.int32())
    fields = {
        "token_ids": steps.field("token_ids"),
        "verdicts": steps.field("verdicts"),
        "hint": steps.field("hint"),
    }
    lean = pa.ListArray.from_arrays(offsets, pa.StructArray.from_arrays(list(fields.values()), list(fields)))
    names = ("problem_id", "solution_id", "solution_seed", "ids_from", "outcome", "allocation", "prefixes", "policy",
             "completer", "marks")  # fmt: skip
    return table.select(names).append_column("steps", lean)


_Drawn = tuple[int, int, Outcome]
"""(prefix, seed, outcome) of a rollout."""


def _drawn(rollouts: pa.Table) -> dict[str, list[_Drawn]]:
    """Rollouts by solution, in stored order, which is request order."""
    found: dict[str, list[_Drawn]] = {}
    columns = (rollouts[name].to_pylist() for name in ("solution_id", "num_steps", "seed", "outcome"))
    for solution, prefix, seed, outcome in zip(*columns, strict=True):
        found.setdefault(solution, []).append((prefix, seed, Outcome(outcome or "error")))
    return found


def _sampled_outcomes(rows: Iterable[Mapping[str, Any]]) -> dict[str, list[Outcome]]:
    """The outcomes of each problem's sampled solutions: they are among the draws at prefix 0 of every one of them."""
    found: dict[str, list[Outcome]] = {}
    for row in rows:
        outcomes = found.setdefault(row["problem_id"], [])
        if row["ids_from"] == "sampled":
            outcomes.append(Outcome(row["outcome"] or "error"))
    return found


def _stored(
    row: Mapping[str, Any], drawn: list[_Drawn] | None, samples: list[Outcome], nodes: tuple[int, ...]
) -> StoredSolution:
    counts = tuple(estimate_of(p).counts for p in row["prefixes"])
    steps: list[dict[str, Any]] = row["steps"]
    outcome = Outcome(row["outcome"] or "error")
    sampled = row["ids_from"] == "sampled"
    if drawn:
        draws = _from_rollouts(row, drawn, counts, sampled)
    else:
        # The solutions are counted at prefix 0 and each one's own outcome at its last.
        draws = [_in_order(c) for c in counts]
        if sampled:
            draws[0] = _less(draws[0], samples)
        draws[-1] = _less(draws[-1], [outcome])
    hints = [s["hint"] for s in steps]
    evidence = SolutionEvidence(
        num_steps=len(steps),
        step_tokens=tuple(len(s["token_ids"]) for s in steps),
        outcome=outcome,
        draws=tuple(tuple(d) for d in draws),
        verdicts=tuple(tuple(verdict_of(v) for v in s["verdicts"]) for s in steps),
        prm_scores=() if None in hints else tuple(hints),
        on_policy=sampled and row["policy"] == row["completer"],
        nodes=nodes,
    )
    return StoredSolution(row["problem_id"], Allocation(row["allocation"]), evidence, counts)


def _from_rollouts(
    row: Mapping[str, Any], drawn: list[_Drawn], counts: Sequence[Counts], sampled: bool
) -> list[list[Outcome]]:
    draws: list[list[Outcome]] = [[] for _ in counts]
    own = sampled
    for prefix, seed, outcome in drawn:
        if own and prefix == 0 and seed == row["solution_seed"]:
            own = False  # the solution itself
        elif prefix < len(draws):
            draws[prefix].append(outcome)
    for t, (at_prefix, stated) in enumerate(zip(draws[1:-1], counts[1:-1], strict=True), 1):
        if len(at_prefix) != stated.total:
            raise FormatError(
                f"labelling {row['solution_id']} again: {len(at_prefix)} rollouts are stored at prefix {t} and "
                f"{stated.total} are counted there; the two tables are not of one run"
            )
    return draws


def _in_order(counts: Counts) -> list[Outcome]:
    return [o for o in _OUTCOMES for _ in range(getattr(counts, o.value))]


def _less(draws: list[Outcome], taken: Iterable[Outcome]) -> list[Outcome]:
    left = list(draws)
    for outcome in taken:
        if outcome in left:
            left.remove(outcome)
    return left


def _as_columns(found: Sequence[SolutionLabels]) -> Derived:
    estimates = [e for labels in found for e in labels.estimates]
    labelled: list[tuple[int, int, StepLabel]] = [
        (row, t, label) for row, labels in enumerate(found) for t, label in enumerate(labels.labels)
    ]
    return Derived(
        prefixes=pl.DataFrame(
            {name: [getattr(e, name) for e in estimates] for name in ("value", "low", "high")},
            schema=dict.fromkeys(("value", "low", "high"), pl.Float64),
        ),
        steps=pl.DataFrame(
            {
                "solution": [row for row, _, _ in labelled],
                "step": [t for _, t, _ in labelled],
                "label": [label.label for _, _, label in labelled],
                "decided_by": [label.decided_by for _, _, label in labelled],
                "p_first_error": [label.p_first_error for _, _, label in labelled],
            },
            schema={"solution": pl.Int64, "step": pl.Int64, "label": pl.Int8, "decided_by": pl.String,
                    "p_first_error": pl.Float64},
        ),
        errors=pl.DataFrame(
            {"first_error": [f.first_error for f in found], "known": [f.decided for f in found]},
            schema={"first_error": pl.Int64, "known": pl.Boolean},
        ),
    )  # fmt: skip
