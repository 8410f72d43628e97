"""The flows that schedules and work pools run: paths and small values in, the functions of the commands inside.

Each resumes: a run that finds its folder finished says so and ends, one that a machine lost is gone on with by the
next. ``{date}`` and ``{time}`` in a setting are those that the run was scheduled for (UTC), so that a schedule can
write a folder a day.
"""

import asyncio
import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from prefect import flow, task
from prefect.assets import materialize
from prefect.cache_policies import NO_CACHE
from prefect.runtime import flow_run

from stepward.flows.config import EvaluateConfig, LabelConfig, TrainConfig, parse
from stepward.flows.orchestration.orchestrate import label_in_flow, stages_as_tasks
from stepward.flows.part import Part
from stepward.flows.resumption import nothing_left
from stepward.prm.errors import PublishError

T = TypeVar("T")
Settings = dict[str, Any]

_TOKEN_BLOCK = "hf-token"
_PUBLISH_DELAYS_S = [60.0, 300.0, 900.0]


@flow(name="label", flow_run_name="label {recipe}", persist_result=False)
async def label(
    recipe: str, settings: Settings | None = None, shards: str | None = None, folder: str | None = None
) -> Settings:
    """Label, going on with what the output folder holds.

    Args:
        recipe: YAML file, or the name of a shipped recipe.
        settings: What differs from it.
        shards: ``i/n``, beside runs that do the others.
        folder: Working directory of relative paths.
    """
    config = parse(LabelConfig, recipe, **_prepared(settings, folder))
    if done := nothing_left(config):
        return {"state": done}
    part = Part.parse(shards) if shards is not None else None
    progress = await label_in_flow(config, stages_as_tasks(), resume=True, part=part)
    return {
        "state": progress.stopped or ("finished" if not progress.shards_left else "part finished"),
        "problems": progress.problems,
        "labels": progress.labelled_steps,
        "tokens": progress.tokens,
    }


@flow(name="relabel", flow_run_name="relabel {data} by {rule}", persist_result=False)
async def relabel(
    data: str, out: str, rule: str = "hard", options: Settings | None = None, folder: str | None = None
) -> Settings:
    """Derive labels again from stored counts."""
    from stepward.labeling.relabel import Relabeling, relabel_dataset
    from stepward.prm.dataset.store import open_dataset

    where = _prepared({"data": data, "out": out}, folder)

    def work() -> Settings:
        manifest, report = relabel_dataset(
            open_dataset(where["data"]), Path(where["out"]), Relabeling(rule, options or {}), resume=True
        )
        return {"fingerprint": manifest.fingerprint, "decided": report.decided, "undecided": report.undecided}

    return await _stage("relabel", work)


@flow(name="train", flow_run_name="train {recipe}", persist_result=False)
async def train(recipe: str, settings: Settings | None = None, folder: str | None = None) -> Settings:
    """Fit a process reward model on a labelled dataset."""
    from stepward.flows.train import train as run

    config = parse(TrainConfig, recipe, **_prepared(settings, folder))
    await _stage("train", lambda: run(config))
    return {"prm": str(config.out)}


@flow(name="evaluate", flow_run_name="evaluate {recipe}", persist_result=False)
async def evaluate(recipe: str, settings: Settings | None = None, folder: str | None = None) -> Settings:
    """Report F1 of the first wrong step, and best-of-N against majority vote."""
    from stepward.flows.evaluate import run_evaluation

    config = parse(EvaluateConfig, recipe, **_prepared(settings, folder))
    results = await _stage("evaluate", lambda: run_evaluation(config))
    return {"out": str(config.out), "f1": {r.result.scorer: r.result.macro.f1.value for r in results.runs}}


@flow(name="publish", flow_run_name="publish {repo}", persist_result=False)
async def publish(
    data: str,
    repo: str,
    model: bool = False,
    public: bool = False,
    allow: list[str] | None = None,
    folder: str | None = None,
) -> Settings:
    """Publish to the Hugging Face Hub; called again it goes on where it stopped.

    The token is HF_TOKEN's or the login's, else that of the Secret block ``hf-token``.
    """
    from prefect.artifacts import acreate_markdown_artifact

    from stepward.prm.publishing.hub import publish as run

    where = _prepared({"data": data}, folder)["data"]
    await _token_from_block()

    kind = "model" if model else "dataset"
    address = f"https://huggingface.co/{'' if model else 'datasets/'}{repo}"

    @materialize(
        address,
        by="stepward",
        cache_policy=NO_CACHE,
        persist_result=False,
        retries=len(_PUBLISH_DELAYS_S),
        retry_delay_seconds=_PUBLISH_DELAYS_S,
        retry_condition_fn=_hub_fault,
    )
    async def send() -> Settings:
        done = await asyncio.to_thread(
            lambda: run(where, repo, kind=kind, private=not public, allow=allow or ())
        )
        return {"url": done.url, "tag": done.tag, "commit": done.commit}

    published = await send()
    await acreate_markdown_artifact(
        f"[{repo} at {published['tag']}]({published['url']}/tree/{published['tag']})",
        key="published-revision",
    )
    return published


@flow(name="pipeline", flow_run_name="pipeline {recipe}", persist_result=False)
async def pipeline(recipe: str, settings: Settings | None = None, folder: str | None = None) -> Settings:
    """Label, train, evaluate, and with several rounds search under the PRM and label again."""
    from stepward.flows.pipeline import PipelineConfig, run_pipeline

    config = parse(PipelineConfig, recipe, **_prepared(settings, folder))
    rounds = await run_pipeline(config, through=stages_as_tasks())
    return {"out": str(config.out), "rounds": [r.figures() for r in rounds]}


FLOWS = {f.name: f for f in (label, relabel, train, evaluate, publish, pipeline)}


def _prepared(settings: Settings | None, folder: str | None) -> Settings:
    """Settings with dates filled in, in the working directory that was asked for."""
    if folder is not None:
        os.chdir(folder)
    when = flow_run.get_scheduled_start_time() or datetime.now(UTC)
    return {name: _dated(value, when) for name, value in (settings or {}).items()}


def _dated(value: Any, when: datetime) -> Any:
    if isinstance(value, str):
        return value.replace("{date}", f"{when:%Y-%m-%d}").replace("{time}", f"{when:%H%M}")
    return {k: _dated(v, when) for k, v in value.items()} if isinstance(value, dict) else value


async def _stage(name: str, work: Callable[[], T]) -> T:
    """One plain function as one task, in a thread so that Prefect's heartbeat goes on."""

    @task(name=name, cache_policy=NO_CACHE, persist_result=False)
    async def run() -> T:
        return await asyncio.to_thread(work)

    return await run()


async def _hub_fault(task: Any, run: Any, state: Any) -> bool:
    """A Hub that is down or busy is tried again; a refused check, a wrong token or a conflict is not."""
    try:
        await state.result()
    except PublishError as fault:
        return fault.retryable
    except BaseException:
        return False
    return False


async def _token_from_block() -> None:
    from huggingface_hub import get_token
    from prefect.blocks.system import Secret

    if get_token():
        return
    try:
        block = await Secret.aload(_TOKEN_BLOCK)
    except ValueError:
        return  # there is no such block: publishing says that there is no token
    os.environ["HF_TOKEN"] = block.get()
