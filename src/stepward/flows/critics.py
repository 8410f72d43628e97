"""``stepward evaluate --critic``: a model that writes about a solution names its first wrong step.

A critic is a prompted judge (``verifiers.judge``) or a generative reward model (``prm.models.generative``) over any
policy engine, with a majority over k critiques. It needs no threshold: a judge's step is wrong where more of its
critiques call it incorrect than correct, a generative model's where P(correct) is below one half, as in the papers. A
solution that no critique could decide is undecided: a miss, counted apart, and never "no error".
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import Field

from stepward.flows.build import folder_of, load_policy_for, prompt_template
from stepward.flows.config import Config
from stepward.prm.errors import EngineError, FormatError, ModelError
from stepward.prm.evaluation.intervals import Bootstrap
from stepward.prm.evaluation.items import Item
from stepward.prm.evaluation.processbench import evaluate
from stepward.prm.evaluation.readers.processbench import read_items
from stepward.prm.evaluation.results import Results, ScorerRun
from stepward.prm.evaluation.results_folder import write_results
from stepward.prm.models.generative import GenerativeRewardModel, trained_critic
from stepward.prm.models.load import load_critic
from stepward.prm.models.verdicts import CRITIC_FILE
from stepward.prm.policy import Policy
from stepward.prm.types import Problem, Sampler, VerdictKind
from stepward.verifiers.critiques import StepVotes
from stepward.verifiers.judge import Judge

HALF = 0.5


class CriticConfig(Config):
    """A critic on solutions with known first errors.

    Attributes:
        critic: ``judge``, ``generative``, or the Hub id or folder of a critic, published or trained here.
        policy: The engine that writes; for a published critic one that serves this very model.
        out: Results folder.
        processbench: Files of ProcessBench's format.
        num_critiques: k.
        limit: Only the first so many solutions of each file.
        read_probabilities: Ask the engine for the likelihood of both verdict words (generative); else count votes.
        in_flight: Solutions judged at the same time.
    """

    critic: str
    policy: str
    out: Path
    processbench: tuple[Path, ...] = Field(min_length=1)
    num_critiques: int = Field(default=8, ge=1)
    limit: int | None = Field(default=None, ge=1)
    prompt: str | None = None
    temperature: float = Field(default=0.7, ge=0)
    max_tokens: int = Field(default=2048, ge=1)
    read_probabilities: bool = False
    in_flight: int = Field(default=32, ge=1)
    seed: int = Field(default=0, ge=0)
    bootstrap: int = Field(default=2000, ge=100)


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a critic says of one solution.

    Attributes:
        first_error: Index of the first step that it calls wrong, None = none.
        undecided: Why it could not tell, or empty.
    """

    first_error: int | None = None
    undecided: str = ""


Critic = Callable[[Problem, Sequence[str]], Awaitable[Judgement]]


def run_critic(config: CriticConfig, policy: Policy | None = None) -> Results:
    """Judge every solution, report, and write the results folder.

    Args:
        config: The run.
        policy: An engine that is loaded already; None loads the one that is named.

    Raises:
        InputError: A file that cannot be read.
        EngineError: The engine is gone. A critique that it fails is no critique.
    """
    items: list[Item] = []
    for path in config.processbench:
        items += read_items(path)[: config.limit]
    policy = policy or load_policy_for(config.policy)
    judgements = asyncio.run(_judge_all(config, policy, items))
    predictions = [j.first_error for j in judgements]
    undecided = frozenset(i.id for i, j in zip(items, judgements, strict=True) if j.undecided)
    name = f"{config.critic} on {policy.info.name}, majority of {config.num_critiques}"
    result = evaluate(
        items,
        predictions,
        scorer=name,
        undecided=undecided,
        bootstrap=Bootstrap(num_resamples=config.bootstrap, seed=config.seed),
    )
    why = next((j.undecided for j in judgements if j.undecided), "")
    notes = (
        (f"{len(undecided):,} of {len(items):,} solutions are undecided, the first one because: {why}.",)
        if undecided
        else ()
    )
    results = Results(
        title=f"Evaluation of {name}",
        items=tuple(items),
        runs=(ScorerRun(result, tuple(predictions), undecided=undecided),),
        notes=notes,
        manifest={
            "critic": Path(config.critic).name if Path(config.critic).exists() else config.critic,
            "policy": f"{policy.info.name} {policy.info.revision} ({policy.info.engine})",
            "critiques a solution": config.num_critiques,
            "temperature": config.temperature,
            "max_tokens": config.max_tokens,
            "processbench": [path.name for path in config.processbench],
            "limit": config.limit,
            "seed": config.seed,
            "num_resamples": config.bootstrap,
        },
    )
    write_results(config.out, results)
    return results


