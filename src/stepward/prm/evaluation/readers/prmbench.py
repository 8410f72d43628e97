"""PRMBench's format: two processes a row, the modified one with 1-based ``error_steps``.

Song et al., arXiv 2501.03124, and its released evaluation code. ``idx`` repeats across classifications, so an
item's id is ``classification_idx``. A few ids still occur twice: the first counts, as upstream, and the others
are named. Some rows list an error step behind the end of the process: such entries point at nothing and are
dropped, as upstream ignores them, and counted.
"""

import gzip
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

from stepward.prm.evaluation.errors import BenchmarkFileError
from stepward.prm.evaluation.prmbench import CORRECT, PRMBenchItem, PRMBenchSet

_CLASS_OF_CORRECT = "redundency"  # spelled so in the data


def read_prmbench(*paths: str | Path) -> PRMBenchSet:
    """The items of one or several JSON Lines files (plain or gzip).

    Each ``redundency`` row also gives an item of class ``correct`` from its original question and process.

    Raises:
        BenchmarkFileError: A row breaks the format: file, line and field are named.
    """
    items: dict[str, PRMBenchItem] = {}
    doubled: list[str] = []
    beyond: list[str] = []
    for path in map(Path, paths):
        for line, row in _rows(path):
            for item, num_beyond in _items(row, path.name, line):
                if item.id in items:
                    doubled.append(item.id)
                    continue
                items[item.id] = item
                if num_beyond:
                    beyond.append(item.id)
    return PRMBenchSet(tuple(items.values()), tuple(doubled), tuple(beyond))


def _items(row: Mapping[str, Any], path: str, line: int) -> list[tuple[PRMBenchItem, int]]:
    for name in ("classification", "idx", "modified_question", "original_question"):
        if not isinstance(row.get(name), str):
            raise BenchmarkFileError(path, line, f"{name} is {row.get(name)!r}; a text is needed")
    for name in ("modified_process", "original_process", "error_steps"):
        if not isinstance(row.get(name), list):
            raise BenchmarkFileError(path, line, f"{name} is {row.get(name)!r}; a list is needed")
    kind, idx = str(row["classification"]), str(row["idx"])
    steps = _texts(row["modified_process"], "modified_process", path, line)
    marks = cast(list[Any], row["error_steps"])
    if not all(isinstance(mark, int) and not isinstance(mark, bool) and mark >= 1 for mark in marks):
        raise BenchmarkFileError(path, line, f"error_steps is {marks!r}; 1-based step numbers are needed")
    wrong = frozenset(mark - 1 for mark in marks if mark <= len(steps))
    problem = str(row["original_question"])
    item = PRMBenchItem(f"{kind}_{idx}", kind, str(row["modified_question"]), steps, wrong, problem)
    found = [(item, sum(mark > len(steps) for mark in marks))]
    if kind == _CLASS_OF_CORRECT:
        original = _texts(row["original_process"], "original_process", path, line)
        found.append((PRMBenchItem(f"{CORRECT}_{idx}", CORRECT, problem, original, frozenset(), problem), 0))
    return found


def _texts(value: Any, name: str, path: str, line: int) -> tuple[str, ...]:
    texts = cast(list[Any], value)
    if not texts or not all(isinstance(text, str) for text in texts):
        raise BenchmarkFileError(path, line, f"{name} must be a list of texts, not empty")
    return tuple(str(text) for text in texts)


def _rows(path: Path) -> Iterable[tuple[int, dict[str, Any]]]:
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8-sig") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                try:
                    row: Any = json.loads(line)
                except json.JSONDecodeError as fault:
                    raise BenchmarkFileError(path.name, number, f"not JSON ({fault.msg})") from None
                if not isinstance(row, dict):
                    raise BenchmarkFileError(path.name, number, "not a JSON object; one object a line")
                yield number, cast(dict[str, Any], row)
