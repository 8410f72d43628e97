"""What ``training_losses`` left in its folder -> rows of the report, and the table in docs/losses.md."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from benchmarks.report import Row
from benchmarks.training_losses import RUNS, SEEDS, result_file
from stepward.prm.evaluation.calibration import LabelledSteps, bin_numbers, calibration, labelled_steps
from stepward.prm.evaluation.intervals import (
    Bootstrap,
    Measure,
    cluster_sums,
    divide,
    measure,
    resampled_sums,
)
from stepward.prm.evaluation.items import Item
from stepward.prm.evaluation.processbench import predict, tune_threshold
from stepward.prm.evaluation.readers.processbench import read_items

BOOTSTRAP = Bootstrap(num_resamples=2000, seed=0)
DOCS = Path(__file__).parents[1] / "docs" / "losses.md"
BEGIN, END = "<!-- table: make bench-training -->", "<!-- end of table -->"
NUM_BINS = 5
PREFIXES = {"score": "", "mu": "mu_", "deviation": "deviation_"}
READINGS = (("mu", "deviation"), ("score", "deviation"), ("score", "1 / kappa"))


@dataclass(frozen=True, slots=True)
class Line:
    """One loss and head over the seeds.

    Attributes:
        f1: Mean F1 of first errors.
        over: That minus each baseline's, paired by problem.
        ece: Expected calibration error of the step scores.
        brier: Brier score.
        train_cpu_s: CPU seconds of training.
        seeds: How many seeds there are.
    """

    f1: Measure
    over: dict[str, Measure]
    ece: float
    brier: float
    train_cpu_s: float
    seeds: int


def f1_of(sums: np.ndarray) -> np.ndarray:
    """F1 of each seed, ``[..., seeds]``, from sums ``[..., 4 * seeds]``: erroneous, hit, correct, hit."""
    parts = sums.reshape(*sums.shape[:-1], -1, 4)
    error, correct = divide(parts[..., 1], parts[..., 0]), divide(parts[..., 3], parts[..., 2])
    total = error + correct
    return divide(2 * error * correct, np.where(total == 0, 1.0, total))


def f1_draws(
    folder: Path, results: Sequence[dict[str, Any]], items: Sequence[Item]
) -> tuple[float, np.ndarray]:
    """F1 averaged over the seeds' models, and the same in each resample of problems."""
    tuning = read_items(folder / "tuning.jsonl")
    columns: list[np.ndarray] = []
    for result in results:
        threshold = tune_threshold(tuning, result["tuning"], source="tuning problems")
        table = np.zeros((len(items), 4))
        for row, item, found in zip(table, items, predict(result["reported"], threshold), strict=True):
            hit = found == item.first_error
            row[:] = (0, 0, 1, hit) if item.first_error is None else (1, hit, 0, 0)
        columns.append(table)
    sums = cluster_sums(np.hstack(columns), [i.cluster for i in items])
    draws = resampled_sums(sums, BOOTSTRAP, "training")
    return float(f1_of(sums.sum(axis=0)).mean()), f1_of(draws).mean(axis=-1)


def lines(folder: Path) -> tuple[dict[str, Line], dict[str, float]]:
    """A line for each loss and head that has a result, and the F1 of each baseline."""
    items = read_items(folder / "reported.jsonl")
    baselines = json.loads((folder / "results" / "baselines.json").read_text())
    base = {name: f1_draws(folder, [result], items) for name, result in baselines.items()}
    found: dict[str, Line] = {}
    for name in RUNS:
        files = [p for p in (result_file(folder, name, s) for s in SEEDS) if p.exists()]
        results = [json.loads(p.read_text()) for p in files]
        if not results:
            continue
        point, draws = f1_draws(folder, results, items)
        quality = [calibration(items, r["reported"], bootstrap=Bootstrap(0)) for r in results]
        found[name] = Line(
            f1=measure(point, draws, n=len(items)),
            over={b: measure(point - p, draws - d, n=len(items)) for b, (p, d) in base.items()},
            ece=mean(q.ece.value or 0.0 for q in quality),
            brier=mean(q.brier.value or 0.0 for q in quality),
            train_cpu_s=mean(r["train_cpu_s"] for r in results),
            seeds=len(results),
        )
    return found, {name: p for name, (p, _) in base.items()}


def loss_rows(folder: Path) -> list[Row]:
    """F1 of each against the best baseline, and the lower end of the paired interval over all baselines."""
    found, base = lines(folder)
    best = max(base.values())
    rows: list[Row] = []
    for name, line in found.items():
        # A light head is no loss of its own, nor is a value meant to find errors; some of the seeds prove nothing. All
        # three stand there without a goal.
        no_goal = name.startswith("light") or RUNS[name].target == "value" or line.seeds < len(SEEDS)
        goal = None if no_goal else 0.0
        seeds = f"{line.seeds} of {len(SEEDS)} seeds"
        lowest = min(m.low if m.low is not None else -1.0 for m in line.over.values())
        rows += [
            Row(f"{name}, {seeds}: F1 against the best baseline", line.f1.value, best),
            Row(
                f"{name}, {seeds}: lowest end of the paired 95 % intervals over the baselines",
                lowest,
                None,
                goal,
            ),
        ]
    return rows


