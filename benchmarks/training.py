"""The training benchmark: speed beside TRL's last PRM trainer, every loss and head, BetaPRM's reliability.

    make bench-training                                  all of it; about an hour of CPU
    python -m benchmarks.training speed losses           parts of it; the other rows of the report stay

Speed needs TRL in an environment of its own: STEPWARD_TRL_PYTHON names its interpreter, else one is made. What takes
long is kept in STEPWARD_BENCH (a folder), so that a killed benchmark goes on where it stood.
"""

import sys

from benchmarks.report import Row, write
from benchmarks.training_losses import FOLDER
from benchmarks.training_losses import main as train_all
from benchmarks.training_report import loss_rows, reliability_rows, store_rows, stored_rows, write_table
from benchmarks.training_speed import measure, speed_rows

PARTS = ("speed", "losses", "reliability")


def main() -> None:
    """Run the parts that were named, or all."""
    parts = sys.argv[1:] or list(PARTS)
    if unknown := [p for p in parts if p not in PARTS]:
        raise SystemExit(f"no such part: {', '.join(unknown)}; parts: {', '.join(PARTS)}")
    rows: dict[str, list[Row]] = stored_rows(FOLDER)
    if "speed" in parts:
        rows["speed"] = speed_rows(measure(FOLDER / "speed"))
    if "losses" in parts or "reliability" in parts:
        train_all()
        rows["losses"], rows["reliability"] = loss_rows(FOLDER), reliability_rows(FOLDER)
        write_table(FOLDER)
    store_rows(FOLDER, rows)
    write("training", [row for part in PARTS for row in rows.get(part, [])])


if __name__ == "__main__":
    main()
