"""Evaluation on real public scores: what reproduces, what simple baselines reach, and what it costs.

    python -m benchmarks.evaluation [logs scoring search viewer] [--prm FOLDER] [--out FOLDER] [--figures FOLDER]

* logs: real step scores of eleven models on half of 250 ProcessBench items a subset. The 88 stored F1 values are
  computed again; then each model's threshold is chosen on gsm8k and frozen, and the other three subsets are
  reported with intervals, the oracle sweep beside them. Position and length alone, fitted and tuned on gsm8k, on the
  other 1,483 solutions. pass@k, majority and best-of-8 of the stored Qwen2.5-Math example (100 problems, 8 samples, one
  reward). CPU seconds of the bootstrap, the exact threshold and best-of-N against the plain way of doing each.
* scoring: one pass a solution against one a prefix and against the bare model (``benchmarks.scoring``).
* search: its overhead over the engine, and its idle time under the PRM in ``--prm`` (``benchmarks.search_speed``).
* viewer: first page and filters at 100,000 solutions (``benchmarks.viewer``).

Rows of the parts that were run go to results/evaluation_detail.json; all parts together, each with the commit it was
measured on, are results/evaluation.json. With ``--out`` two results folders with their pages are written there, with
``--figures`` the plots of the docs.
"""

import argparse
import json
import math
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.public_data import data_folder
from benchmarks.report import RESULTS, Row, write
from stepward.prm.evaluation.baselines import fit_position, labels_up_to_first_error
from stepward.prm.evaluation.best_of_n import SamplePool, classes_by_key, evaluate_pools
from stepward.prm.evaluation.calibration import calibration
from stepward.prm.evaluation.intervals import Bootstrap, Measure
from stepward.prm.evaluation.items import Item, check_scores
from stepward.prm.evaluation.page import standalone
from stepward.prm.evaluation.processbench import difference, evaluate, oracle_sweep, predict, tune_threshold
from stepward.prm.evaluation.readers.processbench import read_folder
from stepward.prm.evaluation.results import Results, ScorerRun, score_run
from stepward.prm.evaluation.results_folder import write_results
from stepward.prm.evaluation.svg import interval_chart, reliability_chart
from stepward.prm.evaluation.thresholds import choose_threshold, first_below, harmonic_mean

TUNED_ON = "gsm8k"


DETAIL = RESULTS / "evaluation_detail.json"
PARTS = ("logs", "scoring", "search", "viewer")
CRITICS = "critics"
"""Written by ``benchmarks.critics``, which needs a quickstart's output."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", default=PARTS)
    parser.add_argument("--prm", help="a trained PRM of the embedded policy, for the shares of time")
    parser.add_argument("--solutions", type=int, default=32, help="of the stratified sample of scoring")
    parser.add_argument("--scoring-parts", type=Path, help="sum parts that benchmarks.scoring measured")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--figures", type=Path)
    parser.add_argument("--resamples", type=int, default=2000)
    options = parser.parse_args()
    for part in options.parts:
        store(part, run_part(part, options))


def store(part: str, rows: Sequence[Row]) -> None:
    """Put a part's rows in place of its earlier ones; rows of other parts keep the commit they were measured on."""
    # Read again: another part may have been written meanwhile.
    detail = json.loads(DETAIL.read_text()) if DETAIL.exists() else {}
    gone = {row["metric"] for row in detail.get(part, ())}
    detail[part] = [asdict(row) for row in rows]
    DETAIL.write_text(json.dumps(detail, indent=1) + "\n")
    results = RESULTS / "evaluation.json"
    kept = [r for r in json.loads(results.read_text()) if r["metric"] not in gone] if results.exists() else []
    results.write_text(json.dumps(kept, indent=1) + "\n")
    write("evaluation", rows, keep_others=True)


def run_part(part: str, options: argparse.Namespace) -> list[Row]:
    """The rows of one part."""
    if part == "scoring":
        from benchmarks.scoring import rows

        return rows(data_folder(), options.solutions, options.scoring_parts)
    if part == "search":
        from benchmarks.search_speed import rows as search_rows

        return search_rows(options.prm)
    if part == "viewer":
        from benchmarks.viewer import rows as viewer_rows

        return viewer_rows()
    return logs(options)


