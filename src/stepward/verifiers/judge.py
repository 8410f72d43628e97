"""A judge: an LLM critic behind any ``Policy``, with k reviews a solution and a right to abstain.

Each review is sampled on its own (self-consistency); with ``meta_critique`` it goes through three turns, verify,
critique and merge (SPARK, Rahman et al. 2025, arXiv 2512.03244). Votes are counted a step at a time. A step whose
majority is less sure than the calibrated threshold gets ``UNKNOWN`` / ambiguous. A review that the engine could not
make is no vote, and too many of them make the whole unknown: a fault is never a disagreement.
"""

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from stepward.prm.errors import FormatError, InputError
from stepward.prm.policy import Policy, SampleRequest
from stepward.prm.prompts import PromptTemplate
from stepward.prm.seeds import derive_seed
from stepward.prm.types import FinishReason, Outcome, Prefix, Problem, Reason, Sampler, Verdict
from stepward.verifiers.abstention import MAJORITY, Calibrated, calibrate
from stepward.verifiers.base import register_verifier, unknown
from stepward.verifiers.critiques import (
    STAGES,
    StepVotes,
    count_votes,
    mark_of,
    prompt_source,
    prompts_hash,
    read_review,
    rendered,
)

NAME = "judge"

_EVIDENCE_CHARS = 500
AS_IS = PromptTemplate("as_is", "{{ problem }}")
"""The prompt with nothing around it, for policies that need no chat template."""


@dataclass(frozen=True, slots=True)
class Votes:
    """The votes on one solution.

    Attributes:
        steps: One a step; empty where there is no review.
        num_faults: Reviews that the engine could not make.
        fault: Why there is no verdict at all, or empty.
        reason: The verdict reason of ``fault``.
    """

    steps: tuple[StepVotes, ...] = ()
    num_faults: int = 0
    fault: str = ""
    reason: Reason = Reason.NONE


