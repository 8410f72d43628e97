r"""The step verifiers ``arithmetic`` and ``algebra`` on ProcessBench, other labelled steps and GSM8K's solutions.

    python -m benchmarks.steps [--data FOLDER] [--folds 2 3 4] [--no-rationales]

Prints one JSON object. A flag is a solution's first step that either verifier refutes; it is true where it is the
labelled first error, false where the label is later or there is none, and does not count where it comes after the
label. Problems fall into five folds by SHA-256 of their text; rules are written on folds 0 and 1 alone.
"""

# ruff: noqa: SIM905  (lists of ids are easiest to read as text)

import argparse
import asyncio
import gzip
import hashlib
import json
import math
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.report import Row
from stepward.prm.evaluation.items import Item
from stepward.prm.evaluation.readers.step_sets import (
    StepSet,
    read_bigbench_mistake,
    read_mr_gsm8k,
    read_mrben,
    read_parc,
)
from stepward.prm.types import Problem, Verdict, VerdictKind
from stepward.verifiers.algebra import Algebra
from stepward.verifiers.arithmetic import Arithmetic
from stepward.verifiers.base import Verifier
from stepward.verifiers.claims.reading import claims_of
from stepward.verifiers.claims.statements import statements_of

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
SUBSETS = ("gsm8k", "math", "olympiadbench", "omnimath")
FOLDS = 5
DEVELOPED, UNSEEN = (0, 1), (2, 3, 4)


SETS = {
    "mrben_math.jsonl": read_mrben,
    "mr_gsm8k_wrong_590.jsonl": read_mr_gsm8k,
    "parc_perl.jsonl": read_parc,
}
# Read once, when the rules were fixed; one rule was mended since (a ratio of quotients, in MR-Ben's chemistry).
READ_ONCE = {
    "bigbench_mistake_multistep_arithmetic.jsonl": read_bigbench_mistake,
    "mrben_physics.jsonl": read_mrben,
    "mrben_chemistry.jsonl": read_mrben,
}


@dataclass(frozen=True, slots=True)
class Adjudicated:
    """Disputed flags that a person read: the equation is false as written, or the rule erred.

    Attributes:
        false_as_written: Ids of solutions whose flagged claim is false as it stands.
    """

    false_as_written: frozenset[str] = frozenset()


ADJUDICATED = Adjudicated(
    frozenset(
        "math-740 olympiadbench-188 olympiadbench-702 olympiadbench-897 "
        "omnimath-299 omnimath-440 omnimath-612 omnimath-805 omnimath-894".split()
    )
)


def rows(path: Path) -> Iterator[dict[str, Any]]:
    """Rows of a JSONL file."""
    yield from map(json.loads, path.read_bytes().splitlines())


def fold_of(problem: str) -> int:
    """The fold of a problem: solutions of one problem stay together."""
    return hashlib.sha256(" ".join(problem.split()).encode()).digest()[0] % FOLDS


def wilson(hits: int, total: int, z: float = 1.96) -> list[float]:
    """The 95 % Wilson interval of a share, as [low, high]."""
    if not total:
        return [0.0, 1.0]
    share, weight = hits / total, z * z / total
    middle = (share + weight / 2) / (1 + weight)
    half = z * math.sqrt(share * (1 - share) / total + weight / (4 * total)) / (1 + weight)
    return [round(middle - half, 4), round(middle + half, 4)]


async def verdicts_of(members: Sequence[Verifier], problem: str, steps: Sequence[str]) -> list[list[Verdict]]:
    """Every verdict on every step of one solution."""
    found = [await member.verify(Problem("p", problem), steps) for member in members]
    return [[verdict for verdicts in found for verdict in verdicts[i]] for i in range(len(steps))]


async def processbench(data: Path, folds: Sequence[int], members: Sequence[Verifier]) -> dict[str, Any]:
    """Precision and recall of flags, by subset, with every disputed flag."""
    report: dict[str, Any] = {}
    totals: Counter[str] = Counter()
    disputed: list[dict[str, Any]] = []
    for subset in SUBSETS:
        counts: Counter[str] = Counter()
        kinds: Counter[str] = Counter()
        for row in rows(data / "processbench" / f"{subset}.jsonl"):
            if fold_of(row["problem"]) not in folds:
                continue
            label = row["label"]
            counts["solutions"] += 1
            counts["erroneous"] += label >= 0
            found = await verdicts_of(members, row["problem"], row["steps"])
            kinds.update(f"{v.verifier} {v.kind} {v.reason}".strip() for step in found for v in step)
            flags = [(i, v) for i, step in enumerate(found) for v in step if v.kind is VerdictKind.REFUTED]
            if not flags:
                continue
            index, verdict = flags[0]
            late = 0 <= label < index
            counts["after_label" if late else "true" if index == label else "false"] += 1
            counts[f"by_{verdict.verifier}"] += not late
            if not late and index != label:
                disputed.append(
                    {"id": row["id"], "label": label, "step": index, "by": verdict.verifier,
                     "claim": verdict.evidence}
                )  # fmt: skip
        report[subset] = dict(counts) | _shares(counts) | {"verdicts": dict(sorted(kinds.items()))}
        totals.update(counts)
        if subset == "math":
            report["gsm8k+math"] = dict(totals) | _shares(totals)
    report["all"] = dict(totals) | _shares(totals)
    return report | {"disputed": disputed}


