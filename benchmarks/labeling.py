"""The labelling benchmark on the simulator: change-point posterior with active allocation against its peers.

    python -m benchmarks.labeling [base pooled first evidence stress] [--n 16000] [--seeds 2] [--keep]
    python -m benchmarks.labeling_report

The first writes benchmarks/results/labeling_detail.json, a part and a seed (in ``stress`` a scenario too) at a time,
and with ``--keep`` leaves out what is there, so that it can be ended and go on; the second makes the table and the
plots of it. Peers get their best K, early stopping and a threshold tuned on other seeds. Ratios count only where
``reference`` is in tolerance. Test seeds are 1000 and up; whatever was tuned was tuned on lower ones.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.active import DECODE_ONLY, Curve, decode, run
from benchmarks.intervals import FRACTIONS, Resample, f1_at, interval, map_calibration_error, ratios
from benchmarks.peers import (
    best_omegaprm,
    early_stop,
    fixed_samples,
    greedy_genie,
    math_shepherd,
    omegaprm,
    random_prefixes,
    tuned_threshold,
)
from benchmarks.simulator import MAX_STEPS, PRECISION, RECALL, SCENARIOS, Sample, f1, simulate
from stepward.labeling.changepoint.grid import Grid, make_grid
from stepward.labeling.changepoint.hints import fit_hint
from stepward.labeling.changepoint.refit import refit
from stepward.labeling.changepoint.step_evidence import tool_likelihoods

DETAIL = Path(__file__).parent / "results" / "labeling_detail.json"
PRICES = np.concatenate([DECODE_ONLY, np.geomspace(8e-4, 1.2e-5, 35)])
LOW_PRICES = np.concatenate([PRICES, np.geomspace(1e-5, 6e-7, 12)])
LONG_PRICES = LOW_PRICES[LOW_PRICES > 1.4e-6]  # long solutions cost more a nat
PILOT_PRICE = 4.2e-5
PILOT = 2000
SIBLING_TOKENS = 7 * 590
TEST_SEED, TUNE_SEED = 1000, 10
REFERENCE = {
    "tokens_math_shepherd_k8": (34000, 0.05, "relative"),
    "math_shepherd_k8_hard": (0.517, 0.025, "absolute"),
    "math_shepherd_k8_soft_tuned": (0.637, 0.025, "absolute"),
    "math_shepherd_k8_samples_changepoint_decoder": (0.741, 0.025, "absolute"),
    "omegaprm_early_stop_best_k2_at_about_1000_tokens": (0.527, 0.025, "absolute"),
}


def tool_evidence(sample: Sample, precision: float = PRECISION, recall: float = RECALL) -> np.ndarray:
    """(a, x, z) of every step from the simulated tool's verdicts, [n, MAX_STEPS, 3]."""
    table = np.array(
        [tool_likelihoods(False, precision, recall), tool_likelihoods(True, precision, recall), (1, 1, 1)]
    )
    return table[sample.tool.astype(int)]  # -1 reads the last row


def hint_evidence(sample: Sample, pilot: Sample, grid: Grid, pooled: bool) -> np.ndarray:
    """(1, LR, 1) from PRM hints, the likelihood ratio learned from the pilot's own labels, not from the truth."""
    evidence = None
    for _ in range(3):
        p_right = run(pilot, np.array([PILOT_PRICE]), grid, 3, pooled=pooled, evidence=evidence).p_right
        model = fit_hint(pilot.hint, p_right, pilot.num_steps)
        evidence = model.likelihoods(pilot.hint)
    return model.likelihoods(sample.hint)


def refitted(pilot: Sample, pooled: bool, evidence: np.ndarray | None = None) -> tuple[Grid, float]:
    """The grid after empirical Bayes on a pilot, and the pilot's mean tokens a solution."""
    first = make_grid()
    stored = run(pilot, np.array([PILOT_PRICE]), first, 3, pooled=pooled, evidence=evidence)
    return make_grid(refit(stored.theta.astype(float), first)), float(stored.tokens.mean())


