"""Problems -> labelled solutions. The one door that flows use.

For one problem: sample solutions (or take the user's), grade them, then let the allocation ask for rollouts
round by round until it has enough, grade those, and derive labels from the counts. Problems are independent
of one another, so any number may be in flight; a decision about a problem reads only that problem's results,
in request order, whatever finishes first.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from stepward.labeling.evidence import AllocationRule, Draw, Estimator, SolutionEvidence
from stepward.prm.errors import EngineError, ReplayExhausted
from stepward.prm.policy import Policy, SampleRequest
from stepward.prm.seeds import derive_seed
from stepward.prm.steps import StepFormat
from stepward.prm.types import (
    Counts,
    FinishReason,
    LabeledSolution,
    LabelerInfo,
    Outcome,
    PolicyInfo,
    Prefix,
    Problem,
    Rollout,
    Sampler,
    Solution,
    Step,
    TokenIds,
    Verdict,
)


class Graded(Protocol):
    """What grading gives back (``verifiers.answer.Grade``)."""

    @property
    def outcome(self) -> Outcome: ...

    @property
    def answer(self) -> str | None: ...


class Grader(Protocol):
    """Decides the outcome of a whole solution text (``verifiers.answer.Grader``)."""

    async def grade(self, problem: Problem, text: str, finish_reason: FinishReason) -> Graded: ...


StepVerifier = Callable[[Problem, Sequence[str]], Awaitable[Sequence[tuple[Verdict, ...]]]]
"""Tool verdicts for each step of a solution, given the problem and the step texts."""

PromptRenderer = Callable[[Problem], TokenIds]
"""A problem's prompt as token ids (``prm.prompts``, bound to the policy's tokenizer)."""


@dataclass(frozen=True, slots=True)
class GivenSolution:
    """A solution that the user already has: a text, or a list of steps, and who wrote it."""

    problem_id: str
    steps: tuple[str, ...]
    text: str | None = None
    generator: str = "unknown"


@dataclass(frozen=True, slots=True)
class Labeling:
    """All that shapes a row, apart from the engines.

    Attributes:
        num_solutions: Solutions to sample a problem; those given by the user come instead.
        sampler: For solutions.
        rollout_sampler: For rollouts.
        step_format: Where steps begin and end.
        allocation: Which prefix gets the next rollout.
        estimator: Counts -> labels.
        seed: The run's seed.
        labeler: Name, version and config hash for the rows.
        policy_info: Who samples solutions, with sampler and prompt hash filled in.
        completer_info: Who samples rollouts, likewise.
    """

    num_solutions: int
    sampler: Sampler
    rollout_sampler: Sampler
    step_format: StepFormat
    allocation: AllocationRule
    estimator: Estimator
    seed: int
    labeler: LabelerInfo
    policy_info: PolicyInfo
    completer_info: PolicyInfo


@dataclass(frozen=True, slots=True)
class Engines:
    """Who does the work: handed in, never made here."""

    policy: Policy
    completer: Policy
    render: PromptRenderer
    grader: Grader
    verify_steps: StepVerifier | None = None


@dataclass(frozen=True, slots=True)
class ProblemResult:
    """All rows of one problem.

    Attributes:
        problem: The problem.
        solutions: Its labelled solutions.
        rollouts: (solution id, rollout) of every draw, the solutions themselves included at prefix 0.
        tokens: Tokens sampled for the problem.
        exhausted: Draws that a replay log could not serve.
        skipped: Why the problem has no rows, or None.
    """

    problem: Problem
    solutions: tuple[LabeledSolution, ...] = ()
    rollouts: tuple[tuple[str, Rollout], ...] = ()
    tokens: int = 0
    exhausted: int = 0
    skipped: str | None = None


@dataclass(slots=True)
class _Work:
    """One solution while it is being labelled: its evidence grows draw by draw."""

    solution: Solution
    prefixes: tuple[Prefix, ...]
    verdicts: tuple[tuple[Verdict, ...], ...]
    draws: list[list[Rollout]] = field(default_factory=list[list[Rollout]])

    def evidence(self, on_policy: bool) -> SolutionEvidence:
        return SolutionEvidence(
            num_steps=len(self.solution.steps),
            step_tokens=tuple(len(s.token_ids) for s in self.solution.steps),
            outcome=self.solution.outcome or Outcome.ERROR,
            draws=tuple(tuple(_outcome(r) for r in at_prefix) for at_prefix in self.draws),
            verdicts=self.verdicts,
            on_policy=on_policy,
        )


async def annotate(
    problem: Problem, plan: Labeling, engines: Engines, given: Sequence[GivenSolution] | None = None
) -> ProblemResult:
    """Label the solutions of one problem.

    Args:
        problem: The problem. Without gold its solutions are kept with outcome ``NO_GOLD`` and cost no rollouts.
        plan: What shapes the rows.
        engines: Policy, completer, prompt, grader, step verifiers.
        given: The user's solutions of this problem; None samples ``plan.num_solutions``.

    Returns:
        The rows; ``skipped`` where there are none (empty solutions, prompt over the context).

    Raises:
        EngineError: The engine is gone. A single failed rollout is a row with outcome ``ERROR`` instead.
    """
    prompt = engines.render(problem)
    if len(prompt) >= engines.policy.context_length:
        return ProblemResult(
            problem,
            skipped=f"prompt of {len(prompt)} tokens does not fit the context of {engines.policy.context_length}",
        )
    if given is None:
        samples, exhausted = await _sample_solutions(problem, prompt, plan, engines)
        solutions = [_cut(problem, i, r, plan, engines) for i, r in enumerate(samples)]
    else:
        samples, exhausted = [], 0
        solutions = [await _encode(problem, i, g, plan, engines) for i, g in enumerate(given)]
    works = [await _start(problem, prompt, s, engines) for s in solutions if s.steps]
    on_policy = given is None and plan.policy_info == plan.completer_info
    if problem.answers:
        exhausted += await _run_allocation(problem, plan, engines, works, on_policy)
    return _rows(problem, prompt, plan, engines, works, samples, exhausted, on_policy)


async def _sample_solutions(
    problem: Problem, prompt: TokenIds, plan: Labeling, engines: Engines
) -> tuple[list[Rollout], int]:
    """Graded samples in index order, and how many a replay log could not serve."""
    root = Prefix(problem.id, prompt)
    requests = [
        SampleRequest(
            root, plan.sampler, derive_seed(plan.seed, problem.id, "solution", i), i, want_logprobs=True
        )
        for i in range(plan.num_solutions)
    ]
    drawn = await _draw_all(engines.policy, requests)
    graded = [await _grade(problem, r, r.text, engines.grader) for r in drawn if r is not None]
    return graded, sum(r is None for r in drawn)


def _cut(problem: Problem, index: int, sample: Rollout, plan: Labeling, engines: Engines) -> Solution:
    steps = plan.step_format.split_ids(sample.token_ids, engines.policy.tokenizer, sample.logprobs)
    return Solution(
        id=_solution_id(problem, index),
        problem_id=problem.id,
        steps=steps,
        seed=sample.seed,
        outcome=sample.outcome,
        final_answer=sample.answer,
        finish_reason=sample.finish_reason,
    )


async def _encode(
    problem: Problem, index: int, given: GivenSolution, plan: Labeling, engines: Engines
) -> Solution:
    """A solution from elsewhere: encoded once with the completer's tokenizer, and marked so."""
    tokenizer = engines.completer.tokenizer
    if given.text is not None:
        steps = plan.step_format.split_ids(tokenizer.encode(given.text), tokenizer)
        text = given.text
    else:
        texts = [t for t in given.steps if t.strip()]
        ids = plan.step_format.encode_steps(texts, tokenizer)
        steps = tuple(Step(text, i) for text, i in zip(texts, ids, strict=True))
        text = plan.step_format.separator.join(texts)
    grade = await engines.grader.grade(problem, text, FinishReason.STOP)
    return Solution(
        id=_solution_id(problem, index),
        problem_id=problem.id,
        steps=steps,
        outcome=grade.outcome,
        final_answer=grade.answer,
        ids_from="encoded",
    )