def logs(options: argparse.Namespace) -> list[Row]:
    """Everything that stored scores and samples say."""
    data = data_folder()
    bootstrap = Bootstrap(options.resamples)
    items = read_folder(data / "processbench")
    results, deviation = logged_models(data, items, bootstrap)
    baseline = position_baseline(items, [item.id for item in results.items], bootstrap)
    samples(data, bootstrap)
    found = [Row("largest deviation of 88 stored F1 values", deviation, None, 1e-9, lower_is_better=True)]
    found += cost(items, options.resamples)
    if options.figures:
        figures(options.figures, results)
    if options.out:
        write_results(options.out / "logged_models", results)
        write_results(options.out / "position_baseline", baseline)
    return found


def logged_models(data: Path, items: list[Item], bootstrap: Bootstrap) -> tuple[Results, float]:
    by_id = {item.id: item for item in items}
    logs: dict[str, dict[str, Any]] = defaultdict(dict)
    with (data / "processbench_logs" / "fover_step_scores.jsonl").open() as file:
        for row in map(json.loads, file):
            logs[row["model"]][row["id"]] = row
    expected = json.loads((data / "processbench_logs" / "expected_metrics_open_half.json").read_text())
    worst = 0.0
    for want in expected:
        part = [by_id[i] for i, row in logs[want["model"]].items() if row["split"] == want["split"]]
        scores = [logs[want["model"]][i.id]["scores_to_first_error"] for i in part]
        for threshold, key in ((0.5, "thr_0_5"), (want["thr_best_gsm8k"], "at_best_gsm8k")):
            got = evaluate(part, predict(scores, threshold), scorer="", bootstrap=Bootstrap(0)).subsets[0]
            worst = max(worst, abs((got.f1.value or 0.0) - want[key]["f1"]))
    print(f"# Logged step scores: {2 * len(expected)} stored F1 values, largest deviation {worst:.1e}\n")
    print("| model | threshold (gsm8k) | macro F1 of math, olympiadbench, omnimath | oracle | AUROC | ECE |")
    print("| --- | --- | --- | --- | --- | --- |")
    runs: list[ScorerRun] = []
    oracle = ()
    for model, rows in logs.items():
        part = [by_id[i] for i in rows]
        scores = check_scores(part, [rows[i]["scores_to_first_error"] for i in rows], extent="to_first_error")
        tuning = [k for k, item in enumerate(part) if item.subset == TUNED_ON]
        rest = [k for k, item in enumerate(part) if item.subset != TUNED_ON]
        threshold = tune_threshold([part[k] for k in tuning], [scores[k] for k in tuning], source=TUNED_ON)
        reported, reported_scores = [part[k] for k in rest], [scores[k] for k in rest]
        predictions = predict(reported_scores, threshold)
        result = evaluate(reported, predictions, scorer=model, threshold=threshold, bootstrap=bootstrap)
        steps = calibration(reported, reported_scores, bootstrap=Bootstrap(min(500, bootstrap.num_resamples)))
        swept = oracle_sweep(reported, reported_scores, scorer=model, bootstrap=Bootstrap(0))
        upper = np.mean([r.macro.f1.value or 0.0 for r in swept])
        print(
            f"| {model[:48]} | {threshold.value:.3f} | {result.macro.f1} | {upper:.3f} | {steps.auroc} | {steps.ece} |"
        )
        runs.append(ScorerRun(result, tuple(predictions), tuple(reported_scores), calibration=steps))
        oracle = (*oracle, *swept)
    print()
    first = runs[0]
    gaps = {
        f"{first.result.scorer} - {run.result.scorer}": difference(
            reported, first.predictions, run.predictions, bootstrap=bootstrap
        )
        for run in runs[1:]
    }
    found = Results(
        "Eleven models on half of ProcessBench's logged items",
        tuple(reported),
        tuple(runs),
        gaps,
        oracle,
        notes=("The logged scores stop at the first gold error, so a later step can never be named.",),
        manifest={"resamples": bootstrap.num_resamples, "seed": bootstrap.seed, "level": bootstrap.level},
    )
    return found, worst


