"""One problem's search at test time: the verbs that every method is written in.

A method draws steps or whole completions at nodes of a tree, has nodes scored by a reward model, and says which
solutions it has found. No verb looks at the gold answer. Generated and scored tokens are charged to one budget that is
never exceeded: a draw starts only where the most that it and the score of its result can cost is left.

Scored tokens are the tokens of every solution prefix that is handed to the reward model, read whole each time; a
state that was scored before is looked up. As for generated tokens the prompt is not counted. Seeds name problem, node
and draw, and results are taken in the order of the requests, so the same seed gives the same search whatever else is
in flight.
"""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from stepward.labeling.search.growth import OutOfTokens, TokenMeter
from stepward.labeling.search.scoring import ScoreQueue
from stepward.labeling.together import together
from stepward.labeling.tree import ROOT, Tree
from stepward.prm.errors import EngineError, ModelError
from stepward.prm.policy import Policy, SampleRequest
from stepward.prm.seeds import derive_seed
from stepward.prm.steps import StepFormat
from stepward.prm.types import FinishReason, Outcome, Problem, Rollout, Sampler, TokenIds

UNSCORED = 0.5
"""Value of a state of which nothing is known: it neither gains nor loses by a score."""

_DIGITS = 6


@dataclass(slots=True)
class Exploration:
    """The search of one problem.

    Attributes:
        problem: The problem; its answers are not read.
        tree: Its tree.
        policy: Who samples.
        sampler: ``max_tokens`` is of a whole solution.
        step_format: Where steps end.
        seed: The run's seed.
        meter: What has been spent, generated and scored together.
        scorer: The reward model.
        doubts: A queue whose "scores" are the reward model's standard deviations, where it has any.
        max_step_tokens: Most tokens of one step.
        generated_tokens: Sampled so far.
        scored_tokens: Read by the reward model so far.
        num_draws: Draws so far.
        num_faults: Draws that the engine failed.
        num_scored: Prefixes scored so far.
        passes: How often the method began.
        found: Ended solutions that count, one entry a vote.
        frontier: What the method stands at; completed with what is left when the tokens run out.
    """

    problem: Problem
    tree: Tree
    policy: Policy
    sampler: Sampler
    step_format: StepFormat
    seed: int
    meter: TokenMeter
    scorer: ScoreQueue
    doubts: ScoreQueue | None = None
    max_step_tokens: int = 256
    generated_tokens: int = 0
    scored_tokens: int = 0
    num_draws: int = 0
    num_faults: int = 0
    num_scored: int = 0
    passes: int = 0
    found: list[int] = field(default_factory=list[int])
    frontier: list[int] = field(default_factory=list[int])
    _drawn: dict[int, int] = field(default_factory=dict[int, int])
    _scores: dict[int, tuple[float, ...]] = field(default_factory=dict[int, tuple[float, ...]])

    async def expand(
        self, wanted: Sequence[tuple[int, int]], *, block_tokens: int = 0, scored: bool = True
    ) -> list[list[int]]:
        """Draw steps at nodes; identical ones share a node.

        Args:
            wanted: (node, number of draws), all at once; a node may occur twice. Where the tokens do not hold all
                draws the nodes are served in turn.
            block_tokens: Draw blocks of so many tokens instead of steps (VGS); 0 = steps.
            scored: Keep tokens back to score what is drawn.

        Returns:
            For each entry the nodes of its draws in order. An ended solution has no draws, neither has a node at
            the limit of a solution's tokens.

        Raises:
            OutOfTokens: Not even one draw is left in the budget.
        """
        most = max((number for _, number in wanted), default=0)
        turns = [
            (entry, node)
            for turn in range(most)
            for entry, (node, number) in enumerate(wanted)
            if turn < number and not self.tree.terminal[node] and self.room(node) > 0
        ]
        separator = self.step_format.separator
        stop = (*self.sampler.stop, *((separator,) if separator and not block_tokens else ()))
        limit = block_tokens or self.max_step_tokens
        samplers = {
            node: replace(self.sampler, max_tokens=min(limit, self.room(node)), stop=stop)
            for node in {node for _, node in turns}
        }
        jobs = [(node, samplers[node]) for _, node in turns]
        children: list[list[int]] = [[] for _ in wanted]
        rollouts = await self._draw(jobs, "block" if block_tokens else "step", scored)
        for (entry, node), rollout in zip(turns, rollouts, strict=False):
            child = self._add(node, rollout, (rollout.token_ids,), stop=separator if not block_tokens else "")
            if child is not None:
                children[entry].append(child)
        return children

    async def complete(self, nodes: Sequence[int], *, scored: bool = True) -> list[int]:
        """Draw one completion at each node (a node may occur twice), a child a step.

        Args:
            nodes: Where to start.
            scored: Keep tokens back to score what is drawn.

        Returns:
            The last node of each completion in order, without failed ones; an ended node stands for itself.

        Raises:
            OutOfTokens: Not even one completion is left in the budget.
        """
        open_nodes = [n for n in nodes if self.is_open(n)]
        jobs = [(n, replace(self.sampler, max_tokens=self.room(n))) for n in open_nodes]
        rollouts = iter(await self._draw(jobs, "completion", scored) if jobs else ())
        ends: list[int] = []
        for node in nodes:
            if not self.is_open(node):
                ends.append(node)
                continue
            rollout = next(rollouts, None)
            if rollout is None:
                break
            steps = self.step_format.split_ids(rollout.token_ids, self.policy.tokenizer, rollout.logprobs)
            pieces = tuple(s.token_ids for s in steps) or (rollout.token_ids,)
            end = self._add(node, rollout, pieces, stop="")
            if end is not None:
                ends.append(end)
        return ends

    async def complete_within(self, node: int, tokens: int | None) -> list[int]:
        """One unscored completion of at most so many tokens, for the end of a budget; it may end unfinished."""
        limit = self.room(node) if tokens is None else min(tokens, self.room(node))
        whole, self.sampler = self.sampler, replace(self.sampler, max_tokens=self.length(node) + limit)
        try:
            return await self.complete([node], scored=False)
        finally:
            self.sampler = whole

    async def score(self, nodes: Sequence[int]) -> list[tuple[float, ...]]:
        """P(step is right) of every step up to each node; known states are looked up.

        Raises:
            OutOfTokens: The budget does not hold the tokens to be read; nothing was read.
            ModelError: The reward model gave something else than one number in [0, 1] a step.
        """
        missing = {
            int(self.tree.state[n]): n for n in reversed(nodes) if int(self.tree.state[n]) not in self._scores
        }
        fresh = [n for n in dict.fromkeys(nodes) if n in missing.values()]
        texts = [self.step_texts(n) for n in fresh]
        rows = await self._read(self.scorer, [(n, t) for n, t in zip(fresh, texts, strict=True) if t])
        for node, steps in zip(fresh, texts, strict=True):
            self._scores[int(self.tree.state[node])] = next(rows) if steps else ()
            self.tree.reward[node] = self.value(node)
        self.num_scored += len(fresh)
        return [self._scores[int(self.tree.state[n])] for n in nodes]

    async def deviations(self, nodes: Sequence[int]) -> list[tuple[float, ...]]:
        """Standard deviation of every step's score; read anew each time, and charged like scores.

        Raises:
            ModelError: The reward model has none.
        """
        if self.doubts is None:
            raise ModelError(
                f"{self.scorer.model.name} gives no deviation; train with the beta or ensemble head"
            )
        rows = await self._read(self.doubts, [(n, self.step_texts(n)) for n in nodes])
        return list(rows)

    async def values(self, nodes: Sequence[int]) -> list[float]:
        """The score of each node's last step: what the reward model thinks of the state."""
        return [row[-1] if row else UNSCORED for row in await self.score(nodes)]

    async def best(self, nodes: Iterable[int], number: int) -> list[int]:
        """The nodes of highest value, ties to the one drawn first; nothing is scored where all can be kept."""
        distinct = list(dict.fromkeys(nodes))
        if len(distinct) <= number:
            return distinct
        values = await self.values(distinct)
        order = sorted(range(len(distinct)), key=lambda i: (-values[i], i))
        return [distinct[i] for i in order[:number]]

    # --- what is known, at no cost ---------------------------------------------------------------------------

    def value(self, node: int) -> float:
        """The value of the node, or of the nearest scored state above it; ``UNSCORED`` where there is none."""
        scores = self.known_scores(node)
        return scores[-1] if scores else UNSCORED

    def known_scores(self, node: int) -> tuple[float, ...]:
        """Step scores of the node or of the nearest scored state above it; empty where there is none."""
        for n in reversed(self.tree.path(node)):
            if scores := self._scores.get(int(self.tree.state[n])):
                return scores
        return ()

    def is_scored(self, node: int) -> bool:
        """Whether the state itself was scored."""
        return bool(self._scores.get(int(self.tree.state[node])))

    def drawn_at(self, node: int) -> int:
        """Draws that started at the node."""
        return self._drawn.get(node, 0)

    def length(self, node: int) -> int:
        """Tokens of the solution up to a node."""
        return self.tree.length(node)

    def room(self, node: int) -> int:
        """Tokens that the solution may still have, by the sampler and by the context."""
        used = self.length(node)
        prompt = int(self.tree.ids_end[ROOT] - self.tree.ids_start[ROOT])
        return min(self.sampler.max_tokens, self.policy.context_length - prompt) - used

    def is_open(self, node: int) -> bool:
        """Whether the solution can be gone on with: it has not ended and has tokens left."""
        return not self.tree.terminal[node] and self.room(node) > 0

    def left(self) -> int | None:
        """Tokens left in the budget, None without one."""
        meter = self.meter
        return None if meter.budget is None else meter.budget - meter.generated - meter.reserved

    def text(self, node: int) -> str:
        """The solution so far."""
        return self.policy.tokenizer.decode(self.tree.prefix(node).solution_ids)

    def step_texts(self, node: int) -> list[str]:
        """The steps so far, as a reward model reads them."""
        if self.step_format.separator:
            return [p.text for p in self.step_format.split(self.text(node))]
        decode = self.policy.tokenizer.decode
        texts = (decode(self.tree.step_ids(n)).strip() for n in self.tree.path(node)[1:])
        return [t for t in texts if t]

    # --- drawing ---------------------------------------------------------------------------------------------

    async def _draw(self, jobs: Sequence[tuple[int, Sampler]], kind: str, scored: bool) -> list[Rollout]:
        """The rollouts of the first jobs that the budget holds, in waves: what a wave leaves over serves the next."""
        rollouts: list[Rollout] = []
        owed = 0
        while len(rollouts) < len(jobs):
            wave: list[tuple[int, Sampler]] = []
            reserved, left = 0, self.left()
            for node, sampler in jobs[len(rollouts) :]:
                cost = sampler.max_tokens * (2 if scored else 1) + (self.length(node) if scored else 0)
                if left is not None and owed + reserved + cost > left:
                    break
                reserved += cost
                wave.append((node, sampler))
            if not wave:
                break
            drawn = await self._wave(wave, kind, reserved)
            if scored:
                owed += sum(self.length(n) + len(r.token_ids) for (n, _), r in zip(wave, drawn, strict=True))
            rollouts += drawn
        if jobs and not rollouts:
            raise OutOfTokens
        return rollouts

    async def _wave(self, wave: Sequence[tuple[int, Sampler]], kind: str, reserved: int) -> list[Rollout]:
        requests: list[SampleRequest] = []
        # Log-probabilities cost the engine work, and only this step format is cut by them.
        doubtful = self.step_format.delimiter == "low_confidence"
        prefixes = {node: self.tree.prefix(node) for node in {node for node, _ in wave}}
        for node, sampler in wave:
            index = self._drawn.get(node, 0)
            self._drawn[node] = index + 1
            seed = derive_seed(self.seed, self.problem.id, kind, node, index)
            requests.append(SampleRequest(prefixes[node], sampler, seed, index, want_logprobs=doubtful))
        self.meter.reserve(reserved)
        rollouts: list[Rollout] = []
        try:
            rollouts = await together([self.policy.sample(r) for r in requests])
        finally:
            used = sum(len(r.token_ids) for r in rollouts)
            self.meter.spend(reserved, used)
            self.generated_tokens += used
        self.num_draws += len(rollouts)
        self.num_faults += sum(r.outcome is Outcome.ERROR for r in rollouts)
        return rollouts

    def _add(self, node: int, rollout: Rollout, pieces: Sequence[TokenIds], *, stop: str) -> int | None:
        """Put a rollout that was to end at ``stop`` below its node; None for one that the engine failed."""
        if rollout.outcome is Outcome.ERROR or rollout.finish_reason is FinishReason.ABORT:
            return None
        ends = self._ends(rollout, stop)
        if not rollout.token_ids:
            # An engine whose end token has no id: the solution ended where it stood.
            if not ends or node == ROOT:
                return None
            self.tree.terminal[node] = 1
            return node
        for k, ids in enumerate(pieces):
            last = k == len(pieces) - 1
            node, _ = self.tree.add_child(node, ids, seed=rollout.seed, terminal=ends and last)
        return node

    def _ends(self, rollout: Rollout, stop: str) -> bool:
        """Whether a rollout ends its solution: by an end token, or by stopping at something else than a step's end."""
        if set(rollout.token_ids) & self.policy.tokenizer.eos_ids:
            return True
        if rollout.finish_reason is not FinishReason.STOP:
            return False
        return not (stop and stop in rollout.text) or any(s in rollout.text for s in self.sampler.stop)

    async def _read(
        self, queue: ScoreQueue, wanted: Sequence[tuple[int, list[str]]]
    ) -> Iterator[tuple[float, ...]]:
        """Rows of a reward model for nodes with steps, charged before they are read."""
        cost = sum(self.length(n) for n, _ in wanted)
        self.meter.reserve(cost)
        try:
            rows = await asyncio.gather(*(self._row(queue, steps) for _, steps in wanted))
        finally:
            self.meter.spend(cost, cost)
            self.scored_tokens += cost
        return iter(rows)

    async def _row(self, queue: ScoreQueue, steps: list[str]) -> tuple[float, ...]:
        """One solution's scores, asked for a second time where the fault may pass. A fault is never a score."""
        try:
            row = await queue.score(self.problem, steps)
        except EngineError as fault:
            if not fault.retryable:
                raise
            row = await queue.score(self.problem, steps)
        return tuple(round(s, _DIGITS) for s in row)
