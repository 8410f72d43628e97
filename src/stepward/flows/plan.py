"""``stepward plan`` and ``stepward label --dry-run``: what a run would cost, from a pilot that is thrown away."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from stepward.flows.build import build_engines, build_labeling
from stepward.flows.config import LabelConfig, PricesConfig
from stepward.flows.logged import given_by_problem
from stepward.flows.pilot import fix_constants
from stepward.flows.problems import problems_of
from stepward.flows.watching.observe import metered
from stepward.labeling.annotate import ProblemResult, annotate
from stepward.labeling.policies.metered import Meter
from stepward.prm.dataset.folder import encode
from stepward.prm.dataset.schema import rollouts_table, solutions_table
from stepward.prm.types import Problem

PILOT_PROBLEMS = 20
_RESAMPLES = 4000
_WINDOWS = 10

Floats = np.ndarray[tuple[int], np.dtype[np.float64]]


@dataclass(frozen=True, slots=True)
class Planned:
    """One figure of the whole run with its 95 % bootstrap interval over the pilot's problems."""

    name: str
    value: float
    low: float
    high: float
    unit: str = ""


@dataclass(frozen=True, slots=True)
class Pilot:
    """What the pilot measured, a value a problem, and how fast it went.

    Attributes:
        per_problem: Solutions, rollouts, labelled steps, prompt and generated tokens, bytes of rows.
        tokens_by_window: Sampled tokens in equal parts of the pilot's time.
        seconds: Wall seconds of the whole pilot.
        shard_bytes: Bytes of a shard's files without a row.
    """

    per_problem: Mapping[str, Floats]
    tokens_by_window: Floats
    seconds: float
    shard_bytes: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run would cost.

    Attributes:
        problems: Of the whole run, ``pilot_problems`` of which were tried.
        figures: In the order in which they are shown.
        notes: What a reader must know beside them.
    """

    problems: int
    pilot_problems: int
    figures: tuple[Planned, ...]
    notes: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> Planned:
        return next(f for f in self.figures if f.name == name)

    def __str__(self) -> str:
        lines = [
            f"plan: {self.problems:,} problems, scaled from a pilot of {self.pilot_problems} (nothing was written)",
            f"  {'':<24}{'expected':>16}   95 % interval",
        ]
        lines += [
            f"  {f.name:<24}{_number(f.value):>16}   [{_number(f.low)}, {_number(f.high)}] {f.unit}".rstrip()
            for f in self.figures
        ]
        return "\n".join([*lines, *(f"  {note}" for note in self.notes)])


async def plan_labeling(config: LabelConfig, *, pilot_problems: int = PILOT_PROBLEMS) -> Plan:
    """Label a few problems, spread over the file, and scale up.

    Raises:
        ConfigError: There is no problem.
    """
    problems = problems_of(config)
    given = given_by_problem(config.solutions, problems) if config.solutions is not None else None
    engines, meter = metered(build_engines(config))
    meter.keep_s = float("inf")
    fixed = await fix_constants(config, engines, problems, given, fresh=True)
    job = build_labeling(config, fixed.constants, engines, pilot=fixed.pilot)
    # Spread over the file: the first problems of a sorted file are not like the rest.
    stride = max(1, len(problems) // pilot_problems)
    chosen = problems[::stride][:pilot_problems]
    meter.ended.clear()
    began = time.monotonic()

    async def one(problem: Problem) -> ProblemResult:
        return await annotate(problem, job.plan, job.engines, None if given is None else given[problem.id])

    try:
        results = await asyncio.gather(*(one(problem) for problem in chosen))
    finally:
        await job.close()
    pilot = measured(results, meter, began, time.monotonic())
    notes = [*_notes(config, pilot, fixed.spent, len(chosen)), *fixed.notes]
    return scaled(pilot, len(problems), config, notes)


def measured(results: Sequence[ProblemResult], meter: Meter, began: float, ended: float) -> Pilot:
    """The pilot's figures, a value a problem."""
    per_problem = {
        "solutions": [len(r.solutions) for r in results],
        # Sampled solutions stand among the rollouts; those of the user or of a tree search do not.
        "rollouts": [
            len(r.rollouts) - sum(s.solution.ids_from == "sampled" for s in r.solutions) for r in results
        ],
        "labelled steps": [sum(len(s.labels) for s in r.solutions) for r in results],
        "prompt tokens": [_prompt_tokens(r) for r in results],
        "generated tokens": [r.tokens for r in results],
    }
    empty = len(encode(solutions_table([]))) + len(encode(rollouts_table([])))
    rows = [s for r in results for s in r.solutions]
    rollouts = [x for r in results for x in r.rollouts]
    # Alone a problem's file is mostly header: the pilot is encoded whole and its bytes shared out by tokens.
    whole = len(encode(solutions_table(rows))) + len(encode(rollouts_table(rollouts))) - empty
    tokens = np.asarray(per_problem["generated tokens"], dtype=np.float64)
    share = tokens / tokens.sum() if tokens.sum() else np.full(len(results), 1 / len(results))
    arrays = {name: np.asarray(values, dtype=np.float64) for name, values in per_problem.items()}
    seconds = max(1e-9, ended - began)
    windows = np.zeros(_WINDOWS)
    for at, sampled in meter.ended:
        windows[min(_WINDOWS - 1, int((at - began) / seconds * _WINDOWS))] += sampled
    return Pilot(arrays | {"bytes": whole * share}, windows, seconds, empty)


