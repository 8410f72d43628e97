"""vLLM in process: the async engine, all problems in flight, prefix caching on. The only file that imports vllm.

When the engine dies, it is started again a bounded number of times and what was in flight is sampled again from
the same seeds, in smaller groups, until a request that kills it alone is known and reported.
"""

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from stepward.labeling.policies.admission import check_prefix, check_request
from stepward.labeling.policies.checkpoints import locate_checkpoint
from stepward.labeling.policies.completion import completed
from stepward.labeling.policies.http_pool import Usage
from stepward.prm.errors import EngineError, ModelError
from stepward.prm.policy import SampleRequest, Tokenizer
from stepward.prm.tokenizer import JsonTokenizer, load_tokenizer
from stepward.prm.types import FinishReason, Outcome, PolicyInfo, Prefix, Rollout, TokenIds

_log = logging.getLogger(__name__)
_ANY_ID = 1 << 31


@dataclass(frozen=True, slots=True, eq=False)
class VllmPolicy:
    """A policy on vLLM's async engine. Made by ``load_vllm``.

    Attributes:
        info: Name, revision and engine.
        tokenizer: The model's.
        context_length: Most tokens of prompt and completion together.
        deterministic: False: kernels round differently for different batches.
        folder: Where the checkpoint lies, for its chat template.
        version: vLLM's version and model runner, for the manifest: seeds differ between both.
        usage: Requests, retries and tokens so far.
        block_size: Tokens a block of its prefix cache.
    """

    info: PolicyInfo
    tokenizer: JsonTokenizer
    context_length: int
    deterministic: bool
    folder: Path
    version: str
    usage: Usage
    block_size: int
    _engine: "RestartedEngine"

    async def sample(self, request: SampleRequest) -> Rollout:
        """Draw one rollout."""
        check_request(request, self.context_length, _ANY_ID)
        ids = request.prefix.token_ids
        params = sampling_params(request, self.tokenizer, self.context_length)
        try:
            output = await self._engine.generate(list(ids), params)
        except _Poison as fault:
            message = f"sampling problem {request.prefix.problem_id}: {fault}"
            return completed(
                request, self.tokenizer, (), FinishReason.ABORT, outcome=Outcome.ERROR, error=message
            )
        choice = output.outputs[0]
        sampled = tuple(int(i) for i in choice.token_ids)
        self.usage.requests += 1
        self.usage.prompt_tokens += len(ids)
        self.usage.cached_tokens += int(getattr(output, "num_cached_tokens", 0) or 0)
        self.usage.generated_tokens += len(sampled)
        if choice.finish_reason not in (FinishReason.STOP, FinishReason.LENGTH):
            message = f"the engine ended the request with {choice.finish_reason!r}"
            return completed(
                request, self.tokenizer, (), FinishReason.ABORT, outcome=Outcome.ERROR, error=message
            )
        logprobs = None
        if request.want_logprobs:
            rows = zip(sampled, cast(list[Any], choice.logprobs), strict=True)
            logprobs = tuple(round(float(row[i].logprob), 4) + 0.0 for i, row in rows)
        return completed(
            request, self.tokenizer, sampled, FinishReason(choice.finish_reason), logprobs=logprobs
        )

    async def loglikelihood(self, prefix: Prefix, continuation: TokenIds) -> tuple[float, ...]:
        """Log-probability (natural log, temperature 1, 4 decimals) of each id of ``continuation``.

        vLLM computes these without its prefix cache.
        """
        params_module = _module("vllm.sampling_params")
        what = f"scoring a continuation of prefix {prefix.num_steps} of problem {prefix.problem_id}"
        check_prefix(prefix, continuation, what, self.context_length - 1, _ANY_ID)
        if not continuation:
            return ()
        params = params_module.SamplingParams(
            max_tokens=1,
            temperature=0.0,
            prompt_logprobs=0,
            detokenize=False,
            output_kind=params_module.RequestOutputKind.FINAL_ONLY,
        )
        try:
            output = await self._engine.generate(list(prefix.token_ids + continuation), params)
        except _Poison as fault:
            raise EngineError(f"{what}: {fault}", retryable=True) from fault
        rows = output.prompt_logprobs[prefix.num_tokens :]
        scored = zip(continuation, rows, strict=True)
        return tuple(round(float(row[i].logprob), 4) + 0.0 for i, row in scored)

    async def close(self) -> None:
        """Shut the engine down."""
        await self._engine.close()