def ours(curve: Curve, boot: Resample, budget: float, overhead: float = 0.0, extra: float = 0.0) -> dict:
    """The report of one of our runs; ``extra`` tokens a solution are charged beside the rollouts."""
    tokens = boot.mean(curve.tokens + overhead * curve.rollouts) + extra
    scores = boot.f1(curve.predicted)
    at = {
        f"{fraction:.0%}": interval(
            np.array([f1_at(f, t, fraction * budget) for f, t in zip(scores, tokens, strict=True)]), 4
        )
        for fraction in FRACTIONS
    }  # fmt: skip
    hit = curve.predicted == boot.first_error
    steps = np.arange(1, MAX_STEPS + 1)
    inside = steps <= boot.length[:, None]
    near = int(np.argmin(np.abs(tokens[0] - 0.1 * budget)))
    agree = (steps < curve.predicted[near][:, None]) == (steps < boot.first_error[:, None])
    return {
        "f1_at": at,
        "curve": [
            {
                "price": float(p), "tokens": round(float(t), 1), "f1": round(float(f), 4),
                "rollouts": round(float(r.mean()), 2), "mse_v": round(float(np.nanmean(m)), 5),
                "map_ece": round(map_calibration_error(c, h), 4),
            }
            for p, t, f, r, m, c, h in zip(
                curve.prices, tokens[0], scores[0], curve.rollouts, curve.value_mse, curve.confidence, hit, strict=True
            )
        ],
        "at_10_percent": {
            "step_accuracy": round(float(agree[inside].mean()), 4),
            "mse_v": round(float(np.nanmean(curve.value_mse[near])), 5),
            "map_ece": round(map_calibration_error(curve.confidence[near], hit[near]), 4),
        },
    }  # fmt: skip


def versus(curve: Curve, boot: Resample, predicted: np.ndarray, tokens: np.ndarray, rollouts: np.ndarray,
           overhead: float = 0.0, extra: float = 0.0, peer_extra: float = 0.0) -> dict:  # fmt: skip
    """Times fewer tokens than a peer at the peer's F1."""
    mine = boot.mean(curve.tokens + overhead * curve.rollouts) + extra
    theirs = boot.mean(tokens + overhead * rollouts)[:, 0] + peer_extra
    target = boot.f1(predicted)[:, 0]
    return {"peer_f1": round(float(target[0]), 4), "peer_tokens": round(float(theirs[0]), 1),
            "times_fewer": ratios(boot.f1(curve.predicted), mine, target, theirs)}  # fmt: skip


def peer_table(sample: Sample, tune: Sample, seed: int, grid: Grid, boot: Resample, pooled: bool) -> dict:
    """Every peer at several settings: F1 and tokens, no ratio."""
    rows: list[dict] = []

    def add(name: str, predicted: np.ndarray, tokens: np.ndarray) -> None:
        rows.append({"method": name, "f1": round(float(boot.f1(predicted)[0, 0]), 4),
                     "tokens": round(float(tokens.mean()), 1)})  # fmt: skip

    for k in (1, 2, 4, 8):
        drawn, tuning = fixed_samples(sample, k, seed), fixed_samples(tune, k, TUNE_SEED)
        hard = math_shepherd(sample, drawn, 0.0)
        add(f"Math-Shepherd K={k} hard", hard.predicted, hard.tokens)
        soft = math_shepherd(sample, drawn, tuned_threshold(tune, tuning))
        add(f"Math-Shepherd K={k} soft, tuned", soft.predicted, soft.tokens)
        add(f"Math-Shepherd K={k} + decoder", decode(sample, drawn, grid, pooled=pooled), soft.tokens)
        omega = omegaprm(sample, k, seed)
        add(f"OmegaPRM K={k}", omega.predicted, omega.tokens)
        stopped, right, trials = early_stop(sample, k, seed)
        add(f"uniform, early stop K={k}", stopped.predicted, stopped.tokens)
        found = run(sample, DECODE_ONLY, grid, 1, given=(right, trials), pooled=pooled)
        add(f"uniform, early stop K={k} + decoder", found.predicted[0], stopped.tokens)
    for number in (8, 16, 32):
        tokens, right, trials = random_prefixes(sample, number, seed)
        found = run(sample, DECODE_ONLY, grid, 1, given=(right, trials), pooled=pooled)
        add(f"{number} random prefixes + decoder", found.predicted[0], tokens)
    return {"table": rows}


