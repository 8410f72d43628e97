r"""The step verifiers on PRM800K's human ratings of single steps (Lightman et al., 2023, https://arxiv.org/abs/2305.20050).

    python -m benchmarks.rated_steps FILES [--folds 2 3 4] [--data FOLDER] [--out FLAGS.jsonl]

FILES are Parquet files of PRM800K with a row for each rated completion: ``instruction`` (the problem), ``responses``
(the steps before it), ``next_response``, ``rating`` (-1 wrong, 0 neutral, 1 right), as in the Hub's
``Birchlabs/openai-prm800k-stepwise-critic`` (MIT; its two files of phase 1). Prints one JSON object and, for folds 2 to
4, writes benchmarks/results/rated_steps.json.

A case is a problem, its steps before, and one rated step, counted once however often it was rated; cases whose
ratings disagree, whose step a labeler wrote, or whose steps before hold one that was rated wrong are left out. It is
flagged where its step is the first that either verifier refutes; the flag is true where the rating is -1. Wrong steps
are far more frequent here than in whole solutions, so the precision is also given at the mix of ProcessBench's
gsm8k and math: so many right steps for each wrong one as its judged steps have. Folds as in ``benchmarks.steps``.
PRMBench holds some of these steps and was read while rules were written: figures without its problems come second.
"""

import argparse
import asyncio
import gzip
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from benchmarks.public_data import data_folder
from benchmarks.report import Row, write
from benchmarks.steps import UNSEEN, fold_of, rows, verdicts_of, wilson
from stepward.prm.types import VerdictKind
from stepward.verifiers.algebra import Algebra
from stepward.verifiers.arithmetic import Arithmetic


@dataclass(frozen=True, slots=True)
class Case:
    """One step that people rated, after steps that nobody rated wrong.

    Attributes:
        problem: The statement.
        steps: The steps before it and, last, the rated one.
        wrong: Whether it was rated -1.
    """

    problem: str
    steps: tuple[str, ...]
    wrong: bool


def cases(files: Sequence[Path], folds: Iterable[int]) -> list[Case]:
    """The cases of those folds, sorted by problem and steps."""
    ratings: dict[tuple[str, tuple[str, ...]], set[float | None]] = {}
    chosen = set(folds)
    for file in files:
        table = pl.read_parquet(file, columns=["instruction", "responses", "next_response", "rating"])
        for problem, before, step, rating in table.iter_rows():
            if fold_of(problem) in chosen:
                ratings.setdefault((problem, (*before, step)), set()).add(rating)
    wrong = {key for key, found in ratings.items() if -1 in found}
    return [
        Case(problem, steps, rating == {-1})
        for (problem, steps), rating in sorted(ratings.items())
        if None not in rating
        and len({value == -1 for value in rating}) == 1
        and not any((problem, steps[:end]) in wrong for end in range(1, len(steps)))
    ]


def right_steps_for_each_wrong(data: Path) -> float:
    """Judged steps of ProcessBench's gsm8k and math that are right, for each that is labelled the first error."""
    counts: Counter[bool] = Counter()
    for subset in ("gsm8k", "math"):
        for row in rows(data / "processbench" / f"{subset}.jsonl"):
            counts[False] += row["label"] if row["label"] >= 0 else len(row["steps"])
            counts[True] += row["label"] >= 0
    return counts[False] / counts[True]


async def _judge(part: Sequence[Case]) -> list[dict[str, Any] | None]:
    members = (Arithmetic(), Algebra())
    found: list[dict[str, Any] | None] = []
    for case in part:
        refuted = [
            (index, verdict)
            for index, step in enumerate(await verdicts_of(members, case.problem, case.steps))
            for verdict in step
            if verdict.kind is VerdictKind.REFUTED
        ]
        if not refuted or refuted[0][0] != len(case.steps) - 1:
            found.append(None)
            continue
        found.append(
            {"wrong": case.wrong, "by": refuted[0][1].verifier, "claim": refuted[0][1].evidence,
             "problem": case.problem, "steps": case.steps}
        )  # fmt: skip
    return found


