"""Are the labels right? Our first errors against those that people gave, and a sample for people to look at.

Rows and items are paired by problem and step texts, so any set that evaluation reads can be the judge.
"""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyarrow has no type stubs.

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from stepward.prm.audit.text_match import key_of
from stepward.prm.dataset.manifest import Manifest
from stepward.prm.dataset.schema import SCHEMA_VERSION, rows_of, solution_of, solutions_table
from stepward.prm.dataset.store import Dataset, ShardStore
from stepward.prm.errors import FormatError
from stepward.prm.evaluation.calibration import Calibration, calibration
from stepward.prm.evaluation.intervals import Bootstrap
from stepward.prm.evaluation.items import Item
from stepward.prm.evaluation.processbench import ProcessBenchResult, evaluate
from stepward.prm.formats.foreign import labels_to_first_error
from stepward.prm.types import LabeledSolution, StepLabel

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class LabelAudit:
    """How our labels compare with those that people gave.

    Attributes:
        paired: Solutions that both have.
        undecided: Those of them whose first error we do not know; each counts as a miss.
        only_ours: Our solutions that nobody annotated.
        only_theirs: Annotated solutions that we do not have.
        score: Accuracies and F1, by subset, generator and position.
        confusion: (their first error, ours) -> solutions, as ``none``, ``unknown`` or an index up to 9, ``10+``.
        calibration: Of P(step is right), where the rows say it; None where they do not.
        calibrated: What was calibrated: ``p_first_error``, ``value`` (relative to the policy) or empty.
        disagreements: (their first error, ours, who decided the label of that step) -> ids, at most 20 each.
        by_completer: Calibration apart for ``on_policy`` rows, whose rollouts are their generator's own, and
            ``off_policy`` ones; only kinds that occur, and nothing where the rows do not say P(step is right).
    """

    paired: int
    undecided: int
    only_ours: int
    only_theirs: int
    score: ProcessBenchResult
    confusion: Mapping[tuple[str, str], int]
    calibration: Calibration | None
    calibrated: str
    disagreements: Mapping[tuple[str, str, str], Sequence[str]]
    by_completer: Mapping[str, Calibration] = field(default_factory=dict[str, Calibration])


def audit_labels(
    rows: Iterable[LabeledSolution], items: Sequence[Item], *, bootstrap: Bootstrap | None = None
) -> LabelAudit:
    """Compare the first errors of our rows with annotated ones.

    Raises:
        FormatError: No row and no item are the same solution.
    """
    annotated = {_key(item.problem, item.steps): item for item in items}
    pairs: dict[str, tuple[LabeledSolution, Item]] = {}
    only_ours = 0
    for row in rows:
        item = annotated.get(_key(row.problem.text, [s.text for s in row.solution.steps]))
        if item is None:
            only_ours += 1
        else:
            pairs.setdefault(item.id, (row, item))
    if not pairs:
        raise FormatError(
            f"auditing labels: none of our {only_ours} solutions is among the {len(items)} annotated ones. They are "
            "paired by problem and step texts: label the annotated solutions themselves with --solutions"
        )
    ours, theirs = zip(*pairs.values(), strict=True)
    unknown = frozenset(item.id for row, item in pairs.values() if not _is_decided(row))
    scores, calibrated = _scores(ours)
    return LabelAudit(
        paired=len(pairs),
        undecided=len(unknown),
        only_ours=only_ours,
        only_theirs=len(items) - len(pairs),
        score=evaluate(
            theirs, [row.first_error for row in ours], scorer="labels", undecided=unknown, bootstrap=bootstrap
        ),
        confusion=Counter((_place(item.first_error), _said(row)) for row, item in pairs.values()),
        calibration=calibration(theirs, scores, bootstrap=bootstrap) if scores else None,
        calibrated=calibrated,
        disagreements=_disagreements(pairs.values()),
        by_completer=calibration_by_completer(ours, theirs, bootstrap=bootstrap),
    )


def calibration_by_completer(
    rows: Sequence[LabeledSolution], items: Sequence[Item], *, bootstrap: Bootstrap | None = None
) -> dict[str, Calibration]:
    """Calibration of P(step is right) where the completer is the generator, and where it is not.

    The posterior has two forms, with a hazard of its own where another model continues or the solution was brought:
    one figure for both would hide the worse.

    Args:
        rows: Our rows.
        items: The annotated solution of each.
        bootstrap: How intervals are drawn.

    Returns:
        By ``on_policy`` and ``off_policy``; a kind without rows, or with a row that does not say P, is absent.
    """
    found: dict[str, Calibration] = {}
    for kind in ("on_policy", "off_policy"):
        chosen = [
            (r, i) for r, i in zip(rows, items, strict=True) if is_off_policy(r) == (kind == "off_policy")
        ]
        scores, _ = _scores([r for r, _ in chosen])
        if scores:
            found[kind] = calibration([i for _, i in chosen], scores, bootstrap=bootstrap)
    return found


def is_off_policy(row: LabeledSolution) -> bool:
    """Whether the rollouts of a row are not of the solution's own generator."""
    return "off_policy" in row.marks or row.policy != row.completer or row.solution.ids_from != "sampled"


def _key(problem: str, steps: Sequence[str]) -> str:
    return key_of(problem) + hashlib.sha256("\x00".join(s.strip() for s in steps).encode()).hexdigest()[:16]


def _is_decided(row: LabeledSolution) -> bool:
    return row.first_error is not None or all(label.label == 1 for label in row.labels)


def _place(first_error: int | None) -> str:
    return "none" if first_error is None else str(first_error) if first_error < 10 else "10+"


