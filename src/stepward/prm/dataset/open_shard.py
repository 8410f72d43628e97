"""The shard that a stopped run was in the middle of: its finished problems are kept, none is paid for twice.

A run that stops by itself (a budget, Ctrl-C) saves them here; the resumed run takes them up and writes the shard
whole, with the same bytes as if nothing had happened. A run that is killed saves nothing and redoes one shard.
"""
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyarrow has no type stubs.

from collections.abc import Sequence
from pathlib import Path

from stepward.prm.dataset.folder import encode, open_path, read_table
from stepward.prm.dataset.schema import rollout_of, rollouts_table, rows_of, solution_of, solutions_table
from stepward.prm.durable import write_durably
from stepward.prm.types import LabeledSolution, Rollout

ProblemRows = tuple[list[LabeledSolution], list[tuple[str, Rollout]]]
"""The rows of one problem and its rollouts by solution id."""


def save_open_shard(
    folder: Path,
    run: str,
    index: int,
    rows: Sequence[LabeledSolution],
    rollouts: Sequence[tuple[str, Rollout]],
) -> None:
    """Keep the finished problems of an open shard.

    Args:
        folder: The dataset folder, locked by the caller's store.
        run: ``Manifest.run_id``; what another run saved counts for nothing.
        index: Number of the shard.
        rows: All rows of the finished problems.
        rollouts: All their rollouts.
    """
    (folder / open_path("solutions", run, index)).parent.mkdir(exist_ok=True)
    write_durably(folder / open_path("rollouts", run, index), encode(rollouts_table(rollouts), "arrow"))
    # Last, since it is what load looks for.
    write_durably(folder / open_path("solutions", run, index), encode(solutions_table(rows), "arrow"))


def load_open_shard(folder: Path, run: str, index: int) -> dict[str, ProblemRows]:
    """What was kept of an open shard, by problem id; empty where nothing was."""
    solutions, rollouts = (
        folder / open_path("solutions", run, index),
        folder / open_path("rollouts", run, index),
    )
    if not solutions.is_file() or not rollouts.is_file():
        return {}
    kept: dict[str, ProblemRows] = {}
    for row in map(solution_of, rows_of(read_table(solutions))):
        kept.setdefault(row.problem.id, ([], []))[0].append(row)
    for solution_id, rollout in map(rollout_of, rows_of(read_table(rollouts))):
        if rollout.problem_id in kept:
            kept[rollout.problem_id][1].append((solution_id, rollout))
    return kept


def drop_open_shard(folder: Path, run: str, index: int) -> None:
    """Forget an open shard once it is written whole."""
    for table in ("solutions", "rollouts"):
        (folder / open_path(table, run, index)).unlink(missing_ok=True)