def sampling_params(request: SampleRequest, tokenizer: Tokenizer, context_length: int) -> Any:
    """vLLM's ``SamplingParams`` for a checked request: every field of the sampler, and the request's own seed."""
    params_module = _module("vllm.sampling_params")
    sampler = request.sampler
    return params_module.SamplingParams(
        n=1,
        seed=request.seed,
        temperature=sampler.temperature,
        top_p=sampler.top_p,
        top_k=sampler.top_k,
        min_p=sampler.min_p,
        max_tokens=min(sampler.max_tokens, context_length - request.prefix.num_tokens),
        stop=list(sampler.stop),
        stop_token_ids=sorted(tokenizer.eos_ids),
        include_stop_str_in_output=True,
        skip_special_tokens=False,
        # Its text is needed only to find stop strings; ours is decoded from the ids.
        detokenize=bool(sampler.stop),
        logprobs=0 if request.want_logprobs else None,
        output_kind=params_module.RequestOutputKind.FINAL_ONLY,
    )


def engine_prompt(prompt_ids: list[int]) -> Any:
    """The prompt as vLLM's engine itself wants it; a bare dict of ids, which older ones want, costs a thread's turn."""
    rendered = _tokens_input()
    return {"prompt_token_ids": prompt_ids} if rendered is None else rendered(prompt_ids)


@cache
def _tokens_input() -> Callable[[list[int]], Any] | None:
    try:
        return _module("vllm.inputs.engine").tokens_input
    except (ImportError, AttributeError):
        return None


def _module(name: str) -> Any:
    """A module of vLLM. It has no type stubs and is often not installed where types are checked."""
    return import_module(name)


class _Poison(Exception):
    """A request killed the engine when nothing else was in flight."""


