"""What labelling costs beside the engine: CPU a rollout, the memory of a tree, many problems in flight.

    python -m benchmarks.bookkeeping [--out FILE]

Writes its figures to benchmarks/results/labeling_bookkeeping.json, of which ``labeling_report`` makes rows.
"""

import argparse
import asyncio
import json
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from benchmarks.simulator import MAX_STEPS, Sample, simulate
from stepward.flows.at_rest import at_rest
from stepward.flows.build import prompt_template
from stepward.labeling.allocation.information_gain import InformationGain
from stepward.labeling.annotate import annotate
from stepward.labeling.estimators.registry import make_estimator
from stepward.labeling.evidence import LabelingConstants, SolutionEvidence
from stepward.labeling.plan import Engines, Labeling
from stepward.labeling.policies.embedded import embedded_folder, load_embedded
from stepward.labeling.policies.scripted import scripted_policy
from stepward.labeling.tree import Tree
from stepward.prm.policy import Policy, SampleRequest
from stepward.prm.problems import read_problems
from stepward.prm.steps import StepFormat
from stepward.prm.types import LabelerInfo, Outcome, Problem, Rollout, Sampler
from stepward.verifiers.answer import Grader

OUT = Path(__file__).parent / "results" / "labeling_bookkeeping.json"
SEED = 60
TREE_NODES = 1_000_000
IN_FLIGHT = (20, 2000)
"""Problems at once; each way labels as many as the larger, in so many rounds. The round of median ratio counts."""
ROUNDS = 5
ENGINE_FULL = 256
"""Problems that keep the embedded engine's batch full: what ``stepward label`` has in flight by default."""


def evidence_of(sample: Sample, row: int, draws: list[list[Outcome]]) -> SolutionEvidence:
    """What the allocation reads of a simulated solution; as in a run it knows its states, which no other shares."""
    steps = int(sample.num_steps[row])
    rest = sample.rest[row, : steps + 1]
    first = 1 + row * MAX_STEPS
    return SolutionEvidence(
        steps,
        tuple(int(x) for x in rest[:-1] - rest[1:]),
        Outcome.RIGHT if sample.right[row] else Outcome.WRONG,
        tuple(tuple(d) for d in draws),
        nodes=(0, *range(first, first + steps)),
    )


def rounds_of(
    problems: int, solutions: int, rule: InformationGain
) -> tuple[list[list[SolutionEvidence]], int]:
    """What ``next_draws`` is asked while simulated problems are labelled, and the rollouts drawn."""
    sample = simulate("base", problems * solutions, SEED, solutions)
    rng = np.random.default_rng(SEED)
    rounds: list[list[SolutionEvidence]] = []
    rollouts = 0
    for first in range(0, len(sample), solutions):
        rows = range(first, first + solutions)
        draws = [[[] for _ in range(int(sample.num_steps[row]) + 1)] for row in rows]
        while True:
            rounds.append([evidence_of(sample, row, d) for row, d in zip(rows, draws, strict=True)])
            asked = rule.next_draws(rounds[-1])
            if not asked:
                break
            for draw in asked:
                right = rng.random() < sample.chance[first + draw.solution, draw.prefix]
                draws[draw.solution][draw.prefix].append(Outcome.RIGHT if right else Outcome.WRONG)
            rollouts += len(asked)
    return rounds, rollouts


def cpu_a_rollout(problems: int, solutions: int, *, compiled: bool, repeats: int = 5) -> float:
    """CPU milliseconds of ``next_draws`` a rollout: each round's least of some repeats, which leaves out noise."""
    rule = InformationGain(compiled=compiled, pool=solutions > 1)
    rounds, rollouts = rounds_of(problems, solutions, InformationGain(compiled=True, pool=solutions > 1))
    spent = 0.0
    for evidence in rounds:
        least = float("inf")
        for _ in range(repeats):
            began = time.thread_time()
            rule.next_draws(evidence)
            least = min(least, time.thread_time() - began)
        spent += least
    return 1000 * spent / rollouts


