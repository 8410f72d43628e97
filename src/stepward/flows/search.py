"""``stepward search``: problems solved by a policy under a reward model, within a token budget a problem."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Self

from pydantic import Field, model_validator

from stepward.flows.at_rest import at_rest
from stepward.flows.build import folder_of, load_policy_for, prompt_template
from stepward.flows.config import Config, SamplerConfig, StepsConfig
from stepward.flows.grading import RoutedGrader, make_grader
from stepward.labeling.search.registry import make_search
from stepward.labeling.search.test_time import (
    SearchPlan,
    SearchProgress,
    SearchResult,
    search_all,
)
from stepward.prm.errors import ConfigError
from stepward.prm.evaluation.aggregation import AGGREGATIONS
from stepward.prm.evaluation.intervals import Bootstrap
from stepward.prm.evaluation.search_folder import write_search
from stepward.prm.evaluation.search_results import SearchedProblem, SearchResults, SearchRun
from stepward.prm.models.load import load
from stepward.prm.policy import Policy, RewardModel
from stepward.prm.problems import read_problems
from stepward.prm.types import FinishReason, Outcome, Problem, TokenIds

Watch = Callable[[str, SearchProgress], None]


class SearchRunConfig(Config):
    """Searches over one set of problems.

    Attributes:
        problems: JSONL, Parquet, a ``datasets`` folder, a Hub id, or ``generator:N``.
        out: Results folder.
        policy: Who samples.
        prm: The reward model: a folder or a Hub id.
        methods: Names of search methods; each is run at each budget.
        settings: Settings of a method by ``method.name``, or by ``name`` where there is one method.
        budgets: Most generated and scored tokens a problem; empty = one pass of each method.
        aggregate: Step scores -> the weight of a candidate's vote: min, product, last or mean.
        max_step_tokens: Most tokens of one step.
        in_flight: Problems searched at the same time.
    """

    problems: str
    out: Path
    policy: str = "embedded"
    prm: str
    limit: int | None = Field(default=None, ge=1)
    methods: tuple[str, ...] = Field(default=("beam",), min_length=1)
    settings: dict[str, float | int | str] = Field(default_factory=dict)
    budgets: tuple[int, ...] = ()
    aggregate: str = "product"
    prompt: str | None = None
    sampler: SamplerConfig = SamplerConfig()
    steps: StepsConfig = StepsConfig()
    max_step_tokens: int = Field(default=256, ge=1)
    in_flight: int = Field(default=64, ge=1)
    seed: int = Field(default=0, ge=0)
    bootstrap: int = Field(default=2000, ge=100)

    @model_validator(mode="after")
    def _methods_fit(self) -> Self:
        faults: list[str] = []
        for method in self.methods:
            try:
                make_search(method, **self.settings_of(method))
            except ConfigError as fault:
                faults += fault.faults
        for name in self.settings:
            method, dot, _ = name.partition(".")
            if (dot and method not in self.methods) or (not dot and len(self.methods) > 1):
                faults.append(
                    f"setting {name!r}: write METHOD.NAME=VALUE with one of {', '.join(self.methods)}"
                )
        if self.aggregate not in AGGREGATIONS:
            faults.append(f"aggregate {self.aggregate!r} is none of {', '.join(AGGREGATIONS)}")
        if any(b < 1 for b in self.budgets):
            faults.append(f"budgets {list(self.budgets)}: a budget has at least one token")
        if faults:
            raise ValueError("; ".join(faults))
        return self

    def settings_of(self, method: str) -> dict[str, float | int | str]:
        """The settings of one method."""
        return {
            name.removeprefix(f"{method}."): value
            for name, value in self.settings.items()
            if "." not in name or name.startswith(f"{method}.")
        }


async def run_search(config: SearchRunConfig, watch: Watch = lambda run, progress: None) -> SearchResults:
    """Run every method at every budget, grade, and write the results folder.

    The gold answers are read by the grading alone, after a search has chosen its answer.

    Args:
        config: The searches.
        watch: Called with the run's name after every pass of every problem.

    Raises:
        ConfigError: There are no problems.
        ModelError: The policy or the reward model cannot be loaded, or gives no scores.
        EngineError: The engine is gone.
    """
    problems = list(islice(read_problems(config.problems), config.limit))
    if not problems:
        raise ConfigError([f"problems: {config.problems} holds no problem"])
    prm = load(config.prm)
    policy = load_policy_for(config.policy)
    try:
        template = prompt_template(config.prompt, folder_of(policy))
        prompts = [(p, template.render(p, policy.tokenizer).ids) for p in problems]
        fits = [(p, ids) for p, ids in prompts if len(ids) < policy.context_length]
        if not fits:
            raise ConfigError(
                [
                    f"problems: no prompt of {config.problems} fits the context of {policy.context_length} tokens"
                ]
            )
        grader = make_grader()
        with at_rest():
            runs = [
                await _one_run(config, method, budget, fits, policy, prm, grader, watch)
                for budget in (config.budgets or (None,))
                for method in config.methods
            ]
    finally:
        await policy.close()
    results = SearchResults(
        title=f"Search under {prm.name}",
        runs=tuple(runs),
        bootstrap=Bootstrap(num_resamples=config.bootstrap, seed=config.seed),
        manifest={
            "problems": Path(config.problems).name if Path(config.problems).exists() else config.problems,
            "num_problems": len(fits),
            "prompts over the context, left out": len(prompts) - len(fits),
            "policy": f"{policy.info.name} {policy.info.revision} ({policy.info.engine})",
            "prompt": template.hash,
            "prm": prm.name,
            "weights": _trained_on(prm),
            "sampler": config.sampler.model_dump(),
            "steps": config.steps.model_dump(),
            "max_step_tokens": config.max_step_tokens,
            "aggregate": config.aggregate,
            "seed": config.seed,
            "num_resamples": config.bootstrap,
        },
    )
    write_search(config.out, results)
    return results


def _trained_on(prm: Any) -> Any:
    """What the checkpoint says of its data; a served one says nothing."""
    description = getattr(prm, "description", None)
    return None if description is None else description.training.get("dataset")


async def _one_run(
    config: SearchRunConfig,
    method: str,
    budget: int | None,
    prompts: Sequence[tuple[Problem, TokenIds]],
    policy: Policy,
    prm: RewardModel,
    grader: RoutedGrader,
    watch: Watch,
) -> SearchRun:
    settings = config.settings_of(method)
    plan = SearchPlan(
        method=make_search(method, **settings),
        sampler=config.sampler.build(),
        step_format=config.steps.build(),
        aggregate=AGGREGATIONS[config.aggregate],
        budget_tokens=budget,
        max_step_tokens=config.max_step_tokens,
        seed=config.seed,
    )
    name = method if budget is None else f"{method} {budget}"
    found = search_all(
        prompts,
        plan,
        policy,
        prm,
        doubts=deviations_of(prm),
        in_flight=config.in_flight,
        watch=partial(watch, name),
    )
    problems = {p.id: p for p, _ in prompts}
    graded = [await _graded(problems[r.problem_id], r, grader) async for r in found]
    return SearchRun(method, settings, budget, tuple(graded))


async def _graded(problem: Problem, result: SearchResult, grader: RoutedGrader) -> SearchedProblem:
    """What became of a search; an answer that is missing is the search's own doing and not right."""
    outcomes = await asyncio.gather(
        *(_outcome(problem, c.text, grader) if c.complete else _none() for c in result.candidates)
    )
    rights = [right for c, right in zip(result.candidates, outcomes, strict=True) if c.complete]

    def chosen(index: int | None) -> bool | None:
        if index is not None:
            return outcomes[index]
        return None if result.fault is not None or not problem.answers else False

    return SearchedProblem(
        problem_id=result.problem_id,
        right=chosen(result.answer),
        best_right=chosen(result.best),
        any_right=True if True in rights else None if None in rights else chosen(None),
        answer=None if result.answer is None else result.candidates[result.answer].answer,
        generated_tokens=result.generated_tokens,
        scored_tokens=result.scored_tokens,
        num_complete=len(rights),
        num_incomplete=len(outcomes) - len(rights),
        num_draws=result.num_draws,
        num_scored=result.num_scored,
        num_faults=result.num_faults,
        fault=result.fault,
        candidates=tuple(_row(c, right) for c, right in zip(result.candidates, outcomes, strict=True)),
    )


