"""What search costs beside the engine, and where its time goes, on the embedded engine.

A search under a reward model that answers at once is compared with the engine alone: the very requests of the search,
sent again by a plain loop with the same number in flight. Tokens a CPU second of the process; the two take turns
and the best round of each counts, because a busy machine slows whatever runs just then. Whole solutions with the
same number in flight are beside it: they need no prefixes computed, which is the engine's cost of any step-wise search.
With the real PRM the shares of wall time in which the engine, the PRM, or neither was at work are measured.
"""

import asyncio
import time
from collections.abc import Sequence
from itertools import islice
from typing import Any
from zlib import crc32

from benchmarks.report import Row
from stepward.flows.at_rest import at_rest
from stepward.flows.build import prompt_template
from stepward.labeling.policies.embedded import embedded_folder, load_embedded
from stepward.labeling.search.registry import make_search
from stepward.labeling.search.test_time import SearchPlan, search_all
from stepward.prm.evaluation.aggregation import product
from stepward.prm.policy import SampleRequest
from stepward.prm.problems import read_problems
from stepward.prm.seeds import derive_seed
from stepward.prm.steps import StepFormat
from stepward.prm.types import Prefix, Problem, Sampler

IN_FLIGHT, WIDTH, ROUNDS = 96, 4, 3


class Instant:
    """A reward model of constant time: a hash of the last step."""

    name = "instant"

    def score(
        self, problems: Sequence[Problem], solutions: Sequence[Sequence[str]]
    ) -> list[tuple[float, ...]]:
        return [tuple(crc32(s.encode()) % 997 / 997 for s in steps) for steps in solutions]


class Recorded:
    """A policy that keeps what it is asked and counts what it gives."""

    def __init__(self, policy: Any) -> None:
        self.policy, self.requests, self.tokens = policy, list[SampleRequest](), 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.policy, name)

    async def sample(self, request: SampleRequest) -> Any:
        self.requests.append(request)
        rollout = await self.policy.sample(request)
        self.tokens += len(rollout.token_ids)
        return rollout


class Clock:
    """Wall intervals in which something was at work."""

    def __init__(self) -> None:
        self.spans: dict[str, list[tuple[float, float]]] = {"policy": [], "prm": []}

    def around(self, kind: str, work: Any) -> Any:
        def timed(*args: Any, **given: Any) -> Any:
            began = time.perf_counter()
            try:
                return work(*args, **given)
            finally:
                self.spans[kind].append((began, time.perf_counter()))

        return timed

    def share(self, kinds: Sequence[str], start: float, end: float) -> float:
        """Share of [start, end] in which any of the kinds was at work."""
        spans = sorted(s for k in kinds for s in self.spans[k])
        covered, reached = 0.0, start
        for a, b in spans:
            covered += max(0.0, b - max(a, reached))
            reached = max(reached, b)
        return covered / (end - start)


def problems_of(number: int) -> list[Problem]:
    return list(islice(read_problems(f"generator:{number}?split=held_out&level=demo&seed=78"), number))


def plan_of(budget: int) -> SearchPlan:
    method = make_search("greedy", samples=WIDTH)
    return SearchPlan(method, Sampler(max_tokens=64), StepFormat(), product, budget, 12, 0)


async def searched(policy: Any, model: Any, number: int, budget: int) -> tuple[float, float, float]:
    """CPU seconds, and start and end by the clock, of a search."""
    template = prompt_template(None, embedded_folder())
    prompts = [(p, template.render(p, policy.tokenizer).ids) for p in problems_of(number)]
    with at_rest():  # as ``stepward search`` does
        began, clock = time.process_time(), time.perf_counter()
        async for _ in search_all(prompts, plan_of(budget), policy, model, in_flight=IN_FLIGHT):
            pass
        return time.process_time() - began, clock, time.perf_counter()


async def sent(policy: Any, requests: Sequence[SampleRequest], in_flight: int) -> tuple[float, int]:
    """CPU seconds and tokens of plain requests."""
    places = asyncio.Semaphore(in_flight)

    async def one(request: SampleRequest) -> int:
        async with places:
            return len((await policy.sample(request)).token_ids)

    with at_rest():
        began = time.process_time()
        tokens = sum(await asyncio.gather(*(one(r) for r in requests)))
        return time.process_time() - began, tokens


async def overhead(number: int, budget: int) -> list[Row]:
    """Search under an instant reward model against the engine alone, in turns; the best round of each counts."""
    spent = alone_s = float("inf")
    alone_tokens, recorded = 0, Recorded(None)
    for _ in range(ROUNDS):
        recorded = Recorded(load_embedded())
        spent = min(spent, (await searched(recorded, Instant(), number, budget))[0])
        await recorded.policy.close()
        # A fresh engine: what the search left in its prefix cache is no help to the plain loop.
        alone = load_embedded()
        seconds, alone_tokens = await sent(alone, recorded.requests, IN_FLIGHT * WIDTH)
        alone_s = min(alone_s, seconds)
        await alone.close()
    whole = load_embedded()
    template = prompt_template(None, embedded_folder())
    requests = [
        SampleRequest(
            Prefix(p.id, template.render(p, whole.tokenizer).ids),
            Sampler(max_tokens=64),
            derive_seed(0, p.id, i),
            i,
        )
        for p in problems_of(number)
        for i in range(max(1, recorded.tokens // (30 * number)))
    ]
    whole_s, whole_tokens = await sent(whole, requests, IN_FLIGHT * WIDTH)
    await whole.close()
    mine = recorded.tokens / spent
    return [
        Row(
            f"tokens a CPU second, search with a constant-time PRM against the engine alone on the same "
            f"{len(recorded.requests):,} requests, {IN_FLIGHT * WIDTH} in flight",
            mine, alone_tokens / alone_s, 0.9, of_ratio=True,
        ),
        Row("  the same against whole solutions, which need no prefixes", mine, whole_tokens / whole_s),
    ]  # fmt: skip


async def shares(prm: Any, number: int, budget: int) -> list[Row]:
    """Where the wall time of a search with the real PRM goes."""
    clock = Clock()
    policy = load_embedded()
    decoder = policy.decoder
    for name in ("admit", "step"):
        setattr(decoder, name, clock.around("policy", getattr(decoder, name)))

    class Timed:
        name = prm.name
        score = staticmethod(clock.around("prm", prm.score))

    _, start, end = await searched(policy, Timed(), number, budget)
    await policy.close()
    busy = clock.share(("policy", "prm"), start, end)
    return [
        Row("share of wall time with the policy at work, real PRM", clock.share(("policy",), start, end)),
        Row("share of wall time with the PRM at work", clock.share(("prm",), start, end)),
        Row("share of wall time idle", 1 - busy, None, 0.05, lower_is_better=True),
    ]


def rows(prm_folder: str | None, number: int = 640, budget: int = 300) -> list[Row]:
    """All figures; the shares of time only where a PRM's folder is given."""
    import torch

    torch.set_num_threads(1)
    from stepward.prm.models.load import load

    found = asyncio.run(overhead(number, budget))
    if prm_folder is not None:
        found += asyncio.run(shares(load(prm_folder), number, budget))
    return found
