"""Files that put a timetable on a work pool of Prefect, or on Slurm: written once, then theirs to keep."""

import shlex
from pathlib import Path
from typing import Any

import yaml

from stepward.flows.orchestration.schedule import Timetable
from stepward.prm.errors import ConfigError

POOLS = ("process", "docker", "kubernetes", "slurm")


def write_files(
    timetable: Timetable, folder: Path, *, pool: str, image: str = "stepward:latest", parts: int = 4
) -> list[Path]:
    """Write the files of one timetable; what stands there under the same name is refused.

    Args:
        timetable: Checked (``schedule.check``).
        folder: Made where it is not there.
        pool: process, docker, kubernetes: ``prefect.yaml``. slurm: an array job and the job that seals.
        image: Of docker and kubernetes.
        parts: Jobs of the Slurm array.

    Raises:
        ConfigError: Another pool, a file that is there already, or a flow that Slurm's files are not made for.
    """
    if pool not in POOLS:
        raise ConfigError([f"pool: {pool!r} is none of {', '.join(POOLS)}"])
    if pool == "slurm":
        files = {f"{timetable.name}.sbatch": slurm_script(timetable, parts)}
    else:
        files = {"prefect.yaml": prefect_yaml(timetable, pool, image)}
        if pool != "process":
            files["Dockerfile"] = _DOCKERFILE
    folder.mkdir(parents=True, exist_ok=True)
    if there := [name for name in files if (folder / name).exists()]:
        raise ConfigError([f"write: {folder / there[0]} is there already; take another folder, or remove it"])
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in files]


def prefect_yaml(timetable: Timetable, pool: str, image: str) -> str:
    """``prefect.yaml`` with one deployment; ``prefect deploy --all`` takes it."""
    if timetable.cron is not None:
        times: dict[str, Any] = {"cron": timetable.cron, "timezone": timetable.timezone}
    else:
        times = {"interval": timetable.every_s}
    parameters = timetable.parameters()
    variables: dict[str, Any] = {"env": {"OMP_NUM_THREADS": "1"}}
    if pool == "process":
        variables["working_dir"] = parameters["folder"]
    else:
        # Inside a container the working directory is the volume that all runs see.
        parameters = {**parameters, "folder": "/work"}
        variables["image"] = image
        if pool == "docker":
            variables |= {"volumes": [f"{timetable.folder}:/work"], "image_pull_policy": "IfNotPresent"}
        else:
            variables |= {"finished_job_ttl": 86400}
    deployment: dict[str, Any] = {
        "name": timetable.name,
        "entrypoint": f"stepward.flows.orchestration.deployed.{timetable.flow}",
        "tags": ["stepward", f"flow:{timetable.flow}"],
        "parameters": parameters,
        "schedules": [times],
        # Runs of one folder never overlap: what is due meanwhile is cancelled, and the next run resumes.
        "concurrency_limit": {"limit": 1, "collision_strategy": "CANCEL_NEW"},
        "work_pool": {"name": f"stepward-{pool}", "work_queue_name": None, "job_variables": variables},
    }
    text = yaml.safe_dump({"name": "stepward", "build": None, "push": None, "pull": None, "deployments": [deployment]},
                          sort_keys=False, allow_unicode=True)  # fmt: skip
    return (
        f"# prefect work-pool create stepward-{pool} --type {pool}\n"
        "# prefect deploy --all\n"
        f"# prefect worker start --pool stepward-{pool}\n"
        "# The package is installed where the worker runs (or in the image), so nothing is pulled.\n" + text
    )


def slurm_script(timetable: Timetable, parts: int) -> str:
    """An sbatch script: an array of parts of one labelling run, without Prefect, which resubmits itself."""
    if timetable.flow != "label":
        raise ConfigError([f"pool slurm: files are made for the flow label, not for {timetable.flow}"])
    if timetable.recipe is None:
        raise ConfigError(["pool slurm: a recipe is needed"])
    options = "".join(
        f" --{name.replace('_', '-')} {shlex.quote(str(value))}" for name, value in timetable.settings.items()
    )
    return _SBATCH.format(
        name=timetable.name,
        parts=parts,
        folder=shlex.quote(str(timetable.folder)),
        recipe=shlex.quote(timetable.recipe),
        options=options,
    )


_SBATCH = """#!/bin/bash
# Label one folder with {parts} jobs: sbatch {name}.sbatch
# Each takes every {parts}th shard; whoever finishes last seals the folder. A job that died is made up for by running
# this again, or by `stepward label ... --shards 1/1`, which takes whatever is free.
#SBATCH --job-name={name}
#SBATCH --array=1-{parts}
#SBATCH --cpus-per-task=8
#SBATCH --gpus-per-task=1
#SBATCH --mem=64G
#SBATCH --time=12:00:00
#SBATCH --signal=B:INT@120
#SBATCH --requeue
#SBATCH --output=%x-%a.log
#SBATCH --open-mode=append
set -euo pipefail
export OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1
cd {folder}
# Ctrl-C's signal comes two minutes before the time is up: finished problems are kept, and the job asks to go on.
trap 'kill -INT "$run"; wait "$run" || true; scontrol requeue "$SLURM_JOB_ID"' INT
stepward label --recipe {recipe}{options} \\
  --shards "$SLURM_ARRAY_TASK_ID/{parts}" --no-prefect --resume &
run=$!
wait "$run"
"""

_DOCKERFILE = """# docker build -t stepward:latest .
# With a GPU start from the image of your vLLM and install into it.
FROM python:3.11-slim
RUN apt-get update && apt-get install -y --no-install-recommends bubblewrap && rm -rf /var/lib/apt/lists/*
RUN pip install --no-cache-dir stepward "prefect-docker>=0.6" "prefect-kubernetes>=0.6"
ENV PREFECT_SERVER_ANALYTICS_ENABLED=false DO_NOT_TRACK=1
WORKDIR /work
"""
