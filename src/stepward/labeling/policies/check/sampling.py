"""Probes of what an engine samples: seeds, greedy decoding, likelihoods, continuing what was sampled."""

import random
import statistics
from collections.abc import Sequence

from stepward.labeling.policies.check.findings import Bench, Finding, Probe, State
from stepward.labeling.policies.http_pool import Usage
from stepward.labeling.policies.openai import OpenAIPolicy
from stepward.prm.errors import EngineError
from stepward.prm.types import TokenIds

_DRAWS = 16
_PERMUTATIONS = 2000
_CHANCE = 0.001


async def check_seeds(bench: Bench) -> list[Finding]:
    """The same seed gives the same ids, other seeds give others, and draws on two prompts have nothing in common."""
    asked = [bench.request(n, "seed", i) for n in (0, 1) for i in range(_DRAWS)]
    ids = [r.token_ids for r in await bench.sample(*asked)]
    again = [r.token_ids for r in await bench.sample(*asked[:4])]
    first, second = ids[:_DRAWS], ids[_DRAWS:]
    return [
        _repeated(sum(a == b for a, b in zip(first, again, strict=False)), 4, bench.policy.deterministic),
        _different(first, second),
        _correlated(first, second),
    ]


def _repeated(same: int, of: int, deterministic: bool) -> Finding:
    what = f"{same} of {of} seeds gave the same ids when asked again"
    if same == of:
        return Finding("seeds: repeated", State.OK, what)
    if deterministic or same == 0:
        return Finding(
            "seeds: repeated",
            State.FAILED,
            what,
            "the engine does not use the seed of a request, or not alone: a run could not be repeated. Look for a "
            "server option that overrides seeds, or for a proxy that drops the field",
        )
    return Finding(
        "seeds: repeated",
        State.WARNING,
        what,
        "kernels round differently for different batches: rows of two runs will differ in part; use the engine's "
        "batch-invariant mode where it has one",
    )


def _different(first: Sequence[TokenIds], second: Sequence[TokenIds]) -> Finding:
    unique = min(len(set(first)), len(set(second)))
    what = f"{unique} different rollouts from {len(first)} seeds at one prompt"
    if unique == 1:
        return Finding(
            "seeds: different",
            State.FAILED,
            what,
            "seed or temperature never reaches the sampler, or a cache answers: every rollout would be a copy and "
            "count once. Check that the server honours seed and temperature and caches no answers",
        )
    if unique < len(first) // 2:
        return Finding(
            "seeds: different",
            State.WARNING,
            what,
            "rollouts repeat: raise the temperature, or expect few independent draws a prefix",
        )
    return Finding("seeds: different", State.OK, what)


def _correlated(first: Sequence[TokenIds], second: Sequence[TokenIds]) -> Finding:
    """Draw i on one prompt against draw i on another, whose seeds have nothing in common.

    An engine that seeds by a request's place in its batch gives them the same random stream. Tested by permuting
    the second list (one-sided, p < .001).
    """
    shares = [[_agreement(a, b) for b in second] for a in first]
    places, draw = list(range(len(second))), random.Random(0)
    seen = statistics.fmean(row[i] for i, row in enumerate(shares))
    above = 0
    for _ in range(_PERMUTATIONS):
        draw.shuffle(places)
        above += statistics.fmean(row[i] for i, row in zip(places, shares, strict=True)) >= seen - 1e-12
    p = (above + 1) / (_PERMUTATIONS + 1)
    what = f"draws on two prompts agree in {seen:.0%} of tokens (p = {p:.3f} against any other pairing)"
    if p < _CHANCE:
        return Finding(
            "seeds: two prompts",
            State.FAILED,
            what,
            "the engine seeds by a request's place in the batch and not by its seed: rollouts of different problems "
            "are related. Send one request a rollout (n = 1) to a server that honours seed",
        )
    return Finding("seeds: two prompts", State.OK, what)


