"""The common record of every set with annotated steps, and how scores are joined to it by id.

``first_error`` is 0-based, None = no wrong step. Readers translate the many other conventions of public sets
(-1, 1-based, strings, "N/A") at the door, so that no metric ever sees them.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from pathlib import Path
from typing import Any, TypeVar, cast

from stepward.prm.evaluation.errors import (
    BenchmarkFileError,
    DoubledItemsError,
    ExtraItemsError,
    MissingItemsError,
    ScoreAfterErrorError,
    ScoreRangeError,
    StepCountError,
)

Scores = tuple[float, ...]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Item:
    """One solution whose first wrong step is known.

    Attributes:
        id: Unique within an evaluation.
        problem: The problem's text.
        steps: Step texts.
        first_error: 0-based index of the first wrong step, or None where all steps are right. What follows
            the first error has no gold label.
        subset: The part of the benchmark it is reported under.
        generator: Who wrote the solution; empty where not known.
        final_answer_correct: Whether the final answer is right, or None where not known. Not the label: a
            right answer may stand on a wrong step.
        source: File or Hub id with revision.
    """

    id: str
    problem: str
    steps: tuple[str, ...]
    first_error: int | None
    subset: str = ""
    generator: str = ""
    final_answer_correct: bool | None = None
    source: str = ""

    def __post_init__(self) -> None:
        if not self.steps:
            raise StepCountError(f"item {self.id} has no steps; leave it out or give its steps")
        if self.first_error is not None and not 0 <= self.first_error < len(self.steps):
            raise StepCountError(
                f"item {self.id}: first_error {self.first_error} with {len(self.steps)} steps; "
                "give a 0-based index below the number of steps, or None where no step is wrong"
            )

    @property
    def cluster(self) -> str:
        """Items of one problem are one cluster: the problem's text without differences of blanks and case."""
        return re.sub(r"\s+", " ", self.problem).strip().lower()


@dataclass(frozen=True, slots=True)
class JudgedSolution:
    """A solution judged sound or not as a whole, where nobody said which step is wrong.

    Attributes:
        id: Unique within an evaluation.
        problem: The problem's text.
        steps: Step texts.
        right: Whether the reasoning is sound.
        source: File or Hub id with revision.
    """

    id: str
    problem: str
    steps: tuple[str, ...]
    right: bool
    source: str = ""


def check_unique(ids: Iterable[str]) -> None:
    """Raises DoubledItemsError where an id comes twice."""
    doubled = [i for i, count in Counter(ids).items() if count > 1]
    if doubled:
        raise DoubledItemsError("items given more than once", doubled, "keep one row an id")


def join(items: Sequence[Item], given: Mapping[str, T] | Iterable[tuple[str, T]]) -> list[T]:
    """What was given for each item, in the items' order.

    Args:
        items: The items.
        given: By id. Pairs are taken too, because a mapping made from a file hides doubled rows.

    Raises:
        DoubledItemsError: An id twice, among items or given.
        MissingItemsError: Items without anything given.
        ExtraItemsError: Something given for an id that is no item.
    """
    pairs = list(cast(Mapping[str, T], given).items() if isinstance(given, Mapping) else given)
    check_unique(item.id for item in items)
    check_unique(i for i, _ in pairs)
    table = dict(pairs)
    missing = [item.id for item in items if item.id not in table]
    if missing:
        raise MissingItemsError(
            f"{len(missing)} of {len(items)} items have no score or prediction",
            missing,
            "score them, or hand in only the items that were scored",
        )
    known = {item.id for item in items}
    extra = [i for i in table if i not in known]
    if extra:
        raise ExtraItemsError(
            f"{len(extra)} scores or predictions belong to no item",
            extra,
            "hand in the items that they belong to, or drop them",
        )
    return [table[item.id] for item in items]


def check_scores(
    items: Sequence[Item], scores: Sequence[Sequence[float]], *, extent: str = "all"
) -> list[Scores]:
    """Step scores that can be evaluated.

    Args:
        items: The items.
        scores: P(step is right) of each item's steps, in the items' order.
        extent: ``all``: one score a step. ``to_first_error``: logs that stop at the first gold error (error
            items have ``first_error + 1`` scores).

    Raises:
        StepCountError: Another number of scores than steps.
        ScoreAfterErrorError: With ``to_first_error``, scores behind the first error.
        ScoreRangeError: A score that is not a finite number in [0, 1].
    """
    if extent not in ("all", "to_first_error"):
        raise ValueError(f"extent {extent!r}: say 'all' or 'to_first_error'")
    if len(items) != len(scores):
        raise StepCountError(
            f"{len(scores)} rows of scores for {len(items)} items; there must be one an item"
        )
    checked: list[Scores] = []
    for item, row in zip(items, scores, strict=True):
        expected = len(item.steps)
        if extent == "to_first_error" and item.first_error is not None:
            expected = item.first_error + 1
            if len(row) > expected:
                raise ScoreAfterErrorError(
                    f"item {item.id}: {len(row)} scores but its first error is step {item.first_error}, and "
                    "these scores are said to stop there; use extent='all' for scores of all steps"
                )
        if len(row) != expected:
            raise StepCountError(
                f"item {item.id}: {len(row)} scores, {expected} expected ({len(item.steps)} steps, extent "
                f"{extent!r}); were the steps split or cut differently when they were scored?"
            )
        checked.append(check_row(item.id, row))
    return checked


def check_row(name: str, row: Sequence[Any]) -> Scores:
    """One solution's scores as floats. Raises ScoreRangeError, naming the solution and the step."""
    floats: list[float] = []
    for step, score in enumerate(row):
        if isinstance(score, bool) or not isinstance(score, Real):
            raise ScoreRangeError(
                f"item {name}, step {step}: score {score!r} is not a number; a step that could not be scored "
                "makes the item unscored (leave it out and say so), never 0"
            )
        value = float(score)
        if not 0.0 <= value <= 1.0:  # NaN fails both comparisons
            raise ScoreRangeError(
                f"item {name}, step {step}: score {value!r} is not in [0, 1]; map rewards to P(step is right) "
                "first, such as by the logistic function"
            )
        floats.append(value)
    return tuple(floats)


def apply_fixes(items: Sequence[Item], fixes: Mapping[str, int | None]) -> list[Item]:
    """The items with corrected labels, for a second, separately named score.

    Args:
        items: The items.
        fixes: first_error by id; ids that are no item are left alone (the file covers the whole benchmark).
    """
    return [replace(item, first_error=fixes[item.id]) if item.id in fixes else item for item in items]


def read_jsonl(path: str | Path) -> list[tuple[int, dict[str, Any]]]:
    """The objects of a JSON Lines file with their 1-based line numbers; blank lines are skipped.

    Raises:
        BenchmarkFileError: A line is no JSON object, or the file has no rows.
    """
    rows: list[tuple[int, dict[str, Any]]] = []
    name = Path(path).name
    with Path(path).open(encoding="utf-8-sig") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                row: Any = json.loads(line)
            except json.JSONDecodeError as fault:
                raise BenchmarkFileError(name, number, f"not JSON ({fault.msg}); one object a line") from None
            if not isinstance(row, dict):
                raise BenchmarkFileError(name, number, "not a JSON object; one object a line")
            rows.append((number, cast(dict[str, Any], row)))
    if not rows:
        raise BenchmarkFileError(name, 1, "the file has no rows")
    return rows
