"""How every benchmark reports: a table on the screen and benchmarks/results/NAME.json."""

import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True, slots=True)
class Row:
    """One measured figure.

    Attributes:
        metric: What was measured, with its unit.
        ours: Our figure.
        peer: The peer's, in the same run, or None.
        goal: What must be reached: by the ratio where there is a peer and ``of_ratio``, else by our figure.
        lower_is_better: The goal is a most and not a least.
        of_ratio: The goal is one for ours / peer.
    """

    metric: str
    ours: float | None
    peer: float | None = None
    goal: float | None = None
    lower_is_better: bool = False
    of_ratio: bool = False

    @property
    def ratio(self) -> float | None:
        """ours / peer."""
        return self.ours / self.peer if self.ours is not None and self.peer else None

    @property
    def met(self) -> bool | None:
        """Whether the goal is reached; None without a goal."""
        if self.goal is None:
            return None
        value = self.ratio if self.of_ratio else self.ours
        if value is None:
            return False
        return value <= self.goal if self.lower_is_better else value >= self.goal


def write(name: str, rows: Sequence[Row], *, keep_others: bool = False) -> None:
    """Print the rows and write them with the commit they were measured on.

    ``keep_others`` leaves stored rows of other metrics as they are: for a benchmark whose parts run one by one.
    """
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True
    ).stdout.strip()
    table = [
        {
            "metric": r.metric, "ours": r.ours, "peer": r.peer, "ratio": r.ratio, "goal": r.goal, "met": r.met,
            "commit": commit,
        }
        for r in rows
    ]  # fmt: skip
    RESULTS.mkdir(exist_ok=True)
    file = RESULTS / f"{name}.json"
    if keep_others and file.exists():
        measured = {r.metric for r in rows}
        table = [row for row in json.loads(file.read_text()) if row["metric"] not in measured] + table
    file.write_text(json.dumps(table, indent=1) + "\n")
    show(rows)


def show(rows: Sequence[Row]) -> None:
    """Print the rows."""
    width = max(len(r.metric) for r in rows)
    for r in rows:
        met = {True: "met", False: "MISSED", None: ""}[r.met]
        print(
            f"{r.metric:<{width}}  {_number(r.ours)}  {_number(r.peer)}  {_number(r.ratio)}  {_number(r.goal)}  {met}"
        )


def _number(value: float | None) -> str:
    return f"{'-' if value is None else f'{value:.4g}':>10}"