def base_part(n: int, seed: int) -> dict:
    """Single solutions: siblings free, absent and charged; overhead 0 and 60."""
    grid, sample, tune = make_grid(), simulate("base", n, seed), simulate("base", n, TUNE_SEED)
    boot = Resample.of(sample, seed)
    drawn = fixed_samples(sample, 8, seed)
    soft_threshold = tuned_threshold(tune, fixed_samples(tune, 8, TUNE_SEED))
    hard, soft = math_shepherd(sample, drawn, 0.0), math_shepherd(sample, drawn, soft_threshold)
    with_siblings = decode(sample, drawn, grid)
    without = decode(sample, drawn, grid, use_siblings=False)
    best_k, omega = best_omegaprm(sample, seed)
    budget = float(hard.tokens.mean())
    measured = {
        "tokens_math_shepherd_k8": budget,
        "math_shepherd_k8_hard": f1(sample.first_error, hard.predicted, sample.num_steps),
        "math_shepherd_k8_soft_tuned": f1(sample.first_error, soft.predicted, sample.num_steps),
        "math_shepherd_k8_samples_changepoint_decoder": f1(
            sample.first_error, with_siblings, sample.num_steps
        ),
        "omegaprm_early_stop_best_k2_at_about_1000_tokens": f1(
            sample.first_error, omegaprm(sample, 2, seed).predicted, sample.num_steps
        ),
    }
    pilot_grid, pilot_tokens = refitted(simulate("base", PILOT, TUNE_SEED + 1), pooled=False)
    report: dict = {"reference": check_reference(measured), "omegaprm_best_k": best_k}
    if seed == TEST_SEED:  # the long tables once
        report["peers"] = peer_table(sample, tune, seed, grid, boot, pooled=False)
    refit_charge = pilot_tokens * PILOT / n
    runs = {
        "siblings free": (run(sample, LOW_PRICES if seed == TEST_SEED else PRICES, grid, seed), with_siblings, 0, 0, 0),
        "siblings free, overhead 60": (run(sample, PRICES, grid, seed, overhead=60), with_siblings, 60, 0, 0),
        "no siblings": (run(sample, PRICES, grid, seed, use_siblings=False), without, 0, 0, 0),
        "no siblings, overhead 60": (
            run(sample, PRICES, grid, seed, use_siblings=False, overhead=60), without, 60, 0, 0
        ),
        "refitted grid, pilot charged": (run(sample, PRICES, pilot_grid, seed), with_siblings, 0, refit_charge, 0),
    }  # fmt: skip
    runs["siblings charged"] = (runs["siblings free"][0], with_siblings, 0, SIBLING_TOKENS, SIBLING_TOKENS)
    for name, (curve, decoded, overhead, extra, peer_extra) in runs.items():
        args = {"overhead": overhead, "extra": extra}
        report[name] = {
            **ours(curve, boot, budget, overhead, extra),
            "versus": {
                "Math-Shepherd K=8 + decoder": versus(
                    curve,
                    boot,
                    decoded,
                    drawn.tokens.sum(axis=1),
                    hard.rollouts,
                    peer_extra=peer_extra,
                    **args,
                ),
                "Math-Shepherd K=8 soft": versus(
                    curve, boot, soft.predicted, soft.tokens, soft.rollouts, **args
                ),
                "Math-Shepherd K=8 hard": versus(
                    curve, boot, hard.predicted, hard.tokens, hard.rollouts, **args
                ),
                f"OmegaPRM K={best_k}": versus(
                    curve, boot, omega.predicted, omega.tokens, omega.rollouts, **args
                ),
            },
        }
    predicted, tokens, _ = greedy_genie(sample, PRICES, seed)
    report["genie"] = {
        "versus Math-Shepherd K=8 + decoder": ratios(
            boot.f1(predicted), boot.mean(tokens), boot.f1(with_siblings)[:, 0], boot.mean(hard.tokens)[:, 0]
        ),
        "curve": [
            {"tokens": round(float(t.mean()), 1), "f1": round(float(f), 4)}
            for t, f in zip(tokens, boot.f1(predicted)[0], strict=True)
        ],
    }
    return report


def check_reference(measured: dict[str, float]) -> dict:
    """Measured against the specification's figures; ``within`` says whether ratios count."""
    rows = {}
    for name, (value, tolerance, kind) in REFERENCE.items():
        off = abs(measured[name] - value) / (value if kind == "relative" else 1)
        rows[name] = {
            "reference": value,
            "measured": round(measured[name], 4),
            "within": bool(off <= tolerance),
        }
    return {"rows": rows, "within": all(r["within"] for r in rows.values())}


