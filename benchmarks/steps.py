r"""The step verifier ``arithmetic`` on ProcessBench and on GSM8K's own rationales.

    python benchmarks/steps.py [--data FOLDER] [--folds 2 3 4] [--rationales]

Prints one JSON object. A flag is a solution's first refuted step; it is true where it is the labelled first error,
false where the label is later or there is none, and does not count where it comes after the label. Problems fall
into five folds by SHA-256 of their text; the rules were written on folds 0 and 1 and fixed before 2 to 4 were read.
"""

import argparse
import hashlib
import json
import math
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stepward.prm.types import Verdict, VerdictKind
from stepward.verifiers.arithmetic import verify_step

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
SUBSETS = ("gsm8k", "math", "olympiadbench", "omnimath")
FOLDS = 5


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


def flag_of(steps: list[str], counts: Counter[str]) -> tuple[int, Verdict] | None:
    """The first refuted step and its verdict; verdicts on the way are counted."""
    for index, step in enumerate(steps):
        verdict = verify_step(step)
        counts[f"{verdict.kind} {verdict.reason}".strip()] += 1
        if verdict.kind is VerdictKind.REFUTED:
            return index, verdict
    return None


def processbench(data: Path, folds: set[int]) -> dict[str, Any]:
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
            flag = flag_of(row["steps"], kinds)
            if flag is None:
                continue
            index, verdict = flag
            late = 0 <= label < index
            counts["after_label" if late else "true" if index == label else "false"] += 1
            if not late and index != label:
                disputed.append(
                    {"id": row["id"], "label": label, "step": index, "evidence": verdict.evidence}
                )
        report[subset] = dict(counts) | {"verdicts": dict(kinds)} | _shares(counts)
        totals.update(counts)
        if subset == "math":
            report["gsm8k+math"] = _shares(totals)
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


def rationales(data: Path) -> dict[str, Any]:
    """Verdicts on GSM8K's annotated solutions; each refutation is listed for a person to read."""
    counts: Counter[str] = Counter()
    refuted: list[str] = []
    for number, row in enumerate(rows(data / "problems" / "gsm8k_train.jsonl")):
        for step in row["answer"].split("\n"):
            if step.startswith("####"):
                continue
            verdict = verify_step(step)
            counts[f"{verdict.kind} {verdict.reason}".strip()] += 1
            if verdict.kind is VerdictKind.REFUTED:
                refuted.append(f"{number}: {verdict.evidence}")
    return {"verdicts": dict(counts), "refuted": refuted}


def speed(data: Path, folds: set[int]) -> dict[str, Any]:
    """Steps a CPU second, over the whole text of all solutions of the folds."""
    steps = [
        step
        for subset in SUBSETS
        for row in rows(data / "processbench" / f"{subset}.jsonl")
        if fold_of(row["problem"]) in folds
        for step in row["steps"]
    ]
    began = time.process_time()
    for step in steps:
        verify_step(step)
    spent = time.process_time() - began
    return {"steps": len(steps), "cpu_s": round(spent, 2), "steps_per_cpu_second": round(len(steps) / spent)}


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--folds", type=int, nargs="+", default=[2, 3, 4])
    parser.add_argument("--rationales", action="store_true", help="also run over GSM8K's rationales")
    arguments = parser.parse_args()
    folds = set(arguments.folds)
    report: dict[str, Any] = {"folds": sorted(folds), "processbench": processbench(arguments.data, folds)}
    report["speed"] = speed(arguments.data, folds)
    if arguments.rationales:
        report["gsm8k_rationales"] = rationales(arguments.data)
    print(json.dumps(report, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
