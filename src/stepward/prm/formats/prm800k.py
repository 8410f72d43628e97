"""PRM800K as released: steps with rated completions (-1, 0, 1, null) of which one was taken.

Lightman et al. 2023, arXiv 2305.20050. The chosen branch is one solution; every completion that was not chosen
ends a solution of its own, with the chosen steps before it. A neutral rating (0), a null one and a step that the
annotator wrote have no label. Written rows hold one completion a step, so branches become rows of their own.
"""

from typing import Any

from stepward.prm.errors import FormatError
from stepward.prm.formats.foreign import Row, an_object, contract_row, foreign_problem, items
from stepward.prm.formats.registry import Format, row_by_row
from stepward.prm.types import LabeledSolution, Problem

_LABELS: dict[int | None, int | None] = {1: 1, -1: 0, 0: None, None: None}
_RATINGS = {1: 1, 0: -1, None: None}


def read(row: Row, source: str) -> list[LabeledSolution]:
    """The chosen branch first, then the others in order."""
    question, label = an_object(row.get("question"), "question"), an_object(row.get("label"), "label")
    gold = question.get("ground_truth_answer")
    problem = foreign_problem(
        question.get("problem"), source=source, answers=[gold] if isinstance(gold, str) and gold else []
    )
    chosen: list[tuple[str, int | None]] = []
    branches: list[list[tuple[str, int | None]]] = []
    went_on = True
    for at, step in enumerate(items(label.get("steps"), "label.steps")):
        if not went_on:
            raise FormatError(f"steps go on after step {at - 1}, where none was chosen")
        completions, taken, own = _step(step, at)
        branches += [[*chosen, c] for number, c in enumerate(completions) if number != taken]
        if taken is not None:
            chosen.append(completions[taken])
        elif own is not None:
            chosen.append((own, None))
        else:
            went_on = False
    whole = [chosen] if chosen and (went_on or not branches) else []
    return [_solution(problem, steps) for steps in (*whole, *branches)]


def _step(value: Any, at: int) -> tuple[list[tuple[str, int | None]], int | None, str | None]:
    """(rated completions, number of the chosen one, the annotator's own text)."""
    step = an_object(value, f"label.steps[{at}]")
    completions: list[tuple[str, int | None]] = []
    for number, completion in enumerate(
        items(step.get("completions") or [], f"label.steps[{at}].completions")
    ):
        rated = an_object(completion, f"step {at}, completion {number}")
        text, rating = rated.get("text"), rated.get("rating")
        if (
            not isinstance(text, str)
            or isinstance(rating, bool | float | list | dict)
            or rating not in _LABELS
        ):
            raise FormatError(
                f"step {at}, completion {number}: rating {rating!r}; -1, 0, 1 or null is wanted"
            )
        completions.append((text, _LABELS[rating]))
    taken = step.get("chosen_completion")
    if taken is not None and (
        not isinstance(taken, int) or isinstance(taken, bool) or not 0 <= taken < len(completions)
    ):
        raise FormatError(f"step {at}: chosen_completion {taken!r} of {len(completions)} completions")
    own = step.get("human_completion")
    text = None if own is None else an_object(own, f"step {at}, human_completion").get("text")
    return completions, taken, text if isinstance(text, str) and text.strip() else None


def _solution(problem: Problem, steps: list[tuple[str, int | None]]) -> LabeledSolution:
    return contract_row(
        problem,
        [text for text, _ in steps],
        [label for _, label in steps],
        labeler="human",
        decided_by="human",
    )


def _write(solution: LabeledSolution) -> Row:
    answers = solution.problem.answers
    steps: list[Row] = [
        {
            "completions": [{"text": step.text, "rating": _RATINGS[label.label], "flagged": False}],
            "human_completion": None,
            "chosen_completion": 0,
        }
        for step, label in zip(solution.solution.steps, solution.labels, strict=True)
    ]
    wrong = solution.first_error is not None
    return {
        "question": {
            "problem": solution.problem.text,
            "ground_truth_answer": answers[0] if answers else None,
        },
        "label": {"steps": steps, "finish_reason": "found_error" if wrong else "solution"},
    }


PRM800K = Format(
    "prm800k", "PRM800K as released, rated completions", read, row_by_row(_write), frozenset({"label"})
)