def _agreement(a: TokenIds, b: TokenIds) -> float:
    """Share of places with the same token."""
    return sum(x == y for x, y in zip(a, b, strict=False)) / max(1, min(len(a), len(b)))


async def check_greedy(bench: Bench) -> list[Finding]:
    """Temperature 0 gives one rollout whatever the seed, and so does top_k = 1 where the engine takes it."""
    if bench.policy.info.engine == "replay":
        return [Finding("sampler: greedy", State.UNKNOWN, "a log is replayed as it was sampled")]
    one, other = await bench.sample(
        bench.request(0, "greedy", 0, temperature=0.0), bench.request(0, "greedy", 1, temperature=0.0)
    )
    findings = [_greedy(one.token_ids, other.token_ids, "temperature 0")]
    try:
        (narrow,) = await bench.sample(bench.request(0, "greedy", 2, top_k=1))
    except EngineError as refusal:
        findings.append(Finding("sampler: top_k", State.UNKNOWN, f"not taken: {refusal}"))
        return findings
    if findings[0].state is State.OK:
        findings.append(_narrowed(one.token_ids, narrow.token_ids))
    return findings


def _greedy(one: TokenIds, other: TokenIds, how: str) -> Finding:
    if one == other:
        return Finding("sampler: greedy", State.OK, f"{how} gives the same {len(one)} tokens for two seeds")
    return Finding(
        "sampler: greedy",
        State.FAILED,
        f"{how} gives other tokens for another seed, from token {_first_difference(one, other)} on",
        "the engine ignores the temperature or runs with a sampler of its own: check the server's generation config",
    )


def _narrowed(greedy: TokenIds, narrow: TokenIds) -> Finding:
    if greedy == narrow:
        return Finding("sampler: top_k", State.OK, "top_k = 1 gives the greedy tokens")
    return Finding(
        "sampler: top_k",
        State.FAILED,
        f"top_k = 1 leaves the greedy tokens at token {_first_difference(greedy, narrow)}",
        "top_k is dropped on the way: the sampler would not be the one that rows record",
    )


async def check_likelihood(bench: Bench) -> list[Finding]:
    """Greedy tokens are the likeliest, and log-probabilities of sampling and of scoring are the same."""
    (greedy,) = await bench.sample(bench.request(0, "likelihood", temperature=0.0, want_logprobs=True))
    sampled = await bench.sample(*(bench.request(0, "likelihood", i, max_tokens=1) for i in range(4)))
    prefix = bench.request(0).prefix
    try:
        scored = await bench.policy.loglikelihood(prefix, greedy.token_ids)
        others = {r.token_ids[:1] for r in sampled if r.token_ids} - {greedy.token_ids[:1]}
        rivals = [(await bench.policy.loglikelihood(prefix, ids))[0] for ids in sorted(others)]
    except EngineError as refusal:
        return [Finding("likelihood", State.UNKNOWN, f"the engine gives none: {refusal}")]
    # float64 agrees to the stored 4 decimals; bfloat16 kernels of prefill and decoding differ by hundredths.
    tolerance = 2e-4 if bench.policy.deterministic else 0.1
    if len(scored) != len(greedy.token_ids):
        what = f"{len(scored)} log-probabilities for {len(greedy.token_ids)} tokens"
        return [Finding("likelihood", State.FAILED, what, "the engine scores other ids than it was given")]
    if scored and rivals and max(rivals) > scored[0] + tolerance:
        what = f"the greedy first token has log-probability {scored[0]:.3f}, a sampled one {max(rivals):.3f}"
        remedy = "greedy decoding and scoring disagree: the server may penalise or bias tokens (penalties, logit bias)"
        return [Finding("likelihood", State.FAILED, what, remedy)]
    if greedy.logprobs is None:
        return [
            Finding(
                "likelihood",
                State.WARNING,
                "greedy tokens are the likeliest, but sampling returns no log-probabilities",
                "low_confidence steps and implicit credit need them; choose another step delimiter",
            )
        ]
    apart = max((abs(a - b) for a, b in zip(scored, greedy.logprobs, strict=True)), default=0.0)
    if apart > tolerance:
        what = f"log-probabilities of sampling and scoring differ by up to {apart:.3f} nats"
        remedy = "one of the two is after temperature or penalties: for vLLM use --logprobs-mode raw_logprobs"
        return [Finding("likelihood", State.FAILED, what, remedy)]
    what = f"greedy tokens are the likeliest; sampling and scoring agree to {apart:.1e} nats"
    return [Finding("likelihood", State.OK, what)]


