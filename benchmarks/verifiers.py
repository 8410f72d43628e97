r"""Everything of the verifiers in one run: answers beside math-verify, steps, workers and sandbox.

    python -m benchmarks.verifiers [--data FOLDER] [--pairs 300] [--seed 5] [--parts answers steps sandbox]

Writes benchmarks/results/verifiers.json; with only some parts it prints them and writes nothing.
"""

import argparse
from pathlib import Path

from benchmarks.answers import answer_rows
from benchmarks.report import Row, show, write
from benchmarks.sandbox import sandbox_rows
from benchmarks.steps import DATA, report_rows

PARTS = ("answers", "steps", "sandbox")


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--pairs", type=int, default=300)
    parser.add_argument("--seed", type=int, default=5)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    chosen = parser.parse_args()
    made: list[Row] = []
    if "steps" in chosen.parts:
        made += report_rows(chosen.data)
    if "sandbox" in chosen.parts:
        made += sandbox_rows()
    if "answers" in chosen.parts:
        made += answer_rows(chosen.data, chosen.pairs, chosen.seed)
    write("verifiers", made) if set(chosen.parts) == set(PARTS) else show(made)


if __name__ == "__main__":
    main()
