"""What every engine refuses before it asks the model: by name, and never by cutting."""

import math

from stepward.prm.errors import EngineError
from stepward.prm.policy import SampleRequest
from stepward.prm.types import Prefix, Sampler, TokenIds

MAX_SEED = (1 << 63) - 1


def check_request(request: SampleRequest, context_length: int, vocab_size: int) -> None:
    """Raise on a request that no engine can serve.

    Args:
        request: What is asked.
        context_length: Most tokens of prompt and completion together.
        vocab_size: Ids are below it.

    Raises:
        EngineError: The prefix is empty, leaves no room in the context, or holds ids that the model does not
            have; the seed or the sampler is out of range.
    """
    prefix = request.prefix
    what = f"sampling rollout {request.index} at prefix {prefix.num_steps} of problem {prefix.problem_id}"
    check_prefix(prefix, (), what, context_length - 1, vocab_size)
    if not 0 <= request.seed <= MAX_SEED:
        raise EngineError(f"{what}: the seed {request.seed} is not in 0..2^63-1; derive it with prm.seeds")
    if faults := sampler_faults(request.sampler):
        raise EngineError(f"{what}: {'; '.join(faults)}")


def check_prefix(prefix: Prefix, continuation: TokenIds, what: str, most: int, vocab_size: int) -> None:
    """Raise EngineError where prefix and continuation do not fit the model; ``what`` begins the message."""
    number = prefix.num_tokens + len(continuation)
    if not prefix.num_tokens:
        raise EngineError(f"{what}: the prefix has no token; a prompt needs at least one")
    if number > most:
        raise EngineError(
            f"{what}: {number} tokens do not fit, at most {most} do; prompts are never cut. Drop the problem, or "
            "use a shorter prompt template or a model with a longer context"
        )
    for ids in (prefix.prompt_ids, prefix.solution_ids, continuation):
        if ids and (min(ids) < 0 or max(ids) >= vocab_size):
            bad = next(i for i in ids if not 0 <= i < vocab_size)
            raise EngineError(
                f"{what}: id {bad} is not in the model's vocabulary of {vocab_size}; encode with the policy's own "
                "tokenizer"
            )


def sampler_faults(sampler: Sampler) -> list[str]:
    """All that is out of range in a sampler, in words."""
    faults: list[str] = []
    if not (math.isfinite(sampler.temperature) and sampler.temperature >= 0):
        faults.append(f"temperature {sampler.temperature} is not a number >= 0")
    if not 0 < sampler.top_p <= 1:
        faults.append(f"top_p {sampler.top_p} is not in (0, 1]")
    if sampler.top_k < 0:
        faults.append(f"top_k {sampler.top_k} is negative; 0 keeps all")
    if not 0 <= sampler.min_p <= 1:
        faults.append(f"min_p {sampler.min_p} is not in [0, 1]")
    if sampler.max_tokens < 1:
        faults.append(f"max_tokens {sampler.max_tokens} is below 1")
    if any(not s for s in sampler.stop):
        faults.append("a stop string is empty")
    return faults
