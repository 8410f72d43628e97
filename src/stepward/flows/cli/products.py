"""``stepward products``: what a labelled dataset gives beside its step labels."""

import json
from pathlib import Path
from typing import Annotated

import typer

from stepward.flows.cli.app import app

Opt = typer.Option


@app.command()
def products(
    name: Annotated[
        str,
        typer.Argument(
            metavar="PRODUCT",
            help="Pairs: siblings (SVPO, Tree-PLV), step_apo, step_dpo, cso. Credit: tree_rpo, tree_rl, tree_grpo, "
            "gigpo, rtmc, pav, median, quantile, information_gain, progress_advantage. Or rationales.",
        ),
    ],
    folder: Annotated[Path, typer.Argument(help="Dataset folder")],
    out: Annotated[Path, Opt(help="JSON-lines file to write; a new dataset folder for rationales")],
    min_gap: Annotated[float, Opt(help="Least difference of values of a pair, exclusive")] = 0.0,
    min_edit: Annotated[
        int, Opt(help="Least number of characters that the steps of a pair do not share")
    ] = 0,
    min_leaves: Annotated[int, Opt(help="Least graded ends below either step of a pair")] = 1,
    doubt_below: Annotated[float, Opt(help="P(right) below which cso doubts a step")] = 0.5,
    policy: Annotated[str | None, Opt(help="Whose log-probabilities are read")] = None,
    reference: Annotated[str | None, Opt(help="Reference policy of progress_advantage")] = None,
) -> None:
    """Write preference pairs, per-step credit, critical steps or rationales of a dataset."""
    from stepward.flows.products import Filters, write_rationales
    from stepward.flows.products import products as run
    from stepward.prm.dataset.store import open_dataset

    dataset = open_dataset(folder)
    if name == "rationales":
        manifest = write_rationales(dataset, out)
        print(f"{out}: {manifest.totals.solutions if manifest.totals else 0:,} solutions")
        return
    filters = Filters(min_gap, min_edit, min_leaves, doubt_below)
    rows = run(name, dataset, filters=filters, policy=policy, reference=reference)
    written = 0
    with out.open("w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n")
            written += 1
    print(f"{out}: {written:,} rows of {name}")