class _Gate:
    """Lets requests in, first come first served, while fewer than ``limit`` are inside; the limit may change.

    A condition would wake every waiting task for each one that leaves: with thousands waiting that costs more than
    the engine.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.inside = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def enter(self) -> None:
        if self.inside < self.limit and not self._waiting:
            self.inside += 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.leave()
            raise

    def leave(self) -> None:
        self.inside -= 1
        self.admit()

    def admit(self) -> None:
        while self._waiting and self.inside < self.limit:
            turn = self._waiting.popleft()
            if not turn.done():
                self.inside += 1
                turn.set_result(None)


class RestartedEngine:
    """An engine that is started again when it dies.

    Args:
        start: Makes an engine with ``generate(prompt, params, request_id)`` and ``shutdown()``.
        is_death: Whether an exception means that the engine is gone.
        max_in_flight: Most requests at once; more wait.
        max_restarts: Most starts after the first.
        name: What errors call the engine.
    """

    def __init__(
        self,
        start: Callable[[], Any],
        is_death: Callable[[BaseException], bool],
        *,
        max_in_flight: int,
        max_restarts: int,
        name: str,
    ) -> None:
        self.restarts = 0
        self._start = start
        self._is_death = is_death
        self._most = max_in_flight
        self._gate = _Gate(max_in_flight)
        self._max_restarts = max_restarts
        self._name = name
        self._engine: Any = None
        self._life = 0
        self._closed = False
        self._numbers = itertools.count()

    async def generate(self, prompt_ids: list[int], params: Any) -> Any:
        """The final output for one prompt.

        Raises:
            _Poison: The request killed the engine when it was alone.
            EngineError: The engine is closed, or died too often.
        """
        while True:
            await self._gate.enter()
            try:
                engine, life = self._living()
                alone = self._gate.limit == 1
                try:
                    output = await self._last(engine, prompt_ids, params)
                    self._gate.limit = min(self._most, self._gate.limit * 2)
                    return output
                except Exception as fault:
                    if not self._is_death(fault):
                        raise EngineError(
                            f"sampling with {self._name}: {type(fault).__name__}: {fault}"
                        ) from fault
                    self._bury(life, fault)
                    if alone:
                        raise _Poison(f"it killed the engine when it was alone: {fault}") from fault
            finally:
                self._gate.leave()

    async def close(self) -> None:
        """Shut down; whatever waits is refused."""
        self._closed = True
        self._gate.limit = 1 << 62
        self._gate.admit()
        if self._engine is not None:
            self._engine.shutdown()
            self._engine = None

    def _living(self) -> tuple[Any, int]:
        if self._closed:
            raise EngineError(f"sampling with {self._name}: the engine was closed; load the policy again")
        if self._engine is None:
            if self._life > self._max_restarts:
                raise EngineError(
                    f"sampling with {self._name}: the engine died {self._life} times; see its log for the cause"
                )
            self._engine = self._start()
            self._life += 1
        return self._engine, self._life

    def _bury(self, life: int, fault: BaseException) -> None:
        """The first of a life's requests to fail counts the death; the others only come back."""
        if life != self._life or self._engine is None:
            return
        _log.warning("%s died and is started again: %s", self._name, fault)
        engine, self._engine = self._engine, None
        self.restarts += 1
        self._gate.limit = max(1, self._gate.inside // 2)
        try:
            engine.shutdown()
        except Exception as fault_of_dead:
            _log.warning("shutting the dead engine down: %s", fault_of_dead)

    async def _last(self, engine: Any, prompt_ids: list[int], params: Any) -> Any:
        output: Any = None
        stream = engine.generate(engine_prompt(prompt_ids), params, f"stepward-{next(self._numbers)}")
        async for latest in stream:
            output = latest
        if output is None:
            raise EngineError(f"sampling with {self._name}: the engine gave no output")
        return output


def load_vllm(
    name: str | Path,
    *,
    revision: str | None = None,
    max_in_flight: int = 1024,
    max_restarts: int = 3,
    **engine_arguments: Any,
) -> VllmPolicy:
    """Load a policy into vLLM in this process. The engine starts with the first request.

    Args:
        name: A folder, or a Hub id.
        revision: A commit or tag of the Hub id.
        max_in_flight: Most rollouts at once.
        max_restarts: How often a dead engine is started again.
        engine_arguments: Handed to vLLM's ``AsyncEngineArgs``, such as ``dtype`` or ``gpu_memory_utilization``.

    Raises:
        ModelError: vLLM is not installed, or the model cannot be found.
    """
    try:
        version = str(_module("vllm").__version__)
        engine_args = _module("vllm.engine.arg_utils").AsyncEngineArgs
        async_llm = _module("vllm.v1.engine.async_llm").AsyncLLM
        death = _module("vllm.v1.engine.exceptions").EngineDeadError
    except ImportError as fault:
        raise ModelError(
            f"loading {name} with vllm: {fault}; install it with pip install 'stepward[vllm]', or run a server and use "
            "vllm_server:URL"
        ) from fault
    found = locate_checkpoint(name, revision)
    # The bundled generation config would replace defaults of the sampler; vLLM's own are neutral.
    settings: dict[str, Any] = {
        "enable_prefix_caching": True,
        "generation_config": "vllm",
        "disable_log_stats": True,
    }
    if _module("vllm.platforms").current_platform.is_cpu():
        # A seeded request whose prompt is prefilled in parts ends vLLM's engine on CPU: it winds the request's
        # generator back by an offset, which torch's generator of a CPU does not have (seen with 0.32.0).
        settings["enable_chunked_prefill"] = False
    arguments = engine_args(model=str(found.folder), **(settings | engine_arguments))
    config = arguments.create_engine_config()
    runner = 2 if getattr(config, "use_v2_model_runner", False) else 1
    engine = RestartedEngine(
        lambda: async_llm.from_engine_args(arguments),
        lambda fault: isinstance(fault, death),
        max_in_flight=max_in_flight,
        max_restarts=max_restarts,
        name=f"vllm on {found.name}",
    )
    return VllmPolicy(
        info=PolicyInfo(name=found.name, revision=found.revision, engine="vllm"),
        tokenizer=load_tokenizer(found.folder),
        context_length=int(config.model_config.max_model_len),
        deterministic=False,
        folder=found.folder,
        version=f"vllm {version}, model runner V{runner}",
        usage=Usage(),
        block_size=int(config.cache_config.block_size),
        _engine=engine,
    )
