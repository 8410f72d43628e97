"""Run-wide constants, fixed by a small pilot before a run and kept in its manifest.

A decision about a problem may read such constants and its own results, nothing else. A resumed run takes them from
the manifest that is there, so that it goes on at the same price whatever the engine.

The pilot's problems are spread over the file and labelled with the seeds that the run will use. Where a budget is
given, the price is bisected: what the pilot's problems spend at a price is what the run would spend on them, and a
rollout that one price has drawn is remembered for the next.

Where the run is large enough to pay for it the pilot also chooses the posterior's grid: a policy whose wrong paths
never come right, or often do, has another one than the default. It may take a fiftieth of the problems and a tenth of
the budget; else the default grid stays, and the manifest says so.
"""

import asyncio
import statistics
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from stepward.flows.build import build_labeling
from stepward.flows.config import LabelConfig
from stepward.flows.remembered import Remembered
from stepward.labeling import constants as stored_constants
from stepward.labeling.allocation.equal_states import EqualStatesOnce
from stepward.labeling.allocation.information_gain import price_for_budget, scale_free_price
from stepward.labeling.annotate import ProblemResult, annotate
from stepward.labeling.changepoint.choice import choose_grid
from stepward.labeling.evidence import LabelingConstants, SolutionEvidence, prefix_nodes
from stepward.labeling.plan import Engines, GivenSolution
from stepward.labeling.source_quality import Quality, fitted_hint, learned, measured
from stepward.prm.dataset.folder import stored_manifest
from stepward.prm.dataset.manifest import config_hash
from stepward.prm.errors import BudgetSpent, ConfigError, InputError
from stepward.prm.evaluation.readers.processbench import read_items
from stepward.prm.policy import Policy, SampleRequest
from stepward.prm.seeds import derive_seed
from stepward.prm.types import Allocation, Outcome, Prefix, Problem

Given = Mapping[str, Sequence[GivenSolution]] | None

BUDGET_SHARE = 0.95
"""Of the budget that the price aims at: the run stops at a problem boundary, before the last tokens."""
GRID_ROLLOUTS = 8
"""At every prefix of the pilot's solutions, where it chooses the grid; equal states are drawn once."""
GRID_RUN = 50
"""A run of so many times the pilot's problems lets it choose the grid: a uniform pilot costs at most a fiftieth of
Math-Shepherd's tokens then."""
GRID_BUDGET_SHARE = 0.1
"""Most of a token budget that choosing the grid may take, as far as its first problem tells."""
_WIDENINGS = 5
_WIDEN = 4.0
_HALVINGS = 5  # of a factor 4: the price within 5 %


@dataclass(frozen=True, slots=True)
class Fixed:
    """What the pilot fixed.

    Attributes:
        constants: What labelling reads.
        pilot: What the manifest says of the pilot: of one for a budget its problems, the budget, what the run will
            spend by it; ``grid``: what was chosen, or why the default stayed.
        spent: Tokens that it sampled in this process.
        problem_tokens: What a problem is taken to cost: the pilot's dearest at its price, else a solution's mean times
            their number; 0 where nothing was drawn.
    """

    constants: LabelingConstants = field(default_factory=LabelingConstants)
    pilot: Mapping[str, Any] = field(default_factory=dict[str, Any])
    spent: int = 0
    problem_tokens: float = 0.0

    @property
    def notes(self) -> list[str]:
        """What a person is told of it."""
        grid = self.pilot.get("grid")
        if grid is None:
            return []
        if "why" in grid:
            return [f"the posterior's grid is the default: {grid['why']}"]
        return [
            f"the posterior's grid ({grid['chosen']}) was chosen by {grid['solutions']:,} solutions of a pilot, "
            f"{grid['tokens']:,} tokens"
        ]


