"""``stepward label --dry-run``: what a run would spend, from a small pilot that is thrown away."""

import asyncio
import statistics
from itertools import islice

from stepward.flows.build import build_engines, build_labeling
from stepward.flows.config import LabelConfig
from stepward.flows.pilot import fix_constants
from stepward.labeling.annotate import ProblemResult, annotate
from stepward.prm.errors import ConfigError
from stepward.prm.problems import read_problems

PILOT_PROBLEMS = 16


async def plan_labeling(config: LabelConfig) -> str:
    """Label the first few problems and scale up.

    Returns:
        Solutions, rollouts and tokens of the whole run, with a 95 % interval for the mean over problems (normal
        approximation over the pilot's problems).

    Raises:
        ConfigError: There is no problem.
    """
    problems = list(islice(read_problems(config.problems), config.limit))
    if not problems:
        raise ConfigError([f"problems: {config.problems} holds no problem"])
    if config.solutions is not None:
        raise ConfigError(["--dry-run with --solutions is not supported: the pilot samples solutions itself"])
    engines = build_engines(config)
    job = build_labeling(config, await fix_constants(config, engines, problems, None), engines)
    # Spread over the file: the first problems of a sorted file are not like the rest.
    stride = max(1, len(problems) // PILOT_PROBLEMS)
    pilot = problems[::stride][:PILOT_PROBLEMS]
    try:
        results = await asyncio.gather(*(annotate(p, job.plan, job.engines) for p in pilot))
    finally:
        await job.close()
    n = len(problems)
    rows = [
        ("solutions", [float(len(r.solutions)) for r in results]),
        ("rollouts", [float(_rollouts(r)) for r in results]),
        ("labelled steps", [float(sum(len(s.labels) for s in r.solutions)) for r in results]),
        ("tokens", [float(r.tokens) for r in results]),
    ]
    lines = [f"dry run: {n:,} problems, scaled from a pilot of {len(pilot)} (nothing was written)"]
    for name, values in rows:
        mean, half = statistics.fmean(values), _half_width(values)
        lines.append(
            f"  {name:<15}{mean * n:>14,.0f}   [{max(0.0, mean - half) * n:,.0f}, {(mean + half) * n:,.0f}]"
        )
    if config.budget_tokens is not None:
        share = config.budget_tokens / max(1.0, statistics.fmean(rows[-1][1]) * n)
        lines.append(
            f"  the budget of {config.budget_tokens:,} tokens covers about {min(1.0, share):.0%} of it"
        )
    return "\n".join(lines)


def _rollouts(result: ProblemResult) -> int:
    return len(result.rollouts) - len(result.solutions)


def _half_width(values: list[float]) -> float:
    if len(values) < 2:
        return 0.0
    return 1.96 * statistics.stdev(values) / len(values) ** 0.5