def figures(folder: Path, results: Results) -> None:
    """Tuned elsewhere against tuned on the test items, model by model; reliability of the best one."""
    best = {run.result.scorer: run.result.macro.f1 for run in results.runs}
    swept: dict[str, list[float]] = defaultdict(list)
    for result in results.oracle:
        swept[result.scorer].append(result.macro.f1.value or 0.0)
    groups = [
        (
            name[:48],
            [("threshold from gsm8k", f1), ("oracle (no result)", Measure(float(np.mean(swept[name]))))],
        )
        for name, f1 in best.items()
    ]
    chart = interval_chart(
        groups, title="Macro F1 by model", x_name="macro F1 of math, olympiadbench, omnimath"
    )
    (folder / "processbench_logged_models.svg").write_text(standalone(chart))
    steps = results.runs[0].calibration
    if steps is not None:
        bins = [(b.mean_score, b.share_right) for b in steps.bins]
        (folder / "reliability.svg").write_text(standalone(reliability_chart(bins, title="Reliability")))


def position_baseline(items: list[Item], logged: list[str], bootstrap: Bootstrap) -> Results:
    tuning = [item for item in items if item.subset == TUNED_ON]
    rest = [item for item in items if item.subset != TUNED_ON]
    lengths = {item.id: [len(step) for step in item.steps] for item in items}
    model = fit_position(
        [lengths[i.id] for i in tuning],
        [labels_up_to_first_error(len(i.steps), i.first_error) for i in tuning],
    )
    threshold = tune_threshold(tuning, [model.score(lengths[i.id]) for i in tuning], source=TUNED_ON)
    scores = [model.score(lengths[i.id]) for i in rest]
    run = score_run(rest, scores, threshold, scorer="position and length", bootstrap=bootstrap)
    print(f"# Position and length alone, fitted and tuned on {TUNED_ON}, {len(rest)} other solutions\n")
    print("| subset | error accuracy | correct accuracy | F1 |\n| --- | --- | --- | --- |")
    for s in (*run.result.subsets, run.result.macro):
        print(f"| {s.name} | {s.error_accuracy} | {s.correct_accuracy} | {s.f1} |")
    same = [item for item in rest if item.id in set(logged)]
    predictions = predict([model.score(lengths[i.id]) for i in same], threshold)
    result = evaluate(
        same, predictions, scorer="position and length", threshold=threshold, bootstrap=bootstrap
    )
    print(f"\nOn the {len(same)} items that the eleven models are reported on: macro F1 {result.macro.f1}")
    if run.calibration is not None:
        print(f"\nAUROC {run.calibration.auroc}, Brier {run.calibration.brier}\n")
    return Results("Position and length alone", tuple(rest), (run,), manifest={"fitted_on": TUNED_ON})


def samples(data: Path, bootstrap: Bootstrap) -> None:
    pools: list[SamplePool] = []
    with (data / "solutions" / "math100_qwen25math_8samples_rm.jsonl").open() as file:
        for row in map(json.loads, file):
            # One reward a sample: a solution of one "step", mapped to (0, 1) by the logistic function.
            rewards = tuple((1 / (1 + math.exp(-score[0])),) for score in row["pred_score"])
            answers = classes_by_key([p or None for p in row["pred"]], str.strip)
            tokens = tuple(max(1, len(code.split())) for code in row["code"])
            pools.append(SamplePool(str(row["idx"]), answers, tuple(row["score"]), tokens, rewards))
    result = evaluate_pools(
        pools, [1, 2, 4, 8], aggregations={"reward": lambda s: s[-1]}, bootstrap=bootstrap
    )
    print("# Stored samples: 100 MATH problems, 8 samples, one reward each\n")
    print("| method | N | accuracy | over majority |\n| --- | --- | --- | --- |")
    for p in result.points:
        print(f"| {p.method} | {p.cut} | {p.accuracy} | {p.over_majority} |")
    print("\npass@k:", ", ".join(f"{k}: {m}" for k, m in result.pass_at_k.items()), "\n")