async def fix_constants(
    config: LabelConfig, engines: Engines, problems: Sequence[Problem], given: Given, *, fresh: bool = False
) -> Fixed:
    """The constants of a run: from the manifest that is there (unless it is to be a fresh one), given, or by a pilot.

    Raises:
        InputError: The pilot's solutions are all empty, or too few sources spoke to learn their quality.
        BudgetSpent: The budget does not hold one rollout.
    """
    manifest = stored_manifest(config.out) if config.out.is_dir() and not fresh else None
    if manifest is not None and manifest.config_hash == config_hash(config.row_settings()):
        stored = dict(manifest.constants)
        return Fixed(stored_constants.from_json(stored), stored.get("pilot", {}))
    policy, completer = _remembered(engines)
    engines = replace(engines, policy=policy, completer=completer)
    lengths = await _lengths(config, engines, problems, given)
    price = config.price if config.price is not None else _default_price(config, lengths)
    constants = LabelingConstants(price=price)
    if config.verifier_quality not in ("assumed", "learned"):
        quality = await _measured(Path(config.verifier_quality), engines)
        constants = replace(constants, precision=dict(quality.precision), recall=dict(quality.recall))
    learning = config.verifier_quality == "learned"
    if config.fuses_in_posterior and (learning or engines.reward_model is not None):
        apart = config.model_copy(update={"fusion": "returns", "labeler": "changepoint"})
        rows = [
            r for found in await _pilot(apart, constants, engines, problems, given) for r in found.solutions
        ]
        constants = replace(constants, hint=fitted_hint(rows))
        if learning:
            quality = learned(rows)
            constants = replace(constants, precision=dict(quality.precision), recall=dict(quality.recall))
    note: dict[str, Any] = {}
    if config.grid != "default" and config.reads_posterior:
        constants, note["grid"] = await _grid_for(config, constants, engines, problems, given)
    dearest = statistics.fmean(lengths) * config.num_solutions if lengths and given is None else 0.0
    if config.budget_tokens is not None and config.price is None and _pays(config):
        constants, expected, dearest = await _price_for(config, constants, engines, problems, given)
        note |= {
            "problems": len(_pilot_problems(config, problems)),
            "budget_tokens": config.budget_tokens,
            "expected_tokens": round(expected),
        }
    spent = policy.tokens + (completer.tokens if completer is not policy else 0)
    return Fixed(constants, note, spent, dearest)


def _remembered(engines: Engines) -> tuple[Remembered, Remembered]:
    policy = Remembered(engines.policy)
    same = engines.completer is engines.policy
    return policy, policy if same else Remembered(engines.completer)


def _pays(config: LabelConfig) -> bool:
    return config.allocation == Allocation.INFORMATION_GAIN


def _default_price(config: LabelConfig, lengths: Sequence[int]) -> float:
    if not _pays(config):
        return LabelingConstants().price
    mean = statistics.fmean(lengths)
    if mean <= 0:
        raise InputError(
            "fixing the price: the pilot's solutions are all empty; give --price, in nats a token"
        )
    # Two digits: the price is a rule of thumb, and the manifest should be readable.
    return float(f"{scale_free_price(mean):.1e}")


