"""``stepward label``: problems in, labelled dataset out."""

import asyncio
import sys
from pathlib import Path
from typing import Annotated

import typer

from stepward.flows.cli.app import app, stoppable

Opt = typer.Option


@app.command()
def label(
    problems: Annotated[
        str | None, typer.Argument(help="JSONL, Parquet, datasets folder, Hub id, or generator:N")
    ] = None,
    out: Annotated[Path | None, Opt(help="Dataset folder to write")] = None,
    recipe: Annotated[str | None, Opt(help="YAML file, or the name of a shipped recipe")] = None,
    solutions: Annotated[Path | None, Opt(help="Label these solutions instead of sampling")] = None,
    policy: Annotated[str | None, Opt(help="embedded, folder, Hub id, replay:FILE, vllm:MODEL, ...")] = None,
    completer: Annotated[str | None, Opt(help="Who samples rollouts; the policy by default")] = None,
    prompt: Annotated[str | None, Opt(help="Prompt template: plain, chat, or a Jinja file")] = None,
    fold: Annotated[str | None, Opt(help="i/n: only the i-th of n folds of the problems")] = None,
    limit: Annotated[int | None, Opt(help="Only the first N problems")] = None,
    num_solutions: Annotated[int | None, Opt(help="Solutions a problem")] = None,
    search: Annotated[
        str | None,
        Opt(help="Solutions from a tree search: omegaprm, alphamath, rstar, rest_mcts, tree_plv, mctsr, ..."),
    ] = None,
    search_option: Annotated[
        list[str] | None, Opt(help="NAME=VALUE of the search, such as iterations=10; may be repeated")
    ] = None,
    search_tokens: Annotated[int | None, Opt(help="Most tokens a problem's search may sample")] = None,
    allocation: Annotated[str | None, Opt(help="Which prefix gets the next rollout")] = None,
    num_rollouts: Annotated[int | None, Opt(help="K, where the allocation has one")] = None,
    labeler: Annotated[str | None, Opt(help="Counts -> labels")] = None,
    price: Annotated[float | None, Opt(help="Nats a token (information_gain)")] = None,
    grid: Annotated[
        str | None,
        Opt(help="The posterior's grid: default, pilot (a pilot chooses it), or auto (large runs)"),
    ] = None,
    verifier: Annotated[list[str] | None, Opt(help="Tool verifier of steps; may be repeated")] = None,
    verifiers: Annotated[str | None, Opt(help="The same, names with commas between")] = None,
    fusion: Annotated[
        str | None, Opt(help="returns, posterior, veto, intersect, consensus, grounded_code, grounded_paper")
    ] = None,
    verifier_quality: Annotated[
        str | None, Opt(help="assumed, learned, or a labelled file of ProcessBench's format")
    ] = None,
    judge: Annotated[str | None, Opt(help="Policy that judges steps")] = None,
    judge_meta_critique: Annotated[
        bool | None,
        Opt("--judge-meta-critique", help="Each review is criticised and merged before it votes (SPARK)"),
    ] = None,
    hint: Annotated[str | None, Opt(help="Reward model that scores steps before any rollout")] = None,
    outcomes: Annotated[
        str | None, Opt(help="answers, votes (no reference needed) or spark (a judge)")
    ] = None,
    temperature: Annotated[float | None, Opt()] = None,
    top_p: Annotated[float | None, Opt()] = None,
    max_tokens: Annotated[int | None, Opt(help="Most tokens a solution or rollout may have")] = None,
    steps: Annotated[
        str | None, Opt(help="Step delimiter: newline, blank_line, step_k, sentence, ...")
    ] = None,
    label_every: Annotated[
        int | None, Opt(help="Cost cap for long solutions: rollouts at every m-th prefix only")
    ] = None,
    seed: Annotated[int | None, Opt()] = None,
    shard_problems: Annotated[int | None, Opt(help="Problems a shard")] = None,
    workers: Annotated[int | None, Opt(help="Processes, each with an engine of its own")] = None,
    batch_size: Annotated[int | None, Opt(help="Rollouts decoded at once")] = None,
    prefix_cache_mib: Annotated[
        int | None, Opt(help="MiB for keys and values of prefixes (embedded and transformers; 256)")
    ] = None,
    budget_tokens: Annotated[int | None, Opt(help="Stop at a problem boundary after so many tokens")] = None,
    budget_hours: Annotated[float | None, Opt(help="Stop at a problem boundary after so many hours")] = None,
    shards: Annotated[
        str | None,
        Opt(help="i/n: only every n-th shard, beside processes that do the others (1/1: any free)"),
    ] = None,
    lease_s: Annotated[
        float | None, Opt(help="With --shards on a file system without locks: seconds of a shard's lease")
    ] = None,
    metrics_port: Annotated[
        int | None, Opt(help="Serve the run's figures to Prometheus on this port of the loopback")
    ] = None,
    ray: Annotated[
        str | None,
        Opt(help="Label on Ray, a task a shard: 'local', or a cluster's address (ray://HOST:10001)"),
    ] = None,
    ray_cpus: Annotated[float, Opt(help="With --ray: cores a task holds")] = 1.0,
    ray_gpus: Annotated[float, Opt(help="With --ray: GPUs a task holds")] = 0.0,
    resume: Annotated[bool, Opt("--resume", help="Go on with what this run has finished")] = False,
    overwrite: Annotated[bool, Opt("--overwrite", help="Delete the dataset in the folder first")] = False,
    dry_run: Annotated[bool, Opt("--dry-run", help="Print what it would spend and write nothing")] = False,
    no_prefect: Annotated[bool, Opt("--no-prefect", help="Run without a Prefect server")] = False,
) -> None:
    """Sample solutions, estimate the value of every prefix, write labelled steps as an Arrow dataset."""
    from stepward.flows.config import LabelConfig, parse

    sampler = {"temperature": temperature, "top_p": top_p, "max_tokens": max_tokens}
    named = [*(verifier or ()), *(n.strip() for n in (verifiers or "").split(",") if n.strip())]
    config = parse(
        LabelConfig,
        recipe,
        problems=problems,
        out=out,
        solutions=solutions,
        policy=policy,
        completer=completer,
        prompt=prompt,
        fold=fold,
        limit=limit,
        num_solutions=num_solutions,
        search=search,
        search_options=_options(search_option),
        search_tokens=search_tokens,
        allocation=allocation,
        num_rollouts=num_rollouts,
        labeler=labeler,
        price=price,
        grid=grid,
        verifiers=tuple(named) or None,
        fusion=fusion,
        verifier_quality=verifier_quality,
        judge=judge,
        judge_meta_critique=judge_meta_critique,
        hint=hint,
        outcomes=outcomes,
        sampler=sampler if any(v is not None for v in sampler.values()) else None,
        steps={"delimiter": steps, "label_every": label_every} if steps or label_every else None,
        seed=seed,
        shard_problems=shard_problems,
        workers=workers,
        batch_size=batch_size,
        prefix_cache_mib=prefix_cache_mib,
        budget_tokens=budget_tokens,
        budget_hours=budget_hours,
        metrics_port=metrics_port,
    )
    if dry_run:
        from stepward.flows.plan import plan_labeling

        print(asyncio.run(plan_labeling(config)))
        return
    if ray is not None:
        from stepward.prm.errors import ConfigError

        if overwrite or shards is not None or no_prefect:
            raise ConfigError(["--ray goes neither with --overwrite nor with --shards nor with --no-prefect"])
        from stepward.flows.orchestration.on_ray import label_on_ray
        from stepward.flows.orchestration.prefect_server import set_quiet_defaults
        from stepward.flows.watching.progress import summary

        set_quiet_defaults()
        with stoppable():
            done = label_on_ray(
                config,
                address=None if ray == "local" else ray,
                num_cpus=ray_cpus,
                num_gpus=ray_gpus,
                lease_s=lease_s,
            )
        print(summary(done, config.out))
        return
    _run(config, resume=resume, overwrite=overwrite, no_prefect=no_prefect, shards=shards, lease_s=lease_s)


