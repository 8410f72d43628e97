"""A policy that remembers what it drew, so that a pilot's prices share rollouts."""

from dataclasses import dataclass, field

from stepward.labeling.policies.wrapped import Wrapped
from stepward.prm.policy import Policy, SampleRequest
from stepward.prm.types import Rollout


@dataclass(slots=True)
class Remembered(Wrapped):
    """Draws through another policy, and every request only once.

    Attributes:
        inner: Who draws.
        tokens: Tokens that were really sampled.
    """

    inner: Policy
    tokens: int = 0
    _drawn: dict[SampleRequest, Rollout] = field(default_factory=dict[SampleRequest, Rollout])

    async def sample(self, request: SampleRequest) -> Rollout:
        """The rollout that this very request got before, or a new one."""
        if request not in self._drawn:
            rollout = await self.inner.sample(request)
            self.tokens += len(rollout.token_ids)
            self._drawn[request] = rollout
        return self._drawn[request]

    async def close(self) -> None:
        """Forget; the other policy stays open, for the run."""
        self._drawn.clear()
