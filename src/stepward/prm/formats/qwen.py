"""Qwen2.5-Math-PRM's input: chat messages with ``<extra_0>`` closing every step, and one label a mark.

Zhang et al. 2025, arXiv 2501.07301. ``labels`` may hold null (no loss there) and a share (a soft target).
"""

from stepward.prm.errors import FormatError
from stepward.prm.formats.foreign import (
    Row,
    an_object,
    contract_row,
    foreign_problem,
    hard_or_soft,
    items,
    soft_values,
)
from stepward.prm.formats.registry import Format, row_by_row
from stepward.prm.types import LabeledSolution

MARK = "<extra_0>"
SYSTEM = "Please reason step by step, and put your final answer within \\boxed{}."


def read(row: Row, source: str) -> list[LabeledSolution]:
    """One solution: the user's turn is the problem, the assistant's the steps."""
    said = [an_object(t, f"messages[{at}]") for at, t in enumerate(items(row.get("messages"), "messages"))]
    turns = {turn.get("role"): turn.get("content") for turn in said}
    answer = turns.get("assistant")
    if not isinstance(answer, str) or not answer.endswith(MARK):
        raise FormatError(f"the assistant's turn must end with {MARK}")
    steps = [step.strip() for step in answer.split(MARK)[:-1]]
    labels = [hard_or_soft(v, f"labels[{at}]") for at, v in enumerate(items(row.get("labels"), "labels"))]
    return [
        contract_row(
            foreign_problem(turns.get("user"), source=source),
            steps,
            [hard for hard, _ in labels],
            values=soft_values([soft for _, soft in labels]),
            labeler="qwen",
            decided_by="import",
        )
    ]


def _write(solution: LabeledSolution) -> Row | str:
    steps = [step.text for step in solution.solution.steps]
    if any(MARK in text for text in (solution.problem.text, *steps)):
        return f"the text holds the mark {MARK!r} itself"
    # A step without a label but with a value between 0 and 1 keeps it as a soft target.
    values = [e.value for e in solution.prefixes[1:]]
    labels = [
        label.label if label.label is not None else value if value is not None and 0 < value < 1 else None
        for label, value in zip(solution.labels, values, strict=True)
    ]
    return {
        "messages": [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": solution.problem.text},
            {"role": "assistant", "content": "".join(step + MARK for step in steps)},
        ],
        "labels": labels,
    }


QWEN = Format(
    "qwen",
    "chat messages with <extra_0> after each step and a label for each mark",
    read,
    row_by_row(_write),
    frozenset({"label"}),
)
