"""The scripted engine: continuations that are known beforehand, for tests and for demonstrations."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

from stepward.labeling.policies.admission import check_prefix, check_request
from stepward.labeling.policies.completion import completed
from stepward.prm.errors import EngineError
from stepward.prm.policy import SampleRequest, Tokenizer
from stepward.prm.seeds import derive_seed
from stepward.prm.tokenizer import ByteTokenizer
from stepward.prm.types import FinishReason, Outcome, PolicyInfo, Prefix, Rollout, TokenIds

Script = Callable[[str, str, int], Sequence[str] | str]
"""(problem id, text of the solution so far, seed) -> the continuation, or those to choose from by the seed."""

_VOCAB_SIZE = 1 << 31


@dataclass(frozen=True, slots=True, eq=False)
class ScriptedPolicy:
    """Answers from a script. Made by ``scripted_policy``.

    Attributes:
        info: Name, revision and engine.
        tokenizer: Bytes, unless another is given.
        context_length: Most tokens of prompt and completion together.
        deterministic: True.
        calls: Every request in the order of arrival, for tests to look at.
    """

    info: PolicyInfo
    tokenizer: Tokenizer
    context_length: int
    deterministic: bool
    calls: list[SampleRequest]
    _script: Script

    async def sample(self, request: SampleRequest) -> Rollout:
        """The continuation that the script gives, cut at stop strings, ``max_tokens`` and the context as a model's is.

        A script that raises EngineError with ``retryable`` gives a rollout with outcome ``ERROR``.
        """
        check_request(request, self.context_length, _VOCAB_SIZE)
        self.calls.append(request)
        prefix = request.prefix
        so_far = self.tokenizer.decode(prefix.solution_ids)
        try:
            texts = self._script(prefix.problem_id, so_far, request.seed)
        except EngineError as fault:
            if not fault.retryable:
                raise
            return completed(
                request, self.tokenizer, (), FinishReason.ABORT, outcome=Outcome.ERROR, error=str(fault)
            )
        if isinstance(texts, str):
            texts = (texts,)
        if not texts:
            raise EngineError(
                f"sampling problem {prefix.problem_id}: the script has no continuation after {so_far[-80:]!r}"
            )
        text = texts[derive_seed(request.seed, "script") % len(texts)]
        room = self.context_length - prefix.num_tokens
        if room < request.sampler.max_tokens:
            request = replace(request, sampler=replace(request.sampler, max_tokens=room))
        return completed(request, self.tokenizer, self.tokenizer.encode(text), FinishReason.STOP)

    async def loglikelihood(self, prefix: Prefix, continuation: TokenIds) -> tuple[float, ...]:
        """Always refused: a script has no probabilities."""
        check_prefix(prefix, continuation, "scoring with a script", self.context_length, _VOCAB_SIZE)
        raise EngineError(
            "scoring with a script: it has no probabilities; use the embedded or transformers engine"
        )

    async def close(self) -> None:
        """Nothing to free."""


def scripted_policy(
    script: Script | Mapping[str, Sequence[str]],
    *,
    tokenizer: Tokenizer | None = None,
    name: str = "script",
    context_length: int = 1 << 20,
) -> ScriptedPolicy:
    """A policy that says what it is told to.

    Args:
        script: A function (problem id, solution so far, seed) -> continuation or continuations, or a table
            solution so far -> continuations. One of several is chosen by the seed alone.
        tokenizer: Bytes where None.
        name: Name in rows.
        context_length: Most tokens of prompt and completion together.
    """
    if isinstance(script, Mapping):
        table = cast(Mapping[str, Sequence[str]], script)

        def from_table(problem_id: str, so_far: str, seed: int) -> Sequence[str]:
            return table.get(so_far, ())

        script = from_table
    info = PolicyInfo(name=name, revision="", engine="scripted")
    return ScriptedPolicy(info, tokenizer or ByteTokenizer(), context_length, True, [], script)
