"""The verbs that every search is written in: sample steps at a node, complete a node, value it.

A search holds a ``Grower`` for one problem; all problems run at the same time, and the engine's own queue keeps it
full. Seeds name problem, node and draw, so the same search gives the same tree whatever else is in flight.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np

from stepward.labeling.together import together
from stepward.labeling.tree import ROOT, Signature, Tree
from stepward.prm.policy import Policy, SampleRequest
from stepward.prm.seeds import derive_seed
from stepward.prm.steps import StepFormat
from stepward.prm.types import FinishReason, Outcome, Problem, Rollout, Sampler, TokenIds

T = TypeVar("T")

GradeText = Callable[[Problem, str, FinishReason], Awaitable[Outcome]]
"""Outcome of a whole solution text (the problem, the text, why it ended)."""


class OutOfTokens(Exception):
    """The search's token budget would be exceeded; what was grown so far stands."""


@dataclass(slots=True)
class TokenMeter:
    """Tokens of one problem's search: generated and scored, under one budget that is never exceeded.

    Attributes:
        budget: Most generated tokens, or None for no limit.
        generated: Sampled so far, failed draws included.
        reserved: Most that draws in flight may still sample.
    """

    budget: int | None
    generated: int = 0
    reserved: int = 0

    def reserve(self, tokens: int) -> None:
        """Set tokens aside for a draw.

        Raises:
            OutOfTokens: They are not left.
        """
        if self.budget is not None and self.generated + self.reserved + tokens > self.budget:
            raise OutOfTokens
        self.reserved += tokens

    def spend(self, reserved: int, used: int) -> None:
        """Turn a reservation into what was used."""
        self.reserved -= reserved
        self.generated += used


@dataclass(frozen=True, slots=True)
class Completion:
    """A whole solution that a search drew.

    Attributes:
        node: Where it goes on from.
        index: Which draw at that node.
        rollout: What was drawn, graded.
        is_draw: It is the policy's own continuation of that state; a rewrite of another solution is not.
    """

    node: int
    index: int
    rollout: Rollout
    is_draw: bool = True


