"""Test-time search over many problems: all of them in one queue, each within its own token budget.

A method is repeated while a problem's budget lasts; then what it stands at is completed with the tokens that are left.
Problems are independent and run at the same time, so that the engine and the reward model always have work; results
come in the order of the problems whatever finishes first.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass

from stepward.labeling.search.answers import Aggregate, Candidate, best_of, candidates_of, vote
from stepward.labeling.search.exploration import Exploration
from stepward.labeling.search.growth import OutOfTokens, TokenMeter, new_tree
from stepward.labeling.search.registry import SearchMethod
from stepward.labeling.search.scoring import ScoreQueue
from stepward.prm.errors import EngineError, ModelError
from stepward.prm.policy import Policy, RewardModel
from stepward.prm.steps import StepFormat
from stepward.prm.types import Problem, Sampler, TokenIds


@dataclass(frozen=True, slots=True)
class SearchPlan:
    """What shapes a search.

    Attributes:
        method: One pass of it.
        sampler: ``max_tokens`` is of a whole solution.
        step_format: Where steps end.
        aggregate: Step scores -> a candidate's vote.
        budget_tokens: Most generated and scored tokens a problem together; None = one pass, whatever it costs.
        max_step_tokens: Most tokens of one step.
        seed: The run's seed.
    """

    method: SearchMethod
    sampler: Sampler
    step_format: StepFormat
    aggregate: Aggregate
    budget_tokens: int | None = None
    max_step_tokens: int = 256
    seed: int = 0


@dataclass(frozen=True, slots=True)
class SearchResult:
    """What the search of one problem found and cost.

    Attributes:
        problem_id: The problem.
        candidates: Solutions, ended ones first.
        answer: Index of the candidate that stands for the winner of the weighted vote, None without an answer.
        best: Index of the candidate of highest score, likewise.
        generated_tokens: Sampled.
        scored_tokens: Read by the reward model.
        num_draws, num_scored, num_nodes, num_passes: Draws, scored prefixes, states of the tree, passes of the method.
        num_faults: Draws that the engine failed.
        fault: Why the search could not be made, or None: its answer is then unknown, not wrong.
    """

    problem_id: str
    candidates: tuple[Candidate, ...]
    answer: int | None
    best: int | None
    generated_tokens: int
    scored_tokens: int
    num_draws: int
    num_scored: int
    num_nodes: int
    num_passes: int
    num_faults: int = 0
    fault: str | None = None


@dataclass(slots=True)
class SearchProgress:
    """Totals while searches run, for a person who watches: problems begun and done, and the cost so far."""

    begun: int = 0
    done: int = 0
    generated_tokens: int = 0
    scored_tokens: int = 0
    num_draws: int = 0
    num_nodes: int = 0


Watch = Callable[[SearchProgress], None]


async def search_problem(
    x: Exploration, plan: SearchPlan, on_pass: Callable[[Exploration], None] = lambda x: None
) -> SearchResult:
    """Search one problem until its tokens are spent or a pass changes nothing.

    Args:
        x: A fresh exploration.
        plan: What shapes it.
        on_pass: Called after every pass.

    Raises:
        EngineError: The engine is gone.
        ModelError: The reward model gives something that is no score.
    """
    try:
        while True:
            spent = x.meter.generated
            await plan.method(x)
            x.passes += 1
            on_pass(x)
            if plan.budget_tokens is None or x.meter.generated == spent:
                break
    except OutOfTokens:
        pass
    await _finish(x)
    on_pass(x)
    candidates = candidates_of(x, plan.aggregate)
    return SearchResult(
        problem_id=x.problem.id,
        candidates=candidates,
        answer=vote(candidates),
        best=best_of(candidates),
        generated_tokens=x.generated_tokens,
        scored_tokens=x.scored_tokens,
        num_draws=x.num_draws,
        num_scored=x.num_scored,
        num_nodes=len(x.tree),
        num_passes=x.passes,
        num_faults=x.num_faults,
    )


async def _finish(x: Exploration) -> None:
    """Spend what is left on an end for what the method stood at, the most promising state first."""
    x.found += [n for n in x.frontier if x.tree.terminal[n]]
    standing = sorted((n for n in x.frontier if x.is_open(n)), key=lambda n: -x.value(n))
    x.frontier = [n for n in x.frontier if not x.tree.terminal[n]]
    if not standing and not x.found:
        standing = [0]
    for node in standing:
        left = x.left()
        if left is not None and left < 1:
            return
        ends = await x.complete_within(node, left)
        x.found += [n for n in ends if x.tree.terminal[n]]
        x.frontier = [n for n in x.frontier if n != node] + [n for n in ends if not x.tree.terminal[n]]
    with contextlib.suppress(OutOfTokens):
        await x.score([n for n in dict.fromkeys(x.found) if not x.is_scored(n)] if x.num_scored else [])


async def search_all(
    problems: Iterable[tuple[Problem, TokenIds]],
    plan: SearchPlan,
    policy: Policy,
    model: RewardModel,
    *,
    doubts: RewardModel | None = None,
    in_flight: int = 64,
    max_batch: int = 256,
    watch: Watch = lambda progress: None,
) -> AsyncIterator[SearchResult]:
    """Search all problems, at most ``in_flight`` of them at the same time.

    Args:
        problems: Each with its prompt's ids.
        plan: What shapes the searches.
        policy: Who samples.
        model: Who scores.
        doubts: The same model's standard deviations, where a method asks for them.
        in_flight: Problems at the same time.
        max_batch: Most prefixes that the reward model reads in one call.
        watch: Called after every pass of every problem.

    Yields:
        One result a problem, in order.

    Raises:
        EngineError: The engine is gone. A scoring fault that may pass, twice in a row, is the result's ``fault``.
    """
    queue = ScoreQueue(CheckedRewardModel(model), max_batch)
    doubtful = None if doubts is None else ScoreQueue(CheckedRewardModel(doubts), max_batch)
    progress = SearchProgress()

    async def one(problem: Problem, prompt: TokenIds) -> SearchResult:
        x = Exploration(
            problem, new_tree(problem, prompt), policy, plan.sampler, plan.step_format, plan.seed,
            TokenMeter(plan.budget_tokens), queue, doubtful, plan.max_step_tokens,
        )  # fmt: skip
        seen = [0, 0, 0, 0]

        def report(x: Exploration) -> None:
            now = [x.generated_tokens, x.scored_tokens, x.num_draws, len(x.tree)]
            names = ("generated_tokens", "scored_tokens", "num_draws", "num_nodes")
            for name, new, old in zip(names, now, seen, strict=True):
                setattr(progress, name, getattr(progress, name) + new - old)
            seen[:] = now
            watch(progress)

        progress.begun += 1
        try:
            result = await search_problem(x, plan, report)
        except EngineError as fault:
            if not fault.retryable:
                raise
            result = _failed(x, str(fault))
        progress.done += 1
        watch(progress)
        return result

    waiting: list[asyncio.Task[SearchResult]] = []
    try:
        for problem, prompt in problems:
            waiting.append(asyncio.create_task(one(problem, prompt)))
            # Room is made by whatever ends first; results are handed out in order.
            while sum(not t.done() for t in waiting) >= in_flight:
                await asyncio.wait(waiting_open(waiting), return_when=asyncio.FIRST_COMPLETED)
            while waiting and waiting[0].done():
                yield waiting.pop(0).result()
        while waiting:
            yield await waiting.pop(0)
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


def waiting_open(tasks: Sequence["asyncio.Task[SearchResult]"]) -> list["asyncio.Task[SearchResult]"]:
    """The tasks that have not ended."""
    return [t for t in tasks if not t.done()]


def _failed(x: Exploration, why: str) -> SearchResult:
    return SearchResult(
        x.problem.id, (), None, None, x.generated_tokens, x.scored_tokens, x.num_draws, x.num_scored,
        len(x.tree), x.passes, x.num_faults, why,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class CheckedRewardModel:
    """A reward model whose answers are looked at: one number in [0, 1] for each step, nothing else.

    A served model that answers with hidden states, with one number a solution, or with less than it was asked for
    gives numbers that look like scores and are none.
    """

    model: RewardModel

    @property
    def name(self) -> str:
        """The model's."""
        return self.model.name

    def score(
        self, problems: Sequence[Problem], solutions: Sequence[Sequence[str]]
    ) -> list[tuple[float, ...]]:
        """The model's scores.

        Raises:
            ModelError: They are not what was asked for.
        """
        rows = self.model.score(problems, solutions)
        if len(rows) != len(solutions):
            raise ModelError(
                f"{self.name} answered {len(rows)} rows of scores for {len(solutions)} solutions; one each is needed"
            )
        for problem, steps, row in zip(problems, solutions, rows, strict=True):
            if len(row) != len(steps):
                raise ModelError(
                    f"{self.name} gave {len(row)} numbers for {len(steps)} steps of problem {problem.id}; a reward "
                    "model gives one score a step (is it served as an embedding, or for another task?)"
                )
            odd = next((s for s in row if not 0.0 <= s <= 1.0), None)
            if odd is not None:
                raise ModelError(
                    f"{self.name} gave {odd!r} as a score for problem {problem.id}; scores lie in [0, 1]"
                )
        return rows