async def _start(problem: Problem, prompt: TokenIds, solution: Solution, engines: Engines) -> _Work:
    prefixes = [Prefix(problem.id, prompt)]
    ids: TokenIds = ()
    for t, step in enumerate(solution.steps):
        ids += step.token_ids
        prefixes.append(Prefix(problem.id, prompt, ids, t + 1))
    verdicts: tuple[tuple[Verdict, ...], ...] = tuple(() for _ in solution.steps)
    if engines.verify_steps is not None:
        verdicts = tuple(await engines.verify_steps(problem, [s.text for s in solution.steps]))
    return _Work(solution, tuple(prefixes), verdicts, [[] for _ in prefixes])


async def _run_allocation(
    problem: Problem, plan: Labeling, engines: Engines, works: list[_Work], on_policy: bool
) -> int:
    """Draw what the allocation asks for, round by round. Returns draws that a replay log could not serve."""
    exhausted = 0
    while draws := plan.allocation.next_draws([w.evidence(on_policy) for w in works]):
        requests = _requests(problem, plan, works, draws)
        drawn = await _draw_all(engines.completer, requests)
        for draw, request, rollout in zip(draws, requests, drawn, strict=True):
            if rollout is None:
                exhausted += 1
                continue
            tokenizer = engines.completer.tokenizer
            text = tokenizer.decode(request.prefix.solution_ids + rollout.token_ids)
            works[draw.solution].draws[draw.prefix].append(
                await _grade(problem, rollout, text, engines.grader)
            )
        if all(r is None for r in drawn):
            break
    return exhausted