def _pilot_problems(config: LabelConfig, problems: Sequence[Problem]) -> Sequence[Problem]:
    stride = max(1, len(problems) // config.pilot_problems)
    return problems[::stride][: config.pilot_problems]


async def _lengths(
    config: LabelConfig, engines: Engines, problems: Sequence[Problem], given: Given
) -> list[int]:
    """Tokens of one solution a pilot problem; of one problem where only the budget asks; none where nothing does."""
    if given is not None:
        return [len(engines.completer.tokenizer.encode(_text(g))) for gs in given.values() for g in gs]
    asks = _pays(config) and config.price is None
    if not asks and config.budget_tokens is None:
        return []
    pilot = _pilot_problems(config, problems)
    first = await _solution_length(pilot[0], config, engines.policy, engines)
    if config.budget_tokens is not None and first > config.budget_tokens:
        raise BudgetSpent(
            f"the budget of {config.budget_tokens:,} tokens does not hold one rollout: the first solution, of problem "
            f"{pilot[0].id}, took {first:,}; give a larger budget_tokens or a smaller max_tokens"
        )
    if not asks:
        return [first]
    # The pilot may take a quarter of the budget, as far as the first solution tells.
    room = len(pilot)
    if config.budget_tokens is not None:
        room = max(1, min(room, int(config.budget_tokens / (4 * max(1, first)))))
    rest = [_solution_length(p, config, engines.policy, engines) for p in pilot[1:room]]
    return [first, *await asyncio.gather(*rest)]


async def _solution_length(problem: Problem, config: LabelConfig, policy: Policy, engines: Engines) -> int:
    request = SampleRequest(
        Prefix(problem.id, engines.render(problem)),
        config.sampler.build(),
        derive_seed(config.seed, problem.id, "solution", 0),
        want_logprobs=True,
    )
    return len((await policy.sample(request)).token_ids)


async def _pilot(
    config: LabelConfig,
    constants: LabelingConstants,
    engines: Engines,
    problems: Sequence[Problem],
    given: Given,
) -> list[ProblemResult]:
    plan = build_labeling(config, constants, engines).plan
    return list(
        await asyncio.gather(
            *(
                annotate(p, plan, engines, None if given is None else given[p.id])
                for p in _pilot_problems(config, problems)
            )
        )
    )


async def _grid_for(
    config: LabelConfig,
    constants: LabelingConstants,
    engines: Engines,
    problems: Sequence[Problem],
    given: Given,
) -> tuple[LabelingConstants, dict[str, Any]]:
    """The constants with the grid that the pilot chose, or with the default's, and what the manifest says of it."""
    pilot = _pilot_problems(config, problems)
    if config.search is not None:
        return constants, {"chosen": "default", "why": "solutions of a tree search are no free samples"}
    if config.grid == "auto" and len(problems) < GRID_RUN * config.pilot_problems:
        few = f"{len(problems)} problems are too few for a pilot of {config.pilot_problems} to choose it"
        return constants, {"chosen": "default", "why": few}
    # Tools, judge and hints say nothing of the grid, and cost.
    alone = replace(engines, verify_steps=None, reward_model=None)
    results: list[ProblemResult] = []
    if config.budget_tokens is not None:
        results = await _uniform(config, constants, alone, pilot[:1], given)
        expected = results[0].tokens * len(pilot)
        if config.grid == "auto" and expected > GRID_BUDGET_SHARE * config.budget_tokens:
            dear = f"a pilot would take some {expected:,} tokens of a budget of {config.budget_tokens:,}"
            return constants, {"chosen": "default", "why": dear}
    results += await _uniform(config, constants, alone, pilot[len(results) :], given)
    # Copies are no independent draws: a problem whose rows are marked so says nothing of the grid.
    told = [
        _evidence(r)
        for r in results
        if r.solutions and not any("degenerate" in row.marks for row in r.solutions)
    ]
    chosen = choose_grid(told)
    note = {"chosen": chosen.name, "nats": round(chosen.nats, 1), "tokens": sum(r.tokens for r in results)}
    note |= {"problems": len(told), "solutions": sum(map(len, told))}
    # Eight digits: the last ones depend on the machine, and the manifest names the run.
    weights = {axis: tuple(round(w, 8) for w in values) for axis, values in chosen.axis_weights.items()}
    return replace(constants, axis_points=chosen.axis_points, axis_weights=weights), note


async def _uniform(
    config: LabelConfig,
    constants: LabelingConstants,
    engines: Engines,
    problems: Sequence[Problem],
    given: Given,
) -> list[ProblemResult]:
    """Problems with the same number of rollouts at every prefix of their solutions, whatever their outcomes."""
    uniform = config.model_copy(
        update={
            "allocation": "fixed_k", "num_rollouts": GRID_ROLLOUTS, "allocation_options": {},
            "labeler": "changepoint", "fusion": "returns", "uniform_from": 0,
        }
    )  # fmt: skip
    plan = build_labeling(uniform, constants, engines).plan
    plan = replace(plan, allocation=EqualStatesOnce(plan.allocation))
    return list(
        await asyncio.gather(
            *(annotate(p, plan, engines, None if given is None else given[p.id]) for p in problems)
        )
    )


def _evidence(result: ProblemResult) -> list[SolutionEvidence]:
    """What the rollouts say of a problem's solutions; tools and hints are left out."""
    drawn: dict[tuple[str, int], list[Outcome]] = {}
    for solution, rollout in result.rollouts:
        drawn.setdefault((solution, rollout.num_steps), []).append(rollout.outcome or Outcome.ERROR)
    steps = [[s.token_ids for s in row.solution.steps] for row in result.solutions]
    return [
        SolutionEvidence(
            num_steps=len(ids),
            step_tokens=tuple(map(len, ids)),
            outcome=row.solution.outcome or Outcome.ERROR,
            # Prefix 0 holds the solutions themselves, which the outcomes tell already.
            draws=((), *(tuple(drawn.get((row.solution.id, t), ())) for t in range(1, len(ids) + 1))),
            on_policy=row.solution.ids_from == "sampled" and row.policy == row.completer,
            nodes=nodes,
        )
        for row, ids, nodes in zip(result.solutions, steps, prefix_nodes(steps), strict=True)
    ]


async def _price_for(
    config: LabelConfig,
    constants: LabelingConstants,
    engines: Engines,
    problems: Sequence[Problem],
    given: Given,
) -> tuple[LabelingConstants, float, float]:
    """The constants with the lowest price at which the pilot keeps within the budget.

    Beside them what the run will spend at that price, and the tokens of the pilot's dearest problem.

    Bisection starts at the default price and widens by factors of 4, so that no price is tried that spends many
    times the budget. Where even the highest does not keep within it, the hard stop ends the run.
    """
    assert config.budget_tokens is not None
    target = BUDGET_SHARE * config.budget_tokens
    pilot = _pilot_problems(config, problems)
    known: dict[float, float] = {}
    dearest: dict[float, float] = {}

    async def spent(price: float) -> float:
        if price not in known:
            results = await _pilot(config, replace(constants, price=price), engines, problems, given)
            dearest[price] = max(r.tokens for r in results)
            known[price] = sum(r.tokens for r in results) / len(pilot) * len(problems)
        return known[price]

    low = high = constants.price
    if await spent(high) > target:
        for _ in range(_WIDENINGS):
            low, high = high, high * _WIDEN
            if await spent(high) <= target:
                break
    else:
        for _ in range(_WIDENINGS):
            low, high = low / _WIDEN, low
            if await spent(low) > target:
                break
    if known[high] > target:
        return replace(constants, price=high), known[high], dearest[high]
    loop = asyncio.get_running_loop()
    price = await asyncio.to_thread(
        price_for_budget, _blocking(spent, loop), target, low=low, high=high, iterations=_HALVINGS
    )
    # Six digits: the manifest should be readable. The pilot is asked at the very price that is stored.
    price = float(f"{price:.6g}")
    expected = await spent(price)
    return replace(constants, price=price), expected, dearest[price]


def _blocking(
    work: Callable[[float], Coroutine[Any, Any, float]], loop: asyncio.AbstractEventLoop
) -> Callable[[float], float]:
    """An async function for a thread that may wait."""
    return lambda price: asyncio.run_coroutine_threadsafe(work(price), loop).result()


async def _measured(path: Path, engines: Engines) -> Quality:
    """Quality of the run's verifiers on a labelled file, which must not be reported on."""
    if engines.verify_steps is None:
        raise ConfigError(
            [
                "verifier_quality: a judge that decides outcomes (spark) is not measured on a file; name verifiers too"
            ]
        )
    items = read_items(path)
    verify = engines.verify_steps
    found = await asyncio.gather(*(verify(Problem(i.id, i.problem), i.steps) for i in items))
    return measured([list(f) for f in found], [i.first_error for i in items])


def _text(given: GivenSolution) -> str:
    return given.text if given.text is not None else "\n".join(given.steps)
