"""Probes of where a rollout ends: stop strings, token limits, the context."""

from stepward.labeling.policies.check.findings import Bench, Finding, Probe, State
from stepward.prm.errors import EngineError
from stepward.prm.policy import SampleRequest, Tokenizer
from stepward.prm.types import FinishReason, Prefix, Rollout, Sampler, TokenIds

_MOST_PREFILL_TOKENS = 8192
_MOST_REFUSED_TOKENS = 1 << 21


async def check_stop(bench: Bench) -> list[Finding]:
    """A stop string inside a token ends the rollout there, is in the text once, and leaves the token whole."""
    (whole,) = await bench.sample(bench.request(0, "stop", temperature=0.0))
    chosen = _stop_string(bench.policy.tokenizer, whole)
    if chosen is None:
        return [Finding("stop strings", State.UNKNOWN, "the greedy rollout is too short to choose one from")]
    stop, inside = chosen
    (stopped,) = await bench.sample(bench.request(0, "stop", temperature=0.0, stop=(stop,)))
    place = "inside a token" if inside else "at a token's end"
    if stop not in stopped.text:
        if stopped.token_ids == whole.token_ids[: len(stopped.token_ids)]:
            what = f"the text does not keep the stop string {stop!r} that ended it"
            remedy = "the engine cuts the stop string off: the state would lack it"
        elif not bench.policy.deterministic:
            return [
                Finding(
                    "stop strings", State.UNKNOWN, "asked again, the rollout took another way and met none"
                )
            ]
        else:
            what, remedy = (
                f"with the stop string {stop!r} the rollout takes another way",
                "stop strings bias sampling",
            )
        return [Finding("stop strings", State.FAILED, what, remedy)]
    if fault := _stop_fault(bench.policy.tokenizer, stopped, stop):
        return [Finding("stop strings", State.FAILED, *fault)]
    what = f"{stop!r}, {place}, ends the rollout after {len(stopped.token_ids)} tokens with the token whole"
    return [Finding("stop strings", State.OK, what)]


def _stop_string(tokenizer: Tokenizer, rollout: Rollout) -> tuple[str, bool] | None:
    """(a stop string out of a rollout's text, whether it ends inside a token); rather in a token than at its end."""
    starts = tokenizer.offsets(rollout.token_ids)
    text = rollout.text
    ends = [*starts[1:], len(text)]
    candidates: list[tuple[str, bool]] = []
    for a, b in list(zip(starts, ends, strict=True))[1:]:
        for end in (b - 1, b):
            stop = text[max(0, end - 2) : end]
            # Its first place must be this one, and no later token may be needed to know the character.
            if a < end and stop.strip() and "\ufffd" not in stop and text.find(stop) + len(stop) == end:
                candidates.append((stop, end < b))
    inside = [c for c in candidates if c[1]]
    return next(iter(inside or candidates), None)


def _stop_fault(tokenizer: Tokenizer, rollout: Rollout, stop: str) -> tuple[str, str] | None:
    if rollout.finish_reason is not FinishReason.STOP:
        return (
            f"a rollout that met {stop!r} has the finish reason {rollout.finish_reason.value}",
            "it would be counted as truncated: serve a build that reports stop",
        )
    last = rollout.text.find(stop) + len(stop) - 1
    starts = tokenizer.offsets(rollout.token_ids)
    owner = max(i for i, start in enumerate(starts) if start <= last)
    if owner != len(rollout.token_ids) - 1:
        return (
            f"{len(rollout.token_ids) - 1 - owner} tokens follow the one that completes {stop!r}",
            "the engine runs past stop strings: steps would be merged",
        )
    return None


