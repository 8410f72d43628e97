"""What the grid that a pilot chooses does on policies that the simulator makes: help where the default does not fit,
and no harm where it does.

python -m benchmarks.pilot_grid        # about a CPU minute

For each scenario three pilots of 16 problems, 8 solutions each, with 8 rollouts at every prefix choose a grid
(``choose_grid``, as ``stepward label`` does); pooled change-point labels of 1,600 other solutions are then scored.
"""

import numpy as np

from benchmarks.active import run
from benchmarks.report import Row, write
from benchmarks.simulator import Sample, f1, simulate
from stepward.labeling.changepoint.choice import choose_grid
from stepward.labeling.changepoint.grid import Grid, make_grid
from stepward.labeling.evidence import SolutionEvidence
from stepward.prm.types import Outcome

SCENARIOS = ("base", "clean", "rho20", "corr", "phi15")
TEST_SEED, PILOT_SEEDS = 1010, (1020, 1021, 1022)
PROBLEMS, SOLUTIONS, ROLLOUTS = 16, 8, 8
PRICES = np.geomspace(1e-3, 1e-5, 7)
SHARE = 0.1


def evidence(sample: Sample, seed: int) -> list[list[SolutionEvidence]]:
    """ROLLOUTS at every inner prefix of each solution, by problem."""
    rng = np.random.default_rng(seed)

    def drawn(chance: float) -> tuple[Outcome, ...]:
        return tuple(Outcome.RIGHT if rng.random() < chance else Outcome.WRONG for _ in range(ROLLOUTS))

    problems: dict[int, list[SolutionEvidence]] = {}
    for i, (problem, steps) in enumerate(
        zip(sample.problem.tolist(), sample.num_steps.tolist(), strict=True)
    ):
        draws = ((), *(drawn(sample.chance[i, t]) for t in range(1, steps)), ())
        own = Outcome.RIGHT if sample.right[i] else Outcome.WRONG
        problems.setdefault(problem, []).append(SolutionEvidence(steps, (50,) * steps, own, draws))
    return list(problems.values())


def score(sample: Sample, grid: Grid) -> float:
    """F1 at SHARE of the tokens of Math-Shepherd with K = 8, between the prices beside it."""
    whole = 8 * np.mean([sample.rest[i, 1:steps].sum() for i, steps in enumerate(sample.num_steps.tolist())])
    curve = run(sample, PRICES, grid, 3, pooled=True)
    scores = [f1(sample.first_error, predicted, sample.num_steps) for predicted in curve.predicted]
    return float(np.interp(SHARE, curve.tokens.mean(axis=1) / whole, scores))


def main() -> None:
    """Score every scenario under the default grid and under the pilots'."""
    rows: list[Row] = []
    for name in SCENARIOS:
        test = simulate(name, 1600, TEST_SEED, SOLUTIONS)
        default = score(test, make_grid())
        scores: list[float] = []
        for seed in PILOT_SEEDS:
            chosen = choose_grid(evidence(simulate(name, PROBLEMS * SOLUTIONS, seed, SOLUTIONS), seed))
            grid = make_grid(chosen.axis_weights, axis_points=chosen.axis_points)
            scores.append(default if chosen.name == "default" else score(test, grid))
            print(
                f"{name}, pilot {seed}: {chosen.name} ({chosen.nats:.1f} nats), F1 {scores[-1]:.3f}",
                flush=True,
            )
        metric = f"pilot's grid, {name}: F1 at 10 % of Math-Shepherd's tokens, mean of three pilots (peer: default)"
        rows.append(Row(metric, round(float(np.mean(scores)), 4), round(default, 4)))
    write("labeling", rows, keep_others=True)


if __name__ == "__main__":
    main()