def scaled(pilot: Pilot, problems: int, config: LabelConfig, notes: Sequence[str] = ()) -> Plan:
    """The whole run from the pilot, with percentile bootstrap intervals over the pilot's problems.

    Hours divide resampled tokens by a rate resampled over equal parts of the pilot's time.
    """
    size = len(pilot.per_problem["generated tokens"])
    draw = np.random.default_rng(config.seed)
    chosen = draw.integers(0, size, (_RESAMPLES, size))
    totals = {
        name: (values.mean() * problems, values[chosen].mean(axis=1) * problems)
        for name, values in pilot.per_problem.items()
    }
    shards = -(-problems // config.shard_problems)
    figures = [
        _planned(name, *totals[name])
        for name in ("solutions", "rollouts", "labelled steps", "prompt tokens", "generated tokens")
    ]
    rate, rates = _rates(pilot, draw)
    figures.append(_planned("tokens a second", rate, rates, "in the pilot"))
    hours = totals["generated tokens"][0] / rate / 3600
    some_hours = totals["generated tokens"][1] / rates / 3600
    figures.append(_planned("hours", hours, some_hours))
    gpu = (hours * config.gpus, some_hours * config.gpus)
    if config.gpus:
        figures.append(_planned("GPU-hours", *gpu, f"({config.gpus} in use)"))
    figures.append(
        _planned(
            "disk",
            (totals["bytes"][0] + shards * pilot.shard_bytes) / 2**20,
            (totals["bytes"][1] + shards * pilot.shard_bytes) / 2**20,
            "MiB",
        )
    )
    if config.prices is not None:

        def cost(
            at: Callable[[tuple[float, Floats]], float | Floats], prices: PricesConfig
        ) -> float | Floats:
            return (
                at(totals["prompt tokens"]) * prices.million_prompt_tokens / 1e6
                + at(totals["generated tokens"]) * prices.million_generated_tokens / 1e6
                + at((hours, some_hours)) * prices.hour
                + at(gpu) * prices.gpu_hour
            )

        expected, spread = cost(lambda t: t[0], config.prices), cost(lambda t: t[1], config.prices)
        figures.append(_planned("money", float(expected), np.asarray(spread), config.prices.currency))
    return Plan(problems, size, tuple(figures), tuple(notes))


def _rates(pilot: Pilot, draw: np.random.Generator) -> tuple[float, Floats]:
    """Tokens a second: the pilot's, and resampled over its windows; never 0, so that hours are finite."""
    windows = pilot.tokens_by_window
    some = draw.integers(0, len(windows), (_RESAMPLES, len(windows)))
    least = max(1.0, windows.sum() / len(windows)) * 1e-3
    rates = np.maximum(windows[some].sum(axis=1), least) / pilot.seconds
    return max(windows.sum(), least) / pilot.seconds, rates


def _planned(name: str, value: float, spread: Floats, unit: str = "") -> Planned:
    low, high = np.quantile(spread, (0.025, 0.975))
    return Planned(name, float(value), float(low), float(high), unit)


def _prompt_tokens(result: ProblemResult) -> int:
    """Tokens of the prefixes of all requests: prompt and sampled steps, cached or not."""
    ends: dict[str, list[int]] = {}
    for row in result.solutions:
        at = [row.prompt_tokens]
        for step in row.solution.steps:
            at.append(at[-1] + len(step.token_ids))
        ends[row.solution.id] = at
    return sum(ends[key][r.num_steps] for key, r in result.rollouts if key in ends)


def _notes(config: LabelConfig, pilot: Pilot, fixing_tokens: int, size: int) -> list[str]:
    notes = [f"the pilot sampled for {pilot.seconds:.1f} s with {size} problems in flight"]
    if config.problems_in_flight > size:
        notes[0] += (
            f"; the run has {config.problems_in_flight}, which fills an engine better: hours are at most these"
        )
    if fixing_tokens:
        notes.append(f"the run's own pilot samples {fixing_tokens:,} tokens more, to fix price and grid")
    if config.budget_tokens is not None:
        expected = pilot.per_problem["generated tokens"].mean()
        covered = config.budget_tokens / max(1.0, expected)
        notes.append(f"the budget of {config.budget_tokens:,} tokens covers about {covered:,.0f} problems")
    if config.search is not None:
        notes.append("prompt tokens leave out the steps that the search draws one by one")
    if size < PILOT_PROBLEMS:
        notes.append("the pilot is small: its intervals are too narrow")
    return notes


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