async def check_length(bench: Bench) -> list[Finding]:
    """max_tokens is kept and reported as ``length``; an end token is reported as ``stop`` and is no text."""
    ends = bench.policy.tokenizer.eos_ids
    short, *longer = await bench.sample(
        bench.request(0, "length", max_tokens=1),
        *(bench.request(0, "length", i, max_tokens=2 * bench.num_tokens) for i in range(4)),
    )
    if bench.policy.info.engine == "replay":
        return [Finding("finish reasons", State.OK, "a log is replayed as it ended")]
    faults: list[str] = []
    if bench.policy.info.engine != "openai":  # Its limit counts the endpoint's tokens, ours are bytes.
        if len(short.token_ids) > 1:
            faults.append(f"max_tokens = 1 gave {len(short.token_ids)} tokens")
        if not set(short.token_ids) & ends and short.token_ids and short.finish_reason is FinishReason.STOP:
            faults.append("a rollout cut at max_tokens = 1 has the finish reason stop")
        for rollout in longer:
            closed = bool(set(rollout.token_ids[-1:]) & ends)
            if len(rollout.token_ids) < 2 * bench.num_tokens and not closed:
                if rollout.finish_reason is FinishReason.LENGTH:
                    faults.append(f"finish reason length after {len(rollout.token_ids)} tokens")
            elif closed and rollout.finish_reason is not FinishReason.STOP:
                faults.append(f"an end token, but the finish reason {rollout.finish_reason.value}")
    if faults:
        remedy = "right and wrong would be taken for truncated or the other way round: check the server's own limits"
        return [Finding("finish reasons", State.FAILED, "; ".join(sorted(set(faults))), remedy)]
    stopped = sum(r.finish_reason is FinishReason.STOP for r in longer)
    what = f"limits are kept; {stopped} of {len(longer)} rollouts ended before {2 * bench.num_tokens} tokens"
    return [Finding("finish reasons", State.OK, what)]


async def check_context(bench: Bench) -> list[Finding]:
    """A prompt as long as the context is refused by name; one token less gives one token and ``length``."""
    length = bench.policy.context_length
    if length > _MOST_REFUSED_TOKENS or bench.policy.info.engine == "openai":
        return [
            Finding(
                "context", State.UNKNOWN, "the engine states no limit: it refuses, or not, what is too long"
            )
        ]
    filler = _filled(bench.prompts[0], length)
    problem = bench.problems[0].id
    try:
        await bench.policy.sample(SampleRequest(Prefix(problem, filler), Sampler(max_tokens=4), bench.seed))
    except EngineError as refusal:
        if problem not in str(refusal):
            what = f"the refusal of a prompt over the context does not name the problem: {refusal}"
            return [
                Finding(
                    "context",
                    State.FAILED,
                    what,
                    "the engine's loader must check requests before it sends them",
                )
            ]
    else:
        what = f"a prompt of {length} tokens was taken although the context is {length}"
        return [
            Finding(
                "context", State.FAILED, what, "the engine cuts prompts: values would be of another problem"
            )
        ]
    if length > _MOST_PREFILL_TOKENS:
        what = (
            f"a prompt over the context of {length} tokens is refused by name (its last token was not tried)"
        )
        return [Finding("context", State.OK, what)]
    (last,) = await bench.sample(
        SampleRequest(Prefix(problem, filler[:-1]), Sampler(max_tokens=4), bench.seed)
    )
    if len(last.token_ids) > 1:
        what = f"{length - 1} tokens of prompt gave {len(last.token_ids)} more, over the context of {length}"
        return [Finding("context", State.FAILED, what, "the stated context is wrong: set max_model_len")]
    what = f"a prompt over {length} tokens is refused by name, one of {length - 1} gives one token"
    return [Finding("context", State.OK, what)]


def _filled(prompt: TokenIds, length: int) -> TokenIds:
    """A prompt repeated to a length; the start token stays in front alone."""
    body = prompt[1:] or prompt
    return (*prompt, *(body * (length // len(body) + 1)))[:length]


LIMIT_PROBES: tuple[tuple[str, Probe], ...] = (
    ("stop strings", check_stop),
    ("finish reasons", check_length),
    ("context", check_context),
)
