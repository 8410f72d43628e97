"""What labelling costs beside the engine: CPU a rollout, the memory of a tree, many problems in flight.

    python -m benchmarks.bookkeeping [--problems 200] [--out FILE]

Writes its figures to benchmarks/results/labeling_bookkeeping.json, of which ``labeling_report`` makes rows.
"""

import time
from pathlib import Path

import numpy as np

from benchmarks.simulator import Sample, simulate
from stepward.labeling.allocation.information_gain import InformationGain
from stepward.labeling.evidence import SolutionEvidence
from stepward.prm.types import Outcome

OUT = Path(__file__).parent / "results" / "labeling_bookkeeping.json"
SEED = 60
TREE_NODES = 1_000_000
IN_FLIGHT = (20, 2000)


def evidence_of(sample: Sample, row: int, draws: list[list[Outcome]]) -> SolutionEvidence:
    """What the allocation reads of a simulated solution."""
    steps = int(sample.num_steps[row])
    rest = sample.rest[row, : steps + 1]
    return SolutionEvidence(
        steps,
        tuple(int(x) for x in rest[:-1] - rest[1:]),
        Outcome.RIGHT if sample.right[row] else Outcome.WRONG,
        tuple(tuple(d) for d in draws),
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