def _shares(counts: Counter[str]) -> dict[str, Any]:
    flags = counts["true"] + counts["false"]
    return {
        "precision": round(counts["true"] / flags, 4) if flags else None,
        "precision_wilson": wilson(counts["true"], flags),
        "recall": round(counts["true"] / max(counts["erroneous"], 1), 4),
        "recall_wilson": wilson(counts["true"], counts["erroneous"]),
    }


async def step_sets(
    data: Path, members: Sequence[Verifier], sets: Mapping[str, Callable[[Path], StepSet]]
) -> dict[str, Any]:
    """The same on mathematics that other people annotated, whole."""
    report: dict[str, Any] = {}
    totals: Counter[str] = Counter()
    for name, read in sets.items():
        counts: Counter[str] = Counter()
        for item in read(data / "steps" / name).items:
            assert isinstance(item, Item)
            counts["solutions"] += 1
            counts["erroneous"] += item.first_error is not None
            found = await verdicts_of(members, item.problem, item.steps)
            flags = [i for i, step in enumerate(found) if any(v.kind is VerdictKind.REFUTED for v in step)]
            if flags and (item.first_error is None or flags[0] <= item.first_error):
                counts["true" if flags[0] == item.first_error else "false"] += 1
        report[name] = dict(counts) | _shares(counts)
        totals.update(counts)
    return report | {"all": dict(totals) | _shares(totals)}


def steps_in(solution: str) -> list[str]:
    """A solution's lines; its sentences where it is one line."""
    lines = [line.strip() for line in solution.splitlines() if line.strip()]
    return lines if len(lines) > 1 else re.split(r"(?<=[.!?])\s+(?=[A-Z(])", solution.strip())


async def answered(data: Path, members: Sequence[Verifier]) -> dict[str, Any]:
    """Solutions of GSM8K's test problems by eleven models, graded by their final answers alone.

    A flag counts as true where the final answer is wrong; of those on right answers most are slips that a later
    step makes good, so that this precision is a lower bound.
    """
    counts: Counter[str] = Counter()
    on_right: list[str] = []
    with gzip.open(data / "solutions" / "gsm8k_test_pool.jsonl.gz", "rt") as lines:
        for row in map(json.loads, lines):
            for sample in row["samples"]:
                if sample["style"] != "cot" or sample["correct"] is None:
                    continue
                counts["solutions"] += 1
                counts["erroneous"] += not sample["correct"]
                found = await verdicts_of(members, row["question"], steps_in(sample["text"]))
                flags = [v for step in found for v in step if v.kind is VerdictKind.REFUTED]
                if flags:
                    counts["false" if sample["correct"] else "true"] += 1
                    if sample["correct"]:
                        on_right.append(f"{row['idx']} {sample['system']}: {flags[0].evidence}")
    return dict(counts) | _shares(counts) | {"on_right_answers": on_right}


async def rationales(data: Path, members: Sequence[Verifier]) -> dict[str, Any]:
    """Verdicts on GSM8K's annotated solutions; each refutation is listed for a person to read."""
    counts: Counter[str] = Counter()
    refuted: list[str] = []
    for number, row in enumerate(rows(data / "problems" / "gsm8k_train.jsonl")):
        steps = [step for step in row["answer"].split("\n") if not step.startswith("####")]
        for found in await verdicts_of(members, row["question"], steps):
            for verdict in found:
                counts[f"{verdict.verifier} {verdict.kind} {verdict.reason}".strip()] += 1
                if verdict.kind is VerdictKind.REFUTED:
                    refuted.append(f"{number}: {verdict.evidence}")
    return {"verdicts": dict(sorted(counts.items())), "refuted": refuted}


async def speed(data: Path, folds: Sequence[int], members: Sequence[Verifier]) -> dict[str, Any]:
    """Steps a CPU second, over all solutions of the folds, caches empty at the start; workers' seconds included."""
    solutions = [
        (row["problem"], row["steps"])
        for subset in SUBSETS
        for row in rows(data / "processbench" / f"{subset}.jsonl")
        if fold_of(row["problem"]) in folds
    ]
    await verdicts_of(members, "2 hours = 120 minutes", ["$\\int x dx = x^2/2 + C$", "3 hours = 180 minutes"])
    claims_of.cache_clear()
    statements_of.cache_clear()
    began = time.process_time()
    workers_s = 0.0
    for problem, steps in solutions:
        for found in await verdicts_of(members, problem, steps):
            workers_s += sum(v.seconds for v in found if v.verifier == "algebra")
    own = time.process_time() - began
    number = sum(len(steps) for _, steps in solutions)
    # The seconds of algebra's verdicts hold those of its own process too: an upper bound of what was spent.
    return {"steps": number, "cpu_s": round(own, 2), "steps_per_cpu_second": round(number / own),
            "at_least_with_workers": round(number / (own + workers_s))}  # fmt: skip