@dataclass(slots=True)
class Grower:
    """Grows the tree of one problem.

    Attributes:
        problem: The problem.
        tree: Its tree.
        policy: Who samples.
        sampler: For steps and completions; ``max_tokens`` is of a whole solution.
        step_format: Where steps end.
        grade: Outcome of a whole solution.
        seed: The run's seed.
        meter: What has been spent.
        max_step_tokens: Most tokens of one step.
        completions: Every whole solution drawn so far, as they ended: sort by node and index.
    """

    problem: Problem
    tree: Tree
    policy: Policy
    sampler: Sampler
    step_format: StepFormat
    grade: GradeText
    seed: int
    meter: TokenMeter
    max_step_tokens: int = 256
    completions: list[Completion] = field(default_factory=list[Completion])

    async def expand(self, node: int, width: int) -> list[int]:
        """Draw ``width`` steps at a node; identical ones share a node.

        Returns:
            The nodes of the draws in order, without failed ones; a node occurs as often as it was drawn.

        Raises:
            OutOfTokens: The budget does not hold a step for each draw; nothing was drawn.
        """
        sampler = replace(
            self.sampler,
            max_tokens=min(self.max_step_tokens, self._left(node)),
            stop=(*self.sampler.stop, *([self.step_format.separator] if self.step_format.separator else [])),
        )
        first = int(sum(self.tree.draws[c] for c in self.tree.children(node)))
        seeds = [derive_seed(self.seed, self.problem.id, "step", node, first + i) for i in range(width)]
        rollouts = await self._draw(node, sampler, seeds)
        nodes: list[int] = []
        for rollout in rollouts:
            ids = rollout.token_ids
            if rollout.outcome is Outcome.ERROR or not ids:
                continue
            prior = float(np.exp(np.mean(rollout.logprobs))) if rollout.logprobs else 0.0
            # Not every engine gives the end token: a stop that no stop string explains is the solution's end.
            stopped = rollout.finish_reason is FinishReason.STOP and not any(
                s in rollout.text for s in sampler.stop
            )
            ends = stopped or bool(set(ids) & self.policy.tokenizer.eos_ids)
            child, _ = self.tree.add_child(node, ids, seed=rollout.seed, prior=prior, terminal=ends)
            nodes.append(child)
        return nodes

    async def complete(self, node: int, index: int = 0, *, count: bool = True) -> Rollout:
        """Draw one completion of a node to the end of the solution, grade it, and count it at the node.

        Without ``count`` the caller counts it, further down.

        A terminal node is graded as it stands, costs nothing and is counted once.

        Returns:
            The graded completion; without ids at a terminal node.

        Raises:
            OutOfTokens: The budget does not hold a completion.
        """
        seed = derive_seed(self.seed, self.problem.id, "completion", node, index)
        if self.tree.terminal[node]:
            depth = int(self.tree.depth[node])
            rollout = Rollout(self.problem.id, depth, index, seed, (), "", FinishReason.STOP)
        else:
            sampler = replace(self.sampler, max_tokens=self._left(node))
            rollout = (await self._draw(node, sampler, [seed]))[0]
        if rollout.outcome is None:
            ids = self.tree.prefix(node).solution_ids + rollout.token_ids
            text = self.policy.tokenizer.decode(ids)
            rollout = replace(rollout, outcome=await self.grade(self.problem, text, rollout.finish_reason))
        if self.tree.terminal[node] and self.tree.counts[node].any():
            return rollout
        self.completions.append(Completion(node, index, rollout))
        if count:
            self.tree.add_outcome(node, rollout.outcome or Outcome.ERROR)
        return rollout

    def step_texts(self, node: int) -> list[str]:
        """Texts of the steps up to a node, as a reward model reads them."""
        decode = self.policy.tokenizer.decode
        texts = (decode(self.tree.step_ids(n)).strip() for n in self.tree.path(node)[1:])
        return [t for t in texts if t]

    def text(self, node: int) -> str:
        """The solution so far."""
        return self.policy.tokenizer.decode(self.tree.prefix(node).solution_ids)

    def _left(self, node: int) -> int:
        return max(1, self.sampler.max_tokens - self.tree.length(node))

    async def _draw(self, node: int, sampler: Sampler, seeds: Sequence[int]) -> list[Rollout]:
        most = sampler.max_tokens * len(seeds)
        self.meter.reserve(most)
        prefix = self.tree.prefix(node)
        requests = [SampleRequest(prefix, sampler, s, i, want_logprobs=True) for i, s in enumerate(seeds)]
        rollouts: list[Rollout] = []
        try:
            rollouts = await together([self.policy.sample(r) for r in requests])
        finally:
            self.meter.spend(most, sum(len(r.token_ids) for r in rollouts))
        return rollouts


async def all_of(works: Iterable[Awaitable[T]]) -> list[T]:
    """Results in order. All are waited for before the first fault is raised, so that what was drawn is counted."""
    found = await asyncio.gather(*works, return_exceptions=True)
    results: list[T] = []
    for each in found:
        if isinstance(each, BaseException):
            raise each
        results.append(each)
    return results


def solved(rollout: Rollout) -> float | None:
    """Value of a graded completion: 1 right, 0 wrong or without an answer, None for a fault of ours."""
    outcome = rollout.outcome or Outcome.ERROR
    return None if outcome.is_fault else float(outcome is Outcome.RIGHT)


def new_tree(problem: Problem, prompt_ids: TokenIds, signature: Signature | None = None) -> Tree:
    """A tree with nothing but the bare problem; ``signature`` says which states are equal beyond their ids."""
    tree = Tree(problem.id, prompt_ids, signature)
    assert len(tree) == ROOT + 1
    return tree
