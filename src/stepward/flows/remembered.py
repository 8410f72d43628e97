"""A policy that remembers what it drew, so that a pilot's prices share rollouts."""

from dataclasses import dataclass, field
from pathlib import Path

from stepward.prm.policy import Policy, SampleRequest, Tokenizer
from stepward.prm.types import PolicyInfo, Prefix, Rollout, TokenIds


@dataclass(slots=True)
class Remembered:
    """Draws through another policy, and every request only once.

    Attributes:
        inner: Who draws.
        tokens: Tokens that were really sampled.
    """

    inner: Policy
    tokens: int = 0
    _drawn: dict[SampleRequest, Rollout] = field(default_factory=dict[SampleRequest, Rollout])

    @property
    def info(self) -> PolicyInfo:
        """Of the other policy."""
        return self.inner.info

    @property
    def tokenizer(self) -> Tokenizer:
        """Of the other policy."""
        return self.inner.tokenizer

    @property
    def context_length(self) -> int:
        """Of the other policy."""
        return self.inner.context_length

    @property
    def deterministic(self) -> bool:
        """Of the other policy."""
        return self.inner.deterministic

    @property
    def folder(self) -> Path | None:
        """Where the other policy's checkpoint lies, if it has one."""
        found: object = getattr(self.inner, "folder", None)
        return found if isinstance(found, Path) else None

    async def sample(self, request: SampleRequest) -> Rollout:
        """The rollout that this very request got before, or a new one."""
        if request not in self._drawn:
            rollout = await self.inner.sample(request)
            self.tokens += len(rollout.token_ids)
            self._drawn[request] = rollout
        return self._drawn[request]

    async def loglikelihood(self, prefix: Prefix, continuation: TokenIds) -> tuple[float, ...]:
        """Of the other policy."""
        return await self.inner.loglikelihood(prefix, continuation)

    async def close(self) -> None:
        """Forget; the other policy stays open, for the run."""
        self._drawn.clear()