def write_table(folder: Path) -> None:
    """The table between the two marks of docs/losses.md."""
    found, base = lines(folder)
    head = (
        "| loss, head | target | seeds | F1 (95 %) | over the best baseline (95 %) | ECE | Brier | CPU s |\n"
        "| --- | --- | --- | --- | --- | --- | --- | --- |\n"
    )
    best = max(base, key=lambda name: base[name])
    body = "".join(
        f"| {name} | {RUNS[name].taught} | {line.seeds} | {line.f1} | {line.over[best]} "
        f"| {line.ece:.3f} | {line.brier:.3f} | {line.train_cpu_s:.0f} |\n"
        for name, line in found.items()
    )
    body += "".join(f"| *{name}* | | | {value:.3f} | | | | |\n" for name, value in base.items())
    before, rest = DOCS.read_text().split(BEGIN)
    after = rest.split(END)[1]
    DOCS.write_text(f"{before}{BEGIN}\n\n{head}{body}\n{END}{after}")


def reliability_rows(folder: Path) -> list[Row]:
    """Error rate of the least reliable fifth over that of the most reliable one, within bins of mu or of the score."""
    items = read_items(folder / "reported.jsonl")
    rows: list[Row] = []
    for name, said in (
        ("beta_binomial", ""),
        ("beta_binomial, completer", ", counts of a stronger completer"),
    ):
        files = [p for p in (result_file(folder, name, s) for s in SEEDS) if p.exists()]
        results = [json.loads(p.read_text()) for p in files]
        if not results:
            continue
        seeds = f"{len(results)} of {len(SEEDS)} seeds"
        for reading, what in READINGS:
            pooled, by_bin = reliability(items, results, reading, what)
            goal = what == "deviation" and len(results) == len(SEEDS)
            rows += [
                Row(
                    f"BetaPRM{said}, {seeds}: error rate of the least over the most reliable fifth by {what}, in "
                    f"{NUM_BINS} bins of {reading}, pooled",
                    pooled.value, None, 1.5 if goal else None,
                ),
                Row("  lower end of its 95 % interval", pooled.low, None, 1.0 if goal else None),
                *(Row(f"  bin {b + 1} of {NUM_BINS}", value, None) for b, value in enumerate(by_bin)),
            ]  # fmt: skip
    return rows


def reliability(
    items: Sequence[Item], results: Sequence[dict[str, Any]], reading: str, what: str
) -> tuple[Measure, list[float | None]]:
    """The pooled ratio with its interval over problems, and the ratio of each bin.

    Args:
        items: Solutions with exact first errors.
        results: One a seed, with scores and deviations.
        reading: What is binned and held against one half: ``score``, P(any of 8 rollouts), or ``mu``.
        what: ``deviation``, the model's reliability output, or ``1 / kappa``, what it says beyond mu.
    """
    clusters: tuple[str, ...] = ()
    per_seed: list[np.ndarray] = []
    for result in results:
        said = {name: _steps(items, result, prefix) for name, prefix in PREFIXES.items()}
        steps, mu, sigma = said[reading], said["mu"].scores, said["deviation"].scores
        clusters = steps.clusters
        spread = sigma if what == "deviation" else sigma**2 / np.maximum(mu * (1 - mu), 1e-12)
        wrong = (steps.right >= 0.5) != (steps.scores >= 0.5)
        per_seed.append(_fifths(bin_numbers(steps.scores, NUM_BINS), spread, wrong))
    # [steps, bins, (errors and number of the least reliable, errors and number of the most reliable)]
    table = np.sum(per_seed, axis=0)
    sums = cluster_sums(table.reshape(len(table), -1), clusters)
    total = sums.sum(axis=0).reshape(NUM_BINS, 4)
    draws = resampled_sums(sums, BOOTSTRAP, "reliability").reshape(-1, NUM_BINS, 4).sum(axis=1)
    by_bin = [None if np.isnan(r) else float(r) for r in _ratio(total)]
    return measure(float(_ratio(total.sum(axis=0))), _ratio(draws), n=len(table)), by_bin


def _steps(items: Sequence[Item], result: dict[str, Any], prefix: str) -> LabelledSteps:
    return labelled_steps(items, result[f"{prefix}reported"])


def _fifths(bins: np.ndarray, spread: np.ndarray, wrong: np.ndarray) -> np.ndarray:
    """For each step, in its bin: whether it is among the least or the most reliable fifth, and whether wrong."""
    table = np.zeros((len(bins), NUM_BINS, 4))
    for b in range(NUM_BINS):
        members = np.flatnonzero(bins == b)
        ordered = members[np.argsort(spread[members], kind="stable")]
        fifth = len(ordered) // 5
        for column, rows in ((0, ordered[len(ordered) - fifth :]), (2, ordered[:fifth])):
            table[rows, b, column] = wrong[rows]
            table[rows, b, column + 1] = 1.0
    return table


def _ratio(sums: np.ndarray) -> np.ndarray:
    return divide(divide(sums[..., 0], sums[..., 1]), divide(sums[..., 2], sums[..., 3]))


def stored_rows(folder: Path) -> dict[str, list[Row]]:
    """Rows of the parts that ran before."""
    path = folder / "rows.json"
    stored = json.loads(path.read_text()) if path.exists() else {}
    return {part: [Row(**row) for row in rows] for part, rows in stored.items()}


def store_rows(folder: Path, rows: dict[str, list[Row]]) -> None:
    """Keep the rows of each part."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "rows.json").write_text(
        json.dumps({part: [asdict(r) for r in found] for part, found in rows.items()})
    )
