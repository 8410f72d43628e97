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
    head: Annotated[str | None, Opt(help="The loss's usual one by default")] = None,
    target: Annotated[str | None, Opt(help="What labels are turned into")] = None,
    epochs: Annotated[int | None, Opt()] = None,
    batch_size: Annotated[int | None, Opt(help="Solutions an optimizer step")] = None,
    learning_rate: Annotated[float | None, Opt()] = None,
    weight_decay: Annotated[float | None, Opt()] = None,
    rollouts_per_problem: Annotated[
        int | None, Opt(help="Train on so many rollouts of a problem too (losses on outcomes and pairs)")
    ] = None,
    block_tokens: Annotated[int | None, Opt(help="The outcome at every n-th step token (VGS)")] = None,
    share_prompts: Annotated[
        bool | None, Opt(help="A problem's solutions share one copy of its prompt")
    ] = None,
    row_tokens: Annotated[int | None, Opt(help="Pack solutions into rows of so many ids; 0 = do not")] = None,
    save_every_steps: Annotated[
        int | None, Opt(help="Checkpoints within an epoch, to resume a killed run")
    ] = None,
    validation_share: Annotated[float | None, Opt(help="Share of problems held out")] = None,
    device: Annotated[str | None, Opt(help="cpu, cuda, ...; accelerate launch decides for itself")] = None,
    bfloat16: Annotated[bool | None, Opt(help="Compute in bfloat16; weights stay float32")] = None,
    lora_rank: Annotated[int | None, Opt(help="Train adapters of this rank; 0 = all weights")] = None,
    gradient_checkpointing: Annotated[bool | None, Opt(help="Less memory, more time")] = None,
    tracker: Annotated[list[str] | None, Opt(help="tensorboard, wandb, ...; may be repeated")] = None,
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
        head=head,
        target=target,
        epochs=epochs,
        batch_size=batch_size,
        learning_rate=learning_rate,
        weight_decay=weight_decay,
        rollouts_per_problem=rollouts_per_problem,
        block_tokens=block_tokens,
        share_prompts=share_prompts,
        row_tokens=row_tokens,
        save_every_steps=save_every_steps,
        validation_share=validation_share,
        device=device,
        bfloat16=bfloat16,
        lora_rank=lora_rank,
        gradient_checkpointing=gradient_checkpointing,
        trackers=tuple(tracker) if tracker else None,
        seed=seed,
    )
    from stepward.flows.tables import training_table
    from stepward.flows.train import train as run
    from stepward.training.loop import Progress

    last = time.monotonic()

    def watch(progress: Progress) -> None:
        nonlocal last
        if time.monotonic() - last >= 5.0:
            last = time.monotonic()
            print(progress.line(), file=sys.stderr, flush=True)

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
