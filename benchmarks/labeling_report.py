"""From the detail files to the table with the goals (labeling.json) and the plots in docs/figures.

Reads labeling_detail.json (``benchmarks.labeling``) and, where they are, labeling_replay.json (``benchmarks.replay``)
and labeling_bookkeeping.json (``benchmarks.bookkeeping``).

python -m benchmarks.labeling_report
"""

import json
from pathlib import Path
from typing import Any

from benchmarks.labeling import DETAIL
from benchmarks.replay import GOAL
from benchmarks.report import RESULTS, Row, write

REPLAY = RESULTS / "labeling_replay.json"
BOOKKEEPING = RESULTS / "labeling_bookkeeping.json"
FIGURES = Path(__file__).parents[1] / "docs" / "figures"
SINGLE_FAULT = ("clean", "drift", "rho20", "corr", "hard", "easy", "long", "phi15", "spiky", "badtool")


def seeds(detail: dict[str, Any], part: str) -> list[dict[str, Any]]:
    """The reports of a part, by seed."""
    return list(detail.get(part, {}).get("by_seed", {}).values())


def mean(values: list[float | None]) -> float | None:
    """Mean over seeds of what is known, None where nothing is."""
    known = [v for v in values if v is not None]
    return sum(known) / len(known) if known else None


def times_fewer(reports: list[dict[str, Any]], run: str, peer: str) -> float | None:
    """Mean over seeds of a ratio; ``peer`` may be a beginning."""
    return mean(
        [
            each["times_fewer"]["value"]
            for report in reports
            for name, each in report.get(run, {}).get("versus", {}).items()
            if name == peer or (peer.endswith("*") and name.startswith(peer[:-1]) and "fused" not in name)
        ]
    )


def f1_at(reports: list[dict[str, Any]], run: str, fraction: str) -> float | None:
    """Mean over seeds of F1 at a share of Math-Shepherd's tokens."""
    return mean([report[run]["f1_at"][fraction]["value"] for report in reports])


