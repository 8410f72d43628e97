r"""Public answers: reported pairs, golds of MATH and GSM8K, texts of real models."""

import gzip
import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from stepward.prm.types import Outcome, Problem, VerdictKind
from stepward.verifiers.answer import Grader, equivalent, golds_that_fail
from stepward.verifiers.extraction import FoundBy, extract_answer

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from answer_rewrites import perturbations, rewrites


def lines(path: Path) -> Iterator[dict]:
    data = path.read_bytes()
    text = gzip.decompress(data) if path.suffix == ".gz" else data
    yield from map(json.loads, text.splitlines())


def math_golds(data_dir: Path) -> list[str]:
    found = (
        extract_answer(r["solution"]).answer for r in lines(data_dir / "problems" / "math_test_5000.jsonl.gz")
    )
    return [a.text for a in found if a is not None]


def test_reported_pairs_have_no_false_positive_and_95_percent_right(data_dir: Path) -> None:
    path = data_dir.parent / "equivalence_cases.jsonl"
    if not path.is_file():
        pytest.skip(f"reported pairs not found at {path}")
    counts: Counter[tuple[bool, VerdictKind]] = Counter()
    for row in lines(path):
        verdict = equivalent(gold=row["gold_as_passed"], answer=row["pred_as_passed"])
        counts[row["expected"], verdict.kind] += 1
    right = counts[True, VerdictKind.SUPPORTED] + counts[False, VerdictKind.REFUTED]
    assert counts[False, VerdictKind.SUPPORTED] == 0
    assert right >= 0.95 * counts.total()


@pytest.mark.slow
def test_every_math_and_gsm8k_gold_is_extracted_from_its_own_solution(data_dir: Path) -> None:
    folder = data_dir / "problems"
    for row in lines(folder / "math500_test.jsonl"):
        found = extract_answer(row["solution"]).answer
        assert found is not None
        assert found.found_by is FoundBy.BOX
        assert equivalent(gold=row["answer"], answer=found.text).kind is VerdictKind.SUPPORTED
    assert len(math_golds(data_dir)) == 5000
    for name in ("gsm8k_test", "gsm8k_train"):
        for row in lines(folder / f"{name}.jsonl"):
            found = extract_answer(row["answer"]).answer
            assert found is not None
            assert (found.found_by, found.text) == (FoundBy.HASHES, row["answer"].split("#### ")[1].strip())


@pytest.mark.slow
def test_every_math_gold_verifies_against_itself(data_dir: Path) -> None:
    problems = [Problem(str(i), "", (gold,)) for i, gold in enumerate(math_golds(data_dir))]
    assert golds_that_fail(problems) == []


@pytest.mark.slow
def test_golds_equal_their_rewrites_and_none_of_their_perturbations(data_dir: Path) -> None:
    kept: Counter[VerdictKind] = Counter()
    changed: Counter[VerdictKind] = Counter()
    for gold in list(dict.fromkeys(math_golds(data_dir))):
        kept.update(equivalent(gold=gold, answer=text).kind for text in rewrites(gold, seed=11))
        changed.update(equivalent(gold=gold, answer=text).kind for text in perturbations(gold, seed=11))
    assert kept[VerdictKind.REFUTED] == 0
    assert kept[VerdictKind.SUPPORTED] >= 0.99 * kept.total()
    assert changed[VerdictKind.SUPPORTED] == 0
    assert changed[VerdictKind.REFUTED] >= 0.98 * changed.total()


@pytest.mark.slow
def test_grades_of_real_texts_agree_with_the_recorded_ones(data_dir: Path) -> None:
    path = data_dir / "solutions" / "gsm8k_openai_example_model_solutions.jsonl"
    grader = Grader()
    systems = ("6b_finetuning", "6b_verification", "175b_finetuning", "175b_verification")
    counts: Counter[bool] = Counter()
    for row in lines(path):
        problem = Problem("p", row["question"], (row["ground_truth"].rpartition("A:")[2].strip(),))
        for system in systems:
            grade = grader.grade_exactly(problem, row[system]["solution"])
            counts[(grade.outcome is Outcome.RIGHT) == row[system]["is_correct"]] += 1
    assert counts[False] <= 0.001 * counts.total()
