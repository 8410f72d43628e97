"""``stepward runs``: what the runs below some folders are doing, read from their files; no server is asked.

A run is a dataset folder. Its receipts say which shards are finished, its lock whether a process is at it, and the
figures that each process leaves (``flows.watching.observe``) how far it is.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from stepward.prm.dataset.folder import MANIFEST, PARTIAL, read_receipts, stored_manifest
from stepward.prm.dataset.manifest import Totals
from stepward.prm.errors import StoreError
from stepward.prm.locks import LOCK_NAME, holders

_DEPTH = 4
_RECENT_S = 30.0  # figures are written every few seconds (``observe``)


@dataclass(frozen=True, slots=True)
class RunLine:
    """One run.

    Attributes:
        folder: Of its dataset.
        state: ``finished``, ``running``, ``stopped``, or ``broken: why``. Locks of other machines are not seen from
            here: what wrote its figures within the last half minute and has no owner is ``active elsewhere``.
        owner: The processes of this machine that are at it.
        shards: Finished ones, and ``shards_total`` where a process of it has said how many problems there are.
        problems: In finished shards, of ``problems_total``.
        labels: Steps labelled right or wrong.
        tokens: Generated for the solutions and rollouts of finished shards.
        labels_per_hour: Over the seconds that its shards took; None before one is finished.
        warnings: What its processes warn of now.
    """

    folder: Path
    state: str
    owner: str = ""
    shards: int = 0
    shards_total: int | None = None
    problems: int = 0
    problems_total: int | None = None
    labels: int = 0
    tokens: int = 0
    labels_per_hour: float | None = None
    warnings: tuple[str, ...] = ()


def list_runs(*roots: Path) -> list[RunLine]:
    """All runs in and below some folders, by folder name."""
    found = {folder.resolve(): folder for root in roots for folder in _datasets(root, _DEPTH)}
    return [run_line(folder) for _, folder in sorted(found.items())]


def run_line(folder: Path) -> RunLine:
    """One dataset folder as a run."""
    try:
        manifest = stored_manifest(folder)
    except StoreError as fault:
        return RunLine(folder, f"broken: {str(fault).splitlines()[0]}")
    assert manifest is not None
    owner = _owner(folder)
    sealed = manifest.fingerprint is not None
    shards = manifest.shards if sealed else tuple(read_receipts(folder, manifest.run_id).values())
    totals = sum((s.totals for s in shards), Totals())
    labels = sum(n for kind, n in totals.labels.items() if kind != "unknown")
    states = [s for s in _states(folder) if s.get("run") == manifest.run_id]
    size = manifest.config.get("shard_problems")
    problems_total = _most(states, "problems_total")
    whole = [s for s in states if s.get("part") is None]
    shards_total = len(shards) if sealed else None
    if not sealed and whole and isinstance(size, int) and problems_total:
        shards_total = -(-problems_total // size)
    seconds = _seconds(folder, manifest.run_id)
    return RunLine(
        folder=folder,
        state=_state(sealed, owner, states),
        owner=owner if not sealed else "",
        shards=len(shards),
        shards_total=shards_total,
        problems=totals.problems,
        problems_total=totals.problems if sealed else problems_total if whole else None,
        labels=labels,
        tokens=totals.generated_tokens,
        labels_per_hour=3600 * labels / seconds if seconds and labels else None,
        warnings=tuple(sorted({str(w) for s in states for w in s.get("warnings", ())})) if owner else (),
    )


def _state(sealed: bool, owner: str, states: list[dict[str, Any]]) -> str:
    if sealed:
        return "finished"
    if owner:
        return "running"
    now = datetime.now(UTC)
    times = [datetime.fromisoformat(s["time"]) for s in states if isinstance(s.get("time"), str)]
    recent = any((now - t).total_seconds() < _RECENT_S for t in times)
    return "active elsewhere" if recent else "stopped"


def runs_table(lines: list[RunLine]) -> Any:
    """The runs as a table for a terminal."""
    from rich.table import Table

    table = Table(title=f"{len(lines)} runs")
    for name in ("folder", "state", "shards", "problems", "labels", "tokens", "labels/h"):
        table.add_column(name, justify="left" if name in ("folder", "state") else "right", overflow="fold")
    for line in lines:
        state = line.state if not line.owner else f"{line.state} ({line.owner})"
        table.add_row(
            str(line.folder),
            state + "".join(f"\n! {w}" for w in line.warnings),
            _of(line.shards, line.shards_total),
            _of(line.problems, line.problems_total),
            f"{line.labels:,}",
            f"{line.tokens:,}",
            "-" if line.labels_per_hour is None else f"{line.labels_per_hour:,.0f}",
        )
    return table


def _of(done: int, total: int | None) -> str:
    return f"{done:,}" if total is None else f"{done:,}/{total:,}"


def _datasets(root: Path, depth: int) -> Iterator[Path]:
    if (root / MANIFEST).is_file() or (root / PARTIAL).is_file():
        yield root
    elif depth and root.is_dir():
        for child in sorted(root.iterdir()):
            if child.is_dir() and not child.is_symlink() and not child.name.startswith("."):
                yield from _datasets(child, depth - 1)


def _owner(folder: Path) -> str:
    """Who is at a folder on this machine, empty where nobody is."""
    at_it = sorted(set(holders(folder / LOCK_NAME)))
    return f"process {', '.join(map(str, at_it))}" if at_it else ""


def _states(folder: Path) -> list[dict[str, Any]]:
    states: list[dict[str, Any]] = []
    for path in folder.glob("run_metrics*.json"):
        try:
            states.append(json.loads(path.read_bytes()))
        except (OSError, ValueError):
            continue  # figures to look at, no record: a process may be writing them
    return states


def _most(states: list[dict[str, Any]], name: str) -> int | None:
    values = [s[name] for s in states if isinstance(s.get(name), int)]
    return max(values, default=None)


def _seconds(folder: Path, run_id: str) -> float:
    """Seconds that the finished shards took, as their metrics say."""
    total = 0.0
    for path in (folder / ".metrics").glob("shard-*.json"):
        try:
            total += float(json.loads(path.read_bytes()).get("seconds", 0.0))
        except (OSError, ValueError):
            continue
    return total