def judge(part: Sequence[Case]) -> list[dict[str, Any] | None]:
    """What each case's flag rests on; None where its step is not the first that is refuted."""
    return asyncio.run(_judge(part))


def _batches(found: Sequence[Case], size: int = 400) -> Iterator[Sequence[Case]]:
    for start in range(0, len(found), size):
        yield found[start : start + size]


def measure(
    files: Sequence[Path], folds: Sequence[int], data: Path
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The figures, and every flag."""
    read = cases(files, folds)
    with ProcessPoolExecutor() as pool:
        flags = [flag for part in pool.map(judge, _batches(read)) for flag in part if flag]
    seen = {row["original_question"] for row in rows_of_prmbench(data)}
    mix = right_steps_for_each_wrong(data)
    return {
        "folds": sorted(folds),
        "right_steps_for_each_wrong_in_processbench": round(mix, 2),
        "all": _shares(read, flags, mix),
        "without_problems_of_prmbench": _shares(
            [case for case in read if case.problem not in seen],
            [flag for flag in flags if flag["problem"] not in seen],
            mix,
        ),
    }, flags


def rows_of_prmbench(data: Path) -> Iterator[dict[str, Any]]:
    """Rows of the open half of PRMBench."""
    with gzip.open(data / "prmbench" / "all_open_half.jsonl.gz", "rt") as lines:
        yield from map(json.loads, lines)


def _shares(read: Sequence[Case], flags: Sequence[dict[str, Any]], mix: float) -> dict[str, Any]:
    errors = sum(case.wrong for case in read)
    true = sum(flag["wrong"] for flag in flags)
    false = len(flags) - true
    caught, disturbed = true / errors, false / (len(read) - errors)
    return {
        "problems": len({case.problem for case in read}),
        "cases": len(read), "rated_wrong": errors, "true": true, "false": false,
        "precision": round(true / len(flags), 4), "precision_wilson": wilson(true, len(flags)),
        "precision_bootstrap_over_problems": _bootstrap(flags),
        "recall": round(caught, 4), "recall_wilson": wilson(true, errors),
        "precision_at_that_mix": round(caught / (caught + mix * disturbed), 4),
        "by": dict(Counter(f"{flag['by']} {'true' if flag['wrong'] else 'false'}" for flag in flags)),
    }  # fmt: skip


def _bootstrap(flags: Sequence[dict[str, Any]], draws: int = 4000) -> list[float]:
    """The 95 % interval of precision where problems are drawn anew: several flags may rest on one slip."""
    counts: dict[str, list[int]] = {}
    for flag in flags:
        counts.setdefault(flag["problem"], [0, 0])[flag["wrong"]] += 1
    table = np.array(list(counts.values()))
    drawn = table[np.random.default_rng(0).integers(0, len(table), (draws, len(table)))].sum(axis=1)
    return [round(float(x), 4) for x in np.quantile(drawn[:, 1] / drawn.sum(axis=1), [0.025, 0.975])]


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--folds", type=int, nargs="+", default=list(UNSEEN))
    parser.add_argument("--data", type=Path, default=None)
    parser.add_argument("--out", type=Path, default=None, help="every flag, one JSON object a line")
    arguments = parser.parse_args()
    report, flags = measure(arguments.files, arguments.folds, arguments.data or data_folder())
    if arguments.out:
        arguments.out.write_text("".join(json.dumps(flag, ensure_ascii=False) + "\n" for flag in flags))
    print(json.dumps(report, indent=1))
    if tuple(arguments.folds) == UNSEEN:
        write("rated_steps", _rows(report["all"], len(flags)))


def _rows(part: dict[str, Any], flags: int) -> list[Row]:
    where = "steps, PRM800K phase 1, folds 2-4 (read once at 563fb9e; four rules mended since)"
    low, high = part["precision_bootstrap_over_problems"]
    return [
        Row(f"{where}: raw precision of flags ({low:.3f} to {high:.3f} over problems)", part["precision"]),
        Row(f"{where}: recall of steps rated wrong", part["recall"]),
        Row(f"{where}: flags", flags),
    ]


if __name__ == "__main__":
    main()