async def check_continuation(bench: Bench) -> list[Finding]:
    """What was sampled, continued as the same ids, goes on as it would have without the interruption."""
    if isinstance(bench.policy, OpenAIPolicy):
        return [await _drift(bench, bench.policy)]
    usage = getattr(bench.policy, "usage", None)
    counted = usage.prompt_tokens if isinstance(usage, Usage) else 0
    (whole,) = await bench.sample(bench.request(0, "continue", temperature=0.0))
    sent = len(bench.prompts[0])
    if isinstance(usage, Usage) and usage.prompt_tokens - counted not in (0, sent):
        what = f"{sent} prompt ids were sent and the engine counts {usage.prompt_tokens - counted}"
        remedy = "it adds or cuts tokens (a second start token?): serve a build that takes ids as they are"
        return [Finding("token ids", State.FAILED, what, remedy)]
    decoded = bench.policy.tokenizer.decode(whole.token_ids)
    if decoded != whole.text:
        remedy = "the engine's text is not the text of its ids: it must be decoded from ids"
        what = f"text ends in {whole.text[-30:]!r}, its ids decode to {decoded[-30:]!r}"
        return [Finding("token ids", State.FAILED, what, remedy)]
    cut = len(whole.token_ids) // 2
    if not cut:
        return [Finding("token ids", State.UNKNOWN, "the greedy rollout is too short to be cut")]
    head, tail = whole.token_ids[:cut], whole.token_ids[cut:]
    (rest,) = await bench.sample(
        bench.request(0, "continue", after=head, temperature=0.0, max_tokens=len(tail))
    )
    if rest.token_ids == tail:
        return [Finding("token ids", State.OK, f"{cut} sampled ids were continued as the same ids")]
    same = _first_difference(rest.token_ids, tail)
    what = (
        f"continued from its first {cut} ids, the greedy rollout goes another way at token {same} after them"
    )
    remedy = (
        "the engine changes the ids it is given (re-tokenises, adds a start token, cuts the prompt): serve a "
        "build that takes prompts as token ids"
    )
    if not bench.policy.deterministic and same > 0:
        return [
            Finding(
                "token ids",
                State.WARNING,
                what,
                "rounding can do that where two tokens are close; run the check again, and distrust the engine where "
                "it happens every time",
            )
        ]
    return [Finding("token ids", State.FAILED, what, remedy)]


async def _drift(bench: Bench, policy: OpenAIPolicy) -> Finding:
    requests = [bench.request(n % len(bench.problems), "drift", n) for n in range(8)]
    drift = await policy.check_drift(requests)
    if not drift.checked:
        return Finding(
            "token ids",
            State.WARNING,
            "a text endpoint that counts no tokens: whether it continues what it sampled is not known",
            "use vllm_server where the server is vLLM",
        )
    what = f"a text endpoint: {drift.drifted} of {drift.checked} continuations began from other tokens than sampled"
    if drift.drifted:
        return Finding(
            "token ids",
            State.WARNING,
            what,
            "values belong to re-encoded prefixes; use vllm_server, or steps that end in newlines",
        )
    return Finding("token ids", State.OK, what)


def _first_difference(a: TokenIds, b: TokenIds) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


SAMPLING_PROBES: tuple[tuple[str, Probe], ...] = (
    ("seeds", check_seeds),
    ("sampler: greedy", check_greedy),
    ("likelihood", check_likelihood),
    ("token ids", check_continuation),
)
