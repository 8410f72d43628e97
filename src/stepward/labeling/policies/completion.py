"""From what an engine gave back to a Rollout: stop strings are found in text, limits are kept, nothing is cut."""

from stepward.prm.policy import SampleRequest, Tokenizer
from stepward.prm.types import FinishReason, Outcome, Rollout, TokenIds


def completed(
    request: SampleRequest,
    tokenizer: Tokenizer,
    ids: TokenIds,
    finish_reason: FinishReason,
    *,
    logprobs: tuple[float, ...] | None = None,
    outcome: Outcome | None = None,
    error: str | None = None,
) -> Rollout:
    """The rollout for a request.

    Ids after the one that completes a stop string, after an end token, or over ``max_tokens`` are dropped, with
    their log-probabilities, and the finish reason says so. The text is decoded from the ids that stay.
    """
    if outcome is None:
        kept, reason = _ended(request, tokenizer, ids, finish_reason)
        logprobs = logprobs[: len(kept)] if logprobs is not None else None
    else:
        kept, reason = ids, finish_reason
    return Rollout(
        problem_id=request.prefix.problem_id,
        num_steps=request.prefix.num_steps,
        index=request.index,
        seed=request.seed,
        token_ids=kept,
        text=tokenizer.decode(kept),
        finish_reason=reason,
        logprobs=logprobs,
        outcome=outcome,
        error=error,
    )


def _ended(
    request: SampleRequest, tokenizer: Tokenizer, ids: TokenIds, finish_reason: FinishReason
) -> tuple[TokenIds, FinishReason]:
    most = request.sampler.max_tokens
    length, reason = len(ids), finish_reason
    for i, token in enumerate(ids):
        if token in tokenizer.eos_ids:
            length, reason = i + 1, FinishReason.STOP
            break
    stop_at = _first_stop(tokenizer, ids[:length], request.sampler.stop)
    if stop_at is not None and stop_at <= length:
        length, reason = stop_at, FinishReason.STOP
    if length > most:
        length, reason = most, FinishReason.LENGTH
    return ids[:length], reason


def _first_stop(tokenizer: Tokenizer, ids: TokenIds, stops: tuple[str, ...]) -> int | None:
    """Ids up to and with the one in which a stop string is complete, or None."""
    if not stops:
        return None
    text = tokenizer.decode(ids)
    ends = [at + len(stop) for stop in stops if (at := text.find(stop)) >= 0]
    if not ends:
        return None
    # The id that holds the last character of the stop string; the ids of one character share its index.
    last = min(ends) - 1
    starts = tokenizer.offsets(ids)
    return max(i for i, start in enumerate(starts) if start <= last) + 1
