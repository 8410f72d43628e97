"""What probes of an engine work on, and what they find."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from stepward.prm.policy import Policy, SampleRequest
from stepward.prm.prompts import PromptTemplate
from stepward.prm.seeds import derive_seed
from stepward.prm.types import Outcome, Prefix, Problem, Rollout, Sampler, TokenIds


class State(StrEnum):
    """What a finding says: fit, unfit, usable with care, or not to be found out on this engine."""

    OK = "ok"
    FAILED = "FAILED"
    WARNING = "warning"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Finding:
    """What one probe found.

    Attributes:
        probe: What was looked at.
        state: How it stands.
        what: What was seen, with figures.
        remedy: What to do about it; empty where nothing is to be done.
    """

    probe: str
    state: State
    what: str
    remedy: str = ""


class Unfit(Exception):
    """A probe met an answer that is no rollout; carries the finding's text and remedy."""

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(what)
        self.what, self.remedy = what, remedy


@dataclass(frozen=True, slots=True)
class Bench:
    """What probes work on.

    Attributes:
        policy: The engine.
        template: Its prompt.
        problems: At least two, with different statements.
        prompts: Their ids, as ``template`` renders them.
        seed: Seeds of the probes come from it.
        num_tokens: Length of a probing rollout.
    """

    policy: Policy
    template: PromptTemplate
    problems: tuple[Problem, ...]
    prompts: tuple[TokenIds, ...]
    seed: int = 0
    num_tokens: int = 32

    def request(
        self,
        number: int,
        *parts: str | int,
        after: TokenIds = (),
        want_logprobs: bool = False,
        **sampler: float | int | tuple[str, ...],
    ) -> SampleRequest:
        """A request on problem ``number``; ``parts`` name its seed, ``sampler`` changes the plain sampler."""
        settings: dict[str, float | int | tuple[str, ...]] = {"max_tokens": self.num_tokens, **sampler}
        problem = self.problems[number]
        prefix = Prefix(problem.id, self.prompts[number], after, 1 if after else 0)
        seed = derive_seed(self.seed, problem.id, "check", *parts)
        return SampleRequest(prefix, Sampler(**settings), seed, want_logprobs=want_logprobs)  # type: ignore[arg-type]

    async def sample(self, *requests: SampleRequest) -> list[Rollout]:
        """The rollouts, all in flight at once.

        Raises:
            Unfit: The engine reports that it could not serve one.
        """
        rollouts = await asyncio.gather(*(self.policy.sample(r) for r in requests))
        for rollout in rollouts:
            if rollout.outcome is Outcome.ERROR:
                raise Unfit(
                    f"the engine could not serve a request: {rollout.error}",
                    "look at the engine's own log; every rollout that ends so is lost and has outcome error",
                )
        return rollouts


Probe = Callable[[Bench], Awaitable[Sequence[Finding]]]
