"""``stepward engine check``: is this engine fit for labelling? ``stepward plan``: what would a run cost?"""

import asyncio
import sys
from pathlib import Path
from typing import Annotated

import typer

from stepward.flows.cli.app import app

Opt = typer.Option

engine_app = typer.Typer(help="Check a rollout engine before it is paid for.", no_args_is_help=True)
app.add_typer(engine_app, name="engine")


@engine_app.callback()
def _engine() -> None:
    """Check a rollout engine before it is paid for."""


@engine_app.command()
def check(
    policy: Annotated[str, typer.Argument(help="As in stepward label --policy")],
    problems: Annotated[
        str, Opt(help="Whose prompts are tried; a replayed log needs its own")
    ] = "generator:4",
    prompt: Annotated[str | None, Opt(help="Prompt template: plain, chat, or a Jinja file")] = None,
    deadline: Annotated[float, Opt(help="Longest a probe may take, in seconds")] = 60.0,
) -> None:
    """Probe token ids, prompt, seeds, stop strings, limits, likelihoods, cache and speed; exit code 1 if unfit."""
    from stepward.flows.config import LabelConfig, parse
    from stepward.flows.engine import check_engine_named, shown

    config = parse(LabelConfig, policy=policy, problems=problems, prompt=prompt, out=".")
    fit = check_engine_named(
        config, deadline_s=deadline, watch=lambda finding: print(shown(finding), flush=True)
    )
    print("fit for labelling" if fit else "NOT fit for labelling")
    if not fit:
        sys.exit(1)


@app.command()
def plan(
    source: Annotated[
        str, typer.Argument(help="A recipe (YAML file or name), or problems as in stepward label")
    ],
    policy: Annotated[str | None, Opt(help="As in stepward label")] = None,
    completer: Annotated[str | None, Opt(help="Who samples rollouts; the policy by default")] = None,
    prompt: Annotated[str | None, Opt(help="Prompt template: plain, chat, or a Jinja file")] = None,
    solutions: Annotated[Path | None, Opt(help="Label these solutions instead of sampling")] = None,
    limit: Annotated[int | None, Opt(help="Only the first N problems")] = None,
    num_solutions: Annotated[int | None, Opt(help="Solutions a problem")] = None,
    allocation: Annotated[str | None, Opt(help="Which prefix gets the next rollout")] = None,
    num_rollouts: Annotated[int | None, Opt(help="K, where the allocation has one")] = None,
    labeler: Annotated[str | None, Opt(help="Counts -> labels")] = None,
    price: Annotated[float | None, Opt(help="Nats a token (information_gain)")] = None,
    temperature: Annotated[float | None, Opt()] = None,
    top_p: Annotated[float | None, Opt()] = None,
    max_tokens: Annotated[int | None, Opt(help="Most tokens a solution or rollout may have")] = None,
    seed: Annotated[int | None, Opt()] = None,
    pilot: Annotated[int, Opt(help="Problems of the pilot")] = 20,
    gpus: Annotated[int | None, Opt(help="GPUs that the engines hold: adds GPU-hours")] = None,
    prices: Annotated[
        str | None,
        Opt(help="Adds money: million_prompt_tokens=0.1,million_generated_tokens=0.4,gpu_hour=2.5,hour=1"),
    ] = None,
) -> None:
    """Label a pilot of 20 problems, and print tokens, hours, disk and money of the whole run, with 95 % intervals."""
    from stepward.flows.config import RECIPES, LabelConfig, parse
    from stepward.flows.plan import plan_labeling

    is_recipe = source.endswith((".yaml", ".yml")) or (RECIPES / f"{source}.yaml").is_file()
    sampler = {"temperature": temperature, "top_p": top_p, "max_tokens": max_tokens}
    config = parse(
        LabelConfig,
        source if is_recipe else None,
        problems=None if is_recipe else source,
        out=Path("."),
        policy=policy,
        completer=completer,
        prompt=prompt,
        solutions=solutions,
        limit=limit,
        num_solutions=num_solutions,
        allocation=allocation,
        num_rollouts=num_rollouts,
        labeler=labeler,
        price=price,
        sampler=sampler if any(v is not None for v in sampler.values()) else None,
        seed=seed,
        gpus=gpus,
        prices=None if prices is None else _table(prices),
    )
    print(asyncio.run(plan_labeling(config, pilot_problems=pilot)))


def _table(text: str) -> dict[str, str]:
    """name=value,name=value as a mapping; its values are checked with the rest of the configuration."""
    return {
        name.strip(): value.strip() for name, _, value in (part.partition("=") for part in text.split(","))
    }
