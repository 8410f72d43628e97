"""What a policy that draws through another one passes on."""

from pathlib import Path

from stepward.prm.policy import Policy, Tokenizer
from stepward.prm.types import PolicyInfo, Prefix, TokenIds


class Wrapped:
    """Base of policies around another: all but ``sample`` and ``close`` is the other's.

    Attributes:
        inner: The other policy.
    """

    __slots__ = ()
    inner: Policy

    @property
    def info(self) -> PolicyInfo:
        """Of the policy inside."""
        return self.inner.info

    @property
    def tokenizer(self) -> Tokenizer:
        """Of the policy inside."""
        return self.inner.tokenizer

    @property
    def context_length(self) -> int:
        """Of the policy inside, tokens."""
        return self.inner.context_length

    @property
    def deterministic(self) -> bool:
        """Of the policy inside."""
        return self.inner.deterministic

    @property
    def folder(self) -> Path | None:
        """Where the checkpoint inside lies, or None."""
        folder: object = getattr(self.inner, "folder", None)
        return folder if isinstance(folder, Path) else None

    @property
    def version(self) -> str | None:
        """Of the engine inside, where its draws depend on it."""
        version: object = getattr(self.inner, "version", None)
        return version if isinstance(version, str) else None

    async def loglikelihood(self, prefix: Prefix, continuation: TokenIds) -> tuple[float, ...]:
        """Of the policy inside: log probabilities of T tokens, nats."""
        return await self.inner.loglikelihood(prefix, continuation)
