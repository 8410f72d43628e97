"""vLLM over HTTP: token ids in, token ids out, a seed a rollout.

Every field of the sampler is sent, so the generation config that comes with a model never applies. vLLM's text
is not used: it can lose its last characters, and ids decode the same everywhere.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from stepward.labeling.policies.admission import check_prefix, check_request
from stepward.labeling.policies.checkpoints import TOKENIZER_FILES, locate_checkpoint
from stepward.labeling.policies.completion import completed
from stepward.labeling.policies.http_pool import EngineFault, HttpPool, RequestFailed, Usage
from stepward.labeling.policies.server_models import ask_servers
from stepward.prm.errors import EngineError
from stepward.prm.policy import SampleRequest
from stepward.prm.tokenizer import JsonTokenizer, load_tokenizer
from stepward.prm.types import FinishReason, Outcome, PolicyInfo, Prefix, Rollout, TokenIds

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, eq=False)
class VllmServerPolicy:
    """A policy on one or several vLLM servers. Made by ``load_vllm_server``.

    Attributes:
        info: Name, revision and engine.
        tokenizer: The model's.
        context_length: Most tokens of prompt and completion together.
        deterministic: False: kernels round differently for different batches.
        folder: Where the tokenizer lies, for the chat template.
        version: The server's version, for the manifest; it does not tell its model runner.
        model: What requests call the model.
        block_size: Tokens a block of the servers' prefix caches, or None where they do not say.
    """

    info: PolicyInfo
    tokenizer: JsonTokenizer
    context_length: int
    deterministic: bool
    folder: Path
    version: str
    model: str
    block_size: int | None
    _pool: HttpPool

    @property
    def usage(self) -> Usage:
        """Requests, retries and tokens so far."""
        return self._pool.usage

    async def sample(self, request: SampleRequest) -> Rollout:
        """Draw one rollout; engine faults are retried with the same seed."""
        check_request(request, self.context_length, _ANY_ID)
        prefix = request.prefix
        what = f"sampling rollout {request.index} at prefix {prefix.num_steps} of problem {prefix.problem_id}"
        body = completion_body(self.model, request, self.context_length, self.tokenizer.eos_ids)
        try:
            ids, reason, logprobs = await self._pool.post(
                "/completions",
                body,
                lambda answer: self._read(answer, prefix.token_ids, what),
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
        return completed(
            request, self.tokenizer, ids, reason, logprobs=logprobs if request.want_logprobs else None
        )

    async def loglikelihood(self, prefix: Prefix, continuation: TokenIds) -> tuple[float, ...]:
        """Log-probability (natural log, temperature 1, 4 decimals) of each id of ``continuation``.

        vLLM computes these without its prefix cache.
        """
        what = f"scoring a continuation of prefix {prefix.num_steps} of problem {prefix.problem_id}"
        check_prefix(prefix, continuation, what, self.context_length - 1, _ANY_ID)
        if not continuation:
            return ()
        ids = prefix.token_ids + continuation
        body: Json = {
            "model": self.model,
            "prompt": list(ids),
            "max_tokens": 1,
            "temperature": 0.0,
            "prompt_logprobs": 0,
            "return_token_ids": True,
        }
        try:
            choice = await self._pool.post(
                "/completions",
                body,
                lambda answer: _choice(answer, what),
                session=prefix.problem_id,
                what=what,
            )
        except RequestFailed as fault:
            raise EngineError(str(fault), retryable=True) from fault
        scored = choice.get("prompt_logprobs")
        if not isinstance(scored, list) or len(cast(list[Any], scored)) != len(ids):
            raise EngineError(f"{what}: the server gave no prompt_logprobs; it must be vLLM 0.11 or later")
        start = prefix.num_tokens
        rows = cast(list[Json], scored[start:])
        try:
            return tuple(
                round(float(row[str(i)]["logprob"]), 4) + 0.0
                for row, i in zip(rows, continuation, strict=True)
            )
        except (KeyError, TypeError, ValueError) as fault:
            raise EngineError(f"{what}: prompt_logprobs do not hold the prompt's own ids") from fault

    async def close(self) -> None:
        """Close the connections; the servers go on."""
        await self._pool.close()

    def _read(
        self, answer: Json, prompt_ids: TokenIds, what: str
    ) -> tuple[TokenIds, FinishReason, tuple[float, ...] | None]:
        ids, reason, logprobs = read_choice(answer, self.model, prompt_ids, what)
        usage = cast(Json, answer.get("usage") or {})
        self._pool.usage.generated_tokens += len(ids)
        self._pool.usage.prompt_tokens += int(usage.get("prompt_tokens") or 0)
        details = cast(Json, usage.get("prompt_tokens_details") or {})
        self._pool.usage.cached_tokens += int(details.get("cached_tokens") or 0)
        return ids, reason, logprobs


_ANY_ID = 1 << 31


def load_vllm_server(
    base_url: str | Sequence[str],
    *,
    model: str | None = None,
    tokenizer: str | Path | None = None,
    revision: str | None = None,
    api_key: str | None = None,
    max_in_flight: int = 512,
    deadline_s: float = 600.0,
    most_tries: int = 5,
    pause_s: float = 0.5,
    restart_s: float = 300.0,
) -> VllmServerPolicy:
    """Connect to vLLM servers (``vllm serve`` or ``python -m vllm.entrypoints.openai.api_server``).

    Args:
        base_url: One or several (a list, or separated by commas), each ending in ``/v1``.
        model: The served name; None takes the only one.
        tokenizer: Folder or Hub id with the model's ``tokenizer.json``; None takes what the server loaded.
        revision: What rows call the weights; None takes the Hub's commit or the folder's content hash.
        api_key: Sent as a bearer token.
        max_in_flight: Most requests at once over all servers.
        deadline_s: Longest wait for one rollout.
        most_tries: Tries a request on engine faults, the first included.
        pause_s: First pause between tries.
        restart_s: Longest wait for servers that take no connection: a supervisor may start them again.

    Raises:
        EngineError: A server does not answer, refuses the key, or does not serve the model.
        ModelError: The tokenizer cannot be found.
    """
    urls = base_url.split(",") if isinstance(base_url, str) else list(base_url)
    served = ask_servers(urls, model, api_key=api_key)
    found = locate_checkpoint(tokenizer or served.root or served.name, revision, TOKENIZER_FILES)
    if served.context_length is None:
        raise EngineError(f"connecting to {served.name}: the server names no max_model_len; is it vLLM?")
    pool = HttpPool(
        urls,
        api_key=api_key,
        max_in_flight=max_in_flight,
        deadline_s=deadline_s,
        most_tries=most_tries,
        pause_s=pause_s,
        restart_s=restart_s,
    )
    return VllmServerPolicy(
        info=PolicyInfo(name=found.name, revision=revision or found.revision, engine="vllm_server"),
        tokenizer=load_tokenizer(found.folder),
        context_length=served.context_length,
        deterministic=False,
        folder=found.folder,
        version=f"vllm {served.version or 'of unknown version'}, model runner not told over HTTP",
        model=served.name,
        block_size=served.block_size,
        _pool=pool,
    )


def completion_body(model: str, request: SampleRequest, context_length: int, eos_ids: frozenset[int]) -> Json:
    """The request as vLLM's completions endpoint takes it: nothing is left to a default of server or model."""
    sampler = request.sampler
    ids = request.prefix.token_ids
    return {
        "model": model,
        "prompt": list(ids),
        "n": 1,
        "seed": request.seed,
        "max_tokens": min(sampler.max_tokens, context_length - len(ids)),
        "temperature": sampler.temperature,
        "top_p": sampler.top_p,
        "top_k": sampler.top_k,
        "min_p": sampler.min_p,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "stop": list(sampler.stop),
        "stop_token_ids": sorted(eos_ids),
        "include_stop_str_in_output": True,
        "skip_special_tokens": False,
        "return_token_ids": True,
        "logprobs": 0 if request.want_logprobs else None,
        "stream": False,
    }


