"""Prefect around the plain stages: one flow a command, one task a shard or stage, nothing finer.

A task costs Prefect 8 to 30 ms and a row in its database, so a rollout is never one. Resumption belongs to the
dataset folder: results are not persisted and nothing is cached.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

from stepward.flows.config import LabelConfig
from stepward.flows.label import Part, Progress, Through, Watch, directly, label
from stepward.flows.prefect_server import PrefectServer
from stepward.flows.quickstart import Outcomes, Say, Sizes, quickstart
from stepward.prm.errors import EngineError

T = TypeVar("T")

_RETRIES = 2
_RETRY_DELAY_S = 5


async def run_label(
    config: LabelConfig,
    *,
    resume: bool,
    overwrite: bool,
    watch: Watch,
    server: PrefectServer | None,
    part: Part | None = None,
) -> Progress:
    """Label as a Prefect flow, or without Prefect where ``server`` is None or does not come up."""
    if server is None or not await asyncio.to_thread(server.ready):
        return await label(config, resume=resume, overwrite=overwrite, part=part, watch=watch)

    async def body(through: Through) -> Progress:
        return await label(
            config, resume=resume, overwrite=overwrite, part=part, watch=watch, through=through
        )

    return await as_flow("label", _parameters(config), body)


async def run_quickstart(
    out: Path, *, seed: int, sizes: Sizes, watch: Watch, say: Say, server: PrefectServer | None
) -> Outcomes:
    """The quickstart as one Prefect flow, or without Prefect where there is no server."""

    async def body(through: Through) -> Outcomes:
        return await quickstart(out, seed=seed, sizes=sizes, through=through, watch=watch, say=say)

    if server is None or not await asyncio.to_thread(server.ready):
        return await body(directly)
    return await as_flow("quickstart", {"out": out.name, "seed": seed}, body)


async def as_flow(name: str, parameters: dict[str, Any], body: Callable[[Through], Awaitable[T]]) -> T:
    """Run ``body`` inside a Prefect flow; what it hands to ``through`` becomes a task.

    Args:
        name: The flow's name.
        parameters: Small JSON values that the run's page shows.
        body: Does the work. Its result and its exceptions come back as they are.
    """
    from prefect import flow, task
    from prefect.cache_policies import NO_CACHE

    results: list[T] = []

    @task(
        name="stage",
        task_run_name="{stage}",
        cache_policy=NO_CACHE,
        persist_result=False,
        retries=_RETRIES,
        retry_delay_seconds=_RETRY_DELAY_S,
        retry_jitter_factor=0.5,
        retry_condition_fn=_engine_fault,
    )
    async def run_stage(stage: str) -> None:
        await works[stage]()

    works: dict[str, Callable[[], Awaitable[None]]] = {}

    async def through(stage: str, work: Callable[[], Awaitable[None]]) -> None:
        works[stage] = work
        try:
            await run_stage(stage)
        finally:
            del works[stage]

    @flow(name=name, persist_result=False, validate_parameters=False)
    async def run(settings: dict[str, Any]) -> None:
        results.append(await body(through))

    await run(parameters)
    return results[0]


async def _engine_fault(task: Any, run: Any, state: Any) -> bool:
    """Only a fault of the engine is tried again: bad input and a full disk would fail in the same way."""
    try:
        await state.result()
    except EngineError as fault:
        return fault.retryable
    except BaseException:
        return False
    return False


def _parameters(config: LabelConfig) -> dict[str, Any]:
    return {
        "problems": config.problems,
        "policy": config.policy,
        "labeler": config.labeler,
        "seed": config.seed,
    }
