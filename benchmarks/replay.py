"""Labelling methods on real rollouts: drawn without replacement from a log, judged by machine-checked first errors.

    python -m benchmarks.replay_log                    # makes the log; a part of it is enough
    python -m benchmarks.replay [FOLDER ...] [--pilot-problems 20] [--replays 3] [--readings NAME ...]
    python -m benchmarks.labeling_report

Everything runs through the package's own allocation rules and estimators. The first problems of the log are the
pilot: grid weights and thresholds are fixed on them and they count in no figure. Peers get the K of the best F1 on
the test problems themselves. A figure is the mean over some replays (orders of the log); intervals resample problems.
All rows come out of one call; with ``--readings`` some at a time, beside those that are there.
"""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.intervals import f1_at, interval, map_calibration_error, tokens_at
from benchmarks.replay_log import log_folder
from benchmarks.replay_methods import (
    Labeled,
    Logged,
    Replay,
    active_curve,
    by_rule,
    decoded,
    read_log,
    soft_threshold,
)
from stepward.flows.config import LabelConfig
from stepward.flows.pilot import GRID_ROLLOUTS
from stepward.labeling.allocation.binary_search import BinarySearch
from stepward.labeling.allocation.equal_states import EqualStatesOnce
from stepward.labeling.allocation.fixed_k import FixedK, StopAtFirstRight
from stepward.labeling.allocation.information_gain import scale_free_price
from stepward.labeling.changepoint.choice import ChosenGrid, choose_grid
from stepward.labeling.changepoint.grid import FINE_POINTS, make_grid
from stepward.labeling.changepoint.refit import refit
from stepward.labeling.evidence import LabelingConstants

OUT = Path(__file__).parent / "results" / "labeling_replay.json"
PRICES = np.concatenate([[1e30], np.geomspace(3e-2, 2e-5, 15)])
"""Nats a token; a solution has some thirty tokens, so that the product's default price is near 1e-3."""
GOAL = "grid of the product's pilot"
"""The reading whose figures have goals: what ``stepward label`` does where its pilot chooses the grid."""
PILOT_K = 16
REPLICATES = 1000
KS = (1, 2, 3, 4, 6, 8)
MORE_KS = (*KS, 12, 16)
"""Of the peers that stop early: they gain by more."""
CLOSE_F1 = 0.002
"""Two settings of a peer whose F1 differs by less are as good; the cheaper one is its best."""
RUN_PROBLEMS = (200, 1000, 5000)
"""Sizes of a run over which the product's pilot is charged."""
FRACTIONS = (0.05, 0.10, 0.15, 0.25, 0.50, 1.0)
OTHERS = ("scan", "rest_mcts", "genprm_relative", "pav")


@dataclass(frozen=True, slots=True)
class Boot:
    """Weights of each solution, [1 + B, n]: row 0 all ones, then a bootstrap over problems; and the truth."""

    weights: NDArray[np.float64]
    first_error: NDArray[np.int64]
    num_steps: NDArray[np.int64]

    @classmethod
    def of(cls, problems: Sequence[Sequence[Logged]], replicates: int = REPLICATES) -> "Boot":
        """The solutions of one problem stay together."""
        problem = np.repeat(np.arange(len(problems)), [len(p) for p in problems])
        drawn = np.random.default_rng(7).multinomial(
            len(problems), np.full(len(problems), 1 / len(problems)), replicates
        )
        solutions = [s for p in problems for s in p]
        weights = np.concatenate([np.ones((1, len(solutions))), drawn[:, problem]])
        return cls(
            weights, np.array([s.first_error for s in solutions]), np.array([s.num_steps for s in solutions])
        )

    def f1(self, labeled: Sequence[Labeled]) -> NDArray[np.float64]:
        """Mean over replays of F1, [1 + B, levels]."""
        wrong = self.first_error <= self.num_steps
        found = []
        for each in labeled:
            hit = (each.predicted == self.first_error).astype(float)
            on_wrong = self.weights @ (hit * wrong).T / (self.weights @ wrong)[:, None]
            on_right = self.weights @ (hit * ~wrong).T / (self.weights @ ~wrong)[:, None]
            found.append(2 * on_wrong * on_right / np.maximum(on_wrong + on_right, 1e-12))
        return np.mean(found, axis=0)

    def tokens(self, labeled: Sequence[Labeled], overhead: float) -> NDArray[np.float64]:
        """Mean over replays of tokens a solution, [1 + B, levels]."""
        spent = np.mean([each.tokens + overhead * each.rollouts for each in labeled], axis=0)
        return self.weights @ spent.T / self.weights.sum(axis=1, keepdims=True)

    def step_accuracy(self, labeled: Sequence[Labeled]) -> NDArray[np.float64]:
        """Share of steps on the right side of the first error, [levels]."""
        steps = np.arange(1, int(self.num_steps.max()) + 1)
        inside = steps <= self.num_steps[:, None]
        truth = steps < self.first_error[:, None]
        return np.mean(
            [[((steps < row[:, None]) == truth)[inside].mean() for row in each.predicted] for each in labeled],
            axis=0,
        )  # fmt: skip


