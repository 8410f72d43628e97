"""Ground truth that needs no human: solutions of generated problems, with their first wrong step known exactly.

Gives ProcessBench-format files from a sampled dataset, and measures labels against the truth.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stepward.prm.audit.labels import calibration_by_completer
from stepward.prm.dataset.store import Dataset
from stepward.prm.durable import write_durably
from stepward.prm.errors import InputError
from stepward.prm.evaluation.calibration import Calibration
from stepward.prm.evaluation.items import Item
from stepward.prm.evaluation.processbench import SubsetScore, evaluate
from stepward.prm.types import LabeledSolution, Outcome
from stepward.prm.word_problems.problems import SOURCE
from stepward.prm.word_problems.solutions import first_wrong_step


def true_first_error(row: LabeledSolution) -> int | None:
    """Index of the first wrong step of a generated problem's solution, None = all right.

    Raises:
        InputError: The problem is not the generator's.
    """
    if row.problem.source != SOURCE:
        raise InputError(
            f"problem {row.problem.id} comes from {row.problem.source!r}; only problems of the built-in generator "
            f"({SOURCE}) can be checked by machine"
        )
    return first_wrong_step(row.problem, [s.text for s in row.solution.steps])


def processbench_row(row: LabeledSolution) -> dict[str, Any]:
    """One ProcessBench row; the fields after ``label`` are ours and serve best-of-N."""
    truth = true_first_error(row)
    outcome = row.solution.outcome
    return {
        "id": row.solution.id,
        "generator": row.policy.name,
        "problem": row.problem.text,
        "steps": [s.text for s in row.solution.steps],
        "final_answer_correct": outcome is Outcome.RIGHT,
        "label": -1 if truth is None else truth,
        "problem_id": row.problem.id,
        "final_answer": row.solution.final_answer,
        "outcome": outcome.value if outcome is not None else None,
        "tokens": len(row.solution.token_ids),
    }


def write_processbench(path: Path, rows: Iterable[LabeledSolution]) -> int:
    """Write rows in ProcessBench's format and say how many."""
    lines = [json.dumps(processbench_row(row), ensure_ascii=False) for row in rows]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_durably(path, ("\n".join(lines) + "\n").encode())
    return len(lines)


def split_by_problem(
    rows: Sequence[LabeledSolution], num_problems: int
) -> tuple[list[LabeledSolution], list[LabeledSolution]]:
    """(rows of the first ``num_problems`` problems, the others): no problem stands on both sides."""
    first = set(list(dict.fromkeys(row.problem.id for row in rows))[:num_problems])
    return [r for r in rows if r.problem.id in first], [r for r in rows if r.problem.id not in first]


@dataclass(frozen=True, slots=True)
class LabelQuality:
    """Labels against the exact truth.

    Attributes:
        first_error: Exact-index accuracies and F1 of the labels' first errors, as ProcessBench defines them.
        num_solutions: Solutions compared.
        right_answer_wrong_step: Share of solutions with a right answer that hold a wrong step.
        by_completer: Calibration of P(step is right) for on-policy and off-policy rows apart.
    """

    first_error: SubsetScore
    num_solutions: int
    right_answer_wrong_step: float
    by_completer: Mapping[str, Calibration] = field(default_factory=dict[str, Calibration])


def audit(dataset: Dataset) -> LabelQuality:
    """Compare a dataset's first errors with the exact ones."""
    items: list[Item] = []
    found: list[int | None] = []
    rows: list[LabeledSolution] = []
    lucky = right = 0
    for row in dataset.solutions():
        truth = true_first_error(row)
        items.append(
            Item(row.solution.id, row.problem.text, tuple(s.text for s in row.solution.steps), truth)
        )
        found.append(row.first_error)
        rows.append(row)
        if row.solution.outcome is Outcome.RIGHT:
            right += 1
            lucky += truth is not None
    result = evaluate(items, found, scorer="labels")
    return LabelQuality(
        result.macro, len(items), lucky / right if right else 0.0, calibration_by_completer(rows, items)
    )
