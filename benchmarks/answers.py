r"""Final answers beside math-verify, and how their figures become rows.

``report`` halves are those on which no rule was written: pairs whose id (golds whose text) has an odd SHA-256.
Speed is CPU seconds of the same pairs in the same process, caches off.
"""

import gzip
import hashlib
import json
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import math_verify

from benchmarks.answer_rewrites import perturbations, rewrites
from benchmarks.report import Row
from stepward.prm.types import Check, CheckKind, Outcome, Problem, VerdictKind
from stepward.verifiers import answer as answer_module
from stepward.verifiers.answer import Grader, equivalent
from stepward.verifiers.answers import reader
from stepward.verifiers.extraction import extract_answer

PEER_TIMEOUT_S = 60


def rows(path: Path) -> Iterator[dict[str, Any]]:
    """Rows of a JSONL file, gzipped or not."""
    data = path.read_bytes()
    yield from map(json.loads, (gzip.decompress(data) if path.suffix == ".gz" else data).splitlines())


def held_out(key: str) -> bool:
    """Whether a row belongs to the half on which no rule was written."""
    return hashlib.sha256(key.encode()).digest()[-1] % 2 == 1


def math_verify_says(gold: str, pred: str) -> bool:
    """math-verify with its defaults but more time, as the machine may be busy; a fault is "not equal", as there."""
    try:
        one, other = (math_verify.parse(text, parsing_timeout=PEER_TIMEOUT_S) for text in (gold, pred))
        return bool(math_verify.verify(one, other, timeout_seconds=PEER_TIMEOUT_S))
    except Exception:
        return False


def peer_pairs(data: Path) -> dict[str, Any]:
    """Unit tests of peers: both kinds of error, ours and math-verify's."""
    grader, found = Grader(), {}
    for half in ("development", "report"):
        counts: Counter[str] = Counter()
        for row in rows(data / "equivalence" / "peer_unit_pairs.jsonl"):
            if row["conflict"] or held_out(row["id"]) != (half == "report"):
                continue
            extra = row["extra"] if isinstance(row["extra"], dict) else {}
            tolerance = float(extra["precision"]) if isinstance(extra.get("precision"), str) else None
            kind = CheckKind.CHOICE if re.fullmatch("[A-E]", row["gold"]) else CheckKind.MATH
            grade = grader.grade_exactly(
                Problem("p", "", (row["gold"],), Check(kind, tolerance)), row["pred"]
            )
            peer = math_verify_says(row["gold"], row["pred"])
            counts["equal" if row["equal"] else "different"] += 1
            if row["equal"]:
                counts["ours_refuted"] += grade.outcome in (Outcome.WRONG, Outcome.NO_ANSWER)
                counts["ours_open"] += grade.outcome is Outcome.UNDECIDED
                counts["math_verify_refuted"] += not peer
            else:
                counts["ours_false_positive"] += grade.outcome is Outcome.RIGHT
                counts["math_verify_false_positive"] += peer
        found[half] = dict(counts)
    return found


def reported_pairs(data: Path) -> dict[str, int]:
    """Pairs from public fault reports."""
    counts: Counter[str] = Counter()
    for row in rows(data.parent / "equivalence_cases.jsonl"):
        kind = equivalent(gold=row["gold_as_passed"], answer=row["pred_as_passed"]).kind
        counts["right"] += kind is (VerdictKind.SUPPORTED if row["expected"] else VerdictKind.REFUTED)
        counts["open"] += kind is VerdictKind.UNKNOWN
        counts["false_positive"] += kind is VerdictKind.SUPPORTED and not row["expected"]
        counts["math_verify_right"] += bool(row["math_verify_right"])
        counts["pairs"] += 1
    return dict(counts)


def golds(data: Path) -> list[str]:
    """Distinct golds of MATH test and of GSM8K test, each from its own solution."""
    folder = data / "problems"
    texts = [r["solution"] for r in rows(folder / "math_test_5000.jsonl.gz")]
    texts += [r["answer"] for r in rows(folder / "gsm8k_test.jsonl")]
    found = [extract_answer(text).answer for text in texts]
    if None in found:
        raise SystemExit(f"{found.count(None)} golds were not extracted from their own solution")
    return list(dict.fromkeys(a.text for a in found if a is not None))