def summary(boot: Boot, labeled: Sequence[Labeled], overhead: float) -> list[dict]:
    """One row a level: tokens, rollouts, F1 with its interval, step accuracy, MSE of V, calibration."""
    scores, tokens = boot.f1(labeled), boot.tokens(labeled, overhead)
    accuracy = boot.step_accuracy(labeled)
    rows = []
    for level in range(scores.shape[1]):
        hits = [(each.confidence[level], each.predicted[level] == boot.first_error) for each in labeled]
        known = [(c, h) for c, h in hits if not np.isnan(c).any()]
        mse = [each.value_mse[level] for each in labeled]
        rows.append(
            {
                "tokens": round(float(tokens[0, level]), 1),
                "rollouts": round(float(np.mean([each.rollouts[level] for each in labeled])), 2),
                "f1": interval(scores[:, level], 4),
                "step_accuracy": round(float(accuracy[level]), 4),
                "mse_v": None if np.isnan(mse).all() else round(float(np.nanmean(mse)), 5),
                "map_ece": round(float(np.mean([map_calibration_error(c, h) for c, h in known])), 4)
                if known
                else None,
            }
        )
    return rows


def times_fewer(
    boot: Boot, curve: Sequence[Labeled], peer: Sequence[Labeled], overhead: float, pilot_tokens: float = 0.0
) -> dict:
    """How many times fewer tokens than a peer at the peer's F1, paired over problems.

    ``pilot_tokens``: what a pilot costs a solution of the run.
    """
    mine, target = boot.f1(curve), boot.f1(peer)[:, 0]
    spent, theirs = boot.tokens(curve, overhead) + pilot_tokens, boot.tokens(peer, overhead)[:, 0]
    each = [p / tokens_at(f, t, x) for f, t, x, p in zip(mine, spent, target, theirs, strict=True)]
    reached = float(np.mean(~np.isnan(each)))
    return {
        "peer_f1": round(float(target[0]), 4),
        "peer_tokens": round(float(theirs[0]), 1),
        "times_fewer": interval(np.array(each)),
        "resamples_with_a_ratio": round(reached, 3),
    }


def best(boot: Boot, tried: dict[int, list[Labeled]]) -> int:
    """The least K of the best F1 on these very problems: generous to the peer."""
    scores = {k: boot.f1(each)[0, 0] for k, each in tried.items()}
    return min(k for k, score in scores.items() if score >= max(scores.values()) - CLOSE_F1)


def fitted(pilot: Sequence[Sequence[Logged]], points: dict[str, tuple[float, ...]]) -> LabelingConstants:
    """Grid weights by empirical Bayes on the pilot's solutions, each read by itself, PILOT_K rollouts a prefix."""
    first = make_grid(axis_points=points)
    theta = decoded(pilot, FixedK(PILOT_K), LabelingConstants(axis_points=points), pool=False, seed=99).theta
    return LabelingConstants(
        axis_weights=refit(theta, first, num_solutions=2000, rounds=300), axis_points=points
    )


