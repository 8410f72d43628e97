"""``stepward quickstart``: the whole job, with a closing table."""

import asyncio
import sys
from pathlib import Path
from typing import Annotated

import typer

from stepward.flows.cli.app import app, stoppable


@app.command()
def quickstart(
    out: Annotated[Path, typer.Option(help="Folder for everything")] = Path("runs/quickstart"),
    seed: Annotated[int, typer.Option()] = 0,
    problems: Annotated[int, typer.Option(help="Problems to label")] = 750,
    heldout: Annotated[int, typer.Option(help="Held-out problems, 8 samples each")] = 250,
    no_prefect: Annotated[bool, typer.Option("--no-prefect", help="Run without a Prefect server")] = False,
) -> None:
    """Label, train and evaluate on the embedded policy: no GPU, no account, no network."""
    from stepward.flows.orchestration.prefect_server import PrefectServer

    server = None if no_prefect else PrefectServer().start()
    from stepward.flows.orchestration.orchestrate import run_quickstart
    from stepward.flows.quickstart import Sizes
    from stepward.flows.tables import closing_table
    from stepward.flows.watching.progress import LabelBar

    sizes = Sizes(label_problems=problems, heldout_problems=heldout)
    with stoppable(), LabelBar() as bar:
        outcomes = asyncio.run(
            run_quickstart(
                out,
                seed=seed,
                sizes=sizes,
                watch=bar.update,
                say=lambda line: print(line, file=sys.stderr, flush=True),
                server=server,
            )
        )
    from rich.console import Console

    Console().print(closing_table(outcomes, out))