@dataclass(frozen=True, slots=True)
class Judge:
    """The verifier ``judge``.

    Attributes:
        policy: Who reviews.
        template: How a prompt is wrapped: the policy's chat template, or ``AS_IS``.
        sampler: How reviews are drawn; a temperature of 0 makes all k the same.
        num_samples: k.
        meta_critique: Each review is criticised and merged before it votes.
        thresholds: Below which the judge abstains.
        seed: With the problem and the steps it gives the seed of every draw.
        prompts: Prompt text by stage.
    """

    policy: Policy
    template: PromptTemplate = AS_IS
    sampler: Sampler = field(default_factory=lambda: Sampler(temperature=0.7, top_p=0.95, max_tokens=4096))
    num_samples: int = 8
    meta_critique: bool = False
    thresholds: Calibrated = MAJORITY
    seed: int = 0
    prompts: Mapping[str, str] = field(default_factory=lambda: {s: prompt_source(s) for s in STAGES})

    @property
    def name(self) -> str:
        """``judge``."""
        return NAME

    @property
    def version(self) -> str:
        """Reviewer, prompts, sampling and thresholds: each of them can change a verdict."""
        info = self.policy.info
        mode = "meta" if self.meta_critique else "vote"
        rest = f"{self.sampler}|{self.thresholds}|{self.template.hash}|{self.seed}"
        digest = hashlib.sha256(rest.encode()).hexdigest()[:8]
        prompts = prompts_hash(self.prompts)
        return f"1-{info.name}@{info.revision}-{mode}{self.num_samples}-{prompts}-{digest}"

    async def verify(self, problem: Problem, steps: Sequence[str]) -> list[tuple[Verdict, ...]]:
        """One verdict a step, with the majority's critique as evidence.

        Raises:
            EngineError: Where no request to the policy can succeed.
        """
        return self.verdicts(await self.votes(problem, steps), len(steps))

    def verdicts(self, votes: Votes, num_steps: int) -> list[tuple[Verdict, ...]]:
        """The verdicts that votes give, one a step; all unknown where the votes are a fault."""
        version = self.version
        if votes.fault:
            return [(unknown(NAME, version, votes.reason, votes.fault),)] * num_steps
        return [(self._verdict(step, version),) for step in votes.steps]

    async def votes(self, problem: Problem, steps: Sequence[str]) -> Votes:
        """The votes on each step, before any threshold: what ``calibrate_on`` needs."""
        if not steps:
            return Votes()
        mark = mark_of(self.seed, problem.id, steps)
        texts = await asyncio.gather(
            *(self._review(problem, steps, mark, index) for index in range(self.num_samples))
        )
        made = [text for text in texts if isinstance(text, str)]
        faults = [fault for fault in texts if isinstance(fault, Fault)]
        if 2 * len(made) <= self.num_samples:
            first = faults[0]
            said = f"{len(faults)} of {self.num_samples} reviews could not be made: {first.message}"
            return Votes(num_faults=len(faults), fault=said, reason=first.reason)
        reviews = [read_review(text, len(steps), mark) for text in made]
        return Votes(count_votes(reviews, len(steps)), len(faults))

    def _verdict(self, votes: StepVotes, version: str) -> Verdict:
        total = votes.correct + votes.incorrect + votes.silent
        count = f"{votes.correct} of {total} reviews say correct, {votes.incorrect} incorrect"
        kind = votes.kind
        if votes.confidence < self.thresholds.threshold(kind):
            return unknown(NAME, version, Reason.AMBIGUOUS, count)
        words = " ".join(votes.critique.split())[-_EVIDENCE_CHARS:]
        return Verdict(kind, NAME, version, evidence=f"{count}: {words}" if words else count)

    async def _review(self, problem: Problem, steps: Sequence[str], mark: str, index: int) -> "str | Fault":
        """One review: a draw, or with meta-critique three, each of which reads those before it."""
        texts: dict[str, str] = {}
        for stage in STAGES if self.meta_critique else STAGES[:1]:
            prompt = rendered(self.prompts[stage], problem.text, steps, mark, **texts)
            drawn = await self._draw(problem, steps, prompt, stage, index)
            if isinstance(drawn, Fault):
                return drawn
            if stage == "merge":
                return drawn
            texts["remarks" if stage == "critique" else "review"] = drawn
        return texts["review"]

    async def _draw(
        self, problem: Problem, steps: Sequence[str], prompt: str, stage: str, index: int
    ) -> "str | Fault":
        """One completion of a prompt. A thinking trace before ``</think>`` is left out."""
        try:
            ids = self.template.render(replace(problem, statement=prompt), self.policy.tokenizer).ids
        except FormatError as error:  # a step spells a control token of the judge's tokenizer
            return Fault(str(error), Reason.UNSUPPORTED)
        room = self.policy.context_length - len(ids)
        if room < self.sampler.max_tokens:
            return Fault(
                f"the prompt has {len(ids)} tokens and the review may have {self.sampler.max_tokens}; the judge's "
                f"context is {self.policy.context_length}",
                Reason.UNSUPPORTED,
            )
        request = SampleRequest(
            prefix=Prefix(problem_id=problem.id, prompt_ids=ids),
            sampler=self.sampler,
            seed=derive_seed(self.seed, NAME, problem.id, *steps, stage, index),
            index=index,
        )
        rollout = await self.policy.sample(request)
        if rollout.outcome is Outcome.TIMEOUT:
            return Fault(rollout.error or "the engine timed out", Reason.TIMEOUT)
        if rollout.outcome is Outcome.ERROR or rollout.finish_reason is FinishReason.ABORT:
            return Fault(rollout.error or "the engine failed", Reason.CRASH)
        return rollout.text.rpartition("</think>")[2]


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a review could not be made."""

    message: str
    reason: Reason


async def calibrate_on(
    judge: Judge,
    slice_: Sequence[tuple[Problem, Sequence[str], Sequence[int | None]]],
    alpha: float,
) -> Judge:
    """A judge whose thresholds were calibrated on labelled solutions, which must not be reported on.

    Args:
        judge: Its present thresholds are not read.
        slice_: Problem, steps and step labels (1 right, 0 wrong, None not known).
        alpha: Error among kept verdicts, in (0, 1), for supported and refuted each.

    Raises:
        InputError: A solution has not one label a step.
        ValueError: ``alpha`` is out of range.
    """
    for problem, steps, labels in slice_:
        if len(steps) != len(labels):
            raise InputError(
                f"calibrating the judge: problem {problem.id} has {len(steps)} steps and {len(labels)} labels; "
                "give one label a step, None where it is not known"
            )
    votes = await asyncio.gather(*(judge.votes(problem, steps) for problem, steps, _ in slice_))
    verdicts = [(s.kind, s.confidence) for found in votes for s in found.steps]
    known = [
        label for found, (_, _, labels) in zip(votes, slice_, strict=True) if found.steps for label in labels
    ]
    return replace(judge, thresholds=calibrate(verdicts, known, alpha))


@register_verifier(NAME)
def make_judge(
    *,
    policy: Policy,
    template: PromptTemplate = AS_IS,
    sampler: Sampler | None = None,
    num_samples: int = 8,
    meta_critique: bool = False,
    thresholds: Calibrated = MAJORITY,
    seed: int = 0,
) -> Judge:
    """Build the verifier; see ``Judge``.

    Raises:
        InputError: ``num_samples`` is not positive.
    """
    if num_samples < 1:
        raise InputError(f"judge: num_samples {num_samples} must be at least 1")
    made = Judge(policy, template, num_samples=num_samples, meta_critique=meta_critique)
    made = replace(made, thresholds=thresholds, seed=seed)
    return replace(made, sampler=sampler) if sampler is not None else made