def pooled_part(n: int, seed: int) -> dict:
    """Eight solutions a problem, labelled together."""
    grid, sample, tune = make_grid(), simulate("base", n, seed, 8), simulate("base", n, TUNE_SEED, 8)
    boot = Resample.of(sample, seed)
    drawn = fixed_samples(sample, 8, seed)
    hard = math_shepherd(sample, drawn, 0.0)
    budget = float(hard.tokens.mean())
    single, pooled = decode(sample, drawn, grid), decode(sample, drawn, grid, pooled=True)
    best_k, omega = best_omegaprm(sample, seed)
    pilot_grid, pilot_tokens = refitted(simulate("base", PILOT, TUNE_SEED + 1, 8), pooled=True)
    runs = {
        "pooled": (run(sample, PRICES, grid, seed, pooled=True), 0, 0.0),
        "pooled, overhead 60": (run(sample, PRICES, grid, seed, pooled=True, overhead=60), 60, 0.0),
        "pooled, refitted grid, pilot charged": (
            run(sample, PRICES, pilot_grid, seed, pooled=True), 0, pilot_tokens * PILOT / n
        ),
    }  # fmt: skip
    report: dict = {"omegaprm_best_k": best_k, "tokens_math_shepherd_k8": round(budget, 1)}
    if seed == TEST_SEED:  # the long tables once
        report["peers"] = peer_table(sample, tune, seed, grid, boot, pooled=True)
    for name, (curve, overhead, extra) in runs.items():
        args = {"overhead": overhead, "extra": extra}
        report[name] = {
            **ours(curve, boot, budget, overhead, extra),
            "versus": {
                "Math-Shepherd K=8 + decoder": versus(
                    curve, boot, single, hard.tokens, hard.rollouts, **args
                ),
                "Math-Shepherd K=8 + pooled decoder": versus(
                    curve, boot, pooled, hard.tokens, hard.rollouts, **args
                ),
                f"OmegaPRM K={best_k}": versus(
                    curve, boot, omega.predicted, omega.tokens, omega.rollouts, **args
                ),
            },
        }
    return report


def first_part(n: int, seed: int) -> dict:
    """Eight solutions a problem; the run's own first ones are the pilot, and go on under the grid that they gave.

    Their tokens are counted as those of all others are. The peer is decoded under the same grid, and stands beside it
    under the default one.
    """
    grid, sample = make_grid(), simulate("base", n, seed, 8)
    boot, drawn = Resample.of(sample, seed), fixed_samples(sample, 8, seed)
    pilot = sample.head(PILOT)
    stored = run(pilot, np.array([PILOT_PRICE]), grid, seed + 500, pooled=True)
    fitted = make_grid(refit(stored.theta.astype(float), grid))
    given = np.zeros((2, n, MAX_STEPS + 1), np.int64)
    given[:, :PILOT] = stored.right, stored.trials
    curve = run(sample, PRICES, fitted, seed, pooled=True, given=(given[0], given[1]))
    curve.tokens[:, :PILOT] += stored.tokens[0]
    curve.rollouts[:, :PILOT] += stored.rollouts[0]
    tokens, rollouts = drawn.tokens.sum(axis=1), 8 * (sample.num_steps - 1)
    report = ours(curve, boot, float(tokens.mean()))
    report["versus"] = {
        f"Math-Shepherd K=8 + pooled decoder, {name}": versus(
            curve, boot, decode(sample, drawn, under, pooled=True), tokens, rollouts
        )
        for name, under in (("same grid", fitted), ("default grid", grid))
    }
    return {"pooled, first problems as pilot": report}


def evidence_part(n: int, seed: int, kinds: tuple[bool, ...] = (False, True)) -> dict:
    """Tool verdicts, cross-fitted hints and both as step evidence, single and pooled."""
    grid, report = make_grid(), {}
    for pooled in kinds:
        per = 8 if pooled else 1
        sample, pilot = simulate("base", n, seed, per), simulate("base", PILOT, TUNE_SEED + 1, per)
        boot = Resample.of(sample, seed)
        drawn = fixed_samples(sample, 8, seed)
        hard = math_shepherd(sample, drawn, 0.0)
        budget = float(hard.tokens.mean())
        plain = decode(sample, drawn, grid, pooled=pooled)
        best_k, omega = best_omegaprm(sample, seed)
        flagged = np.where(
            (sample.tool == 1).any(axis=1), (sample.tool == 1).argmax(axis=1) + 1, omega.predicted
        )
        fused = np.where(sample.right, omega.predicted, np.minimum(flagged, omega.predicted))
        tool, hint = tool_evidence(sample), hint_evidence(sample, pilot, grid, pooled)
        for name, evidence in (("tools", tool), ("hints", hint), ("tools and hints", tool * hint)):
            curve = run(sample, PRICES, grid, seed, pooled=pooled, evidence=evidence)
            same = decode(sample, drawn, grid, pooled=pooled, evidence=evidence)
            report[("pooled, " if pooled else "base, ") + name] = {
                **ours(curve, boot, budget),
                "versus": {
                    "Math-Shepherd K=8 + decoder, no evidence": versus(
                        curve, boot, plain, hard.tokens, hard.rollouts
                    ),
                    "Math-Shepherd K=8 + decoder, same evidence": versus(
                        curve, boot, same, hard.tokens, hard.rollouts
                    ),
                    f"OmegaPRM K={best_k}": versus(
                        curve, boot, omega.predicted, omega.tokens, omega.rollouts
                    ),
                    f"OmegaPRM K={best_k}, tool flags fused": versus(
                        curve, boot, fused, omega.tokens, omega.rollouts
                    ),
                },
            }
    return report


