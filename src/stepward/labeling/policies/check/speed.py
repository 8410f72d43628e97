"""Probes of cost: prefix-cache hits where an engine counts them, and tokens a second."""

import time

from stepward.labeling.policies.check.findings import Bench, Finding, Probe, State
from stepward.labeling.policies.http_pool import Usage
from stepward.labeling.policies.transformers import TransformersPolicy

_BLOCK = 16  # vLLM's block size on GPU
_FLIGHT = 32


async def check_prefix_cache(bench: Bench) -> list[Finding]:
    """A prefix that was just computed is not computed again."""
    (grown,) = await bench.sample(bench.request(0, "cache", temperature=0.0))
    after = grown.token_ids[:-1]
    length = len(bench.prompts[0]) + len(after)
    again = [bench.request(0, "cache", i, after=after, max_tokens=2) for i in range(4)]
    policy = bench.policy
    if isinstance(policy, TransformersPolicy):
        await bench.sample(again[0])
        before = policy.decoder.prefilled_tokens
        await bench.sample(*again[1:])
        computed, asked = policy.decoder.prefilled_tokens - before, 3 * length
        possible = (length - 1) / length
    else:
        usage: object = getattr(policy, "usage", None)
        if not isinstance(usage, Usage):
            return [Finding("prefix cache", State.UNKNOWN, "the engine counts no cached tokens")]
        await bench.sample(again[0])
        asked_before, cached_before = usage.prompt_tokens, usage.cached_tokens
        for request in again[1:]:  # One after another, so that each finds the one before it in the cache.
            await bench.sample(request)
        asked = usage.prompt_tokens - asked_before
        computed = asked - (usage.cached_tokens - cached_before)
        possible = (length - 1) // _BLOCK * _BLOCK / length
        if not usage.cached_tokens and policy.info.engine == "openai":
            return [Finding("prefix cache", State.UNKNOWN, "the endpoint counts no cached tokens")]
    if not asked or not possible:
        return [Finding("prefix cache", State.UNKNOWN, f"a prefix of {length} tokens is less than one block")]
    share = 1 - computed / asked
    what = f"{share:.0%} of a repeated prefix came from the cache ({possible:.0%} possible in blocks of {_BLOCK})"
    if isinstance(policy, TransformersPolicy):
        what = f"{share:.0%} of a repeated prefix came from the cache"
    if share < 0.5 * possible:
        remedy = (
            "every rollout pays for its prompt again: start the server with --enable-prefix-caching and "
            "--enable-prompt-tokens-details (without it no hits are reported), and give it room for the cache"
        )
        return [Finding("prefix cache", State.WARNING, what, remedy)]
    return [Finding("prefix cache", State.OK, what)]


async def check_throughput(bench: Bench) -> list[Finding]:
    """Tokens a second with a few requests in flight; a figure, not a verdict."""
    asked = [
        bench.request(i % len(bench.problems), "speed", i, max_tokens=2 * bench.num_tokens)
        for i in range(_FLIGHT)
    ]
    began = time.perf_counter()
    rollouts = await bench.sample(*asked)
    seconds = max(1e-9, time.perf_counter() - began)
    tokens = sum(len(r.token_ids) for r in rollouts)
    what = f"{tokens / seconds:,.0f} tokens/s with {_FLIGHT} in flight ({tokens:,} tokens in {seconds:.1f} s)"
    if not tokens:
        remedy = "all completions are empty: the prompt may end the turn; look at it with --prompt"
        return [Finding("throughput", State.FAILED, what, remedy)]
    return [Finding("throughput", State.OK, what)]


SPEED_PROBES: tuple[tuple[str, Probe], ...] = (
    ("prefix cache", check_prefix_cache),
    ("throughput", check_throughput),
)
