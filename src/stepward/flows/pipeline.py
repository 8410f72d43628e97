"""``stepward pipeline``: label, train, evaluate; with several rounds, search under the PRM and label again.

The self-training loop of ReST-MCTS* (Zhang et al. 2024, arXiv 2406.03816, algorithm 2) and AlphaMath (Chen et al. 2024,
arXiv 2405.03553): in round one the policy's own solutions are labelled and a PRM is trained on them. In each later
round tree search under the last PRM finds solutions of problems that were not seen before, rollouts label these, and a
new PRM is trained on everything so far. Every round has a fold of the problems of its own, and none of them may be a
problem that the evaluation reports on.

What an earlier call finished is found in the folder and not done again.
"""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

from pydantic import Field, model_validator

from stepward.flows.build import build_engines
from stepward.flows.config import Config, EvaluateConfig, LabelConfig, TrainConfig, parse
from stepward.flows.evaluate import run_evaluation
from stepward.flows.label import Through, Watch, directly, label
from stepward.flows.problems import problems_of
from stepward.flows.resumption import nothing_left
from stepward.flows.train import train
from stepward.labeling.search.registry import make_search
from stepward.labeling.search.test_time import SearchPlan, search_all
from stepward.prm.audit.contamination import build_index, check_problems
from stepward.prm.dataset.store import open_dataset
from stepward.prm.durable import write_durably
from stepward.prm.errors import ConfigError
from stepward.prm.evaluation.aggregation import AGGREGATIONS
from stepward.prm.evaluation.readers.processbench import read_items
from stepward.prm.models.load import load

T = TypeVar("T")


class SearchConfig(Config):
    """How later rounds find solutions.

    Attributes:
        method: Of ``labeling.search``, and ``options`` of it.
        budget_tokens: Most generated and scored tokens a problem together.
        keep: Most solutions a problem that are labelled: the best, and as many of the others.
        aggregate: Step scores -> a solution's score.
    """

    method: str = "rest_mcts"
    options: dict[str, float | int] = Field(default_factory=dict)
    budget_tokens: int = Field(default=4000, ge=1)
    keep: int = Field(default=4, ge=1)
    aggregate: str = "min"


class PipelineConfig(Config):
    """A pipeline.

    Attributes:
        out: Folder of everything.
        rounds: How often data are made and a PRM is trained on all of them; 1 = label, train, evaluate.
        label: Settings of ``stepward label`` (or ``recipe:`` and what differs); problems are split over the rounds.
        search: Of the rounds after the first.
        train: Settings of ``stepward train``.
        evaluate: Settings of ``stepward evaluate``; None = no evaluation.
        seed: Of everything; the rounds draw with seeds of their own.
    """

    out: Path
    rounds: int = Field(default=1, ge=1)
    label: dict[str, Any]
    search: SearchConfig = SearchConfig()
    train: dict[str, Any] = Field(default_factory=dict)
    evaluate: dict[str, Any] | None = None
    seed: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _stages_fit(self) -> Self:
        faults: list[str] = []
        for name, check in (
            ("label", lambda: self.labelling(0)),
            ("train", lambda: self.training(0)),
            ("evaluate", lambda: self.evaluation(0)),
            ("search", lambda: make_search(self.search.method, **self.search.options)),
        ):
            try:
                check()
            except ConfigError as fault:
                faults += [f"{name}.{line}" for line in fault.faults]
        if self.search.aggregate not in AGGREGATIONS:
            faults.append(f"search.aggregate: {self.search.aggregate!r} is none of {', '.join(AGGREGATIONS)}")
        if "fold" in self.label and self.rounds > 1:
            faults.append("label.fold: the rounds are the folds; give limit to label less")
        if faults:
            raise ValueError("; ".join(faults))
        return self

    def folder(self, number: int) -> Path:
        """Where a round's things lie; rounds count from 0."""
        return self.out / f"round-{number + 1}"

    def labelling(self, number: int) -> LabelConfig:
        """The labelling run of a round."""
        settings = {
            "out": self.folder(number) / "dataset",
            "seed": self.seed + number,
            "fold": f"{number + 1}/{self.rounds}" if self.rounds > 1 else None,
            "solutions": self.folder(number) / "found.jsonl" if number else None,
        }
        return _stage(LabelConfig, self.label, settings)

    def training(self, number: int) -> TrainConfig:
        """The training run of a round: on its dataset and on those of the rounds before."""
        settings = {
            "data": self.folder(number) / "dataset",
            "more_data": tuple(self.folder(i) / "dataset" for i in range(number)),
            "out": self.folder(number) / "prm",
            "seed": self.seed,
        }
        return _stage(TrainConfig, self.train, settings)

    def evaluation(self, number: int) -> EvaluateConfig | None:
        """The evaluation of a round's PRM."""
        if self.evaluate is None:
            return None
        settings = {"prm": str(self.folder(number) / "prm"), "out": self.folder(number) / "evaluation"}
        return _stage(EvaluateConfig, self.evaluate, settings)


