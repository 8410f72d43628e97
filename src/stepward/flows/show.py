"""Labelled solutions as a person reads them: coloured steps, counts, values with intervals, what decided."""

from collections.abc import Iterator
from itertools import islice

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from stepward.prm.dataset.store import Dataset
from stepward.prm.types import MARKS, Estimate, LabeledSolution, Outcome, StepLabel, VerdictKind

_LABEL = {1: ("right", "green"), 0: ("wrong", "red"), None: ("unknown", "yellow")}
_OUTCOME_COLOUR = {Outcome.RIGHT: "green", Outcome.WRONG: "red"}


def show_solutions(
    dataset: Dataset, console: Console, *, limit: int, problem: str | None = None, only_errors: bool = False
) -> int:
    """Print labelled solutions.

    Args:
        dataset: Where they are.
        console: Where they go.
        limit: Most solutions to print.
        problem: Only those whose problem id or solution id begins so.
        only_errors: Only those with a wrong step.

    Returns:
        How many were printed.
    """
    shown = 0
    for row in islice(_chosen(dataset, problem, only_errors), limit):
        console.print(render(row))
        shown += 1
    return shown


def _chosen(dataset: Dataset, problem: str | None, only_errors: bool) -> Iterator[LabeledSolution]:
    for row in dataset.solutions():
        if problem is not None and not row.solution.id.startswith(problem):
            continue
        if only_errors and row.first_error is None:
            continue
        yield row


def render(row: LabeledSolution) -> RenderableType:
    """One solution as a panel. Texts of models are shown as text: no markup of theirs is interpreted."""
    table = Table(box=None, pad_edge=False, show_header=False, expand=True)
    table.add_column(justify="right")
    table.add_column(ratio=1)
    table.add_column(justify="right", no_wrap=True)
    for t, (step, label, after) in enumerate(
        zip(row.solution.steps, row.labels, row.prefixes[1:], strict=True)
    ):
        colour = _LABEL[label.label][1]
        facts = Text(_value(after) + "\n" + _counts(after), style="dim")
        table.add_row(
            Text(str(t), style=colour), Text.assemble((step.text, colour), "\n", _why(row, t, label)), facts
        )
    outcome = row.solution.outcome or Outcome.ERROR
    foot = Text.assemble(
        "final answer ",
        (repr(row.solution.final_answer), "bold"),
        ", gold ",
        " or ".join(row.problem.answers) or "none",
        ", ",
        (outcome.value, _OUTCOME_COLOUR.get(outcome, "yellow")),
        _basis(row),
        f"; value of the bare problem {_value(row.prefixes[0])} from {_counts(row.prefixes[0])}",
    )
    return Panel(
        Group(Text(row.problem.text, style="bold"), Text(), table, Text(), foot), title=Text(row.solution.id)
    )


def _basis(row: LabeledSolution) -> str:
    """What the outcome rests on where that is no reference answer, and the row's marks."""
    solution = row.solution
    said = "" if solution.outcome_from == "answers" else f" by {solution.outcome_from}"
    if solution.outcome_share is not None:
        said += f" (share {solution.outcome_share:.2f})"
    return said + "".join(f"; {mark}: {MARKS.get(mark, '')}" for mark in row.marks)


def _counts(estimate: Estimate) -> str:
    counts = estimate.counts
    if counts.total == 0:
        return "no rollout"
    other = counts.total - counts.decided
    return f"{counts.right} of {counts.decided} right" + (f", {other} other" if other else "")


def _value(estimate: Estimate) -> str:
    if estimate.value is None:
        return "value unknown"
    if estimate.low is None or estimate.high is None:
        return f"{estimate.value:.2f}"
    return f"{estimate.value:.2f} [{estimate.low:.2f}, {estimate.high:.2f}]"


def _why(row: LabeledSolution, t: int, label: StepLabel) -> Text:
    """The label in words, what decided it, and what the tools found."""
    word, colour = _LABEL[label.label]
    parts = [word + (" (first error)" if row.first_error == t else "")]
    if label.decided_by:
        parts.append(f"by {label.decided_by}")
    if label.p_first_error is not None:
        parts.append(f"P(first error) {label.p_first_error:.2f}")
    if label.hint is not None:
        parts.append(f"reward model {label.hint:.2f}")
    parts += [
        f"{v.verifier}: {v.kind.value}, {v.evidence}"
        for v in label.verdicts
        if v.kind is not VerdictKind.UNKNOWN
    ]
    return Text("; ".join(parts), style=f"dim {colour}")
