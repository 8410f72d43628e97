"""A policy that is watched: what is in flight, for how long, and what came back. It changes no rollout."""

import time
from collections import Counter, deque
from dataclasses import dataclass, field

from stepward.labeling.policies.http_pool import Usage
from stepward.labeling.policies.prefix_ceiling import CacheCeiling
from stepward.labeling.policies.wrapped import Wrapped
from stepward.prm.policy import Policy, SampleRequest
from stepward.prm.types import FinishReason, Outcome, Prefix, Rollout, TokenIds

RATE_WINDOW_S = 60.0


@dataclass(slots=True)
class Meter:
    """What passed through watched policies. Times are ``time.monotonic()``; nothing of it goes into a row.

    Attributes:
        began: When the first request was sent; None before.
        finished: Rollouts that came back.
        faults: Those of them that the engine could not serve.
        refused: Requests that ended in an exception.
        prompt_tokens: Tokens of the prefixes that were sent.
        tokens: Sampled tokens.
        finish_reasons: Rollouts by finish reason.
        likelihoods: Continuations that were scored.
        keep_s: For how long each finish is kept in ``ended``.
        ended: (time, tokens) of each rollout that ended within ``keep_s``.
    """

    began: float | None = None
    finished: int = 0
    faults: int = 0
    refused: int = 0
    prompt_tokens: int = 0
    tokens: int = 0
    finish_reasons: Counter[FinishReason] = field(default_factory=Counter[FinishReason])
    likelihoods: int = 0
    keep_s: float = RATE_WINDOW_S
    ended: deque[tuple[float, int]] = field(default_factory=deque[tuple[float, int]])
    _sent: dict[int, float] = field(default_factory=dict[int, float])
    _number: int = 0

    @property
    def in_flight(self) -> int:
        """Requests that wait for their rollout, those that the engine holds back included."""
        return len(self._sent)

    def queue_age_s(self, now: float) -> float:
        """How long the oldest request in flight has waited; 0 where there is none."""
        oldest = next(iter(self._sent.values()), None)
        return 0.0 if oldest is None else now - oldest

    def tokens_per_s(self, now: float) -> float:
        """Sampled tokens a second over the last ``keep_s`` seconds, or since the beginning."""
        self._forget(now)
        if self.began is None:
            return 0.0
        return sum(n for _, n in self.ended) / max(1e-9, min(self.keep_s, now - self.began))

    def begin(self, request: SampleRequest) -> int:
        """Note that a request is sent; gives back its number."""
        now = time.monotonic()
        self.began = now if self.began is None else self.began
        self._number += 1
        self._sent[self._number] = now
        self.prompt_tokens += len(request.prefix.prompt_ids) + len(request.prefix.solution_ids)
        return self._number

    def end(self, number: int, rollout: Rollout | None) -> None:
        """Note that a request came back; None where it ended in an exception."""
        del self._sent[number]
        if rollout is None:
            self.refused += 1
            return
        now, tokens = time.monotonic(), len(rollout.token_ids)
        self.finished += 1
        self.tokens += tokens
        self.finish_reasons[rollout.finish_reason] += 1
        self.faults += rollout.outcome is Outcome.ERROR
        self.ended.append((now, tokens))
        if self.finished % 256 == 0:
            self._forget(now)

    def _forget(self, now: float) -> None:
        while self.ended and self.ended[0][0] < now - self.keep_s:
            self.ended.popleft()


@dataclass(frozen=True, slots=True, eq=False)
class MeteredPolicy(Wrapped):
    """A policy whose requests a meter counts. Several may share one meter.

    Attributes:
        inner: The policy.
        meter: What counts.
        ceiling: Counts what its prefix cache could have saved; None where the engine tells no block size.
    """

    inner: Policy
    meter: Meter
    ceiling: CacheCeiling | None = None

    @classmethod
    def watching(cls, inner: Policy, meter: Meter) -> "MeteredPolicy":
        """The policy, watched by ``meter``."""
        size: object = getattr(inner, "block_size", None)
        return cls(inner, meter, CacheCeiling(size) if isinstance(size, int) else None)

    @property
    def usage(self) -> Usage | None:
        """What the engine inside counts of itself, or None."""
        usage: object = getattr(self.inner, "usage", None)
        return usage if isinstance(usage, Usage) else None

    def cached_share(self) -> float | None:
        """Share of prompt tokens that came from the prefix cache; None where the engine does not say.

        A server that reports no hits at all counts as silent: most leave the count out unless told otherwise.
        """
        if (computed := self._of_decoder("prefilled_tokens")) is not None:
            sent = self.meter.prompt_tokens
            return max(0.0, 1 - computed / sent) if sent else None
        usage = self.usage
        if usage is None or not usage.cached_tokens:
            return None
        return usage.cached_tokens / max(1, usage.prompt_tokens)

    def _of_decoder(self, count: str) -> int | None:
        """A count of the decoder of an engine of ours, by name: importing torch would cost every run its seconds."""
        found: object = getattr(getattr(self.inner, "decoder", None), count, None)
        return found if isinstance(found, int) else None

    def hits_of_possible(self) -> float | None:
        """Cached prompt tokens over those that a cache without limits would have had; None where it is not known."""
        computed, again = self._of_decoder("prefilled_tokens"), self._of_decoder("prefilled_again")
        if computed is not None and again is not None:
            cached = max(0, self.meter.prompt_tokens - computed)
            return cached / (cached + again) if cached + again else None
        usage = self.usage
        if (
            self.ceiling is None
            or not self.ceiling.possible_tokens
            or usage is None
            or not usage.cached_tokens
        ):
            return None
        return usage.cached_tokens / self.ceiling.possible_tokens

    async def sample(self, request: SampleRequest) -> Rollout:
        """Draw one rollout, counted."""
        number = self.meter.begin(request)
        rollout: Rollout | None = None
        if self.ceiling is not None:
            self.ceiling.ask(request.prefix.token_ids)
        try:
            rollout = await self.inner.sample(request)
            if self.ceiling is not None:
                self.ceiling.answer(request.prefix.token_ids + rollout.token_ids)
            return rollout
        finally:
            self.meter.end(number, rollout)

    async def loglikelihood(self, prefix: Prefix, continuation: TokenIds) -> tuple[float, ...]:
        """Score a continuation, counted."""
        self.meter.likelihoods += 1
        return await self.inner.loglikelihood(prefix, continuation)

    async def close(self) -> None:
        """Free the engine inside."""
        await self.inner.close()