def read_choice(
    answer: Json, model: str, prompt_ids: TokenIds, what: str
) -> tuple[TokenIds, FinishReason, tuple[float, ...] | None]:
    """Ids, finish reason and log-probabilities of an answer.

    Raises:
        EngineError: The answer is of another model, of another prompt, or holds no token ids.
        EngineFault: The engine aborted the request.
    """
    if answer.get("model", model) != model:
        raise EngineError(
            f"{what}: the server answered with model {answer['model']!r} where {model!r} was asked"
        )
    choice = _choice(answer, what)
    ids = choice.get("token_ids")
    if not isinstance(ids, list):
        raise EngineError(
            f"{what}: the answer holds no token_ids; the server must be vLLM 0.11 or later. For other servers use the "
            "openai engine, which works on text"
        )
    seen = choice.get("prompt_token_ids")
    if seen is not None and tuple(cast(list[int], seen)) != prompt_ids:
        raise EngineError(
            f"{what}: the server continued other ids than were sent; it must not change or cut prompts"
        )
    reason = choice.get("finish_reason")
    if reason not in (FinishReason.STOP, FinishReason.LENGTH):
        raise EngineFault("aborted", f"the engine ended the request with {reason!r}")
    logprobs = cast(Json, choice.get("logprobs") or {}).get("token_logprobs")
    rounded = (
        None if logprobs is None else tuple(round(float(x), 4) + 0.0 for x in cast(list[float], logprobs))
    )
    return tuple(cast(list[int], ids)), FinishReason(reason), rounded


def _choice(answer: Json, what: str) -> Json:
    choices = answer.get("choices")
    if not isinstance(choices, list) or len(cast(list[Any], choices)) != 1:
        raise EngineError(f"{what}: the answer holds no single choice: {str(answer)[:200]}")
    return cast(Json, choices[0])
