"""How much of an engine's own speed is left when it labels: the same requests raw, and through ``annotate``.

Runs in any interpreter that has the engine, vLLM's included. Labelling is Math-Shepherd's (4 solutions a problem,
4 rollouts at each prefix, graded). The raw engine gets the very requests that the labelling made: the same prompts,
samplers and seeds, with as many in flight as the labelling had at most.
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from stepward.labeling.allocation.registry import make_allocation
from stepward.labeling.annotate import annotate
from stepward.labeling.estimators.registry import make_estimator
from stepward.labeling.plan import Engines, Labeling
from stepward.labeling.policies.prefix_ceiling import CacheCeiling
from stepward.prm.policy import Policy, SampleRequest
from stepward.prm.problems import read_problems
from stepward.prm.prompts import chat_template, file_template
from stepward.prm.steps import StepFormat
from stepward.prm.types import LabelerInfo, Problem, Rollout, Sampler, TokenIds
from stepward.verifiers.answer import Grader


@dataclass(eq=False)
class Recorder:
    """A policy that notes what is asked of another one.

    Attributes:
        ceiling: What a prefix cache without limits could have saved; None where nobody wants to know.
    """

    policy: Any
    requests: list[SampleRequest] = field(default_factory=list)
    ceiling: CacheCeiling | None = None
    in_flight: int = 0
    most_in_flight: int = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.policy, name)

    async def sample(self, request: SampleRequest) -> Rollout:
        self.requests.append(request)
        if self.ceiling is not None:
            self.ceiling.ask(request.prefix.token_ids)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        rollout = await self.policy.sample(request)
        self.in_flight -= 1
        if self.ceiling is not None:
            self.ceiling.answer(request.prefix.token_ids + rollout.token_ids)
        return rollout


def labelling(policy: Policy, max_tokens: int, draws: int = 4) -> tuple[Labeling, Engines]:
    """Math-Shepherd's labelling with the checkpoint's own prompt."""
    folder: Path = policy.folder  # type: ignore[attr-defined]
    own = folder / "prompt.jinja"
    template = file_template(own) if own.is_file() else chat_template(folder)
    sampler = Sampler(max_tokens=max_tokens)
    allocation = make_allocation("fixed_k", num_rollouts=draws)
    info = replace(policy.info, sampler=sampler, prompt_hash=template.hash)
    plan = Labeling(
        num_solutions=4,
        sampler=sampler,
        rollout_sampler=sampler,
        step_format=StepFormat(delimiter="newline"),
        allocation=allocation,
        estimator=make_estimator("math_shepherd", allocation=allocation.kind),
        seed=0,
        labeler=LabelerInfo("math_shepherd", "1", "benchmark"),
        policy_info=info,
        completer_info=info,
        uniform_from=0,
    )
    return plan, Engines(policy, policy, partial(_ids, template, policy), Grader())


def _ids(template: Any, policy: Policy, problem: Problem) -> TokenIds:
    return template.render(problem, policy.tokenizer).ids


async def label_all(policy: Policy, problems: Sequence[Problem], max_tokens: int) -> int:
    """Tokens sampled by a labelling, all problems in flight."""
    plan, engines = labelling(policy, max_tokens)
    return sum(r.tokens for r in await asyncio.gather(*(annotate(p, plan, engines) for p in problems)))


def problems_to_label(count: int) -> list[Problem]:
    """Generated word problems."""
    return list(read_problems(f"generator:{count}"))


async def in_flight_at_most(
    count: int, requests: Sequence[SampleRequest], sample: Callable[[SampleRequest], Awaitable[int]]
) -> int:
    """Tokens of all requests, ``count`` at a time."""
    gate = asyncio.Semaphore(count)

    async def one(request: SampleRequest) -> int:
        async with gate:
            return await sample(request)

    return sum(await asyncio.gather(*(one(r) for r in requests)))


@dataclass
class Clock:
    """CPU seconds of this process and its children, and seconds on the wall."""

    cpu: float = field(default_factory=lambda: cpu_s())
    wall: float = field(default_factory=time.monotonic)

    def rates(self, tokens: int) -> tuple[float, float]:
        """(tokens a CPU second, tokens a second) since the clock was made."""
        return tokens / (cpu_s() - self.cpu), tokens / (time.monotonic() - self.wall)


def cpu_s() -> float:
    """CPU seconds so far of this process and of its living descendants (vLLM's engine is one)."""
    ticks = os.sysconf("SC_CLK_TCK")
    parents: dict[int, int] = {}
    spent: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(entry.name)] = int(fields[1])
            spent[int(entry.name)] = int(fields[11]) + int(fields[12])
    family, me = {os.getpid()}, 0
    while len(family) != me:
        me = len(family)
        family |= {pid for pid, parent in parents.items() if parent in family}
    return sum(spent[pid] for pid in family) / ticks
