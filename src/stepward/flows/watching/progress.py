"""What a person sees while a run goes: a bar on a terminal, a line every few seconds elsewhere."""

import sys
import time
from pathlib import Path
from types import TracebackType

from stepward.flows.label import Progress

_LINE_EVERY_S = 10.0


class LabelBar:
    """Shows a labelling run; a context manager whose ``update`` is the run's ``watch``."""

    def __init__(self) -> None:
        self._bar = None
        self._task = None
        self._last_line = time.monotonic()
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as RichProgress

            self._bar = RichProgress(
                TextColumn("labelling"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[status]}"),
                TimeRemainingColumn(),
                console=Console(stderr=True),
            )

    def __enter__(self) -> "LabelBar":
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def update(self, progress: Progress) -> None:
        """Show the state after one more problem."""
        done = progress.found + progress.problems
        if self._bar is not None:
            if self._task is None:
                self._task = self._bar.add_task("label", total=progress.total_problems, status="")
            self._bar.update(self._task, completed=done, status=status(progress))
            return
        now = time.monotonic()
        if now - self._last_line >= _LINE_EVERY_S or done == progress.total_problems:
            self._last_line = now
            print(
                f"labelling {done}/{progress.total_problems} {status(progress)} {_eta(progress)}",
                file=sys.stderr,
                flush=True,
            )


def status(progress: Progress) -> str:
    """Rate, tokens and running solve rate in a few words."""
    seconds = max(1e-9, time.monotonic() - progress.began)
    rate = progress.problems / seconds
    solved = "-" if progress.solve_rate is None else f"{progress.solve_rate:.0%}"
    return f"{rate:.1f} problems/s, {progress.tokens:,} tokens ({progress.tokens / seconds:,.0f}/s), {solved} solved"


def _eta(progress: Progress) -> str:
    if not progress.problems:
        return ""
    left = progress.total_problems - progress.found - progress.problems
    seconds = left * (time.monotonic() - progress.began) / progress.problems
    return f"({seconds / 60:.1f} min left)" if seconds >= 90 else f"({seconds:.0f} s left)"


def summary(progress: Progress, folder: Path) -> str:
    """What came out of a run, for the end of the command."""
    outcomes = ", ".join(f"{n:,} {o.value}" for o, n in sorted(progress.outcomes.items()) if n)
    lines = [
        f"{folder}: {progress.problems:,} problems, {progress.solutions:,} solutions ({outcomes or 'none'})",
        f"  {progress.labelled_steps:,} of {progress.steps:,} steps labelled, {progress.tokens:,} tokens sampled",
    ]
    lines += [f"  {note}" for note in progress.notes]
    if progress.found:
        lines.append(f"  {progress.found:,} problems were finished by an earlier run")
    if progress.exhausted:
        lines.append(f"  {progress.exhausted:,} draws asked for more than the replay log holds")
    lines += [
        f"  problem {problem} has no rows: {why}" for problem, why in list(progress.skipped.items())[:5]
    ]
    if len(progress.skipped) > 5:
        lines.append(f"  ... and {len(progress.skipped) - 5:,} more problems without rows")
    return "\n".join(lines)