@dataclass(frozen=True, slots=True)
class RoundResult:
    """What a round gave.

    Attributes:
        number: From 1.
        problems, solutions, labelled_steps: In its dataset.
        first_errors: Solutions by what is known of their first error.
        solved: Share of its decided solutions that is right.
        f1: Macro F1 of its PRM on the evaluation, None without one or where it is undefined.
        best_of_n: Accuracy of the PRM's best method at the most samples, None without samples.
    """

    number: int
    problems: int
    solutions: int
    labelled_steps: int
    first_errors: dict[str, int]
    solved: float | None
    f1: float | None
    best_of_n: float | None

    def figures(self) -> dict[str, Any]:
        """As JSON values."""
        return {name: getattr(self, name) for name in self.__slots__}


async def run_pipeline(
    config: PipelineConfig,
    *,
    through: Through = directly,
    watch: Watch = lambda progress: None,
    say: Callable[[str], None] = lambda line: None,
) -> list[RoundResult]:
    """Run all rounds into ``config.out``; what an earlier call finished is not done again.

    Args:
        config: The pipeline.
        through: What runs a stage: ``directly``, or a Prefect task.
        watch: Called after each labelled problem.
        say: Told what comes next.

    Raises:
        ConfigError: A problem to be labelled is one that the evaluation reports on.
        StepwardError: What a stage raises; the stages before it are kept.
    """
    _refuse_contamination(config)
    results: list[RoundResult] = []
    for number in range(config.rounds):
        folder = config.folder(number)
        folder.mkdir(parents=True, exist_ok=True)
        if number and not (folder / "found.jsonl").is_file():
            say(f"round {number + 1}: searching under the PRM of round {number}")
            await through(f"round {number + 1} search", lambda n=number: _search(config, n))
        run = config.labelling(number)
        if nothing_left(run) is None:
            say(f"round {number + 1}: labelling")
            await label(run, resume=True, through=_named(through, f"round {number + 1} "), watch=watch)
        if not (folder / "trained.json").is_file():
            say(f"round {number + 1}: training on {number + 1} dataset{'s' if number else ''}")
            await _in_thread(through, f"round {number + 1} train", lambda n=number: _train(config, n))
        if not (folder / "round.json").is_file():
            if config.evaluate is not None:
                say(f"round {number + 1}: evaluating")
            await _in_thread(through, f"round {number + 1} evaluate", lambda n=number: _close(config, n))
        stored = json.loads((folder / "round.json").read_text(encoding="utf-8"))
        results.append(RoundResult(**stored))
    return results