def rows_of(detail: dict[str, Any]) -> list[Row]:
    """Every figure that has a goal, and some that put it into its place."""
    rows: list[Row] = []
    base, pooled = seeds(detail, "base"), seeds(detail, "pooled")
    evidence, stress = seeds(detail, "evidence"), seeds(detail, "stress")
    decoder = "Math-Shepherd K=8 + decoder"
    for name in base[0]["reference"]["rows"] if base else ():
        each = [b["reference"]["rows"][name] for b in base]
        rows.append(
            Row(
                f"reference, mean of seeds: {name}", mean([e["measured"] for e in each]), each[0]["reference"]
            )
        )
    if base:
        rows += [
            Row(
                "base: times fewer tokens than Math-Shepherd K=8 with the decoder, siblings free",
                times_fewer(base, "siblings free", decoder),
                goal=8,
            ),
            Row(
                "base: the same at 60 tokens overhead a rollout",
                times_fewer(base, "siblings free, overhead 60", decoder),
            ),
            Row("base: the same without siblings, either side", times_fewer(base, "no siblings", decoder)),
            Row(
                "base: the same, siblings charged to both sides",
                times_fewer(base, "siblings charged", decoder),
            ),
            Row(
                "base: times fewer tokens than the best OmegaPRM, siblings free",
                times_fewer(base, "siblings free", "OmegaPRM*"),
                goal=3,
            ),
            Row(
                "base: the same at 60 tokens overhead a rollout",
                times_fewer(base, "siblings free, overhead 60", "OmegaPRM*"),
                goal=2.5,
            ),
            Row("base: the same without siblings", times_fewer(base, "no siblings", "OmegaPRM*")),
            Row(
                "base: the same, siblings charged to us alone (below 1: OmegaPRM wins)",
                times_fewer(base, "siblings charged", "OmegaPRM*"),
            ),
            Row(
                "base: times fewer tokens than soft-label Math-Shepherd K=8",
                times_fewer(base, "siblings free", "Math-Shepherd K=8 soft"),
            ),
            Row("base: F1 at 10 % of Math-Shepherd's tokens", f1_at(base, "siblings free", "10%")),
            Row(
                "base: MAP calibration error at 10 % after refit",
                mean([b["refitted grid, pilot charged"]["at_10_percent"]["map_ece"] for b in base]),
                goal=0.03,
                lower_is_better=True,
            ),
            Row(
                "base: greedy genie, times fewer than Math-Shepherd K=8 with the decoder",
                mean([b["genie"]["versus Math-Shepherd K=8 + decoder"]["value"] for b in base]),
            ),
        ]
    if pooled:
        rows += [
            Row(
                "pooled: times fewer tokens than Math-Shepherd K=8 with the decoder",
                times_fewer(pooled, "pooled", decoder),
                goal=11,
            ),
            Row(
                "pooled: times fewer than Math-Shepherd K=8 with the pooled decoder",
                times_fewer(pooled, "pooled", "Math-Shepherd K=8 + pooled decoder"),
                goal=10,
            ),
            Row(
                "pooled: the first at 60 tokens overhead a rollout",
                times_fewer(pooled, "pooled, overhead 60", decoder),
            ),
            Row(
                "pooled: times fewer tokens than the best OmegaPRM",
                times_fewer(pooled, "pooled", "OmegaPRM*"),
                goal=3,
            ),
            Row("pooled: F1 at 10 % of Math-Shepherd's tokens", f1_at(pooled, "pooled", "10%"), goal=0.75),
            Row(
                "pooled: MAP calibration error at 10 %",
                mean([p["pooled"]["at_10_percent"]["map_ece"] for p in pooled]),
                goal=0.03,
                lower_is_better=True,
            ),
        ]
    first, run = seeds(detail, "first"), "pooled, first problems as pilot"
    for under in ("same grid", "default grid") if first else ():
        peer = f"Math-Shepherd K=8 + pooled decoder, {under}"
        rows.append(Row(f"{run}: times fewer than {peer}", times_fewer(first, run, peer)))
    for kind in ("base", "pooled"):
        for what in ("tools", "hints", "tools and hints"):
            if not evidence:
                continue
            run = f"{kind}, {what}"
            rows += [
                Row(f"{run}: F1 at 5 %", f1_at(evidence, run, "5%"), goal=0.79 if what == "tools" else None),
                Row(f"{run}: F1 at 10 %", f1_at(evidence, run, "10%")),
                Row(
                    f"{run}: times fewer than Math-Shepherd K=8 + decoder without evidence",
                    times_fewer(evidence, run, decoder + ", no evidence"),
                ),
                Row(
                    f"{run}: times fewer than it with the same evidence",
                    times_fewer(evidence, run, decoder + ", same evidence"),
                ),
            ]
    for scenario in (*SINGLE_FAULT, "storm") if stress else ():
        goal = None if scenario == "storm" else 4.0
        # easy: the refitted target needs no rollout, which is no ratio; the goal stands at the default grid
        on_default = scenario == "easy"
        reports = [s[scenario] for s in stress if scenario in s]
        rows += [
            Row(
                f"{scenario}: times fewer than Math-Shepherd K=8 with the decoder, refitted",
                times_fewer(reports, "refitted grid", decoder),
                goal=None if on_default else goal,
            ),
            Row(
                f"{scenario}: the same, default grid",
                times_fewer(reports, "default grid", decoder),
                goal=goal if on_default else None,
            ),
            Row(
                f"{scenario}: MAP calibration error after refit",
                mean([r["refitted grid"]["at_10_percent"]["map_ece"] for r in reports]),
                goal=None if goal is None else 0.08,
                lower_is_better=True,
            ),
        ]
    return rows


