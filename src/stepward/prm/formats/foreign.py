"""From what a foreign row says to a row of the contract: strict pairing, nothing guessed, unknown kept unknown."""

import math
from collections.abc import Sequence
from typing import Any, cast

from stepward.prm.errors import FormatError
from stepward.prm.formats.fields import NOBODY
from stepward.prm.types import (
    Allocation,
    Counts,
    Estimate,
    LabeledSolution,
    LabelerInfo,
    Message,
    Outcome,
    PolicyInfo,
    Problem,
    Solution,
    Step,
    StepLabel,
    problem_id,
)

Row = dict[str, Any]


def contract_row(
    problem: Problem,
    steps: Sequence[str],
    labels: Sequence[int | None],
    *,
    labeler: str,
    decided_by: str,
    values: Sequence[float | None] | None = None,
    counts: Sequence[Counts] | None = None,
    rationales: Sequence[str | None] | None = None,
    solution_id: str = "",
    generator: str = "",
    outcome: Outcome | None = None,
    final_answer: str | None = None,
) -> LabeledSolution:
    """A row of the contract.

    Args:
        problem: The problem.
        steps: T step texts.
        labels: T labels.
        labeler: Where the labels come from, such as ``human`` or the format's name.
        decided_by: Written beside every label that is not null.
        values: T+1 values of the prefixes, or None where there are none.
        counts: T+1 counts, or None.
        rationales: T critiques, or None.
        solution_id: The row's own; empty = numbered by the importer.
        generator: Who wrote the solution; empty = unknown.
        outcome: Of the final answer.
        final_answer: As the row states it.

    Raises:
        FormatError: Labels, values or counts do not pair with the steps, a step is empty, a number is not
            finite or not in [0, 1].
    """
    if not steps:
        raise FormatError("the solution has no steps")
    for at, step in enumerate(steps):
        if not step.strip():
            raise FormatError(f"step {at} is empty; labels cannot be paired with steps that are not there")
    for name, given, wanted in (
        ("labels", labels, len(steps)),
        ("values", values, len(steps) + 1),
        ("counts", counts, len(steps) + 1),
        ("rationales", rationales, len(steps)),
    ):
        if given is not None and len(given) != wanted:
            raise FormatError(f"{len(given)} {name} for {len(steps)} steps; {wanted} are wanted")
    for value in values or ():
        if value is not None and not 0 <= value <= 1:
            raise FormatError(f"the value {value} is not in [0, 1]")
    first_zero = next((t for t, label in enumerate(labels) if label == 0), None)
    known = first_zero is not None and None not in labels[:first_zero]
    policy = PolicyInfo(generator, "", "elsewhere") if generator else NOBODY
    return LabeledSolution(
        problem=problem,
        solution=Solution(
            id=solution_id,
            problem_id=problem.id,
            steps=tuple(Step(text) for text in steps),
            outcome=outcome,
            final_answer=final_answer,
            ids_from="encoded",
        ),
        prefixes=tuple(
            Estimate(counts[t] if counts else Counts(), values[t] if values else None)
            for t in range(len(steps) + 1)
        ),
        labels=tuple(
            StepLabel(
                label,
                decided_by=decided_by if label is not None else "",
                rationale=rationales[t] if rationales else None,
            )
            for t, label in enumerate(labels)
        ),
        first_error=first_zero if known else None,
        policy=policy,
        completer=NOBODY,
        tokenizer_hash="",
        seed=0,
        allocation=Allocation.FIXED_K,
        prompt_tokens=0,
        generated_tokens=0,
        labeler=LabelerInfo(labeler, "", ""),
    )


def labels_to_first_error(first_error: int | None, num_steps: int) -> list[int | None]:
    """Labels of an annotation that stops at the first error: 1 before it, 0 at it, unknown after it.

    Raises:
        FormatError: The index is outside the steps.
    """
    if first_error is None:
        return [1] * num_steps
    if not 0 <= first_error < num_steps:
        raise FormatError(
            f"the first error {first_error} is not one of the {num_steps} steps (counted from 0)"
        )
    return [1] * first_error + [0] + [None] * (num_steps - first_error - 1)


def foreign_problem(statement: object, *, source: str, answers: Sequence[str] = ()) -> Problem:
    """The problem of a foreign row: a text, or turns of a conversation.

    Raises:
        FormatError: It is missing or empty.
    """
    if isinstance(statement, list):
        turns = cast(list[Any], statement)
        try:
            messages = tuple(Message(str(t["role"]), str(t["content"])) for t in turns)
        except (TypeError, KeyError) as fault:
            raise FormatError("a conversation is a list of {role, content}") from fault
        text = "\n\n".join(m.content for m in messages)
        if text.strip():
            return Problem(problem_id(source, text), messages, tuple(answers), source=source)
    if not isinstance(statement, str) or not statement.strip():
        raise FormatError(f"the problem is {statement!r:.60}; a text is wanted")
    return Problem(problem_id(source, statement), statement, tuple(answers), source=source)


def texts(value: object, name: str) -> list[str]:
    """A list of texts. Raises FormatError, naming the first that is none."""
    if not isinstance(value, list | tuple):
        raise FormatError(f"{name} is {value!r:.60}; a list of texts is wanted")
    items = cast(Sequence[object], value)
    for at, item in enumerate(items):
        if not isinstance(item, str):
            raise FormatError(f"{name}[{at}] is {item!r:.60}; a text is wanted")
    return cast(list[str], list(items))


def items(value: object, name: str) -> list[Any]:
    """A list. Raises FormatError where it is none."""
    if not isinstance(value, list | tuple):
        raise FormatError(f"{name} is {value!r:.60}; a list is wanted")
    return list(cast(Sequence[Any], value))


def an_object(value: object, name: str) -> Row:
    """An object. Raises FormatError where it is none."""
    if not isinstance(value, dict):
        raise FormatError(f"{name} is {value!r:.60}; an object is wanted")
    return cast(Row, value)


def share(value: object, name: str) -> float:
    """A number in [0, 1]. Raises FormatError otherwise, NaN included."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise FormatError(f"{name} is {value!r:.60}; a number in [0, 1] is wanted")
    if not 0 <= value <= 1:
        raise FormatError(f"{name} is {value}; a number in [0, 1] is wanted")
    return float(value)


def hard_or_soft(value: object, name: str) -> tuple[int | None, float | None]:
    """A label as formats write it: null, a boolean, 0, 1, or a share between them (soft: a value, no label)."""
    if value is None:
        return None, None
    if isinstance(value, bool):
        return int(value), None
    number = share(value, name)
    return (int(number), None) if number in (0.0, 1.0) else (None, number)


def soft_values(soft: Sequence[float | None]) -> list[float | None] | None:
    """T+1 values of the prefixes from T soft labels, or None where none is soft."""
    return [None, *soft] if any(s is not None for s in soft) else None
