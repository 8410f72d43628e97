"""``stepward label``: problems -> a dataset folder, shard by shard.

Plain functions: Prefect, where it is used, wraps a shard (``through``) and nothing else. What is finished is
found from the folder itself, so that a killed run goes on at the first shard without a receipt.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from typing import TypeVar

from stepward.flows.at_rest import at_rest
from stepward.flows.budget import Budget
from stepward.flows.build import LabelingJob, build_engines, build_labeling
from stepward.flows.config import LabelConfig
from stepward.flows.logged import given_by_problem
from stepward.flows.part import Part
from stepward.flows.pilot import fix_constants
from stepward.flows.problems import problems_of
from stepward.flows.watching.observe import RunObserver, metered
from stepward.flows.watching.prometheus import exporter
from stepward.labeling.annotate import ProblemResult, annotate
from stepward.labeling.evidence import LabelingConstants
from stepward.labeling.plan import Engines, GivenSolution
from stepward.prm.dataset.open_shard import drop_open_shard, load_open_shard, save_open_shard
from stepward.prm.dataset.store import ShardStore
from stepward.prm.errors import BudgetSpent
from stepward.prm.types import LabeledSolution, Outcome, Problem, Rollout

SHARDS_IN_FLIGHT = 2  # the next shard fills the engine while the last rollouts of this one end

ShardWork = Callable[[], Awaitable[None]]
Through = Callable[[str, ShardWork], Awaitable[None]]
Watch = Callable[["Progress"], None]


async def directly(name: str, work: ShardWork) -> None:
    """Run a shard as it is, without Prefect."""
    await work()


@dataclass(slots=True)
class Progress:
    """What a run has done so far; the progress bar and the budget read it.

    Attributes:
        problems: Problems finished in this process, and ``total_problems`` to do.
        found: Problems that an earlier run had finished.
        tokens: Tokens sampled by this process.
        dearest: Tokens of the problem that took most.
        outcomes: Solutions by outcome.
        skipped: Problems without rows, by reason.
        began: ``time.monotonic()`` at the start.
        stopped: Why a budget ended the run, or None.
        shards_left: Shards that other processes of the run have still to do.
        notes: What a person should know of how the run was set up.
    """

    total_problems: int
    problems: int = 0
    found: int = 0
    solutions: int = 0
    steps: int = 0
    labelled_steps: int = 0
    tokens: int = 0
    dearest: int = 0
    exhausted: int = 0
    outcomes: Counter[Outcome] = field(default_factory=Counter[Outcome])
    skipped: dict[str, str] = field(default_factory=dict[str, str])
    began: float = field(default_factory=time.monotonic)
    stopped: str | None = None
    shards_left: int = 0
    notes: list[str] = field(default_factory=list[str])

    @property
    def solve_rate(self) -> float | None:
        """Right among right and wrong solutions, None before there is one."""
        decided = self.outcomes[Outcome.RIGHT] + self.outcomes[Outcome.WRONG]
        return self.outcomes[Outcome.RIGHT] / decided if decided else None

    def add(self, result: ProblemResult) -> None:
        """Count one finished problem."""
        self.problems += 1
        self.tokens += result.tokens
        self.dearest = max(self.dearest, result.tokens)
        self.exhausted += result.exhausted
        self.solutions += len(result.solutions)
        for row in result.solutions:
            self.steps += len(row.labels)
            self.labelled_steps += sum(label.label is not None for label in row.labels)
            self.outcomes[row.solution.outcome or Outcome.ERROR] += 1
        if result.skipped is not None:
            self.skipped[result.problem.id] = result.skipped


async def label(
    config: LabelConfig,
    *,
    resume: bool = False,
    overwrite: bool = False,
    part: Part | None = None,
    engines: Engines | None = None,
    through: Through = directly,
    watch: Watch = lambda progress: None,
) -> Progress:
    """Label all problems of a configuration into its output folder.

    Args:
        config: The run.
        resume: Go on with what this run has finished in the folder.
        overwrite: Throw away what is in the folder.
        part: Only this part, beside other processes that do the others. Whoever finishes last seals the folder.
        engines: Those that are loaded already; they are left open. None loads them and frees them at the end.
        through: What runs a shard: ``directly``, or a Prefect task.
        watch: Called after each problem.

    Returns:
        What was done. ``stopped`` says why not all of it, where a budget ended the run.

    Raises:
        InputError: Bad problems, solutions or names: before anything is sampled.
        StoreError: The folder is another run's, or in use.
        EngineError: The engine is gone; finished shards are safe.
    """
    problems = problems_of(config)
    given = given_by_problem(config.solutions, problems) if config.solutions is not None else None
    shards = _shards(problems, config.shard_problems)
    loaded, meter = metered(engines or build_engines(config))
    fixed = await fix_constants(config, loaded, problems, given, fresh=overwrite)
    job = build_labeling(config, fixed.constants, loaded, pilot=fixed.pilot)
    mine = [i for i in range(len(shards)) if part is None or part.holds(i)]
    progress = Progress(sum(len(shards[i]) for i in mine), notes=fixed.notes)
    budget = Budget(progress, config.budget_tokens, config.budget_hours, fixed.spent, fixed.problem_tokens)
    store_of_run = ShardStore.create_or_resume(
        config.out,
        job.manifest,
        resume=resume,
        overwrite=overwrite,
        together=part is not None,
        lease_s=part.lease_s if part is not None else None,
    )
    with store_of_run as store, at_rest():
        finished = store.finished()
        progress.found = sum(len(shards[i]) for i in mine if i in finished)
        pending = ((i, shards[i]) for i in mine if i not in finished)
        serving = None if config.metrics_port is None else exporter(config.metrics_port)
        name = None if part is None else f"{part.number}of{part.of}"
        seen = RunObserver(store.folder, job.manifest.run_id, loaded, meter, part=name, exporter=serving)
        run = _Run(config, fixed.constants, job, store, progress, budget, given, watch, seen)
        try:
            async with seen:
                seen.begin(progress.total_problems, progress.found)
                await _in_parallel(
                    (run.shard(through, i, shard) for i, shard in pending),
                    max(SHARDS_IN_FLIGHT, config.workers) if run.budget_is_open else 1,
                )
        finally:
            run.close()
            if engines is None:
                await job.close()
        progress.shards_left = len(shards) - len(store.finished())
        if progress.stopped is None and (part is None or not progress.shards_left):
            store.seal(contamination=_contamination(config))
    return progress


class _Run:
    """One labelling run in this process: where its shards are labelled and written."""

    def __init__(
        self,
        config: LabelConfig,
        constants: LabelingConstants,
        job: LabelingJob,
        store: ShardStore,
        progress: Progress,
        budget: Budget,
        given: dict[str, list[GivenSolution]] | None,
        watch: Watch,
        seen: RunObserver,
    ) -> None:
        self.config, self.constants, self.job = config, constants, job
        self.store, self.progress, self.seen = store, progress, seen
        self.budget, self.given, self.watch = budget, given, watch
        self.places = asyncio.Semaphore(config.problems_in_flight)
        self.pool = (
            ProcessPoolExecutor(config.workers, mp_context=get_context("spawn"))
            if config.workers > 1
            else None
        )

    @property
    def budget_is_open(self) -> bool:
        """True where no budget limits the run."""
        return self.budget.tokens is None and self.budget.hours is None

    async def shard(self, through: Through, index: int, problems: Sequence[Problem]) -> None:
        """Label and write one shard, through whatever runs shards."""

        async def work() -> None:
            if not self.store.claim(index):
                self.progress.found += len(problems)
                return
            began = time.monotonic()
            try:
                results = await (
                    self._in_process(index, problems)
                    if self.pool is None
                    else self._in_worker(index, problems)
                )
            except BaseException as fault:
                self.store.give_back(index)
                self.seen.event("shard_stopped", shard=index, why=f"{type(fault).__name__}: {fault}")
                raise
            if results is None:
                self.store.give_back(index)
                return
            rows, rollouts = _joined(results)
            metrics = {"seconds": time.monotonic() - began, "tokens": float(sum(r.tokens for r in results))}
            self.store.write_shard(index, rows, rollouts, metrics)
            self.seen.shard(index, solutions=len(rows), **metrics)
            drop_open_shard(self.store.folder, self.store.manifest.run_id, index)

        if self.progress.stopped is None:
            await through(f"shard {index}", work)

    async def _in_process(self, index: int, problems: Sequence[Problem]) -> list[ProblemResult] | None:
        """Results in order; None where a budget ended the run in between (what was finished is then kept)."""
        run_id = self.store.manifest.run_id
        done = {
            problem_id: ProblemResult(rows[0].problem, tuple(rows), tuple(rollouts))
            for problem_id, (rows, rollouts) in load_open_shard(self.store.folder, run_id, index).items()
        }
        self.progress.found += len(done)

        async def one(problem: Problem) -> None:
            if problem.id in done:
                return
            async with self.places:
                try:
                    await self.budget.admit()
                except BudgetSpent as spent:
                    self.progress.stopped = str(spent)
                    return
                try:
                    result = await annotate(
                        problem, self.job.plan, self.job.engines, _given(self.given, problem)
                    )
                finally:
                    self.budget.in_flight -= 1
                done[problem.id] = result
                self.progress.add(result)
                self.seen.problem(index, result)
                self.watch(self.progress)

        def keep() -> None:
            rows, rollouts = _joined([done[p.id] for p in problems if p.id in done])
            save_open_shard(self.store.folder, run_id, index, rows, rollouts)

        try:
            await _all_in_order([one(problem) for problem in problems])
        except BaseException:
            keep()
            raise
        if len(done) < len(problems):
            keep()
            return None
        return [done[p.id] for p in problems]

    async def _in_worker(self, index: int, problems: Sequence[Problem]) -> list[ProblemResult] | None:
        """Results of a worker process, which takes whole shards; None where the budget is spent."""
        try:
            await self.budget.admit(len(problems))
        except BudgetSpent as spent:
            self.progress.stopped = str(spent)
            return None
        try:
            given = [_given(self.given, problem) for problem in problems]
            loop = asyncio.get_running_loop()
            results = await loop.run_in_executor(
                self.pool, _label_in_worker, self.config, self.constants, problems, given
            )
        finally:
            self.budget.in_flight -= len(problems)
        for result in results:
            self.progress.add(result)
            self.seen.problem(index, result)
        self.watch(self.progress)
        return results

    def close(self) -> None:
        """End the worker processes."""
        if self.pool is not None:
            self.pool.shutdown(cancel_futures=True)


# A worker process keeps its engine and its event loop from shard to shard.
_worker: dict[str, tuple[asyncio.Runner, LabelingJob]] = {}


def _label_in_worker(
    config: LabelConfig,
    constants: LabelingConstants,
    problems: Sequence[Problem],
    given: Sequence[Sequence[GivenSolution] | None],
) -> list[ProblemResult]:
    key = config.model_dump_json()
    if key not in _worker:
        _worker[key] = (asyncio.Runner(), build_labeling(config, constants))
    runner, job = _worker[key]

    async def shard() -> list[ProblemResult]:
        return await _all_in_order(
            [annotate(p, job.plan, job.engines, g) for p, g in zip(problems, given, strict=True)]
        )

    return runner.run(shard())


T = TypeVar("T")


async def _all_in_order(works: Sequence[Awaitable[T]]) -> list[T]:
    """Results in the order of the works. The first fault cancels the others and is raised as it is."""

    async def run(work: Awaitable[T]) -> T:
        return await work

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(run(work)) for work in works]
    except ExceptionGroup as faults:
        raise faults.exceptions[0] from faults
    return [task.result() for task in tasks]


async def _in_parallel(works: Iterator[Awaitable[None]], limit: int) -> None:
    """Run works as they come, at most ``limit`` at a time, each begun only when there is room for it."""
    running: set[asyncio.Task[None]] = set()

    async def run(work: Awaitable[None]) -> None:
        await work

    try:
        for work in works:
            running.add(asyncio.ensure_future(run(work)))
            if len(running) >= limit:
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
        await asyncio.gather(*running)
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


def _contamination(config: LabelConfig) -> dict[str, str]:
    """What the manifest must say of data that is no fresh sample."""
    if not config.policy.startswith("replay:"):
        return {}
    return {
        "by_construction": "solutions were replayed from a log of these same problems, which may be a benchmark: "
        "a test of reading, not data to train on"
    }


def _joined(results: Sequence[ProblemResult]) -> tuple[list[LabeledSolution], list[tuple[str, Rollout]]]:
    rows = [row for result in results for row in result.solutions]
    return rows, [rollout for result in results for rollout in result.rollouts]


def _shards(problems: Sequence[Problem], size: int) -> list[Sequence[Problem]]:
    return [problems[i : i + size] for i in range(0, len(problems), size)]


def _given(given: dict[str, list[GivenSolution]] | None, problem: Problem) -> Sequence[GivenSolution] | None:
    return None if given is None else given[problem.id]