def replay_rows(replay: dict[str, Any]) -> list[Row]:
    """The figures on real rollouts; goals stand at the grid that the product's own pilot chooses."""
    rows: list[Row] = []
    goals = {"Math-Shepherd K=8 + decoder": 4.0, "OmegaPRM, best K": 1.5}
    peers = (*goals, "Math-Shepherd K=8 hard", "stop at first right, best K")
    peers += tuple(f"{peer}, a state once" for peer in peers)
    for run, found in replay.items():
        if not isinstance(found, dict) or "versus" not in found:
            continue
        aimed = goals if run.startswith(GOAL + ", overhead") else {}
        rows += [
            Row(
                f"replay ({run}): times fewer tokens than {peer}",
                found["versus"][peer]["times_fewer"]["value"],
                goal=aimed.get(peer),
            )
            for peer in peers
            if peer in found["versus"]
        ]
        rows.append(
            Row(f"replay ({run}): F1 at 25 % of Math-Shepherd's tokens", found["f1_at"]["25%"]["value"])
        )
        for size, versus in found.get("versus, pilot charged", {}).items():
            rows += [
                Row(
                    f"replay ({run}), the pilot charged to a run of {size}: times fewer tokens than {peer}",
                    each["times_fewer"]["value"],
                    goal=aimed.get(peer),
                )
                for peer, each in versus.items()
            ]
        if own := found.get("at the product's price"):
            rows += [
                Row(f"replay ({run}), at the product's own price: F1", own["f1"]["value"]),
                Row(f"replay ({run}), at the product's own price: tokens a solution", own["tokens"]),
            ]
    return rows


def bookkeeping_rows(figures: dict[str, Any]) -> list[Row]:
    """CPU and memory beside the engine."""
    rows = [
        Row(f"bookkeeping: CPU ms a rollout, {name}", value, goal=0.1 if "compiled" in name else None,
            lower_is_better=True)
        for name, value in figures["cpu_ms_a_rollout"].items()
    ]  # fmt: skip
    few, many = figures["cpu_ms_a_problem_in_flight"].items()
    full, most = figures["engine_cpu_ms_a_problem_in_flight"].items()
    return [
        *rows,
        Row(
            f"bookkeeping: CPU ms a problem without an engine, {many[0]} in flight against {few[0]}",
            many[1],
            few[1],
            1.1,
            True,
            True,
        ),
        Row(
            f"bookkeeping: CPU ms a problem with the embedded engine, {most[0]} in flight against {full[0]}",
            most[1],
            full[1],
            1.1,
            True,
            True,
        ),
        Row(
            "bookkeeping: GiB of a tree of a million nodes",
            figures["tree"]["gib"],
            goal=2,
            lower_is_better=True,
        ),
    ]


