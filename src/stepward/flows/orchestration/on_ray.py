"""Labelling on a Ray cluster through Prefect's RayTaskRunner: one task a shard, each a part of the same run.

A task costs Ray and Prefect half a second, so shards should take minutes. Nothing but a configuration and a shard's
number goes to a task; it claims the shard in the folder, which all machines must see, and the last one seals. A task
that Ray runs again, or a machine that dies, is a shard that another run of the command finds unfinished.

Needs ``pip install 'stepward[ray]'``.
"""

import asyncio
from pathlib import Path
from typing import Any

from stepward.flows.build import build_engines
from stepward.flows.config import LabelConfig
from stepward.flows.label import Progress, label
from stepward.flows.orchestration.orchestrate import engine_fault, parameters_of, run_name, tags_of
from stepward.flows.part import Part
from stepward.flows.problems import problems_of
from stepward.labeling.plan import Engines
from stepward.prm.errors import ConfigError


def label_on_ray(
    config: LabelConfig,
    *,
    address: str | None = None,
    num_cpus: float = 1.0,
    num_gpus: float = 0.0,
    lease_s: float | None = None,
) -> Progress:
    """Label all problems of a configuration, a Ray task a shard.

    Args:
        config: The run. Its output folder is one path on all machines.
        address: Of a Ray cluster (``ray://HOST:10001``); None = a local Ray, made for this call.
        num_cpus: Cores that a task holds.
        num_gpus: GPUs that a task holds; an in-process engine needs its own.
        lease_s: See ``Part``.

    Returns:
        The sum over the tasks.

    Raises:
        ConfigError: prefect-ray is not installed.
        StepwardError: What failed in a task, after the other tasks have ended.
    """
    try:
        from prefect_ray import RayTaskRunner  # pyright: ignore[reportMissingImports]
        from prefect_ray.context import remote_options  # pyright: ignore[reportMissingImports]
    except ImportError as fault:
        raise ConfigError(["ray: prefect-ray is not installed; pip install 'stepward[ray]'"]) from fault
    from prefect import flow, tags

    problems = len(problems_of(config))
    num_shards = -(-problems // config.shard_problems)
    settings = config.model_dump(mode="json") | {"out": str(config.out.resolve())}
    shard_task: Any = _shard_task()
    done: list[Progress] = []

    @flow(
        name="label",
        flow_run_name=run_name(config),
        persist_result=False,
        validate_parameters=False,
        # A pip-installed package is at hand on every machine: nothing is packed and sent.
        task_runner=RayTaskRunner(
            address=address, init_kwargs=None if address else {"include_dashboard": False}
        ),
    )
    def run(shown: dict[str, Any]) -> None:
        with remote_options(num_cpus=num_cpus, num_gpus=num_gpus):
            futures = [shard_task.submit(settings, index, num_shards, lease_s) for index in range(num_shards)]
        for future in futures:
            future.wait()
        done.extend(future.result() for future in futures)

    with tags(*tags_of(config), "ray"):
        run(parameters_of(config))
    return _sum(done, problems)


def _shard_task() -> Any:
    from prefect import task
    from prefect.cache_policies import NO_CACHE

    return task(
        name="shard",
        task_run_name="shard {index}",
        cache_policy=NO_CACHE,
        persist_result=False,
        retries=3,
        retry_delay_seconds=[5.0, 20.0, 60.0],
        retry_jitter_factor=0.5,
        retry_condition_fn=engine_fault,
    )(label_shard)


# A Ray worker keeps its engine, and the loop that the engine lives on, from shard to shard.
_worker: dict[str, tuple[asyncio.Runner, Engines]] = {}


def label_shard(settings: dict[str, Any], index: int, num_shards: int, lease_s: float | None) -> Progress:
    """Label one shard of a run in this process."""
    config = LabelConfig.model_validate(settings | {"out": Path(settings["out"])})
    key = config.model_dump_json()
    if key not in _worker:
        _worker[key] = (asyncio.Runner(), build_engines(config))
    runner, engines = _worker[key]
    return runner.run(label(config, part=Part(index + 1, num_shards, lease_s), engines=engines))


def _sum(parts: list[Progress], problems: int) -> Progress:
    whole = Progress(problems)
    for part in parts:
        whole.problems += part.problems
        whole.found += part.found
        whole.solutions += part.solutions
        whole.steps += part.steps
        whole.labelled_steps += part.labelled_steps
        whole.tokens += part.tokens
        whole.exhausted += part.exhausted
        whole.outcomes.update(part.outcomes)
        whole.skipped.update(part.skipped)
        whole.began = min(whole.began, part.began)
        whole.stopped = whole.stopped or part.stopped
    whole.shards_left = min((part.shards_left for part in parts), default=0)
    return whole
