"""Results as a person reads them at the end of a command."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from stepward.flows.evaluate import best_baseline
from stepward.flows.pipeline import RoundResult
from stepward.flows.quickstart import Outcomes
from stepward.prm.evaluation.intervals import Measure
from stepward.prm.evaluation.results import Results
from stepward.training.discriminative import TrainResult


def closing_table(outcomes: Outcomes, out: Path) -> RenderableType:
    """What the quickstart made and how well it works."""
    labels = outcomes.labels
    made = Table(title="What was made", title_justify="left", show_header=False, box=None)
    if outcomes.labelled is not None:
        done = outcomes.labelled
        made.add_row("labelled steps", f"{done.labelled_steps:,} of {done.steps:,}")
        made.add_row("tokens sampled", f"{done.tokens:,}")
    made.add_row("labels against the exact truth", f"first-error F1 {_percent(labels.first_error.f1)}")
    made.add_row("right answers with a wrong step", f"{labels.right_answer_wrong_step:.1%}")
    places = Table(title="Where it lies", title_justify="left", show_header=False, box=None)
    for name, what in (
        ("dataset", "labelled solutions and every rollout, Parquet (stepward show ...)"),
        ("heldout", "machine-checked solutions in ProcessBench's format"),
        ("prm", "the reward model, safetensors"),
        ("evaluation", "report.html, results.json, predictions by item"),
        ("summary.json", "the figures of this table"),
    ):
        places.add_row(str(out / name), what)
    return Group(made, Text(), evaluation_table(outcomes.results), Text(), places)


def training_table(result: TrainResult) -> RenderableType:
    """Metrics after each epoch, and what became of the rows."""
    table = Table(title=f"Reward model in {result.folder}", title_justify="left", box=None)
    names = list(result.history[-1]) if result.history else []
    for name in names:
        table.add_column(name, justify="right")
    for epoch in result.history:
        table.add_row(*(f"{v:.4g}" if isinstance(v, float) else str(v) for v in epoch.values()))
    return Group(table, Text(result.training_rows.summary()))


def evaluation_table(results: Results) -> RenderableType:
    """ProcessBench figures by scorer, and best-of-N by method."""
    parts: list[RenderableType] = []
    if results.runs:
        table = Table(
            title=f"First wrong step on {len(results.items):,} solutions{_how(results)}",
            title_justify="left",
            box=None,
        )
        for heading in ("scorer", "on erroneous", "on correct", "F1 (95 %)"):
            table.add_column(heading, justify="left" if heading == "scorer" else "right")
        for run in results.runs:
            macro = run.result.macro
            table.add_row(
                Text(run.result.scorer),
                _short(macro.error_accuracy),
                _short(macro.correct_accuracy),
                _percent(macro.f1),
            )
            if run.result.decided:
                decided = run.result.decided[-1]
                table.add_row(
                    Text(f"  over the {decided.f1.n:,} decided alone"),
                    _short(decided.error_accuracy),
                    _short(decided.correct_accuracy),
                    _percent(decided.f1),
                )
        parts.append(table)
        over = best_baseline(results)
        if over is not None:
            parts.append(Text(f"over the best baseline, {over[0]}: {_points(over[1])}"))
    for curves in results.best_of_n:
        if curves.cut_by != "samples":
            continue  # the page has the curves against tokens
        largest = max(curves.cuts)
        table = Table(
            title=f"Final answers of {curves.num_problems:,} problems, {largest} samples each",
            title_justify="left",
            box=None,
        )
        for heading in ("method", "accuracy (95 %)", "over majority, paired"):
            table.add_column(heading, justify="left" if heading == "method" else "right")
        for k in (1, largest):
            table.add_row(f"pass@{k}", _percent(curves.pass_at_k[k]), "")
        for point in curves.points:
            if point.cut == largest:
                paired = "" if point.method == "majority" else _points(point.over_majority)
                table.add_row(Text(point.method), _percent(point.accuracy), paired)
        parts += [Text(), table]
    return Group(*parts)


def rounds_table(rounds: Sequence[RoundResult]) -> Table:
    """What each round of a pipeline gave."""
    table = Table(title="Rounds", box=None)
    for heading in (
        "round",
        "problems",
        "solutions",
        "labelled steps",
        "with a first error",
        "right",
        "F1",
        "best of n",
    ):
        table.add_column(heading, justify="right")
    for r in rounds:
        table.add_row(
            str(r.number),
            f"{r.problems:,}",
            f"{r.solutions:,}",
            f"{r.labelled_steps:,}",
            f"{r.first_errors.get('some', 0):,}",
            *("-" if value is None else f"{value:.1%}" for value in (r.solved, r.f1, r.best_of_n)),
        )
    return table


def _how(results: Results) -> str:
    """Where the first scorer's threshold is from; a critic has none."""
    threshold = results.runs[0].result.threshold
    return "" if threshold is None else f", threshold from {threshold.source}"


def _percent(measure: Measure) -> str:
    if measure.value is None:
        return f"undefined ({measure.note})"
    if measure.low is None or measure.high is None:
        return f"{measure.value:.1%}"
    return f"{measure.value:.1%} [{measure.low:.1%}, {measure.high:.1%}]"


def _short(measure: Measure) -> str:
    return "undefined" if measure.value is None else f"{measure.value:.1%}"


def _points(measure: Measure) -> str:
    if measure.value is None or measure.low is None or measure.high is None:
        return f"undefined ({measure.note})"
    return f"{100 * measure.value:+.1f} points [{100 * measure.low:+.1f}, {100 * measure.high:+.1f}]"
