"""``stepward engine check``: is this engine fit for labelling? ``stepward plan``: what would a run cost?"""

import sys
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
