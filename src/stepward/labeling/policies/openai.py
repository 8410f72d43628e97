"""An OpenAI-compatible completions endpoint of any make: text in, text out.

Such an endpoint takes no token ids, so the state is text and the ids of a row are UTF-8 bytes (its tokenizer
hash says so). Continuing from text is not always continuing from what was sampled: the endpoint encodes the
joined text anew. ``check_drift`` measures how often that changes the tokens.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from stepward.labeling.policies.admission import check_request
from stepward.labeling.policies.completion import completed
from stepward.labeling.policies.http_pool import EngineFault, HttpPool, RequestFailed, Usage
from stepward.labeling.policies.server_models import ask_servers
from stepward.prm.errors import EngineError
from stepward.prm.policy import SampleRequest
from stepward.prm.tokenizer import ByteTokenizer
from stepward.prm.types import FinishReason, Outcome, PolicyInfo, Prefix, Rollout, TokenIds

Json = dict[str, Any]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Drift:
    """How often an endpoint continues other tokens than it sampled.

    Attributes:
        checked: Continuations that were compared.
        drifted: Those whose prompt had another number of tokens than prompt and sampled tokens together.
        unknown: Those for which the endpoint did not count tokens.
    """

    checked: int
    drifted: int
    unknown: int


@dataclass(frozen=True, slots=True, eq=False)
class OpenAIPolicy:
    """A policy on a text endpoint. Made by ``load_openai``.

    Attributes:
        info: Name, revision and engine (``openai``: text only).
        tokenizer: Bytes.
        context_length: In bytes, generous: the endpoint itself refuses what is too long.
        deterministic: False.
        model: What requests call the model.
        seed_bits: Seeds are folded to so many bits where the endpoint takes no more.
        stop_at_endpoint: Whether stop strings are sent. Such endpoints leave the stop string out of the text and do
            not say which they met; unsent, the text is cut here and keeps it, at the price of the tokens behind it.
    """

    info: PolicyInfo
    tokenizer: ByteTokenizer
    context_length: int
    deterministic: bool
    model: str
    seed_bits: int
    stop_at_endpoint: bool
    _pool: HttpPool

    @property
    def usage(self) -> Usage:
        """Requests, retries and tokens so far."""
        return self._pool.usage

    async def sample(self, request: SampleRequest) -> Rollout:
        """Draw one rollout from the text of the prefix; engine faults are retried with the same seed.

        ``max_tokens`` counts the endpoint's tokens, not bytes.

        Raises:
            EngineError: The sampler asks for what such an endpoint does not take (top_k, min_p), or no request
                can succeed.
        """
        check_request(request, self.context_length, 256)
        prefix, sampler = request.prefix, request.sampler
        what = f"sampling rollout {request.index} at prefix {prefix.num_steps} of problem {prefix.problem_id}"
        if sampler.top_k or sampler.min_p:
            raise EngineError(
                f"{what}: text endpoints take no top_k and no min_p, so the sampler would not be the one recorded; "
                "set both to 0, or use vllm_server"
            )
        body: Json = {
            "model": self.model,
            "prompt": self.tokenizer.decode(prefix.token_ids),
            "n": 1,
            "seed": fold_seed(request.seed, self.seed_bits),
            "max_tokens": sampler.max_tokens,
            "temperature": sampler.temperature,
            "top_p": sampler.top_p,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "stream": False,
        }
        if sampler.stop and self.stop_at_endpoint:
            body["stop"] = list(sampler.stop)
        try:
            text, reason = await self._pool.post(
                "/completions",
                body,
                lambda answer: self._read(answer, what),
                session=prefix.problem_id,
                what=what,
            )
        except RequestFailed as fault:
            if not fault.alone:
                raise EngineError(
                    f"{fault}; no server answered any request meanwhile", retryable=True
                ) from fault
            return completed(
                request, self.tokenizer, (), FinishReason.ABORT, outcome=Outcome.ERROR, error=str(fault)
            )
        ids = self.tokenizer.encode(text)
        unlimited = replace(request, sampler=replace(sampler, max_tokens=max(sampler.max_tokens, len(ids))))
        return completed(unlimited, self.tokenizer, ids, reason)

    async def loglikelihood(self, prefix: Prefix, continuation: TokenIds) -> tuple[float, ...]:
        """Always refused: a text endpoint does not score the tokens of a given text."""
        raise EngineError(
            f"scoring a continuation of problem {prefix.problem_id}: a text endpoint gives no log-probabilities of "
            "given tokens; use vllm_server or transformers"
        )

    async def check_drift(self, requests: Sequence[SampleRequest]) -> Drift:
        """Sample solutions, then continue each from its whole text, and compare the endpoint's token counts.

        Args:
            requests: Prefixes to sample from; their stop strings are left out.
        """
        checked = drifted = unknown = 0
        for request in requests:
            prompt = self.tokenizer.decode(request.prefix.token_ids)
            what = f"checking drift on problem {request.prefix.problem_id}"
            first = await self._count(prompt, request, request.sampler.max_tokens, what)
            then = await self._count(prompt + first.text, request, 1, what)
            if None in (first.prompt, first.generated, then.prompt):
                unknown += 1
                continue
            # The end token is sampled but is no text, so one token less is the same state.
            checked += 1
            joined = cast(int, first.prompt) + cast(int, first.generated)
            drifted += then.prompt not in (joined, joined - (first.reason is FinishReason.STOP))
        return Drift(checked, drifted, unknown)

    async def close(self) -> None:
        """Close the connections; the endpoint goes on."""
        await self._pool.close()

    async def _count(self, prompt: str, request: SampleRequest, max_tokens: int, what: str) -> "_Counted":
        body: Json = {
            "model": self.model,
            "prompt": prompt,
            "max_tokens": max_tokens,
            "temperature": request.sampler.temperature,
            "seed": fold_seed(request.seed, self.seed_bits),
        }

        def read(answer: Json) -> _Counted:
            text, reason = self._read(answer, what)
            usage = cast(Json, answer.get("usage") or {})
            return _Counted(text, reason, usage.get("prompt_tokens"), usage.get("completion_tokens"))

        try:
            return await self._pool.post(
                "/completions", body, read, session=request.prefix.problem_id, what=what
            )
        except RequestFailed as fault:
            raise EngineError(str(fault), retryable=True) from fault

    def _read(self, answer: Json, what: str) -> tuple[str, FinishReason]:
        choices = answer.get("choices")
        if not isinstance(choices, list) or len(cast(list[Any], choices)) != 1:
            raise EngineError(f"{what}: the answer holds no single choice: {str(answer)[:200]}")
        choice = cast(Json, choices[0])
        text, reason = choice.get("text"), choice.get("finish_reason")
        if not isinstance(text, str):
            raise EngineError(f"{what}: the answer holds no text; is it a completions endpoint?")
        if reason not in (FinishReason.STOP, FinishReason.LENGTH):
            raise EngineFault("aborted", f"the engine ended the request with {reason!r}")
        usage = cast(Json, answer.get("usage") or {})
        self._pool.usage.prompt_tokens += int(usage.get("prompt_tokens") or 0)
        self._pool.usage.generated_tokens += int(usage.get("completion_tokens") or 0)
        return text, FinishReason(reason)


@dataclass(frozen=True, slots=True)
class _Counted:
    """A completion and the endpoint's own token counts."""

    text: str
    reason: FinishReason
    prompt: int | None
    generated: int | None


