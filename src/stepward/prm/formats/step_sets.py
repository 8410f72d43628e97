"""Human-annotated sets as rows of the contract, through the readers that evaluation uses.

A set that judges a solution as a whole labels every step of a sound one; an unsound one keeps unknown labels.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

from stepward.prm.errors import FormatError
from stepward.prm.evaluation.items import Item, JudgedSolution
from stepward.prm.evaluation.readers import step_sets
from stepward.prm.formats.foreign import contract_row, foreign_problem, labels_to_first_error
from stepward.prm.formats.registry import ImportReport
from stepward.prm.types import LabeledSolution, Outcome

READERS: dict[str, Callable[[str | Path], step_sets.StepSet]] = {
    "bigbench_mistake": step_sets.read_bigbench_mistake,
    "mr_gsm8k": step_sets.read_mr_gsm8k,
    "mrben": step_sets.read_mrben,
    "mrben_coding": step_sets.read_mrben_coding,
    "parc": step_sets.read_parc,
    "verify_cot": step_sets.read_verify_cot,
    "autorace": step_sets.read_autorace,
}
"""Readers by the name of the set."""


def row_of_item(item: Item) -> LabeledSolution:
    """A solution whose first wrong step is known."""
    correct = {True: Outcome.RIGHT, False: Outcome.WRONG}
    return contract_row(
        foreign_problem(item.problem, source=item.subset or item.source),
        item.steps,
        labels_to_first_error(item.first_error, len(item.steps)),
        solution_id=item.id,
        generator=item.generator,
        outcome=None if item.final_answer_correct is None else correct[item.final_answer_correct],
        labeler="human",
        decided_by="human",
    )


def row_of_judged(judged: JudgedSolution) -> LabeledSolution:
    """A solution judged as a whole."""
    return contract_row(
        foreign_problem(judged.problem, source=judged.source),
        judged.steps,
        [1 if judged.right else None] * len(judged.steps),
        solution_id=judged.id,
        labeler="human",
        decided_by="human",
    )


def rows_of_set(found: step_sets.StepSet, report: ImportReport) -> Iterator[LabeledSolution]:
    """All rows of a read set. Those that the reader could not place, and those with an empty step, are rejected."""
    report.rows += len(found.items) + len(found.judged) + len(found.left_out)
    report.rejected += found.left_out
    for given in (*found.items, *found.judged):
        try:
            row = row_of_item(given) if isinstance(given, Item) else row_of_judged(given)
        except FormatError as fault:
            report.rejected.append((given.id, str(fault)))
            continue
        report.kept += 1
        report.solutions += 1
        report.unknown_labels += sum(label.label is None for label in row.labels)
        yield row
