"""The quickstart at full size: 3 seeds, 1,000 reported held-out problems each. ``make bench-quickstart``.

Prints a table and writes benchmarks/results/quickstart.json. Takes about half an hour of CPU.
"""

import asyncio
import resource
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.report import Row, write
from stepward.flows.quickstart import Sizes, figures, quickstart

SEEDS = (0, 1, 2)
SIZES = Sizes(label_problems=900, heldout_problems=1060, tuning_problems=60)


def cpu_s() -> float:
    """CPU seconds of this process and its finished children."""
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def run(seed: int) -> dict[str, Any]:
    """The figures of one seed, from nothing."""
    out = Path(tempfile.mkdtemp(prefix="stepward-quickstart-"))
    try:
        outcomes = asyncio.run(
            quickstart(out, seed=seed, sizes=SIZES, say=lambda line: print(line, file=sys.stderr, flush=True))
        )
        return figures(outcomes)
    finally:
        shutil.rmtree(out)


def main() -> None:
    """Run all seeds and write the results."""
    rows: list[Row] = []
    for seed in SEEDS:
        began = cpu_s()
        found = run(seed)
        name = found["best_baseline"]
        f1 = next(iter(found["processbench_f1"].values()))["value"]
        over = found["f1_over_best_baseline"]
        product = found["best_of_n"]["best_of_n[product]"]["over_majority"]
        majority = found["best_of_n"]["majority"]["accuracy"]["value"]
        best = found["best_of_n"]["best_of_n[product]"]["accuracy"]["value"]
        rows += [
            Row(
                f"ProcessBench F1, seed {seed}, against {name}",
                f1,
                found["processbench_f1"][name]["value"],
                None,
            ),
            Row(f"F1 over the best baseline, seed {seed}", over["value"], None, 0.15),
            Row(f"  lower end of its 95 % interval, seed {seed}", over["low"], None, 0.05),
            Row(f"best-of-8 (product) against majority, seed {seed}", best, majority, None),
            Row(f"best-of-8 over majority, paired, seed {seed}", product["value"], None, 0.02),
            Row(f"  lower end of its 95 % interval, seed {seed}", product["low"], None, 0.0),
            Row(f"labels' first-error F1, seed {seed}", found["label_first_error_f1"], None, None),
            Row(f"CPU seconds, full size, seed {seed}", cpu_s() - began, None, None),
        ]
    write("quickstart", rows)


if __name__ == "__main__":
    main()
