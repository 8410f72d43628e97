"""TRL's stepwise supervision: ``{prompt, completions, labels}``, what its PRMTrainer and the trl-lib sets have.

The trainer turns each label into an integer, so a row is cut before its first unknown label; soft values are lost.
"""

from stepward.prm.errors import FormatError
from stepward.prm.formats.foreign import (
    Row,
    contract_row,
    foreign_problem,
    hard_or_soft,
    items,
    soft_values,
    texts,
)
from stepward.prm.formats.registry import Format, row_by_row
from stepward.prm.types import LabeledSolution


def read(row: Row, source: str) -> list[LabeledSolution]:
    """One solution. Labels are booleans, 0, 1, shares (soft) or null."""
    steps, labels = texts(row.get("completions"), "completions"), items(row.get("labels"), "labels")
    if len(steps) != len(labels):
        raise FormatError(f"{len(labels)} labels for {len(steps)} completions; one a step is wanted")
    read_labels = [hard_or_soft(label, f"labels[{at}]") for at, label in enumerate(labels)]
    return [
        contract_row(
            foreign_problem(row.get("prompt"), source=source),
            steps,
            [hard for hard, _ in read_labels],
            values=soft_values([soft for _, soft in read_labels]),
            labeler="trl_stepwise",
            decided_by="import",
        )
    ]


def _write(solution: LabeledSolution) -> Row:
    statement = solution.problem.statement
    return {
        "prompt": statement
        if isinstance(statement, str)
        else [{"role": m.role, "content": m.content} for m in statement],
        "completions": [step.text for step in solution.solution.steps],
        "labels": [label.label == 1 for label in solution.labels],
    }


TRL_STEPWISE = Format(
    "trl_stepwise",
    "TRL's stepwise supervision {prompt, completions, labels}, for its PRMTrainer",
    read,
    row_by_row(_write, cut_at_unknown=True),
    frozenset({"messages", "label"}),
)
