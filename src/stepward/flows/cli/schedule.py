"""``stepward schedule``, ``runs`` and ``pipeline``: what goes on for days."""

import asyncio
import json
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from stepward.flows.cli.app import app, stoppable

Opt = typer.Option


@app.command()
def schedule(
    flow: Annotated[str, typer.Argument(help="label, relabel, train, evaluate, publish or pipeline")],
    recipe: Annotated[str | None, typer.Argument(help="YAML file, or the name of a shipped recipe")] = None,
    cron: Annotated[str | None, Opt(help="Five fields, such as '0 3 * * *'")] = None,
    every: Annotated[str | None, Opt(help="Instead: 90s, 15m, 6h, 1d")] = None,
    timezone: Annotated[str, Opt(help="Of --cron")] = "UTC",
    name: Annotated[str | None, Opt(help="Of the deployment; the recipe's name by default")] = None,
    set_: Annotated[
        list[str] | None,
        Opt("--set", help="key=value over the recipe (YAML; {date} and {time} are filled in)"),
    ] = None,
    write: Annotated[
        Path | None, Opt(help="Write files for a work pool or for Slurm into this folder, and serve nothing")
    ] = None,
    pool: Annotated[str, Opt(help="With --write: process, docker, kubernetes or slurm")] = "process",
    image: Annotated[
        str, Opt(help="With --pool docker or kubernetes: image that has stepward")
    ] = "stepward:latest",
    parts: Annotated[int, Opt(help="With --pool slurm: processes that share the shards")] = 4,
) -> None:
    """Run a flow at set times: on this machine until Ctrl-C, or by files for a work pool or for Slurm."""
    from stepward.flows.orchestration.schedule import Timetable, check, seconds_of, serve

    settings = _settings(set_)
    recipe_path = str(Path(recipe).resolve()) if recipe is not None and Path(recipe).is_file() else recipe
    timetable = Timetable(
        flow=flow,
        recipe=recipe_path,
        name=name or (Path(recipe).stem if recipe is not None else flow),
        cron=cron,
        every_s=seconds_of(every) if every is not None else None,
        timezone=timezone,
        settings=settings,
        folder=Path.cwd(),
    )
    check(timetable)
    if write is not None:
        from stepward.flows.orchestration.deployment_files import write_files

        for path in write_files(timetable, write, pool=pool, image=image, parts=parts):
            print(path)
        return
    from stepward.flows.orchestration.prefect_server import lasting_server

    # A service manager ends it by SIGTERM, and a shell's background jobs are started with SIGINT ignored.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    with suppress(KeyboardInterrupt), lasting_server():
        print(
            f"{timetable.flow} {timetable.name}: {cron or f'every {every}'}; Ctrl-C ends it",
            file=sys.stderr,
            flush=True,
        )
        serve(timetable)
    print("the schedule has ended; a run that was on goes on with the next start", file=sys.stderr)


@app.command()
def runs(
    folders: Annotated[list[Path] | None, typer.Argument(help="Where to look; here by default")] = None,
    as_json: Annotated[bool, Opt("--json", help="JSON lines instead of a table")] = False,
) -> None:
    """List labelling runs: state, shards, tokens and labels an hour, read from their folders."""
    from stepward.flows.watching.runs import list_runs, runs_table

    found = list_runs(*(folders or [Path()]))
    if as_json:
        for line in found:
            print(json.dumps({k: getattr(line, k) for k in line.__slots__}, default=str))
        return
    from rich.console import Console

    Console().print(runs_table(found))


@app.command()
def pipeline(
    recipe: Annotated[str, typer.Argument(help="YAML file, or the name of a shipped recipe")] = "pipeline",
    out: Annotated[Path | None, Opt(help="Folder of everything")] = None,
    rounds: Annotated[int | None, Opt(help="How often data are made and a PRM is trained")] = None,
    seed: Annotated[int | None, Opt()] = None,
    set_: Annotated[list[str] | None, Opt("--set", help="key=value over the recipe (YAML)")] = None,
    no_prefect: Annotated[bool, Opt("--no-prefect", help="Run without a Prefect server")] = False,
) -> None:
    """Label, train and evaluate; with several rounds, search under the PRM and label again."""
    from stepward.flows.config import parse
    from stepward.flows.orchestration.prefect_server import PrefectServer
    from stepward.flows.pipeline import PipelineConfig

    config = parse(PipelineConfig, recipe, out=out, rounds=rounds, seed=seed, **_settings(set_))
    server = None if no_prefect else PrefectServer().start()
    from stepward.flows.orchestration.orchestrate import run_pipeline_command
    from stepward.flows.tables import rounds_table
    from stepward.flows.watching.progress import LabelBar

    with stoppable(), LabelBar() as bar:
        found = asyncio.run(
            run_pipeline_command(
                config, watch=bar.update, say=lambda line: print(line, file=sys.stderr), server=server
            )
        )
    from rich.console import Console

    Console().print(rounds_table(found))


def _settings(pairs: list[str] | None) -> dict[str, Any]:
    """``a.b=value`` pairs as nested settings; values are YAML.

    Raises:
        ConfigError: A pair without ``=``, or a value that is no YAML.
    """
    from stepward.prm.errors import ConfigError

    settings: dict[str, Any] = {}
    for pair in pairs or ():
        key, equals, text = pair.partition("=")
        if not equals or not key:
            raise ConfigError([f"set: {pair!r} is not key=value"])
        try:
            value = yaml.safe_load(text) if "{date}" not in text and "{time}" not in text else text
        except yaml.YAMLError as fault:
            raise ConfigError([f"set: the value of {key} is no YAML: {fault}"]) from None
        *outer, last = key.split(".")
        place = settings
        for part in outer:
            place = place.setdefault(part, {})
        place[last] = value
    return settings