def plot_replay(replay: dict[str, Any]) -> None:
    """F1 against tokens on real rollouts, with no overhead and with 60 tokens a rollout."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, both = plt.subplots(1, 2, figsize=(11, 5), sharey=True)
    for axes, overhead in zip(both, ("overhead 0", "overhead 60"), strict=True):
        runs = [name for name in replay if name.endswith(", " + overhead)]
        for run in runs:
            points = [p for p in replay[run]["curve"] if p["tokens"] > 0]
            spent = [p["tokens"] for p in points]
            line = axes.plot(
                spent, [p["f1"]["value"] for p in points], marker=".", label="ours, " + run.rsplit(", ", 1)[0]
            )
            if run.startswith(GOAL + ", overhead"):
                low, high = ([p["f1"][side] for p in points] for side in ("low", "high"))
                axes.fill_between(
                    spent, low, high, alpha=0.15, color=line[0].get_color(), label="95 % interval"
                )
        chosen = next(r for r in runs if r.startswith(GOAL + ", overhead"))
        kinds = (
            ("OmegaPRM K=", "", "s", "OmegaPRM"),
            ("OmegaPRM K=", ", a state once", "D", "OmegaPRM, a state once"),
            ("Math-Shepherd K=", " hard", "v", "Math-Shepherd, hard"),
            ("Math-Shepherd K=", " + decoder", "o", "Math-Shepherd + our decoder"),
            ("stop at first right K=", "", "x", "stop at first right"),
        )  # fmt: skip
        for start, end, marker, label in kinds:
            rows = [
                p for name, p in replay[chosen]["peers"].items()
                if name in {f"{start}{k}{end}" for k in range(1, 17)}
            ]  # fmt: skip
            axes.plot([p["tokens"] for p in rows], [p["f1"]["value"] for p in rows], marker, label=label)
        axes.set_xscale("log")
        axes.set_xlabel(
            "rollout tokens a solution (mean)" + (", 60 a rollout added" if overhead.endswith("60") else "")
        )
        axes.grid(alpha=0.3)
    both[0].set_ylabel("F1 of the first error")
    handles, labels = both[0].get_legend_handles_labels()
    figure.legend(handles, labels, fontsize=7, loc="lower center", ncols=5)
    figure.suptitle(
        f"Replayed rollouts of the embedded policy: {replay['solutions']:,} solutions, {replay['problems']} problems"
    )
    figure.tight_layout(rect=(0, 0.11, 1, 1))
    figure.savefig(FIGURES / "labeling_replay.png", dpi=130)
    plt.close(figure)


def plot(detail: dict[str, Any]) -> None:
    """F1 against tokens, base and pooled, with the peers as points."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    FIGURES.mkdir(parents=True, exist_ok=True)
    curves = {
        "base": {"siblings free": "ours, siblings free", "no siblings": "ours, no siblings"},
        "pooled": {"pooled": "ours, 8 solutions pooled"},
    }
    for part, runs in curves.items():
        reports = seeds(detail, part)
        if not reports:
            continue
        report = reports[0]
        figure, axes = plt.subplots(figsize=(7, 4.5))
        for run, label in runs.items():
            points = [p for p in report[run]["curve"] if p["tokens"] > 0]
            axes.plot([p["tokens"] for p in points], [p["f1"] for p in points], marker=".", label=label)
        if "genie" in report:
            points = [p for p in report["genie"]["curve"] if p["tokens"] > 0]
            axes.plot([p["tokens"] for p in points], [p["f1"] for p in points], "k:", label="greedy genie")
        kinds = {
            "OmegaPRM": ("s", "OmegaPRM, K = 1, 2, 4, 8"), "hard": ("v", "Math-Shepherd hard"),
            "soft": ("^", "Math-Shepherd soft, tuned"), "+ decoder": ("o", "Math-Shepherd + our decoder"),
            "random": ("x", "random prefixes + our decoder"),
        }  # fmt: skip
        for key, (marker, label) in kinds.items():
            chosen = [
                r for r in report["peers"]["table"] if key in r["method"] and "early" not in r["method"]
            ]
            if key == "+ decoder":
                chosen = [r for r in chosen if "random" not in r["method"]]
            axes.plot([r["tokens"] for r in chosen], [r["f1"] for r in chosen], marker, label=label)
        axes.set_xscale("log")
        axes.set_xlabel("rollout tokens a solution (mean)")
        axes.set_ylabel("F1 of the first error")
        axes.set_title(f"Simulator, {part}: {report['n']:,} solutions")
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7, loc="upper left")
        figure.tight_layout()
        figure.savefig(FIGURES / f"labeling_{part}.png", dpi=130)
        plt.close(figure)


def main() -> None:
    """Write the table and the plots."""
    detail = json.loads(DETAIL.read_text())
    rows = rows_of(detail)
    plot(detail)
    if REPLAY.exists():
        replay = json.loads(REPLAY.read_text())
        rows += replay_rows(replay)
        plot_replay(replay)
    if BOOKKEEPING.exists():
        rows += bookkeeping_rows(json.loads(BOOKKEEPING.read_text()))
    write("labeling", rows, keep_others=True)


if __name__ == "__main__":
    main()