def cost(items: list[Item], num_resamples: int) -> list[Row]:
    rng = np.random.default_rng(0)
    predictions = [None if rng.random() < 0.5 else int(rng.integers(len(i.steps))) for i in items]
    ours = cpu(lambda: evaluate(items, predictions, scorer="x", bootstrap=Bootstrap(num_resamples)))
    few = max(1, num_resamples // 100)
    plain = cpu(lambda: [plain_macro(items, predictions, rng) for _ in range(few)]) * num_resamples / few
    print("# CPU seconds\n\n| what | here | the plain way | ratio |\n| --- | --- | --- | --- |")
    print(
        f"| all ProcessBench intervals, {len(items)} items, {num_resamples} resamples | {ours:.2f} | {plain:.2f} "
        f"(macro F1 only, item by item, from {few} resamples) | {plain / ours:.1f} |"
    )
    found = [Row(f"CPU seconds, all intervals of {len(items)} items", ours, plain, 1.0, True, True)]
    scores = [tuple(rng.random(8)) for _ in range(5000)]
    labels = [None if rng.random() < 0.5 else int(rng.integers(8)) for _ in scores]
    ours = cpu(lambda: choose_threshold(scores, labels))
    grid = 20
    plain = (
        cpu(lambda: [plain_f1(scores, labels, t) for t in np.linspace(0, 1, grid)]) / grid * len(scores) * 8
    )
    print(
        f"| exact threshold, 5,000 solutions of 8 steps | {ours:.2f} | {plain:.0f} (every score tried, from {grid}) "
        f"| {plain / ours:.0f} |"
    )
    found.append(Row("CPU seconds, exact threshold of 5,000 solutions", ours, plain, 1.0, True, True))
    pools = [random_pool(rng, f"p{k}") for k in range(200)]
    took = cpu(lambda: evaluate_pools(pools, [1, 2, 4, 8, 16, 32, 64], num_orders=32, bootstrap=Bootstrap(0)))
    print(
        f"| best-of-N family, 9 methods, 7 values of N, 32 orders, 64 samples, a problem | {took / 200:.4f} | | |"
    )
    found.append(Row("CPU seconds, best-of-N family, a problem of 64 samples", took / 200))
    return found


def random_pool(rng: np.random.Generator, name: str) -> SamplePool:
    right = rng.random(64) < rng.random()
    scores = tuple(tuple(rng.random(6)) for _ in right)
    classes = tuple(0 if r else int(rng.integers(1, 9)) for r in right)
    return SamplePool(name, classes, tuple(bool(r) for r in right), (100,) * 64, scores)


def plain_macro(items: list[Item], predictions: list[int | None], rng: np.random.Generator) -> float:
    """One resample of problems within subsets, item by item."""
    groups: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for k, item in enumerate(items):
        groups[item.subset][item.cluster].append(k)
    values = []
    for problems in groups.values():
        members = list(problems.values())
        drawn = [k for g in rng.integers(len(members), size=len(members)) for k in members[g]]
        hits = [(items[k].first_error is None, predictions[k] == items[k].first_error) for k in drawn]
        error, correct = ([hit for none, hit in hits if none is side] for side in (False, True))
        values.append(harmonic_mean(sum(error) / len(error), sum(correct) / len(correct)))
    return sum(values) / len(values)


def plain_f1(scores: list[tuple[float, ...]], labels: list[int | None], threshold: float) -> float:
    hits = [
        (label is None, first_below(s, threshold) == label) for s, label in zip(scores, labels, strict=True)
    ]
    error, correct = ([hit for none, hit in hits if none is side] for side in (False, True))
    return harmonic_mean(sum(error) / len(error), sum(correct) / len(correct))


def cpu(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


if __name__ == "__main__":
    main()
