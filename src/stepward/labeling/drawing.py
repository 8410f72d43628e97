"""Solutions and rollouts drawn: in request order, a failed one is a value, a dead engine an error."""

from collections.abc import Sequence
from dataclasses import replace

from stepward.labeling.outcomes import Grader
from stepward.labeling.plan import Engines, GivenSolution, Labeling
from stepward.labeling.together import together
from stepward.prm.errors import EngineError, ReplayExhausted
from stepward.prm.policy import Policy, SampleRequest
from stepward.prm.seeds import derive_seed
from stepward.prm.types import FinishReason, Outcome, Prefix, Problem, Rollout, Solution, Step, TokenIds
from stepward.verifiers.extraction import FoundBy


async def draw_all(policy: Policy, requests: Sequence[SampleRequest]) -> list[Rollout | None]:
    """All rollouts in request order; None where a replay log has none left.

    Raises:
        EngineError: The engine is gone; the message names problem and prefix.
    """
    return await together([_draw(policy, r) for r in requests])


async def _draw(policy: Policy, request: SampleRequest) -> Rollout | None:
    try:
        return await policy.sample(request)
    except ReplayExhausted:
        return None
    except EngineError as fault:
        raise EngineError(
            f"sampling for problem {request.prefix.problem_id} at prefix {request.prefix.num_steps}: {fault}",
            retryable=fault.retryable,
        ) from fault


async def graded(problem: Problem, rollout: Rollout, text: str, grader: Grader) -> Rollout:
    """The rollout with its outcome; a rollout that failed in the engine keeps the outcome ``ERROR``."""
    if rollout.outcome is not None:
        return rollout
    if rollout.finish_reason is FinishReason.ABORT:
        return replace(rollout, outcome=Outcome.ERROR)
    grade = await grader.grade(problem, text, rollout.finish_reason)
    if grade.found_by is FoundBy.LAST_NUMBER and not any(c.isdigit() for c in rollout.text):
        # The number that was guessed to be the answer stands in the prefix: the rollout itself says none.
        cut = rollout.finish_reason is FinishReason.LENGTH
        return replace(rollout, outcome=Outcome.TRUNCATED if cut else Outcome.NO_ANSWER)
    return replace(rollout, outcome=grade.outcome, answer=grade.answer)


async def sample_solutions(
    problem: Problem, prompt: TokenIds, plan: Labeling, engines: Engines
) -> tuple[list[Rollout], int]:
    """Samples in index order, not graded but where the engine failed, and how many a replay log could not serve."""
    root = Prefix(problem.id, prompt)
    requests = [
        SampleRequest(
            root, plan.sampler, derive_seed(plan.seed, problem.id, "solution", i), i, want_logprobs=True
        )
        for i in range(plan.num_solutions)
    ]
    drawn = await draw_all(engines.policy, requests)
    return [r for r in drawn if r is not None], sum(r is None for r in drawn)


def cut(problem: Problem, sample: Rollout, plan: Labeling, engines: Engines) -> Solution:
    steps = plan.step_format.split_ids(sample.token_ids, engines.policy.tokenizer, sample.logprobs)
    return Solution(
        id=solution_id(problem, sample.index),
        problem_id=problem.id,
        steps=steps,
        seed=sample.seed,
        outcome=sample.outcome,
        finish_reason=sample.finish_reason,
    )


def encode(
    problem: Problem, index: int, given: GivenSolution, plan: Labeling, engines: Engines
) -> tuple[Solution, str]:
    """A solution from elsewhere and its text: encoded once with the completer's tokenizer, and marked so."""
    tokenizer = engines.completer.tokenizer
    if given.text is not None:
        steps = plan.step_format.split_ids(tokenizer.encode(given.text), tokenizer)
        text = given.text
    else:
        texts = [t for t in given.steps if t.strip()]
        ids = plan.step_format.encode_steps(texts, tokenizer)
        steps = tuple(Step(text, i) for text, i in zip(texts, ids, strict=True))
        text = plan.step_format.separator.join(texts)
    return Solution(solution_id(problem, index), problem.id, steps, ids_from="encoded"), text


def solution_id(problem: Problem, index: int) -> str:
    """Id of a problem's solution."""
    return f"{problem.id}-{index}"
