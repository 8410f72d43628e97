"""``stepward schedule``: a flow of ours at set times, on this machine or from a work pool.

On this machine (``serve``) the runs are processes of this command, beside a Prefect server that is used where one
runs and else started for as long as the command lives. For work pools and for Slurm (``deploy/`` and
``scheduled_files``) files are written that their own tools take.

A deployment runs once at a time: a run that is due while the last one goes on is cancelled and the next one resumes.
"""

import asyncio
import math
import re
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from stepward.flows.config import EvaluateConfig, LabelConfig, TrainConfig, parse
from stepward.prm.errors import ConfigError

_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_CONFIGS = {"label": LabelConfig, "train": TrainConfig, "evaluate": EvaluateConfig}
_NEEDED = {"relabel": ("data", "out"), "publish": ("data", "repo")}


@dataclass(frozen=True, slots=True)
class Timetable:
    """One flow and its times.

    Attributes:
        flow: label, relabel, train, evaluate, publish or pipeline.
        recipe: YAML file, or the name of a shipped recipe; None for relabel and publish, which have none.
        name: Of the deployment.
        cron: Five fields; or ``every_s``: seconds from one run's start to the next's.
        timezone: Of ``cron``.
        settings: What differs from the recipe; ``{date}`` and ``{time}`` in them are filled in a run.
        folder: Working directory of the runs.
    """

    flow: str
    recipe: str | None
    name: str
    cron: str | None = None
    every_s: float | None = None
    timezone: str = "UTC"
    settings: dict[str, Any] = field(default_factory=dict[str, Any])
    folder: Path = Path()

    def parameters(self) -> dict[str, Any]:
        """What the flow is called with."""
        if self.flow in _NEEDED:
            return {**self.settings, "folder": str(self.folder)}
        return {"recipe": self.recipe, "settings": self.settings, "folder": str(self.folder)}


def check(timetable: Timetable) -> None:
    """Refuse a timetable that could not run.

    Raises:
        ConfigError: Every fault of it at once: its times, and what its configuration says.
    """
    faults: list[str] = []
    if (timetable.cron is None) == (timetable.every_s is None):
        faults.append("times: give either --cron or --every")
    elif timetable.cron is not None:
        faults += _cron_faults(timetable.cron, timetable.timezone)
    elif not timetable.every_s or timetable.every_s < 1:
        faults.append(f"every: {timetable.every_s} is shorter than a second")
    kind = _config_of(timetable.flow)
    if needed := _NEEDED.get(timetable.flow):
        faults += [
            f"{name}: {timetable.flow} needs it; give --set {name}=..."
            for name in needed
            if name not in timetable.settings
        ]
    elif kind is None:
        faults.append(
            f"flow: {timetable.flow!r} is none of {', '.join(sorted((*_CONFIGS, *_NEEDED, 'pipeline')))}"
        )
    else:
        try:
            parse(kind, timetable.recipe, **timetable.settings)
        except ConfigError as fault:
            faults += fault.faults
    if faults:
        raise ConfigError(faults)


def output_of(timetable: Timetable) -> str | None:
    """The folder that every run of a timetable writes; None where each run has its own."""
    if timetable.flow in _NEEDED:
        out = str(timetable.settings.get("out", timetable.settings["data"]))
    else:
        out = str(parse(_config_of(timetable.flow), timetable.recipe, **timetable.settings).out)
    return None if "{date}" in out or "{time}" in out else str((timetable.folder / out).resolve())


def seconds_of(text: str) -> float:
    """Seconds of a duration such as 90s, 15m, 6h, 1d.

    Raises:
        ConfigError: It is none.
    """
    if match := re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text.strip()):
        return float(match[1]) * _UNITS_S[match[2]]
    raise ConfigError([f"every: {text!r} is no duration; write 90s, 15m, 6h or 1d"])


def serve(timetable: Timetable) -> None:
    """Run a timetable's flow at its times until Ctrl-C. A Prefect server must answer at PREFECT_API_URL.

    Raises:
        ConfigError: Another deployment on this server writes the same folder: the two would run into each other.
    """
    from prefect import serve as serve_deployments
    from prefect.client.schemas.objects import ConcurrencyLimitConfig, ConcurrencyLimitStrategy
    from prefect.types.entrypoint import EntrypointType

    from stepward.flows.orchestration.deployed import FLOWS

    tags = ["stepward", f"flow:{timetable.flow}"]
    if (out := output_of(timetable)) is not None:
        tag = f"out:{out}"
        asyncio.run(_refuse_overlap(tag, timetable))
        tags.append(tag)
    times: dict[str, Any] = (
        {"cron": timetable.cron}
        if timetable.cron is not None
        else {"interval": timedelta(seconds=timetable.every_s or math.inf)}
    )
    if timetable.cron is not None and timetable.timezone != "UTC":
        from prefect.schedules import Cron

        times = {"schedule": Cron(timetable.cron, timezone=timetable.timezone)}
    deployment: Any = FLOWS[timetable.flow].to_deployment(
        name=timetable.name,
        **times,
        parameters=timetable.parameters(),
        tags=tags,
        concurrency_limit=ConcurrencyLimitConfig(
            limit=1, collision_strategy=ConcurrencyLimitStrategy.CANCEL_NEW
        ),
        entrypoint_type=EntrypointType.MODULE_PATH,
    )
    serve_deployments(deployment, print_starting_message=False)


async def _refuse_overlap(tag: str, timetable: Timetable) -> None:
    from prefect import get_client
    from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterTags

    async with get_client() as client:
        found = await client.read_deployments(
            deployment_filter=DeploymentFilter(tags=DeploymentFilterTags(all_=[tag]))
        )
    others = [d.name for d in found if not d.paused and (d.name != timetable.name)]
    if others:
        raise ConfigError(
            [
                f"schedule {timetable.name!r}: deployment {others[0]!r} writes {tag.removeprefix('out:')} already, and "
                "the two would run into each other. Pause or delete that one, or write another folder, such as "
                "one a day: out=labels/{date}"
            ]
        )


def _config_of(flow: str) -> Any:
    if flow == "pipeline":
        from stepward.flows.pipeline import PipelineConfig

        return PipelineConfig
    return _CONFIGS.get(flow)


def _cron_faults(cron: str, timezone: str) -> list[str]:
    from prefect.client.schemas.schedules import CronSchedule
    from pydantic import ValidationError

    try:
        CronSchedule(cron=cron, timezone=timezone)
    except ValidationError as fault:
        return [
            f"{'timezone' if 'timezone' in error['loc'] else 'cron'}: {error['msg'].removeprefix('Value error, ')}"
            for error in fault.errors()
        ]
    return []