async def _judge_all(config: CriticConfig, policy: Policy, items: Sequence[Item]) -> list[Judgement]:
    critic = _critic(config, policy)
    places = asyncio.Semaphore(config.in_flight)

    async def one(item: Item) -> Judgement:
        async with places:
            try:
                return await critic(Problem(item.id, item.problem), item.steps)
            except EngineError as fault:
                if not fault.retryable:
                    raise
                return Judgement(undecided=str(fault))

    try:
        return list(await asyncio.gather(*(one(item) for item in items)))
    finally:
        await policy.close()


def _critic(config: CriticConfig, policy: Policy) -> Critic:
    template = prompt_template(config.prompt, folder_of(policy))
    sampler = Sampler(temperature=config.temperature, max_tokens=config.max_tokens)
    if config.critic == "judge":
        judge = Judge(policy, template, sampler, config.num_critiques, seed=config.seed)
        return lambda problem, steps: _by_votes(judge, problem, steps)
    own = _trained(config, policy)
    if config.critic == "generative" or own is not None:
        model = GenerativeRewardModel(policy, prompt=template)
        if own is not None:
            model = trained_critic(own, policy)
            model = replace(model, prompt=template) if config.prompt is not None else model
        model = replace(
            model, num_samples=config.num_critiques, sampler=sampler, seed=config.seed,
            read_probabilities=config.read_probabilities,
        )  # fmt: skip
        return lambda problem, steps: _by_scores(model, problem, steps)
    published = load_critic(config.critic, policy, num_samples=config.num_critiques)
    if isinstance(published, GenerativeRewardModel):
        return lambda problem, steps: _by_scores(replace(published, seed=config.seed), problem, steps)

    async def whole(problem: Problem, steps: Sequence[str]) -> Judgement:
        try:
            (scores,) = await asyncio.to_thread(published.score, [problem], [steps])
        except ModelError as fault:  # no verdict in any critique
            return Judgement(undecided=str(fault))
        return first_under_half(scores)

    return whole


def _trained(config: CriticConfig, policy: Policy) -> Path | None:
    """The folder of a critic that this project trained: it is asked as it was trained."""
    folder = folder_of(policy) if config.critic == "generative" else Path(config.critic)
    return folder if folder is not None and (folder / CRITIC_FILE).exists() else None


async def _by_votes(judge: Judge, problem: Problem, steps: Sequence[str]) -> Judgement:
    votes = await judge.votes(problem, steps)
    if votes.fault:
        return Judgement(undecided=votes.fault)
    return first_refuted(votes.steps)


async def _by_scores(model: GenerativeRewardModel, problem: Problem, steps: Sequence[str]) -> Judgement:
    try:
        question = Problem(problem.id, model.format.question(problem, steps))
        length = len(model.prompt.render(question, model.policy.tokenizer).ids)
    except FormatError as fault:  # a step spells a control token of the critic's tokenizer
        return Judgement(undecided=str(fault))
    if length + model.sampler.max_tokens > model.policy.context_length:
        return Judgement(
            undecided=f"the prompt has {length} tokens and a critique may have {model.sampler.max_tokens}; the "
            f"critic's context is {model.policy.context_length}"
        )
    (scores,) = await model.judge([problem], [steps])
    return first_under_half(scores)


def first_refuted(votes: Sequence[StepVotes]) -> Judgement:
    """The first step that more critiques call incorrect than correct.

    A step that nobody spoke of, before any that is refuted, leaves the solution undecided; a tie refutes nothing.
    """
    for index, step in enumerate(votes):
        if step.kind is VerdictKind.REFUTED:
            return Judgement(index)
        if step.correct == step.incorrect == 0:
            return Judgement(undecided=f"no critique gave a verdict on step {index}")
    return Judgement()


def first_under_half(scores: Sequence[float | None]) -> Judgement:
    """The first step with P(correct) below one half; a step without a verdict before it leaves it undecided."""
    for index, score in enumerate(scores):
        if score is None:
            return Judgement(undecided=f"no critique gave a verdict on step {index}")
        if score < HALF:
            return Judgement(index)
    return Judgement()