async def measure(data: Path, folds: Sequence[int], *, with_rationales: bool) -> dict[str, Any]:
    """All figures of one run."""
    members: tuple[Verifier, ...] = (Arithmetic(), Algebra())
    report: dict[str, Any] = {"folds": sorted(folds)}
    report["speed"] = await speed(data, folds, members)
    report["processbench"] = await processbench(data, folds, members)
    report["step_sets"] = await step_sets(data, members, SETS)
    report["read_once"] = await step_sets(data, members, READ_ONCE)
    if with_rationales:
        report["answered"] = await answered(data, members)
        report["gsm8k_rationales"] = await rationales(data, members)
    return report


def report_rows(data: Path) -> list[Row]:
    """The rows of ``benchmarks/results/verifiers.json``: folds 2 to 4 and the rationales."""
    found = asyncio.run(measure(data, UNSEEN, with_rationales=True))
    made: list[Row] = []
    for name in ("gsm8k+math", *SUBSETS, "all"):
        part, where = (
            found["processbench"][name],
            f"steps, ProcessBench {name}, folds 2-4 (not unseen: rules mended by them)",
        )
        aimed = name == "gsm8k+math"
        low, high = part["precision_wilson"]
        made.append(Row(f"{where}: raw precision of flags (Wilson {low:.3f} to {high:.3f})", part["precision"],
                        goal=0.9 if aimed else None))  # fmt: skip
        low, high = part["recall_wilson"]
        made.append(Row(f"{where}: recall of erroneous solutions (Wilson {low:.3f} to {high:.3f})", part["recall"],
                        goal=0.08 if aimed else None))  # fmt: skip
        made.append(Row(f"{where}: flags", part.get("true", 0) + part.get("false", 0)))
    for part, where in (
        (found["step_sets"]["all"], "MR-Ben math, MR-GSM8K and PARC (some were development material)"),
        *((found["read_once"][name], f"{name} (read once)") for name in READ_ONCE),
        (found["answered"], "GSM8K test by eleven models, true where the final answer is wrong"),
    ):
        low, high = part["precision_wilson"]
        made.append(
            Row(f"steps, {where}: raw precision of flags (Wilson {low:.3f} to {high:.3f})", part["precision"])
        )
        low, high = part["recall_wilson"]
        made.append(
            Row(
                f"steps, {where}: recall of erroneous solutions (Wilson {low:.3f} to {high:.3f})",
                part["recall"],
            )
        )
        made.append(Row(f"steps, {where}: flags", part.get("true", 0) + part.get("false", 0)))
    disputed = [d["id"] for d in found["processbench"]["disputed"]]
    rightly = sum(d in ADJUDICATED.false_as_written for d in disputed)
    whole = found["processbench"]["all"]
    flags = whole.get("true", 0) + whole.get("false", 0)
    made.append(Row("steps, ProcessBench all, folds 2-4 (not unseen: rules mended by them): precision after "
                    "adjudication of disputed flags",
                    (whole.get("true", 0) + rightly) / max(flags, 1)))  # fmt: skip
    wrongly = [
        r for r in found["gsm8k_rationales"]["refuted"] if int(r.split(":")[0]) not in FALSE_RATIONALES
    ]
    made.append(Row("steps, GSM8K training rationales: refuted though true as written", len(wrongly), goal=0,
                    lower_is_better=True))  # fmt: skip
    made.append(Row("steps, GSM8K training rationales: refuted, each false as written",
                    len(found["gsm8k_rationales"]["refuted"]) - len(wrongly)))  # fmt: skip
    made.append(
        Row("steps, both verifiers: steps a CPU second", found["speed"]["steps_per_cpu_second"], goal=500)
    )
    print(json.dumps({"disputed": found["processbench"]["disputed"]}, indent=1, ensure_ascii=False))
    return made


# Rows of GSM8K train whose refuted equation a person found false as written (192*100=$1920, 2*8 = 24, ...).
FALSE_RATIONALES = frozenset(
    {167, 168, 198, 2287, 3002, 3205, 3334, 4691, 4973, 5350, 6157, 6256, 6700, 6713, 7178}
)


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--folds", type=int, nargs="+", default=list(UNSEEN))
    parser.add_argument("--no-rationales", action="store_true")
    arguments = parser.parse_args()
    found = asyncio.run(measure(arguments.data, arguments.folds, with_rationales=not arguments.no_rationales))
    print(json.dumps(found, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
