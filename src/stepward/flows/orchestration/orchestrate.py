"""Prefect around the plain stages: one flow a command, one task a shard or stage, nothing finer.

A task costs Prefect 8 to 30 ms and a row in its database, so a rollout is never one. Resumption belongs to the
dataset folder: results are not persisted and nothing is cached.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import httpx

from stepward.flows.config import LabelConfig
from stepward.flows.label import Progress, Through, Watch, directly, label
from stepward.flows.orchestration.artifacts import LabelPage
from stepward.flows.orchestration.prefect_server import PrefectServer, is_of_server
from stepward.flows.part import Part
from stepward.prm.errors import EngineError

if TYPE_CHECKING:
    from stepward.flows.pipeline import PipelineConfig, RoundResult
    from stepward.flows.quickstart import Outcomes, Sizes

T = TypeVar("T")
Say = Callable[[str], None]

_RETRIES = 3
_RETRY_DELAYS_S = [5.0, 20.0, 60.0]


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
        return await label_in_flow(
            config, through, resume=resume, overwrite=overwrite, part=part, watch=watch
        )

    return await as_flow("label", parameters_of(config), body, name=run_name(config), tags=tags_of(config))


async def label_in_flow(
    config: LabelConfig,
    through: Through,
    *,
    resume: bool,
    overwrite: bool = False,
    part: Part | None = None,
    watch: Watch = lambda progress: None,
) -> Progress:
    """Label inside a flow that runs: its page shows the progress, and at the end what came out."""
    page = LabelPage(config)

    def watched(progress: Progress) -> None:
        page.progress = progress
        watch(progress)

    async def shown(stage: str, work: Callable[[], Awaitable[None]]) -> None:
        await through(stage, work)
        await page.update()

    progress = await label(
        config, resume=resume, overwrite=overwrite, part=part, watch=watched, through=shown
    )
    await page.close(progress)
    return progress


async def run_quickstart(
    out: Path, *, seed: int, sizes: "Sizes", watch: Watch, say: Say, server: PrefectServer | None
) -> "Outcomes":
    """The quickstart as one Prefect flow, or without Prefect where there is no server."""
    from stepward.flows.quickstart import (
        quickstart,  # trains, so it loads torch, which labelling may not need
    )

    async def body(through: Through) -> "Outcomes":
        return await quickstart(out, seed=seed, sizes=sizes, through=through, watch=watch, say=say)

    if server is None or not await asyncio.to_thread(server.ready):
        return await body(directly)
    return await as_flow("quickstart", {"out": out.name, "seed": seed}, body)


async def run_pipeline_command(
    config: "PipelineConfig", *, watch: Watch, say: Say, server: PrefectServer | None
) -> "list[RoundResult]":
    """The pipeline as one Prefect flow, or without Prefect where there is no server."""
    from stepward.flows.pipeline import run_pipeline

    async def body(through: Through) -> "list[RoundResult]":
        return await run_pipeline(config, through=through, watch=watch, say=say)

    if server is None or not await asyncio.to_thread(server.ready):
        return await body(directly)
    return await as_flow("pipeline", {"out": config.out.name, "rounds": config.rounds}, body)


async def as_flow(
    flow_name: str,
    parameters: dict[str, Any],
    body: Callable[[Through], Awaitable[T]],
    *,
    name: str | None = None,
    tags: Sequence[str] = (),
) -> T:
    """Run ``body`` inside a Prefect flow; what it hands to ``through`` becomes a task.

    Args:
        flow_name: The flow's name.
        parameters: Small JSON values that the run's page shows.
        body: Does the work. Its result and its exceptions come back as they are.
        name: The run's name; None = Prefect makes one up.
        tags: What runs are found by.
    """
    from prefect import flow
    from prefect import tags as tagged

    results: list[T] = []
    began = False

    @flow(name=flow_name, flow_run_name=name, persist_result=False, validate_parameters=False)
    async def run(settings: dict[str, Any]) -> None:
        nonlocal began
        began = True
        results.append(await body(stages_as_tasks()))

    try:
        with tagged(*tags):
            await run(parameters)
    except Exception as fault:
        if not is_of_server(fault) or (began and not results):
            raise
        # Prefect asked again and again before it gave up. The work does not depend on its books.
        say_without_server(fault)
        if not began:
            return await body(directly)
    return results[0]


def say_without_server(fault: Exception) -> None:
    """Tell the user that Prefect's server failed under a run, and what a locked database asks for."""
    status = fault.response.status_code if isinstance(fault, httpx.HTTPStatusError) else None
    remedy = (
        ": its database is locked or it is overloaded. Give it PostgreSQL "
        "(PREFECT_SERVER_DATABASE_CONNECTION_URL) where many runs report at once"
        if status == 503
        else ""
    )
    print(
        f"stepward: Prefect's server failed ({type(fault).__name__}{f' {status}' if status else ''}{remedy}); "
        "the run's page is not complete, its rows are",
        file=sys.stderr,
    )


def stages_as_tasks() -> Through:
    """What makes each stage a task of the flow that runs; called inside it."""
    from prefect import task
    from prefect.cache_policies import NO_CACHE

    works: dict[str, Callable[[], Awaitable[None]]] = {}
    done: set[str] = set()

    @task(
        name="stage",
        task_run_name="{stage}",
        cache_policy=NO_CACHE,
        persist_result=False,
        retries=_RETRIES,
        retry_delay_seconds=_RETRY_DELAYS_S,
        retry_jitter_factor=0.5,
        retry_condition_fn=engine_fault,
    )
    async def run_stage(stage: str) -> None:
        await works[stage]()
        done.add(stage)

    async def through(stage: str, work: Callable[[], Awaitable[None]]) -> None:
        works[stage] = work
        try:
            await run_stage(stage)
        except Exception as fault:
            if not is_of_server(fault):
                raise
            if stage not in done:
                await work()
        finally:
            works.pop(stage, None)
            done.discard(stage)

    return through


async def engine_fault(task: Any, run: Any, state: Any) -> bool:
    """Only a fault of the engine is tried again: bad input and a full disk would fail in the same way."""
    try:
        await state.result()
    except EngineError as fault:
        return fault.retryable
    except BaseException:
        return False
    return False


def parameters_of(config: LabelConfig) -> dict[str, Any]:
    """What a run's page shows of its configuration."""
    return {
        "problems": config.problems,
        "policy": config.policy,
        "labeler": config.labeler,
        "seed": config.seed,
    }


def run_name(config: LabelConfig) -> str:
    """Source, policy and labeler of a run, without folders."""
    settings = config.row_settings()
    return f"{settings['problems']} by {settings['policy']}, {config.labeler}"[:120]


def tags_of(config: LabelConfig) -> tuple[str, ...]:
    """What runs are found by: source, policy, labeler."""
    settings = config.row_settings()
    return (
        f"problems:{settings['problems']}",
        f"policy:{settings['policy']}",
        f"labeler:{config.labeler}",
    )
