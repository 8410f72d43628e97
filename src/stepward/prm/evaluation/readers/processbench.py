"""ProcessBench's format: id, generator, problem, steps, final_answer_correct, label (0-based, -1 = none)."""

import importlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from stepward.prm.evaluation.errors import BenchmarkFileError, EvaluationError, StepCountError
from stepward.prm.evaluation.items import Item, check_unique, read_jsonl

SUBSETS = ("gsm8k", "math", "olympiadbench", "omnimath")
HUB_ID = "Qwen/ProcessBench"


def item_from_row(row: Mapping[str, Any], *, subset: str, source: str = "") -> Item:
    """One ProcessBench row as an item.

    Args:
        row: id, generator, problem, steps, final_answer_correct, label (-1 = none).
        subset: The subset's name.
        source: File or Hub id with revision.

    Raises:
        ValueError: A field is missing or of the wrong kind; the message names it.
        StepCountError: The label does not lie among the steps.
    """
    for name, kind in (("id", str), ("problem", str), ("steps", list), ("label", int)):
        if name not in row:
            raise ValueError(f"no field {name!r}; a row has id, generator, problem, steps and label")
        if not isinstance(row[name], kind) or isinstance(row[name], bool):
            raise ValueError(f"{name} is {row[name]!r}; a {kind.__name__} is needed")
    steps, label = row["steps"], row["label"]
    if not all(isinstance(step, str) for step in steps):
        raise ValueError("steps must be a list of texts")
    if label < -1:
        raise ValueError(f"label {label}; -1 says that no step is wrong, other labels are 0-based indices")
    final = row.get("final_answer_correct")
    return Item(
        id=str(row["id"]),
        problem=str(row["problem"]),
        steps=tuple(str(step) for step in steps),
        first_error=None if label == -1 else label,
        subset=subset,
        generator=str(row.get("generator") or ""),
        final_answer_correct=final if isinstance(final, bool) else None,
        source=source,
    )


def read_items(path: str | Path, *, subset: str | None = None) -> list[Item]:
    """The items of a JSON Lines file (or of a file that holds one JSON list) in ProcessBench's format.

    Args:
        path: The file.
        subset: Name to report it under; the file's stem where None.

    Raises:
        BenchmarkFileError: A row breaks the format: file, line and field are named.
        DoubledItemsError: An id twice.
    """
    path = Path(path)
    name = subset if subset is not None else path.stem
    items: list[Item] = []
    for line, row in _rows(path):
        try:
            items.append(item_from_row(row, subset=name, source=path.name))
        except (ValueError, StepCountError) as fault:
            raise BenchmarkFileError(path.name, line, str(fault)) from None
    check_unique(item.id for item in items)
    return items


def _rows(path: Path) -> list[tuple[int, dict[str, Any]]]:
    with path.open(encoding="utf-8-sig") as file:
        if file.read(1) != "[":
            return read_jsonl(path)
        file.seek(0)
        try:
            rows = cast(list[Any], json.load(file))
        except json.JSONDecodeError as fault:
            raise BenchmarkFileError(path.name, fault.lineno, f"not JSON ({fault.msg})") from None
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, dict):
            raise BenchmarkFileError(path.name, number, "the list holds something that is no object")
    return list(enumerate(cast(list[dict[str, Any]], rows), start=1))


def read_folder(folder: str | Path, subsets: Sequence[str] = SUBSETS) -> list[Item]:
    """The items of ``<subset>.jsonl`` (or .json) in a folder, in the order of ``subsets``."""
    items: list[Item] = []
    for subset in subsets:
        found = [
            p for p in (Path(folder) / f"{subset}.jsonl", Path(folder) / f"{subset}.json") if p.is_file()
        ]
        if not found:
            raise BenchmarkFileError(f"{subset}.jsonl", 0, f"not in the folder {Path(folder).name}")
        items += read_items(found[0], subset=subset)
    check_unique(item.id for item in items)
    return items


def load_hub(revision: str, *, hub_id: str = HUB_ID, subsets: Sequence[str] = SUBSETS) -> list[Item]:
    """The items of a Hub dataset at a pinned commit, which every item's ``source`` names.

    Raises:
        EvaluationError: The revision is a branch or a tag, which may name other items tomorrow.
    """
    if not re.fullmatch(r"[0-9a-f]{40}", revision):
        raise EvaluationError(
            f"reading {hub_id} at {revision!r}: a benchmark needs a pinned commit of 40 hex digits; look it up on the "
            "Hub under 'Files and versions'"
        )
    datasets: Any = importlib.import_module("datasets")  # heavy, and the rows come over the network
    items: list[Item] = []
    for subset in subsets:
        rows = cast(
            Iterable[Mapping[str, Any]], datasets.load_dataset(hub_id, split=subset, revision=revision)
        )
        items += [item_from_row(row, subset=subset, source=f"{hub_id}@{revision}") for row in rows]
    check_unique(item.id for item in items)
    return items


def read_fixes(path: str | Path) -> dict[str, int | None]:
    """Corrected labels by id from an override file: ``{id: {"to": label, ...}}`` with -1 = none.

    Raises:
        BenchmarkFileError: An entry has no label ``to``.
    """
    path = Path(path)
    table: Any = json.loads(path.read_text(encoding="utf-8"))
    fixes: dict[str, int | None] = {}
    if not isinstance(table, dict):
        raise BenchmarkFileError(path.name, 1, "label fixes are one JSON object: id -> {from, to, source}")
    for name, entry in cast(dict[str, Any], table).items():
        to: Any = cast(dict[str, Any], entry).get("to") if isinstance(entry, dict) else None
        if not isinstance(to, int) or isinstance(to, bool) or to < -1:
            raise BenchmarkFileError(path.name, 1, f"{name}: 'to' is {to!r}; a 0-based label, or -1 for none")
        fixes[name] = None if to == -1 else to
    return fixes