def of_product(pilot: Sequence[Sequence[Logged]]) -> tuple[ChosenGrid, LabelingConstants, float, float]:
    """The product's own choice on a pilot of its own size; beside it what its rollouts cost.

    Returns:
        The choice, the constants, tokens and rollouts of the pilot.
    """
    evidence, tokens, rollouts = [], 0.0, 0.0
    for number, problem in enumerate(pilot):
        replay = Replay(problem, number, seed=99)
        replay.follow(EqualStatesOnce(FixedK(GRID_ROLLOUTS)))
        evidence.append(replay.evidence)
        tokens += replay.tokens.sum()
        rollouts += replay.rollouts.sum()
    chosen = choose_grid(evidence)
    constants = LabelingConstants(axis_weights=chosen.axis_weights, axis_points=chosen.axis_points)
    return chosen, constants, tokens, rollouts


def main() -> None:
    """Run every method over every replay and write the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", type=Path, nargs="*", default=[log_folder("default")])
    parser.add_argument("--pilot-problems", type=int, default=20)
    parser.add_argument("--replays", type=int, default=3)
    parser.add_argument("--problems", type=int, help="only so many after the pilot's")
    parser.add_argument(
        "--readings", nargs="*", help="only these of our readings; the others' figures are kept"
    )
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    problems = [p for folder in args.folders for p in read_log(folder)]
    pilot, test = problems[: args.pilot_problems], problems[args.pilot_problems :][: args.problems]
    boot, seeds = Boot.of(test), range(args.replays)
    began = time.process_time()

    def replayed(method: Callable[..., Labeled], *what: object, **options: object) -> list[Labeled]:
        return [method(test, *what, seed=seed, **options) for seed in seeds]

    chooses = pilot[: LabelConfig.model_fields["pilot_problems"].default]
    chosen, product, pilot_tokens, pilot_rollouts = of_product(chooses)
    print(
        f"the product's pilot chooses {chosen.name}: {chosen.nats:.1f} nats, {pilot_tokens:,.0f} tokens",
        flush=True,
    )
    # As the run fixes it: from one solution of each pilot problem, two digits.
    price = float(f"{scale_free_price(float(np.mean([sum(p[0].step_tokens) for p in pilot]))):.1e}")
    fine = fitted(pilot, FINE_POINTS)
    readings = {
        GOAL: (product, True, True),
        "fine grid refitted": (fine, True, True),
        "default grid": (LabelingConstants(), True, True),
        "fine grid refitted, equal states apart": (fine, False, False),
        "default grid, equal states apart": (LabelingConstants(), True, False),
    }
    fixed = {k: replayed(by_rule, FixedK(k), "math_shepherd", min_trials=1) for k in KS}
    omega, omega_once = (
        {k: replayed(by_rule, BinarySearch(k), "omegaprm", once=once) for k in MORE_KS}
        for once in (False, True)
    )
    stop, stop_once = (
        {k: replayed(by_rule, StopAtFirstRight(k), "math_shepherd", min_trials=1, once=once) for k in MORE_KS}
        for once in (False, True)
    )
    fixed_once = replayed(by_rule, FixedK(8), "math_shepherd", min_trials=1, once=True)
    soft = replayed(by_rule, FixedK(8), "math_shepherd_soft", threshold=soft_threshold(pilot))
    peers: dict[str, list[Labeled]] = {
        "Math-Shepherd K=8 hard": fixed[8],
        "Math-Shepherd K=8 soft, threshold of the pilot": soft,
        "Math-Shepherd K=8 hard, a state once": fixed_once,
        "OmegaPRM, best K": omega[best(boot, omega)],
        "OmegaPRM, best K, a state once": omega_once[best(boot, omega_once)],
        "stop at first right, best K": stop[best(boot, stop)],
        "stop at first right, best K, a state once": stop_once[best(boot, stop_once)],
    }
    peers |= {f"{name}, K=8": replayed(by_rule, FixedK(8), name) for name in OTHERS}
    report: dict = {
        "solutions": sum(map(len, test)), "problems": len(test), "pilot_problems": len(pilot),
        "replays": args.replays, "erroneous": int((boot.first_error <= boot.num_steps).sum()),
        "mean_steps": float(boot.num_steps.mean()), "omegaprm_best_k": best(boot, omega),
        "stop_best_k": best(boot, stop),
        "product_pilot": {
            "chosen": chosen.name, "nats": chosen.nats, "problems": len(chooses), "tokens": pilot_tokens,
            "rollouts": pilot_rollouts,
        },
        "axis_weights": {
            name: {k: [round(x, 4) for x in v] for k, v in constants.axis_weights.items()}
            for name, (constants, *_) in readings.items()
        },
    }  # fmt: skip
    settings = ("solutions", "problems", "pilot_problems", "replays")
    kept = json.loads(args.out.read_text()) if args.readings is not None and args.out.exists() else {}
    if all(kept.get(name) == report[name] for name in settings):
        report = {**kept, **report}
    for label, (constants, pool, share) in readings.items():
        if args.readings is not None and label not in args.readings:
            continue
        reads = {"pool": pool, "share": share}
        decoder = {k: replayed(decoded, FixedK(k), constants, **reads) for k in (2, 8)}
        rivals = {"Math-Shepherd K=8 + decoder": decoder[8], **peers}
        if share:
            # The same decoder on a peer that spends nothing twice on one state.
            rivals["Math-Shepherd K=8 + decoder, a state once"] = replayed(
                decoded, EqualStatesOnce(FixedK(8)), constants, **reads
            )
        for overhead in (0.0, 60.0):
            curve = replayed(active_curve, PRICES, constants, overhead=overhead, **reads)
            scores, tokens = boot.f1(curve), boot.tokens(curve, overhead)
            budget = float(boot.tokens(fixed[8], overhead)[0, 0])
            report[f"{label}, overhead {overhead:.0f}"] = {
                "curve": summary(boot, curve, overhead),
                "f1_at": {
                    f"{x:.0%}": interval(
                        np.array([f1_at(f, t, x * budget) for f, t in zip(scores, tokens, strict=True)]), 4
                    )
                    for x in FRACTIONS
                },
                "versus": {name: times_fewer(boot, curve, peer, overhead) for name, peer in rivals.items()},
                "peers": {
                    name: summary(boot, peer, overhead)[0]
                    for name, peer in (
                        rivals
                        | {f"Math-Shepherd K={k} + decoder": v for k, v in decoder.items()}
                        | {f"Math-Shepherd K={k} hard": v for k, v in fixed.items()}
                        | {f"OmegaPRM K={k}": v for k, v in omega.items()}
                        | {f"OmegaPRM K={k}, a state once": v for k, v in omega_once.items()}
                        | {f"stop at first right K={k}": v for k, v in stop.items()}
                    ).items()
                },
            }
            found = report[f"{label}, overhead {overhead:.0f}"]
            if share and pool:
                own = replayed(active_curve, np.array([1e30, price]), constants, overhead=overhead, **reads)
                found["at the product's price"] = {"price": price} | summary(boot, own, overhead)[1]
            if label == GOAL:
                cost = pilot_tokens + overhead * pilot_rollouts
                each = len(test) / sum(map(len, test))
                found["versus, pilot charged"] = {
                    f"{size} problems": {
                        name: times_fewer(boot, curve, rivals[name], overhead, cost / size * each)
                        for name in ("Math-Shepherd K=8 + decoder", "OmegaPRM, best K")
                    }
                    for size in RUN_PROBLEMS
                }
            args.out.write_text(json.dumps(report, indent=1) + "\n")
            print(
                f"{label}, overhead {overhead:.0f}: {time.process_time() - began:.0f} CPU seconds", flush=True
            )


if __name__ == "__main__":
    main()