def _requests(
    problem: Problem, plan: Labeling, works: Sequence[_Work], draws: Sequence[Draw]
) -> list[SampleRequest]:
    """One request a draw; its seed names problem, solution, prefix and rollout index, so none occurs twice."""
    counters: dict[tuple[int, int], int] = {}
    requests: list[SampleRequest] = []
    for draw in draws:
        key = (draw.solution, draw.prefix)
        index = counters.get(key, len(works[draw.solution].draws[draw.prefix]))
        counters[key] = index + 1
        requests.append(
            SampleRequest(
                works[draw.solution].prefixes[draw.prefix],
                plan.rollout_sampler,
                derive_seed(plan.seed, problem.id, "rollout", draw.solution, draw.prefix, index),
                index,
            )
        )
    return requests


async def _draw_all(policy: Policy, requests: Sequence[SampleRequest]) -> list[Rollout | None]:
    """All rollouts in request order; None where a replay log has none left."""

    async def draw(request: SampleRequest) -> Rollout | None:
        try:
            return await policy.sample(request)
        except ReplayExhausted:
            return None
        except EngineError as fault:
            raise EngineError(
                f"sampling for problem {request.prefix.problem_id} at prefix {request.prefix.num_steps}: {fault}",
                retryable=fault.retryable,
            ) from fault

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(draw(r)) for r in requests]
    except ExceptionGroup as faults:
        # The group has cancelled the other requests; one engine fault says what the others would.
        raise faults.exceptions[0] from faults
    return [t.result() for t in tasks]


async def _grade(problem: Problem, rollout: Rollout, text: str, grader: Grader) -> Rollout:
    """The rollout with its outcome; a rollout that failed in the engine keeps the outcome ``ERROR``."""
    if rollout.outcome is not None:
        return rollout
    if rollout.finish_reason is FinishReason.ABORT:
        return replace(rollout, outcome=Outcome.ERROR)
    grade = await grader.grade(problem, text, rollout.finish_reason)
    return replace(rollout, outcome=grade.outcome, answer=grade.answer)


def _rows(
    problem: Problem,
    prompt: TokenIds,
    plan: Labeling,
    engines: Engines,
    works: Sequence[_Work],
    samples: Sequence[Rollout],
    exhausted: int,
    on_policy: bool,
) -> ProblemResult:
    counts = [_prefix_counts(w, samples) for w in works]
    labels = plan.estimator.estimate([w.evidence(on_policy) for w in works], counts)
    rows: list[LabeledSolution] = []
    # A sample that is no solution (blank text) has no row but stays among the draws and the cost.
    rollouts = [(_solution_id(problem, s.index), s) for s in samples]
    for work, derived in zip(works, labels, strict=True):
        drawn = [r for at_prefix in work.draws for r in at_prefix]
        own = [s for s in samples if _solution_id(problem, s.index) == work.solution.id]
        rollouts += [(work.solution.id, r) for r in drawn]
        own_tokens = sum(len(s.token_ids) for s in own)
        rows.append(
            LabeledSolution(
                problem=problem,
                solution=work.solution,
                prefixes=derived.estimates,
                labels=derived.labels,
                first_error=derived.first_error,
                policy=plan.policy_info,
                completer=plan.completer_info,
                tokenizer_hash=engines.completer.tokenizer.hash,
                seed=plan.seed,
                allocation=plan.allocation.kind,
                prompt_tokens=len(prompt),
                generated_tokens=own_tokens + sum(len(r.token_ids) for r in drawn),
                labeler=plan.labeler,
            )
        )
    tokens = sum(len(r.token_ids) for _, r in rollouts)
    skipped = None if rows else "no solution with a step in it"
    return ProblemResult(problem, tuple(rows), tuple(rollouts), tokens, exhausted, skipped)


def _prefix_counts(work: _Work, samples: Sequence[Rollout]) -> list[Counts]:
    """T+1 counts: all sampled solutions at prefix 0, the solution's own outcome at prefix T."""
    last = len(work.prefixes) - 1
    counts = [Counts.of([*(samples if t == 0 else ()), *drawn]) for t, drawn in enumerate(work.draws)]
    own = replace(Counts(n_unique=1), **{(work.solution.outcome or Outcome.ERROR).value: 1})
    counts[last] = _add(counts[last], own) if counts[last].total else own
    return counts


def _solution_id(problem: Problem, index: int) -> str:
    return f"{problem.id}-{index}"


def _add(a: Counts, b: Counts) -> Counts:
    return Counts(**{name: getattr(a, name) + getattr(b, name) for name in Counts.__dataclass_fields__})


def _outcome(rollout: Rollout) -> Outcome:
    if rollout.outcome is None:
        raise ValueError(f"rollout {rollout.index} of problem {rollout.problem_id} is not graded")
    return rollout.outcome