def _options(pairs: list[str] | None) -> dict[str, object] | None:
    """NAME=VALUE as typed, values as YAML reads them; None where nothing was given."""
    import yaml

    from stepward.prm.errors import ConfigError

    if not pairs:
        return None
    if wrong := [p for p in pairs if not all(p.partition("="))]:
        raise ConfigError([f"--search-option {p!r}: write NAME=VALUE" for p in wrong])
    return {name: yaml.safe_load(value) for name, _, value in (p.partition("=") for p in pairs)}


def _run(
    config: object,
    *,
    resume: bool,
    overwrite: bool,
    no_prefect: bool,
    shards: str | None,
    lease_s: float | None,
) -> None:
    from stepward.flows.config import LabelConfig
    from stepward.flows.orchestration.prefect_server import PrefectServer
    from stepward.flows.part import Part
    from stepward.flows.resumption import nothing_left
    from stepward.prm.errors import ConfigError

    assert isinstance(config, LabelConfig)
    part = Part.parse(shards, lease_s) if shards is not None else None
    if part is not None and overwrite:
        raise ConfigError(["--shards with --overwrite: the processes would delete each other's work"])
    if lease_s is not None and part is None:
        raise ConfigError(["--lease-s is for --shards i/n: a run that works alone locks the whole folder"])
    if (resume or part is not None) and (done := nothing_left(config)):
        print(done)
        return
    server = None if no_prefect else PrefectServer().start()
    from stepward.flows.orchestration.orchestrate import run_label
    from stepward.flows.watching.progress import LabelBar, summary

    with stoppable(), LabelBar() as bar:
        progress = asyncio.run(
            run_label(config, resume=resume, overwrite=overwrite, part=part, watch=bar.update, server=server)
        )
    print(summary(progress, config.out))
    if part is not None and progress.shards_left:
        print(f"  part {shards} is done; {progress.shards_left:,} shards are left to other processes")
    if progress.stopped is not None:
        print(f"stopped: {progress.stopped}; go on with --resume", file=sys.stderr)
        sys.exit(3)
