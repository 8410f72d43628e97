"""``stepward evaluate``: a reward model on ProcessBench-format files and on stored samples."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from stepward.flows.cli.app import app

Opt = typer.Option


@app.command()
def evaluate(
    out: Annotated[Path, Opt(help="Results folder")],
    prm: Annotated[str | None, typer.Argument(help="Reward model: folder or Hub id")] = None,
    critic: Annotated[
        str | None, Opt(help="Instead of a reward model: judge, generative, or a published critic")
    ] = None,
    policy: Annotated[str | None, Opt(help="The engine that writes critiques")] = None,
    num_critiques: Annotated[int, Opt(help="Critiques a solution; the majority counts")] = 8,
    max_tokens: Annotated[int, Opt(help="Most tokens of a critique")] = 2048,
    limit: Annotated[int | None, Opt(help="Only the first so many solutions of each file (critics)")] = None,
    processbench: Annotated[
        list[Path] | None, Opt(help="File of ProcessBench's format to report; may be repeated")
    ] = None,
    threshold_from: Annotated[
        Path | None, Opt(help="File of other problems to choose the threshold on")
    ] = None,
    threshold: Annotated[float | None, Opt(help="A threshold fixed by hand")] = None,
    samples: Annotated[Path | None, Opt(help="File of samples for best-of-N")] = None,
    aggregation_from: Annotated[
        Path | None, Opt(help="Samples of other problems, to learn an aggregation of step scores on")
    ] = None,
    baseline_policy: Annotated[str | None, Opt(help="Also score the baselines, with this policy")] = None,
    seed: Annotated[int, Opt()] = 0,
) -> None:
    """Report F1 of the first wrong step, and best-of-N against majority vote."""
    from stepward.flows.config import EvaluateConfig, parse
    from stepward.prm.errors import ConfigError

    if (prm is None) == (critic is None):
        raise ConfigError(["evaluate: name a reward model, or a critic with --critic and --policy, not both"])
    if critic is not None:
        _evaluate_critic(critic, policy, out, processbench, num_critiques, max_tokens, limit, seed)
        return
    config = parse(
        EvaluateConfig,
        prm=prm,
        out=out,
        processbench=tuple(processbench) if processbench else None,
        threshold_from=threshold_from,
        threshold=threshold,
        samples=samples,
        aggregation_from=aggregation_from,
        baseline_policy=baseline_policy,
        seed=seed,
    )
    from rich.console import Console

    from stepward.flows.evaluate import run_evaluation
    from stepward.flows.tables import evaluation_table

    Console().print(evaluation_table(run_evaluation(config)))


def _evaluate_critic(
    critic: str,
    policy: str | None,
    out: Path,
    processbench: list[Path] | None,
    num_critiques: int,
    max_tokens: int,
    limit: int | None,
    seed: int,
) -> None:
    from rich.console import Console

    from stepward.flows.config import parse
    from stepward.flows.critics import CriticConfig, run_critic
    from stepward.flows.tables import evaluation_table

    config = parse(
        CriticConfig,
        critic=critic,
        policy=policy,
        out=out,
        processbench=tuple(processbench) if processbench else None,
        num_critiques=num_critiques,
        max_tokens=max_tokens,
        limit=limit,
        seed=seed,
    )
    Console().print(evaluation_table(run_critic(config)))


@app.command()
def compare(
    a: Annotated[Path, typer.Argument(help="Results folder")],
    b: Annotated[Path, typer.Argument(help="Results folder")],
    scorer_a: Annotated[str | None, Opt(help="A scorer of the first; its first by default")] = None,
    scorer_b: Annotated[str | None, Opt(help="A scorer of the second")] = None,
) -> None:
    """Paired differences of two evaluations on the same items."""
    from stepward.prm.evaluation.compare import compare_folders

    found = compare_folders(a, b, scorer_a=scorer_a, scorer_b=scorer_b)
    print(f"{found.a} minus {found.b}")
    for subset, measure in found.f1.items():
        print(f"  F1 {subset or 'all'}: {measure}")
    if found.f1:
        print(
            f"  both right {found.both_hit:,}, only the first {found.only_a:,}, only the second {found.only_b:,}"
        )
    for (method, cut_by, cut), measure in found.best_of_n.items():
        print(f"  {method} at {cut} {cut_by}: {measure}")
    for (mine, theirs), gap in found.searches.items():
        left_out = f", {gap.num_left_out:,} of unknown outcome left out" if gap.num_left_out else ""
        print(f"  {mine} - {theirs}: accuracy {gap.accuracy}, tokens {gap.tokens}{left_out}")


@app.command()
def score(
    prm: Annotated[
        str, typer.Argument(help="Reward model: folder, Hub id, or URL of a server (stepward serve)")
    ],
    solutions: Annotated[Path, typer.Argument(help="JSON lines with problem and steps")],
    out: Annotated[Path | None, Opt(help="JSON lines to write; the screen by default")] = None,
    policy: Annotated[
        str | None, Opt(help="Engine that serves a published critic (GenPRM, ThinkPRM), such as vllm:NAME")
    ] = None,
) -> None:
    """P(step is right) for each step of each solution."""
    import json

    from stepward.flows.build import load_policy_for
    from stepward.prm.errors import EngineError, ProblemFileError
    from stepward.prm.models.load import load, load_critic
    from stepward.prm.models.served import ServedRewardModel
    from stepward.prm.problems import read_solutions

    rows = list(read_solutions(solutions))
    for row in rows:
        if not row.problem or not row.steps:
            raise ProblemFileError(
                solutions, row.place.number, "a row to score needs problem and a list of steps"
            )
    model = load(prm) if policy is None else load_critic(prm, load_policy_for(policy))
    asked = [row.problem or "" for row in rows], [row.steps for row in rows]
    scores = model.score_each(*asked) if isinstance(model, ServedRewardModel) else model.score(*asked)
    failed = [s for s in scores if isinstance(s, EngineError)]
    # What a server failed on has no score: null with the error, and exit code 1.
    lines = [
        json.dumps(
            {"steps": list(r.steps)}
            | ({"scores": None, "error": str(s)} if isinstance(s, EngineError) else {"scores": list(s)}),
            ensure_ascii=False,
        )
        for r, s in zip(rows, scores, strict=True)
    ]
    if out is None:
        print("\n".join(lines))
    else:
        out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    if failed:
        print(f"{len(failed):,} of {len(rows):,} solutions have no score: {failed[0]}", file=sys.stderr)
        sys.exit(1)
