"""``stepward train``: a dataset in, a reward model out; ``stepward policy`` remakes the embedded policy."""

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from stepward.flows.cli.app import app

Opt = typer.Option

policy_app = typer.Typer(help="The embedded policy.", no_args_is_help=True)
app.add_typer(policy_app, name="policy")


@app.command()
def train(
    data: Annotated[Path, typer.Argument(help="Dataset folder")],
    out: Annotated[Path, Opt(help="Folder of the reward model")],
    recipe: Annotated[str | None, Opt(help="YAML file, or the name of a shipped recipe")] = None,
    base: Annotated[str | None, Opt(help="Backbone: embedded, folder, or Hub id")] = None,
    prompt: Annotated[str | None, Opt(help="plain, chat, or a Jinja file; the base's own by default")] = None,
    reference: Annotated[
        str | None, Opt(help="Frozen language model whose log-probabilities are an extra input")
    ] = None,
    loss: Annotated[str | None, Opt()] = None,
    target: Annotated[str | None, Opt(help="What labels are turned into")] = None,
    epochs: Annotated[int | None, Opt()] = None,
    batch_size: Annotated[int | None, Opt(help="Solutions an optimizer step")] = None,
    learning_rate: Annotated[float | None, Opt()] = None,
    weight_decay: Annotated[float | None, Opt()] = None,
    validation_share: Annotated[float | None, Opt(help="Share of problems held out")] = None,
    seed: Annotated[int | None, Opt()] = None,
) -> None:
    """Fit a process reward model on a labelled dataset."""
    from stepward.flows.config import TrainConfig, parse

    config = parse(
        TrainConfig,
        recipe,
        data=data,
        out=out,
        base=base,
        prompt=prompt,
        reference=reference,
        loss=loss,
        target=target,
        epochs=epochs,
        batch_size=batch_size,
        learning_rate=learning_rate,
        weight_decay=weight_decay,
        validation_share=validation_share,
        seed=seed,
    )
    from stepward.flows.tables import training_table
    from stepward.flows.train import train as run

    last = time.monotonic()

    def watch(progress: object) -> None:
        nonlocal last
        if time.monotonic() - last >= 5.0:
            last = time.monotonic()
            print(progress, file=sys.stderr, flush=True)

    result = run(config, watch)
    from rich.console import Console

    Console().print(training_table(result))


@policy_app.command("train-embedded")
def train_embedded(
    out: Annotated[Path, Opt(help="Checkpoint folder to write")],
    seed: Annotated[int, Opt()] = 0,
) -> None:
    """Train the tiny language model that the quickstart samples from; minutes on two cores."""
    from stepward.training.embedded_policy import train_embedded as run

    print(run(out, seed=seed))