async def _search(config: PipelineConfig, number: int) -> None:
    """Write the solutions that tree search under the last round's PRM finds for this round's problems."""
    run = config.labelling(number).model_copy(update={"solutions": None})
    engines = build_engines(run)
    plan = SearchPlan(
        method=make_search(config.search.method, **config.search.options),
        sampler=run.sampler.build(),
        step_format=run.steps.build(),
        aggregate=AGGREGATIONS[config.search.aggregate],
        budget_tokens=config.search.budget_tokens,
        seed=config.seed + number,
    )
    problems = problems_of(run)
    prm = load(str(config.folder(number - 1) / "prm"))
    lines: list[str] = []
    try:
        prompts = ((problem, engines.render(problem)) for problem in problems)
        async for found in search_all(prompts, plan, engines.policy, prm):
            ended = sorted((c for c in found.candidates if c.complete), key=lambda c: -(c.score or 0.0))
            # The best and the worst: what the PRM is surest of on either side is what is worth a rollout's check.
            half = (config.search.keep + 1) // 2
            kept = ended[:half] + ended[half:][::-1][: config.search.keep - half]
            lines += [
                json.dumps(
                    {"problem_id": found.problem_id, "text": c.text, "generator": config.search.method},
                    ensure_ascii=False,
                )
                for c in kept
            ]
    finally:
        await engines.policy.close()
    if not lines:
        raise ConfigError(
            [
                f"search: no solution of {len(problems):,} problems ended within {config.search.budget_tokens} tokens"
            ]
        )
    write_durably(config.folder(number) / "found.jsonl", ("\n".join(lines) + "\n").encode())


def _train(config: PipelineConfig, number: int) -> None:
    train(config.training(number))
    write_durably(config.folder(number) / "trained.json", b"{}\n")


def _close(config: PipelineConfig, number: int) -> None:
    """Evaluate, and write down what the round gave."""
    evaluation = config.evaluation(number)
    results = run_evaluation(evaluation) if evaluation is not None else None
    totals = open_dataset(config.folder(number) / "dataset").manifest.totals
    assert totals is not None
    decided = totals.outcomes.get("right", 0) + totals.outcomes.get("wrong", 0)
    curve = results.best_of_n[0] if results is not None and results.best_of_n else None
    best = (
        max(
            (
                p.accuracy.value
                for p in curve.points
                if p.cut == max(curve.cuts) and p.accuracy.value is not None
            ),
            default=None,
        )
        if curve is not None
        else None
    )
    result = RoundResult(
        number=number + 1,
        problems=totals.problems,
        solutions=totals.solutions,
        labelled_steps=sum(n for kind, n in totals.labels.items() if kind != "unknown"),
        first_errors=dict(totals.first_errors),
        solved=totals.outcomes.get("right", 0) / decided if decided else None,
        f1=results.runs[0].result.macro.f1.value if results is not None and results.runs else None,
        best_of_n=best,
    )
    write_durably(
        config.folder(number) / "round.json", (json.dumps(result.figures(), indent=1) + "\n").encode()
    )


def _refuse_contamination(config: PipelineConfig) -> None:
    evaluation = config.evaluation(0)
    if evaluation is None:
        return
    reported = {path.name: [item.problem for item in read_items(path)] for path in evaluation.processbench}
    if evaluation.threshold_from is not None:
        reported[evaluation.threshold_from.name] = [i.problem for i in read_items(evaluation.threshold_from)]
    if not reported:
        return
    problems = problems_of(config.labelling(0).model_copy(update={"fold": None, "solutions": None}))
    found = check_problems(problems, build_index(reported))
    if found.matches:
        raise ConfigError(
            [
                f"evaluate: {len(found.matches):,} of the problems to be labelled are reported on, such as "
                f"{found.matches[0]}; take other problems"
            ]
        )


C = TypeVar("C", LabelConfig, TrainConfig, EvaluateConfig)


def _stage(kind: type[C], settings: dict[str, Any], ours: dict[str, Any]) -> C:
    """A stage's configuration: its recipe, what the user set, and what the pipeline decides."""
    recipe = settings.get("recipe")
    given = {k: v for k, v in settings.items() if k != "recipe"}
    decided = {k: v for k, v in ours.items() if v is not None}
    faults = [f"{name}: the pipeline sets it itself" for name in sorted(set(given) & set(decided))]
    try:
        config = parse(kind, recipe, **{**given, **decided})
    except ConfigError as fault:
        raise ConfigError([*faults, *fault.faults]) from None
    if faults:
        raise ConfigError(faults)
    return config


def _named(through: Through, prefix: str) -> Through:
    async def named(stage: str, work: Any) -> None:
        await through(prefix + stage, work)

    return named


async def _in_thread(through: Through, name: str, work: Callable[[], None]) -> None:
    """A stage that is not asynchronous, in a thread so that Prefect's heartbeat goes on."""

    async def run() -> None:
        await asyncio.to_thread(work)

    await through(name, run)
