"""``stepward show``: labelled solutions with coloured steps, counts and values."""

from pathlib import Path
from typing import Annotated

import typer

from stepward.flows.cli.app import app


@app.command()
def show(
    folder: Annotated[Path, typer.Argument(help="Dataset folder")],
    limit: Annotated[int, typer.Option(help="Most solutions to print")] = 5,
    problem: Annotated[str | None, typer.Option(help="Only ids that begin so")] = None,
    errors: Annotated[bool, typer.Option("--errors", help="Only solutions with a wrong step")] = False,
) -> None:
    """Print labelled solutions."""
    from rich.console import Console

    from stepward.flows.show import show_solutions
    from stepward.prm.dataset.store import open_dataset

    console = Console()
    dataset = open_dataset(folder, partial=True)
    shown = show_solutions(dataset, console, limit=limit, problem=problem, only_errors=errors)
    console.print(f"{shown} of {len(dataset)} solutions shown")