def stress_part(n: int, seed: int, name: str) -> dict:
    """A scenario: ratio to Math-Shepherd K=8 with the decoder, calibration before and after refit."""
    sample, pilot = simulate(name, n, seed), simulate(name, PILOT, TUNE_SEED + 1)
    boot = Resample.of(sample, seed)
    drawn = fixed_samples(sample, 8, seed)
    hard = math_shepherd(sample, drawn, 0.0)
    best_k, omega = best_omegaprm(sample, seed)
    evidence = tool_evidence(sample) if name == "badtool" else None
    pilot_evidence = tool_evidence(pilot) if name == "badtool" else None
    refit_grid, _ = refitted(pilot, False, pilot_evidence)
    report: dict = {
        "tokens_math_shepherd_k8": round(float(hard.tokens.mean()), 1),
        "omegaprm_best_k": best_k,
    }
    grids = {"default grid": make_grid(), "refitted grid": refit_grid}
    if seed != TEST_SEED and name != "easy":  # the goals stand on the refitted one
        del grids["default grid"]
    for label, grid in grids.items():
        prices = LONG_PRICES if name == "long" else PRICES
        curve = run(sample, prices, grid, seed, evidence=evidence)
        decoded = decode(sample, drawn, grid, evidence=evidence)
        report[label] = {
            **ours(curve, boot, float(hard.tokens.mean())),
            "versus": {
                "Math-Shepherd K=8 + decoder": versus(curve, boot, decoded, hard.tokens, hard.rollouts),
                f"OmegaPRM K={best_k}": versus(curve, boot, omega.predicted, omega.tokens, omega.rollouts),
            },
        }
    return report


def work_of(
    parts: list[str], seeds: int, n: int, stress_n: int
) -> Iterator[tuple[tuple[str, ...], int, Callable[[], dict]]]:
    """Where each piece of the results stands, its n, and what makes it."""
    whole = {"base": base_part, "pooled": pooled_part, "first": first_part, "evidence": evidence_part}
    for part in parts:
        for seed in range(TEST_SEED, TEST_SEED + seeds):
            if part in whole:
                yield (part, "by_seed", str(seed)), n, partial(whole[part], n, seed)
            else:
                for name in sorted(SCENARIOS, key="long".__eq__):  # half of the time is long's
                    yield (
                        (part, "by_seed", str(seed), name),
                        stress_n,
                        partial(stress_part, stress_n, seed, name),
                    )


def main() -> None:
    """Run the parts asked for and merge them into the results file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", default=["base", "pooled", "first", "evidence", "stress"])
    parser.add_argument("--n", type=int, default=16000)
    parser.add_argument("--stress-n", type=int, default=16000)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--keep", action="store_true", help="leave out what is there, at the same n")
    parser.add_argument("--out", type=Path, default=DETAIL)
    args = parser.parse_args()
    for place, n, make in work_of(args.parts, args.seeds, args.n, args.stress_n):
        results = json.loads(args.out.read_text()) if args.out.exists() else {}
        level = results
        for key in place[:-1]:
            level = level.setdefault(key, {})
        if args.keep and level.get(place[-1], {}).get("n") == n:
            continue
        started = time.process_time()
        level[place[-1]] = {"n": n, **make()}
        args.out.parent.mkdir(exist_ok=True)
        args.out.write_text(json.dumps(results, indent=1) + "\n")
        print(f"{' '.join(place)}: {time.process_time() - started:.0f} CPU seconds", flush=True)


if __name__ == "__main__":
    main()
