"""MCTSr: a child is the critique and rewrite of its parent (Zhang et al. 2024, arXiv 2406.07394).

Nodes are whole solutions. With the rewards R of a node (every visit adds one)

    Q(a) = (min R + mean R) / 2                                                     (eq. 1)
    after an expansion, up to the root:  Q'(a) = (Q(a) + max_children Q) / 2        (eq. 2)
    UCT(a) = Q(a) + c sqrt((ln N(parent) + 1) / (N(a) + eps))                       (eq. 3)

and the node of highest UCT among those that are not fully expanded is refined next; one is fully expanded that has its
number of children and a child better than itself. The paper's rewards are the model's own marks from -100 to 100,
asked with care; here a reward model gives them, in [0, 1], or whatever the caller hands in.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files

import numpy as np

from stepward.labeling.search.growth import Completion, Grower, OutOfTokens
from stepward.labeling.selection import refinement
from stepward.labeling.tree import NONE, ROOT, Tree
from stepward.prm.errors import FormatError
from stepward.prm.policy import SampleRequest
from stepward.prm.prompts import PromptTemplate
from stepward.prm.seeds import derive_seed
from stepward.prm.types import FinishReason, Outcome, Prefix, Rollout, TokenIds
from stepward.verifiers.critiques import rendered
from stepward.verifiers.judge import AS_IS

Reward = Callable[[Sequence[str]], Awaitable[float]]
"""Step texts of a whole solution -> its reward, in [0, 1]."""


def prompt_source(stage: str) -> str:
    """The prompt file of ``critique`` or ``rewrite``."""
    return (files("stepward.labeling.search") / "prompts" / f"refine_{stage}.txt").read_text(encoding="utf-8")


@dataclass(frozen=True, slots=True)
class Refinement:
    """Settings.

    Attributes:
        reward: What a solution is worth.
        iterations: Solutions that are refined.
        children: Rewrites of a solution before it counts as fully expanded.
        exploration: c.
        template: How a prompt is wrapped: the policy's chat template, or as it is.
        max_critique_tokens: Most tokens of a critique; a rewrite has the grower's ``sampler.max_tokens``.
        prompts: Prompt text by stage.
    """

    reward: Reward
    iterations: int = 8
    children: int = 2
    exploration: float = 1.4
    template: PromptTemplate = AS_IS
    max_critique_tokens: int = 512
    prompts: dict[str, str] = field(
        default_factory=lambda: {s: prompt_source(s) for s in ("critique", "rewrite")}
    )


async def refine(grower: Grower, settings: Refinement) -> Tree:
    """Grow a tree of solutions: the root's child is drawn from the bare problem, every other rewrites its parent.

    Every new solution is graded and its outcome counted at its node (a fault of ours is no value). A node's ids are
    those of its whole solution, so ``tree.prefix`` means nothing below depth 1.

    Returns:
        The tree, also where the tokens ran out. ``value_sum / visits`` is Q.
    """
    run = _Run(grower, settings)
    try:
        first = await run.first()
        for _ in range(settings.iterations if first is not None else 0):
            node = run.choose()
            if node is None:
                break
            await run.expand(node)
    except OutOfTokens:
        pass
    return grower.tree


class _Run:
    def __init__(self, grower: Grower, settings: Refinement) -> None:
        self.grower, self.tree, self.settings = grower, grower.tree, settings
        self.rewards: dict[int, list[float]] = {}
        self.tried: dict[int, int] = {}
        self.rule = refinement(settings.exploration)

    async def first(self) -> int | None:
        """A solution of the bare problem."""
        rollout = await self.grower.complete(ROOT, count=False)
        return await self._enter(ROOT, rollout.token_ids, rollout.seed, rollout.outcome)

    def choose(self) -> int | None:
        """The open node of highest UCT; ties go to the earlier one."""
        open_nodes = [n for n in range(1, len(self.tree)) if not self._is_full(n)]
        if not open_nodes:
            return None
        scores = [float(self.rule(self.tree, self._parent(n), [n])[0]) for n in open_nodes]
        return open_nodes[int(np.argmax(scores))]

    async def expand(self, node: int) -> None:
        """Critique and rewrite a solution, reward the rewrite and the solution again, and update Q upwards."""
        number = self.tried.get(node, 0)
        self.tried[node] = number + 1
        child = await self._rewritten(node, number)
        if child is not None:
            await self._reward(node)
            self._update(node)

    def _is_full(self, node: int) -> bool:
        better = any(self.tree.mean(c) > self.tree.mean(node) for c in self.tree.children(node))
        tried = self.tried.get(node, 0)
        # One that nothing improves is given up after twice its children: the paper does not say when.
        return (tried >= self.settings.children and better) or tried >= 2 * self.settings.children

    def _parent(self, node: int) -> int:
        parent = int(self.tree.parent[node])
        return parent if parent not in (ROOT, NONE) else node

    async def _rewritten(self, node: int, number: int) -> int | None:
        steps = self._steps(node)
        critique = await self._say("critique", node, number, steps, self.settings.max_critique_tokens)
        if critique is None:
            return None
        review = self.grower.policy.tokenizer.decode(critique[0]).rpartition("</think>")[2].strip()
        rewrite = await self._say(
            "rewrite", node, number, steps, self.grower.sampler.max_tokens, review=review
        )
        if rewrite is None:
            return None
        ids, seed, reason = rewrite
        text = self.grower.policy.tokenizer.decode(ids)
        problem = self.grower.problem
        outcome = await self.grower.grade(problem, text, reason)
        whole = Rollout(problem.id, 0, number, seed, ids, text, reason, outcome=outcome)
        # By the node that it rewrites: the draw is from a prompt of its own, and no state of the problem.
        self.grower.completions.append(Completion(node, number, whole, is_draw=False))
        return await self._enter(node, ids, seed, outcome)

    async def _enter(self, parent: int, ids: TokenIds, seed: int, outcome: Outcome | None) -> int | None:
        if not ids or outcome is Outcome.ERROR or outcome is None:
            return None
        node, is_new = self.tree.add_child(parent, ids, seed=seed, terminal=True)
        if is_new:
            self.tree.add_outcome(node, outcome)
        await self._reward(node)
        return node

    async def _reward(self, node: int) -> None:
        """One more reward of a node: eq. 1."""
        given = self.rewards.setdefault(node, [])
        given.append(float(await self.settings.reward(self._steps(node))))
        self.tree.reward[node] = given[0]
        self._set(node, (min(given) + sum(given) / len(given)) / 2, len(given))

    def _update(self, node: int) -> None:
        """Eq. 2, from an expanded node to the first solution."""
        while node != ROOT:
            best = max((self.tree.mean(c) for c in self.tree.children(node)), default=self.tree.mean(node))
            self._set(node, (self.tree.mean(node) + best) / 2, int(self.tree.visits[node]))
            node = int(self.tree.parent[node])

    def _set(self, node: int, q: float, visits: int) -> None:
        self.tree.visits[node] = visits
        self.tree.value_sum[node] = q * visits
        self.tree.value_max[node] = max(float(self.tree.value_max[node]), q)

    def _steps(self, node: int) -> list[str]:
        pieces = self.grower.step_format.split(self.grower.policy.tokenizer.decode(self.tree.step_ids(node)))
        return [p.text for p in pieces if p.text.strip()]

    async def _say(
        self, stage: str, node: int, number: int, steps: Sequence[str], max_tokens: int, **texts: str
    ) -> tuple[TokenIds, int, FinishReason] | None:
        """(ids, seed, why it ended) of one completion of a prompt; None where it could not be made."""
        problem = self.grower.problem
        prompt = rendered(self.settings.prompts[stage], problem.text, steps, "", **texts)
        policy = self.grower.policy
        try:
            ids = self.settings.template.render(replace(problem, statement=prompt), policy.tokenizer).ids
        except FormatError:  # a step spells a control token
            return None
        if len(ids) + max_tokens > policy.context_length:
            return None
        seed = derive_seed(self.grower.seed, problem.id, stage, node, number)
        sampler = replace(self.grower.sampler, max_tokens=max_tokens)
        self.grower.meter.reserve(max_tokens)
        used = 0
        try:
            rollout = await policy.sample(SampleRequest(Prefix(problem.id, ids), sampler, seed, number))
            used = len(rollout.token_ids)
        finally:
            self.grower.meter.spend(max_tokens, used)
        failed = rollout.outcome is not None or rollout.finish_reason is FinishReason.ABORT
        return None if failed or not rollout.token_ids else (rollout.token_ids, seed, rollout.finish_reason)


def by_least_score(score: Callable[[Sequence[str]], Awaitable[Sequence[float]]]) -> Reward:
    """The reward model's lowest step score of a solution, 0 for one without steps."""

    async def reward(steps: Sequence[str]) -> float:
        return min(await score(steps), default=0.0) if steps else 0.0

    return reward
