"""ProcessBench: ``{id, generator, problem, steps, final_answer_correct, label}``, label 0-based, -1 = none.

Zheng et al. 2024, arXiv 2412.06559. What follows the first error has no label, there and here.
"""

from stepward.prm.errors import FormatError
from stepward.prm.formats.foreign import Row, contract_row, foreign_problem, labels_to_first_error, texts
from stepward.prm.formats.registry import Format, row_by_row
from stepward.prm.types import LabeledSolution, LabelerInfo, Outcome, PolicyInfo


def read(row: Row, source: str) -> list[LabeledSolution]:
    """One solution. ``final_answer_correct`` is its outcome, which is not the label."""
    steps, label = texts(row.get("steps"), "steps"), row.get("label")
    if not isinstance(label, int) or isinstance(label, bool) or label < -1:
        raise FormatError(f"label is {label!r}; a 0-based index, or -1 for none, is wanted")
    correct = row.get("final_answer_correct")
    name, generator = row.get("id"), row.get("generator")
    return [
        contract_row(
            foreign_problem(row.get("problem"), source=source),
            steps,
            labels_to_first_error(None if label == -1 else label, len(steps)),
            solution_id=name if isinstance(name, str) else "",
            generator=generator if isinstance(generator, str) else "",
            outcome=(Outcome.RIGHT if correct else Outcome.WRONG) if isinstance(correct, bool) else None,
            labeler="human",
            decided_by="human",
        )
    ]


def _write(solution: LabeledSolution) -> Row | str:
    if solution.first_error is None and any(label.label != 1 for label in solution.labels):
        return "it is not known whether a step is wrong"
    outcome = {Outcome.RIGHT: True, Outcome.WRONG: False}.get(solution.solution.outcome or Outcome.ERROR)
    return {
        "id": solution.solution.id,
        "generator": solution.policy.name,
        "problem": solution.problem.text,
        "steps": [step.text for step in solution.solution.steps],
        "final_answer_correct": outcome,
        "label": -1 if solution.first_error is None else solution.first_error,
    }


_HUMAN = LabelerInfo("human", "", "")


def _stops_at_first_error(row: LabeledSolution) -> bool:
    return [s.label for s in row.labels] == labels_to_first_error(row.first_error, len(row.labels))


def _by_people(row: LabeledSolution) -> bool:
    said = ("" if s.label is None else "human" for s in row.labels)
    return _stops_at_first_error(row) and all(
        s.decided_by == by for s, by in zip(row.labels, said, strict=True)
    )


PROCESSBENCH = Format(
    "processbench",
    "ProcessBench {id, generator, problem, steps, final_answer_correct, label}",
    read,
    row_by_row(_write),
    frozenset({"solution_id"}),
    {
        "label": _stops_at_first_error,
        "decided_by": _by_people,
        "labeler": lambda row: row.labeler == _HUMAN,
        "outcome": lambda row: row.solution.outcome in (Outcome.RIGHT, Outcome.WRONG),
        "policy": lambda row: row.policy == PolicyInfo(row.policy.name, "", "elsewhere"),
    },
)