def _said(row: LabeledSolution) -> str:
    return _place(row.first_error) if _is_decided(row) else "unknown"


def _scores(rows: Sequence[LabeledSolution]) -> tuple[list[list[float]], str]:
    """P(step is right) for every row, and where it comes from; empty where a row does not say it."""
    by_error = [_right_by_error(row) for row in rows]
    if all(s is not None for s in by_error):
        return [s for s in by_error if s is not None], "p_first_error"
    by_value = [[e.value for e in row.prefixes[1:]] for row in rows]
    if all(v is not None for values in by_value for v in values):
        return [[v for v in values if v is not None] for values in by_value], "value"
    return [], ""


def _right_by_error(row: LabeledSolution) -> list[float] | None:
    """P(no error up to and with the step) = 1 - the sum of P(first error) so far."""
    left = 1.0
    scores: list[float] = []
    for label in row.labels:
        if label.p_first_error is None:
            return None
        left -= label.p_first_error
        scores.append(min(1.0, max(0.0, left)))
    return scores


def _disagreements(pairs: Iterable[tuple[LabeledSolution, Item]]) -> dict[tuple[str, str, str], list[str]]:
    found: dict[tuple[str, str, str], list[str]] = {}
    for row, item in pairs:
        if row.first_error == item.first_error and _is_decided(row):
            continue
        at = row.first_error if row.first_error is not None else item.first_error
        by = row.labels[at].decided_by if at is not None else ""
        ids = found.setdefault((_place(item.first_error), _said(row), by or "nothing"), [])
        if len(ids) < 20:
            ids.append(row.solution.id)
    return found


def sample_rows(rows: Iterable[LabeledSolution], num_rows: int = 50, *, seed: int = 0) -> list[Row]:
    """Rows for people to look at: problem, steps, labels and what they rest on.

    The choice is by a hash of seed and solution id, so it does not depend on the order or on other rows. Fill in
    ``corrected_first_error`` (-1 = none) and hand the rows to ``apply_corrections``.
    """
    chosen: list[tuple[str, LabeledSolution]] = []
    for row in rows:
        chosen.append((hashlib.sha256(f"{seed}\x00{row.solution.id}".encode()).hexdigest(), row))
        if len(chosen) >= 4 * num_rows + 100:
            chosen = sorted(chosen, key=lambda c: c[0])[:num_rows]
    return [_shown(row) for _, row in sorted(chosen, key=lambda c: c[0])[:num_rows]]


def _shown(row: LabeledSolution) -> Row:
    steps = [
        {
            "step": at,
            "text": step.text,
            "label": label.label,
            "decided_by": label.decided_by,
            "evidence": [f"{v.verifier}: {v.kind} {v.evidence}".strip() for v in label.verdicts],
            "right": estimate.counts.right,
            "decided": estimate.counts.decided,
            "value": estimate.value,
        }
        for at, (step, label, estimate) in enumerate(
            zip(row.solution.steps, row.labels, row.prefixes[1:], strict=True)
        )
    ]
    return {
        "solution_id": row.solution.id,
        "problem": row.problem.text,
        "answers": list(row.problem.answers),
        "outcome": row.solution.outcome,
        "steps": steps,
        "first_error": row.first_error,
        "corrected_first_error": None,
        "note": "",
    }


def apply_corrections(source: Dataset, corrections: Iterable[Row], folder: str | Path) -> Manifest:
    """A new dataset with corrected labels; the one it is made from stays as it is.

    Args:
        source: The dataset.
        corrections: Rows as ``sample_rows`` gives them; those without ``corrected_first_error`` change nothing.
        folder: Where the new dataset goes.

    Raises:
        FormatError: A correction of a solution that is not there, or of a step that it does not have.
    """
    wanted = {str(c["solution_id"]): c["corrected_first_error"] for c in corrections
              if c.get("corrected_first_error") is not None}  # fmt: skip
    left = dict(wanted)
    manifest = replace(
        source.manifest,
        config={"corrections": wanted, "labelled_with": source.manifest.config},
        derived_from={"fingerprint": source.manifest.fingerprint, "run_id": source.manifest.run_id},
        schema_version=SCHEMA_VERSION,
        totals=None,
        shards=(),
        fingerprint=None,
    )
    with ShardStore.create_or_resume(folder, manifest) as store:
        for index in range(len(source.manifest.shards)):
            table = source.shard("solutions", index)
            if left.keys() & set(table["solution_id"].to_pylist()):
                table = solutions_table(_corrected(map(solution_of, rows_of(table)), left))
            store.write_tables(index, table, source.shard("rollouts", index))
        if left:
            raise FormatError(f"correcting labels: the dataset has no solutions {sorted(left)[:5]}")
        return store.seal()


def _corrected(rows: Iterable[LabeledSolution], left: dict[str, Any]) -> Iterator[LabeledSolution]:
    for row in rows:
        if row.solution.id not in left:
            yield row
            continue
        error = left.pop(row.solution.id)
        if not isinstance(error, int) or isinstance(error, bool) or not -1 <= error < len(row.labels):
            raise FormatError(
                f"correcting labels: first error {error!r} of {row.solution.id}; an index from 0 to "
                f"{len(row.labels) - 1}, or -1 for none, is wanted"
            )
        first_error = None if error == -1 else error
        labels = tuple(
            StepLabel(new, None, "correction" if new is not None else "", old.verdicts, old.rationale)
            for new, old in zip(labels_to_first_error(first_error, len(row.labels)), row.labels, strict=True)
        )
        yield replace(row, labels=labels, first_error=first_error)