def variants(data: Path, seed: int) -> dict[str, Any]:
    """Golds against seeded rewrites and perturbations of themselves, on the held-out half."""
    kept: Counter[str] = Counter()
    changed: Counter[str] = Counter()
    chosen = [g for g in golds(data) if held_out(g)]
    for gold in chosen:
        kept.update(str(equivalent(gold=gold, answer=text).kind) for text in rewrites(gold, seed))
        changed.update(str(equivalent(gold=gold, answer=text).kind) for text in perturbations(gold, seed))
    return {"golds": len(chosen), "rewrites": dict(kept), "perturbations": dict(changed)}


def real_texts(data: Path) -> dict[str, Any]:
    """Texts of fifteen systems on GSM8K and of one on MATH against their recorded grades."""
    grader, found = Grader(), {}
    began = time.process_time()
    for name in ("gsm8k_test_pool.jsonl.gz", "math100_qwen25math_8samples_rm.jsonl"):
        counts: Counter[str] = Counter()
        for row in rows(data / "solutions" / name):
            problem = Problem(str(row["idx"]), row["question"], (row.get("gold") or row["answer"],))
            samples = (
                [(s["text"], s["correct"]) for s in row["samples"]]
                if "samples" in row
                else list(zip(row["code"], row["score"], strict=True))
            )
            for text, correct in samples:
                outcome = grader.grade_exactly(problem, text).outcome
                counts[f"{outcome}, recorded {'right' if correct else 'wrong'}"] += 1
        found[name] = dict(counts)
    total = sum(sum(c.values()) for c in found.values())
    found["grades_per_cpu_second"] = round(total / (time.process_time() - began))
    return found


def speed(data: Path, number: int, seed: int) -> dict[str, Any]:
    """Pairs a CPU second on the same ordinary pairs: golds against rewrites and perturbations, boxed."""
    rng = random.Random(seed)
    pairs = [
        (g, t)
        for g in rng.sample(golds(data), number)
        for t in (*rewrites(g, seed, 1), *perturbations(g, seed, 1))
    ]
    pairs = rng.sample(pairs, min(number, len(pairs)))

    def ours(gold: str, text: str) -> object:
        answer_module._compare_math.cache_clear()
        reader.read.cache_clear()
        return equivalent(gold=gold, answer=text)

    def theirs(gold: str, text: str) -> object:
        return math_verify_says(f"${gold}$", f"\\boxed{{{text}}}")

    def rate(compare: Callable[[str, str], object]) -> float:
        compare(*pairs[0])  # Imports.
        began = time.process_time()
        for gold, text in pairs:
            compare(gold, text)
        return round(len(pairs) / (time.process_time() - began), 1)

    def integers() -> float:
        began = time.process_time()
        for k in range(30_000):
            equivalent(gold=str(k), answer=str(k + k % 2))
        return round((time.process_time() - began) / 30_000 * 1e6, 2)

    return {
        "pairs": len(pairs),
        "ours": rate(ours),
        "math_verify": rate(theirs),
        "integer_microseconds": integers(),
    }


def answer_rows(data: Path, pairs: int = 300, seed: int = 5) -> list[Row]:
    """All figures of final answers as rows."""
    reported, peers = reported_pairs(data), peer_pairs(data)
    changed, texts, rates = variants(data, seed), real_texts(data), speed(data, pairs, seed)
    made = [
        Row("answers, reported pairs: share right", reported["right"] / reported["pairs"],
            reported["math_verify_right"] / reported["pairs"], goal=0.95),
        Row("answers, reported pairs: false positives", reported.get("false_positive", 0), goal=0,
            lower_is_better=True),
    ]  # fmt: skip
    for half in ("report", "development"):
        found = peers[half]
        made += [
            Row(f"answers, peers' unit tests, {half} half: equal pairs not accepted", found["ours_refuted"] +
                found["ours_open"], found["math_verify_refuted"], goal=1, lower_is_better=True, of_ratio=True),
            Row(f"answers, peers' unit tests, {half} half: false positives", found["ours_false_positive"],
                found["math_verify_false_positive"], goal=1, lower_is_better=True, of_ratio=True),
        ]  # fmt: skip
    kept, differing = changed["rewrites"], changed["perturbations"]
    made += [
        Row("answers, five seeded rewrites of each held-out gold: share supported",
            kept.get("supported", 0) / sum(kept.values()), goal=0.99),
        Row("answers, rewrites refuted", kept.get("refuted", 0), goal=0, lower_is_better=True),
        Row("answers, five seeded perturbations of each held-out gold: false positives",
            differing.get("supported", 0), goal=0, lower_is_better=True),
        Row("answers, ordinary pairs a CPU second", rates["ours"], rates["math_verify"], goal=300),
        Row("answers, whole texts of models graded a CPU second", texts["grades_per_cpu_second"], goal=300),
    ]  # fmt: skip
    return made
