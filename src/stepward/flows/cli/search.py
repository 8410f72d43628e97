"""``stepward search``: solve problems under a reward model within a token budget."""

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stepward.flows.cli.app import app, stoppable

if TYPE_CHECKING:
    from rich.table import Table

    from stepward.labeling.search.test_time import SearchProgress
    from stepward.prm.evaluation.search_results import SearchResults

Opt = typer.Option


@app.command()
def search(
    problems: Annotated[str, typer.Argument(help="JSONL, Parquet, a Hub id, or generator:N?level=demo")],
    prm: Annotated[str, Opt(help="Reward model: folder or Hub id")],
    out: Annotated[Path, Opt(help="Results folder")],
    policy: Annotated[str, Opt(help="Who samples, as for stepward label")] = "embedded",
    method: Annotated[list[str] | None, Opt(help="Search method; may be repeated. Default: beam")] = None,
    budget_tokens: Annotated[
        list[int] | None,
        Opt(help="Most generated and scored tokens a problem; may be repeated. Without it: one pass"),
    ] = None,
    setting: Annotated[
        list[str] | None, Opt("--set", help="NAME=VALUE, or METHOD.NAME=VALUE with several methods")
    ] = None,
    aggregate: Annotated[
        str, Opt(help="Weight of a vote: min, product, last or mean of the scores")
    ] = "product",
    limit: Annotated[int | None, Opt(help="Only the first so many problems")] = None,
    temperature: Annotated[float, Opt()] = 1.0,
    max_tokens: Annotated[int, Opt(help="Most tokens of a whole solution")] = 1024,
    max_step_tokens: Annotated[int, Opt(help="Most tokens of one step")] = 256,
    delimiter: Annotated[str, Opt(help="Where steps end")] = "newline",
    prompt: Annotated[str | None, Opt(help="plain, chat or a Jinja file; default: the policy's own")] = None,
    in_flight: Annotated[int, Opt(help="Problems searched at the same time")] = 64,
    seed: Annotated[int, Opt()] = 0,
) -> None:
    """Search at test time: accuracy and tokens of each method, with intervals, and a page."""
    from rich.console import Console

    from stepward.flows.config import parse
    from stepward.flows.search import SearchRunConfig, run_search

    config = parse(
        SearchRunConfig,
        problems=problems,
        prm=prm,
        out=out,
        policy=policy,
        methods=tuple(method) if method else None,
        budgets=tuple(budget_tokens) if budget_tokens else None,
        settings=dict(_pair(s) for s in setting or ()),
        aggregate=aggregate,
        limit=limit,
        sampler={"temperature": temperature, "max_tokens": max_tokens},
        max_step_tokens=max_step_tokens,
        steps={"delimiter": delimiter},
        prompt=prompt,
        in_flight=in_flight,
        seed=seed,
    )
    import asyncio

    with stoppable():
        results = asyncio.run(run_search(config, _Lines().update))
    Console().print(_table(results))
    print(f"page: {out / 'report.html'}")


class _Lines:
    """A line every few seconds while searches run, on the error stream."""

    EVERY_S = 10.0

    def __init__(self) -> None:
        self._last = time.monotonic()

    def update(self, run: str, progress: "SearchProgress") -> None:
        """Show how far a run is."""
        if time.monotonic() - self._last < self.EVERY_S:
            return
        self._last = time.monotonic()
        print(
            f"{run}: {progress.done:,} of {progress.begun:,} begun problems done, {progress.num_nodes:,} states, "
            f"{progress.num_draws:,} draws, {progress.generated_tokens:,} tokens generated, "
            f"{progress.scored_tokens:,} scored",
            file=sys.stderr,
            flush=True,
        )


def _table(results: "SearchResults") -> "Table":
    """One row a run."""
    from rich.table import Table
    from rich.text import Text

    from stepward.prm.evaluation.search_results import summaries

    table = Table(title=results.title, title_justify="left", box=None)
    for name in ("run", "accuracy (95 %)", "best score", "over the first", "generated", "scored"):
        table.add_column(name, justify="left" if name == "run" else "right")
    for s in summaries(results):
        over = "" if s.over_first is None else str(s.over_first)
        table.add_row(
            Text(s.name), str(s.accuracy), str(s.best_accuracy), over, f"{s.generated_tokens:,.0f}",
            f"{s.scored_tokens:,.0f}",
        )  # fmt: skip
    return table


def _pair(text: str) -> tuple[str, float | int | str]:
    """A setting as typed: a whole number, a number, or a word."""
    from stepward.prm.errors import ConfigError

    name, equals, value = text.partition("=")
    if not equals or not name or not value:
        raise ConfigError([f"--set {text!r}: write NAME=VALUE"])
    for kind in (int, float):
        try:
            return name, kind(value)
        except ValueError:
            continue
    return name, value
