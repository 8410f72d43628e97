"""``stepward evaluate``: a reward model on ProcessBench-format files and on stored samples."""

from pathlib import Path
from typing import Annotated

import typer

from stepward.flows.cli.app import app

Opt = typer.Option


@app.command()
def evaluate(
    prm: Annotated[str, typer.Argument(help="Reward model: folder or Hub id")],
    out: Annotated[Path, Opt(help="Results folder")],
    processbench: Annotated[
        list[Path] | None, Opt(help="File of ProcessBench's format to report; may be repeated")
    ] = None,
    threshold_from: Annotated[
        Path | None, Opt(help="File of other problems to choose the threshold on")
    ] = None,
    threshold: Annotated[float | None, Opt(help="A threshold fixed by hand")] = None,
    samples: Annotated[Path | None, Opt(help="File of samples for best-of-N")] = None,
    baseline_policy: Annotated[str | None, Opt(help="Also score the baselines, with this policy")] = None,
    seed: Annotated[int, Opt()] = 0,
) -> None:
    """Report F1 of the first wrong step, and best-of-N against majority vote."""
    from stepward.flows.config import EvaluateConfig, parse

    config = parse(
        EvaluateConfig,
        prm=prm,
        out=out,
        processbench=tuple(processbench) if processbench else None,
        threshold_from=threshold_from,
        threshold=threshold,
        samples=samples,
        baseline_policy=baseline_policy,
        seed=seed,
    )
    from rich.console import Console

    from stepward.flows.evaluate import run_evaluation
    from stepward.flows.tables import evaluation_table

    Console().print(evaluation_table(run_evaluation(config)))