async def _outcome(problem: Problem, text: str, grader: RoutedGrader) -> bool | None:
    outcome = (await grader.grade(problem, text, FinishReason.STOP)).outcome
    return None if outcome.is_fault else outcome is Outcome.RIGHT


async def _none() -> None:
    """An unfinished candidate has no outcome."""


def _row(candidate: Any, right: bool | None) -> Mapping[str, Any]:
    names = ("complete", "score", "answer", "num_votes")
    return {
        "steps": list(candidate.steps),
        "step_scores": list(candidate.step_scores),
        "right": right,
        **{name: getattr(candidate, name) for name in names},
    }


@dataclass(frozen=True, slots=True)
class Deviations:
    """A reward model's standard deviations in the place of its scores, so that one queue serves both."""

    prm: Any

    @property
    def name(self) -> str:
        """The model's."""
        return f"deviation of {self.prm.name}"

    def score(
        self, problems: Sequence[Problem], solutions: Sequence[Sequence[str]]
    ) -> list[tuple[float, ...]]:
        """Standard deviation of each step's score."""
        return self.prm.deviation(problems, solutions)


def deviations_of(prm: Any) -> Deviations | None:
    """The deviations of a reward model whose head has them (beta, ensemble), else None."""
    head = getattr(getattr(getattr(prm, "prm", None), "model", None), "head", None)
    return Deviations(prm) if hasattr(head, "deviation") else None
