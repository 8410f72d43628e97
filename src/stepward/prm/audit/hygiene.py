"""Duplicates among problems, splits by problem, and what a dataset is made of."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from stepward.prm.audit.text_match import key_of, shingles
from stepward.prm.dataset.store import Dataset
from stepward.prm.errors import ConfigError
from stepward.prm.types import Problem

NGRAM = 5
MIN_JACCARD = 0.7
"""Least share of common masked 5-grams (of all that either has) of two near duplicates."""
_BANDS, _ROWS = 16, 4
# Two texts of similarity s share a band of 4 with probability s^4: among 16 bands one is shared with
# probability 1 - (1 - s^4)^16, .99 at s = .7; every candidate is then compared in full.


@dataclass(frozen=True, slots=True)
class Duplicates:
    """Problems that occur more than once.

    Attributes:
        checked: Problems that were looked at.
        exact: Groups of ids with the same normalised text, each in order of appearance.
        near: Pairs of ids with nearly the same text and their Jaccard similarity.
    """

    checked: int
    exact: Sequence[tuple[str, ...]]
    near: Sequence[tuple[str, str, float]]


def find_duplicates(problems: Iterable[Problem]) -> Duplicates:
    """Exact duplicates by normalised text, near ones by MinHash with numbers masked.

    Near duplicates are looked for among the first of each group of exact ones.
    """
    groups: dict[str, list[str]] = {}
    firsts: list[tuple[str, frozenset[int]]] = []
    checked = 0
    for problem in problems:
        checked += 1
        group = groups.setdefault(key_of(problem.text), [])
        if not group:
            firsts.append((problem.id, shingles(problem.text, NGRAM)))
        group.append(problem.id)
    exact = [tuple(group) for group in groups.values() if len(group) > 1]
    return Duplicates(checked, exact, _near_pairs(firsts))


def _near_pairs(texts: Sequence[tuple[str, frozenset[int]]]) -> list[tuple[str, str, float]]:
    rng = np.random.default_rng(0)
    a = rng.integers(0, 1 << 63, _BANDS * _ROWS, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    b = rng.integers(0, 1 << 63, _BANDS * _ROWS, dtype=np.uint64)
    buckets: dict[tuple[int, bytes], list[int]] = {}
    for number, (_, grams) in enumerate(texts):
        if not grams:
            continue
        signature = _signature(grams, a, b)
        for band in range(_BANDS):
            key = signature[band * _ROWS : (band + 1) * _ROWS].tobytes()
            buckets.setdefault((band, key), []).append(number)
    candidates = {
        (i, j) for bucket in buckets.values() for k, i in enumerate(bucket) for j in bucket[k + 1 :]
    }
    found: list[tuple[str, str, float]] = []
    for i, j in sorted(candidates):
        mine, theirs = texts[i][1], texts[j][1]
        similarity = len(mine & theirs) / len(mine | theirs)
        if similarity >= MIN_JACCARD:
            found.append((texts[i][0], texts[j][0], similarity))
    return found


def _signature(
    grams: frozenset[int], a: npt.NDArray[np.uint64], b: npt.NDArray[np.uint64]
) -> npt.NDArray[np.uint64]:
    # Odd multipliers modulo 2^64: each is a permutation of the hashes, and the least of each is compared.
    hashes = np.fromiter(grams, dtype=np.uint64, count=len(grams))
    return (hashes[:, None] * a + b).min(axis=0)


def split_of(text: str, shares: Mapping[str, float], *, seed: int = 0) -> str:
    """The split of a problem, by its normalised text alone: never by row, and the same whatever else there is.

    Args:
        text: The problem.
        shares: Share of each split by name; they add up to 1.
        seed: Another seed gives another split.

    Raises:
        ConfigError: The shares do not add up to 1.
    """
    if abs(sum(shares.values()) - 1) > 1e-9 or min(shares.values(), default=-1) < 0:
        raise ConfigError([f"split: the shares {dict(shares)} must be 0 or more and add up to 1"])
    digest = hashlib.blake2b(f"{seed}\x00{key_of(text)}".encode(), digest_size=8).digest()
    place = int.from_bytes(digest, "big") / 2**64
    for name, share in shares.items():
        place -= share
        if place < 0:
            return name
    return list(shares)[-1]


def statistics(dataset: Dataset) -> dict[str, Any]:
    """Lengths, balance and unknowns of a dataset, computed on columns.

    Returns:
        ``steps`` and ``step_tokens``: mean and quantiles. ``label_by_position``: for each step index up to 20 the
        counts (right, wrong, unknown). ``first_error_by_position``: solutions by first error.
        ``solutions_per_problem``: problems by how many solutions they have. ``decided_by``: steps by what
        decided their label. ``marks`` and ``outcome_from``: solutions by mark, and by what their outcome rests on.
    """
    rows = dataset.scan("solutions")
    lengths = rows.select(steps=pl.col("steps").list.len()).collect(engine="streaming")["steps"]
    step = pl.col("steps").struct.field
    steps = (
        rows.select("steps", at=pl.int_ranges(0, pl.col("steps").list.len()))
        .explode("steps", "at")
        .filter(pl.col("at").is_not_null())
        .select("at", label=step("label"), tokens=step("token_ids").list.len(), by=step("decided_by"))
    )
    labels = steps.group_by("at", "label").len().collect(engine="streaming")
    tokens = steps.select("tokens").collect(engine="streaming")["tokens"]
    by_position: dict[int, dict[str, int]] = {}
    names = {1: "right", 0: "wrong", None: "unknown"}
    for at, label, count in labels.sort("at").iter_rows():
        cell = by_position.setdefault(min(at, 20), {})
        cell[names[label]] = cell.get(names[label], 0) + count
    errors = rows.group_by("first_error").len().sort("first_error").collect()
    repeats = rows.group_by("problem_id").len("n").group_by("n").len().sort("n").collect()
    decided = steps.group_by("by").len().sort("by").collect(engine="streaming")
    return {
        "steps": _summary(lengths),
        "step_tokens": _summary(tokens),
        "label_by_position": by_position,
        "first_error_by_position": dict(errors.iter_rows()),
        "solutions_per_problem": dict(repeats.iter_rows()),
        "decided_by": {by or "unknown": n for by, n in decided.iter_rows()},
        "marks": _counted(rows.select(pl.col("marks").explode()).drop_nulls()),
        "outcome_from": _counted(rows.select("outcome_from")),
    }


def _counted(column: pl.LazyFrame) -> dict[str, int]:
    """How often each value of the only column occurs, by name."""
    (name,) = column.collect_schema().names()
    return {str(value): n for value, n in column.group_by(name).len().sort(name).collect().iter_rows()}


def _summary(values: pl.Series) -> dict[str, float]:
    if values.is_empty():
        return {}
    quantiles = {f"q{int(q * 100)}": float(values.quantile(q) or 0) for q in (0.05, 0.5, 0.95)}
    mean: Any = values.mean()
    most: Any = values.max()
    return {"mean": float(mean), **quantiles, "max": float(most)}
