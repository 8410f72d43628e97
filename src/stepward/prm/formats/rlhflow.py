"""RLHFlow's chat turns: ``{conversations}``, the user says a step, the assistant answers + or -.

The first turn holds the problem and the first step (its PRM reads the probability of "+" after each turn).
"""

from typing import Any

from stepward.prm.errors import FormatError
from stepward.prm.formats.foreign import Row, an_object, contract_row, foreign_problem, items
from stepward.prm.formats.numbered import split_problem, with_heads, without_heads
from stepward.prm.formats.registry import Format, row_by_row
from stepward.prm.types import LabeledSolution

_SIGNS = {"+": 1, "-": 0}


def read(row: Row, source: str) -> list[LabeledSolution]:
    """One solution; user and assistant take turns, and every assistant turn is + or -."""
    turns = items(row.get("conversations"), "conversations")
    if not turns or len(turns) % 2:
        raise FormatError(f"{len(turns)} turns; user and assistant in pairs are wanted")
    said = [_content(turn, at, "user") for at, turn in list(enumerate(turns))[::2]]
    signs = [_content(turn, at, "assistant").strip() for at, turn in list(enumerate(turns))[1::2]]
    for at, sign in enumerate(signs):
        if sign not in _SIGNS:
            raise FormatError(f"the label of step {at} is {sign!r}; + or - is wanted")
    problem, first = split_problem(said[0])
    steps = without_heads([text.strip() for text in (first, *said[1:])])
    return [
        contract_row(
            foreign_problem(problem, source=source),
            steps,
            [_SIGNS[sign] for sign in signs],
            labeler="rlhflow",
            decided_by="import",
        )
    ]


def _content(turn: Any, at: int, role: str) -> str:
    said = an_object(turn, f"turn {at}")
    content = said.get("content")
    if said.get("role") != role or not isinstance(content, str):
        raise FormatError(f"turn {at} is {turn!r:.60}; {{role: {role}, content: text}} is wanted")
    return content


def _write(solution: LabeledSolution) -> Row | str:
    if " Step 1:" in f" {solution.problem.text}":
        return "the problem holds 'Step 1:' itself"
    heads = with_heads([step.text for step in solution.solution.steps])
    heads[0] = f"{solution.problem.text.rstrip()} {heads[0]}"
    turns: list[Row] = []
    for head, label in zip(heads, solution.labels, strict=True):
        turns.append({"role": "user", "content": head})
        turns.append({"role": "assistant", "content": "+" if label.label == 1 else "-"})
    return {"conversations": turns}


RLHFLOW = Format(
    "rlhflow",
    "RLHFlow's chat turns with + and -",
    read,
    row_by_row(_write, cut_at_unknown=True),
    frozenset({"label"}),
)