class AnswersLater:
    """The scripted policy, but every other problem has its turn before an answer is there, as with an engine."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    def __getattr__(self, name: str) -> Any:
        return getattr(self._policy, name)

    async def sample(self, request: SampleRequest) -> Rollout:
        await asyncio.sleep(0)
        return await self._policy.sample(request)


def cpu_a_problem(problems: int, in_flight: int) -> float:
    """CPU milliseconds a problem of ``annotate`` with a scripted policy, a solution each: no engine hides anything."""
    texts = [f"2 + {i} = {2 + i}\n" * steps + "The answer is 6." for steps in (2, 4, 7) for i in (2, 4)]
    texts += [t.replace("is 6", "is 7") for t in texts]
    policy = cast(
        Policy,
        AnswersLater(
            scripted_policy(lambda problem_id, so_far, seed: texts if not so_far else texts[-1:] + texts[:1])
        ),
    )
    engines = Engines(policy, policy, lambda p: policy.tokenizer.encode(p.text + "\n"), Grader())
    asked = [Problem(f"p{number}", "What is 2 + 2 + 2?", ("6",)) for number in range(problems)]
    return 1000 * asyncio.run(labelled(asked, engines, Sampler(max_tokens=400), 1e-4, in_flight)) / problems


def engine_cpu_a_problem(problems: int, in_flight: int) -> float:
    """The same with the embedded engine on generated problems; its prefix cache holds all of them."""
    policy = load_embedded(prefix_cache_mib=2048)
    template = prompt_template(None, embedded_folder())
    engines = Engines(policy, policy, lambda p: template.render(p, policy.tokenizer).ids, Grader())
    asked = list(
        islice(read_problems(f"generator:{problems}?split=held_out&level=demo&seed={SEED}"), problems)
    )

    async def label() -> float:
        try:
            return await labelled(asked, engines, Sampler(temperature=0.8, max_tokens=64), 4e-3, in_flight)
        finally:
            await policy.close()

    return 1000 * asyncio.run(label()) / problems


async def labelled(
    problems: Sequence[Problem], engines: Engines, sampler: Sampler, price: float, in_flight: int
) -> float:
    """CPU seconds of labelling problems, so many at once."""
    info = replace(engines.policy.info, sampler=sampler)
    rule = InformationGain(constants=LabelingConstants(price=price), compiled=True)
    plan = Labeling(
        num_solutions=1, sampler=sampler, rollout_sampler=sampler, step_format=StepFormat(), allocation=rule,
        estimator=make_estimator("changepoint", allocation=rule.kind), seed=0,
        labeler=LabelerInfo("changepoint", "1", ""), policy_info=info, completer_info=info,
    )  # fmt: skip
    places = asyncio.Semaphore(in_flight)

    async def one(problem: Problem) -> None:
        async with places:
            await annotate(problem, plan, engines)

    with at_rest():  # as ``stepward label`` does
        began = time.process_time()
        async with asyncio.TaskGroup() as group:
            for problem in problems:
                group.create_task(one(problem))
        return time.process_time() - began


def grow_tree(nodes: int) -> None:
    """A tree of that many nodes of twenty tokens, four children each; run in a process of its own."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    tree, began = Tree("p", range(40)), time.process_time()
    for node in range(1, nodes):
        tree.add_child((node - 1) // 4, range(node, node + 20), seed=node)
    print(json.dumps({
        "nodes": len(tree), "gib": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**20,
        "microseconds_a_node": 1e6 * (time.process_time() - began) / nodes,
    }))  # fmt: skip


def main() -> None:
    """Measure all three and write the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tree", type=int, help="only grow a tree of so many nodes")
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    if args.tree:
        grow_tree(args.tree)
        return
    figures: dict = {"cpu_ms_a_rollout": {}, "cpu_ms_a_problem_in_flight": {}}
    # First: a process begins with the most memory that its parent ever had.
    command = [sys.executable, "-m", "benchmarks.bookkeeping", "--tree", str(TREE_NODES)]
    figures["tree"] = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    torch.set_num_threads(1)
    for solutions, problems in ((1, 60), (4, 12), (8, 8)):
        figures["cpu_ms_a_rollout"][f"compiled, {solutions} solutions"] = cpu_a_rollout(
            problems, solutions, compiled=True
        )
    figures["cpu_ms_a_rollout"]["numpy, 8 solutions"] = cpu_a_rollout(2, 8, compiled=False, repeats=2)
    cpu_a_problem(20, 20)  # imports and compilation are no problem's
    few, many = IN_FLIGHT
    pairs = [(cpu_a_problem(many, many), cpu_a_problem(many, few)) for _ in range(ROUNDS)]
    # Both ways label the same problems right after each other: a machine that slows down slows both.
    with_many, with_few = sorted(pairs, key=lambda pair: pair[0] / pair[1])[ROUNDS // 2]
    figures["cpu_ms_a_problem_in_flight"] = {str(few): with_few, str(many): with_many}
    figures["cpu_ratio_of_each_round"] = [m / f for m, f in pairs]
    figures["engine_cpu_ms_a_problem_in_flight"] = {
        str(number): min(engine_cpu_a_problem(many, number) for _ in range(2))
        for number in (ENGINE_FULL, many)
    }
    args.out.write_text(json.dumps(figures, indent=1) + "\n")
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