def load_openai(
    base_url: str | Sequence[str],
    *,
    model: str | None = None,
    revision: str = "",
    api_key: str | None = None,
    seed_bits: int = 63,
    stop_at_endpoint: bool = False,
    max_in_flight: int = 64,
    deadline_s: float = 600.0,
    most_tries: int = 5,
    pause_s: float = 0.5,
) -> OpenAIPolicy:
    """Connect to an OpenAI-compatible completions endpoint.

    Args:
        base_url: One or several, each ending where ``/completions`` begins, usually ``/v1``.
        model: The served name; None takes the only one.
        revision: What rows call the weights; endpoints do not say.
        api_key: Sent as a bearer token.
        seed_bits: Bits of a seed that the endpoint takes: 63 for most, 31 for some.
        stop_at_endpoint: Send stop strings too, which saves tokens; the text then lacks the one that was met.
        max_in_flight: Most requests at once.
        deadline_s: Longest wait for one rollout.
        most_tries: Tries a request on engine faults.
        pause_s: First pause between tries.

    Raises:
        EngineError: The endpoint does not answer, refuses the key, or does not serve the model.
    """
    if not 16 <= seed_bits <= 63:
        raise EngineError(f"connecting to {base_url}: seed_bits {seed_bits} is not in 16..63")
    urls = base_url.split(",") if isinstance(base_url, str) else list(base_url)
    served = ask_servers(urls, model, api_key=api_key)
    if seed_bits < 63:
        _log.warning(
            "seeds are folded to %d bits for %s: among n draws at one prefix two are the same with probability "
            "n^2 / 2^%d",
            seed_bits,
            served.name,
            seed_bits + 1,
        )
    pool = HttpPool(
        urls,
        api_key=api_key,
        max_in_flight=max_in_flight,
        deadline_s=deadline_s,
        most_tries=most_tries,
        pause_s=pause_s,
    )
    return OpenAIPolicy(
        info=PolicyInfo(name=served.name, revision=revision, engine="openai"),
        tokenizer=ByteTokenizer(),
        context_length=1 << 24,
        deterministic=False,
        model=served.name,
        seed_bits=seed_bits,
        stop_at_endpoint=stop_at_endpoint,
        _pool=pool,
    )


def fold_seed(seed: int, bits: int) -> int:
    """A seed of ``bits`` bits: the high bits folded onto the low ones, so that none is lost without a trace.

    Args:
        seed: 63 bits.
        bits: Of the result; 63 changes nothing.
    """
    folded = 0
    while seed:
        folded ^= seed & ((1 << bits) - 1)
        seed >>= bits
    return folded
