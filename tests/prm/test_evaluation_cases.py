"""Public fault reports on evaluation: each is a test by its number."""

import json
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from stepward.prm.evaluation.best_of_n import evaluate_pools
from stepward.prm.evaluation.compare import recompute
from stepward.prm.evaluation.errors import EvaluationError, TunedOnTestError
from stepward.prm.evaluation.intervals import Bootstrap
from stepward.prm.evaluation.items import Item, apply_fixes
from stepward.prm.evaluation.processbench import evaluate, oracle_sweep, predict, tune_threshold
from stepward.prm.evaluation.readers.processbench import load_hub
from stepward.prm.evaluation.results import Results, score_run
from stepward.prm.evaluation.results_folder import write_results
from stepward.prm.evaluation.thresholds import choose_threshold


def items_of(labels: list[int | None], subset: str = "math", steps: int = 4) -> list[Item]:
    return [
        Item(f"{subset}-{i}", f"problem {subset} {i}", ("s",) * steps, label, subset)
        for i, label in enumerate(labels)
    ]


def test_p138_the_threshold_is_the_dev_splits_is_frozen_and_a_sweep_on_the_test_items_is_an_oracle() -> None:
    dev_scores = [(0.2,), (0.4,), (0.6,), (0.8,)]
    threshold = choose_threshold(dev_scores, [0, 0, None, None], source="dev")
    assert (threshold.value, threshold.source) == (0.5, "dev")
    items = items_of([2, 0, 3, 1, None, None, None, None])
    result = evaluate(items, [2, None, 3, 0, None, None, None, 2], scorer="x", threshold=threshold)
    macro = result.macro
    assert (macro.error_accuracy.value, macro.correct_accuracy.value) == (0.5, 0.75)
    assert macro.f1.value == pytest.approx(0.6)
    scores = [(0.9, 0.9, 0.1, 0.9)] * 8
    tuned = tune_threshold(items, scores, source="math")
    with pytest.raises(TunedOnTestError):
        evaluate(items, predict(scores, tuned), scorer="x", threshold=tuned)
    assert all(r.oracle for r in oracle_sweep(items, scores, scorer="x", bootstrap=Bootstrap(0)))


def test_p104_gold_and_prediction_are_not_exchangeable() -> None:
    # One item right of the error, one before it: exchanged, both accuracies would change sides.
    items = items_of([1, None])
    straight = evaluate(items, [None, None], scorer="x", bootstrap=Bootstrap(0)).macro
    assert (straight.error_accuracy.value, straight.correct_accuracy.value) == (0.0, 1.0)
    swapped = evaluate(items_of([None, None]), [1, None], scorer="x", bootstrap=Bootstrap(0)).macro
    assert (swapped.error_accuracy.value, swapped.correct_accuracy.value) == (None, 0.5)


def test_p140_the_hubs_set_needs_a_pinned_commit_and_fixes_give_a_second_named_score() -> None:
    with pytest.raises(EvaluationError, match="pinned commit"):
        load_hub("main")
    items = items_of([1, None])
    fixed = apply_fixes(items, {"math-0": 2})
    published = evaluate(items, [1, None], scorer="x", bootstrap=Bootstrap(0))
    corrected = evaluate(fixed, [1, None], scorer="x", bootstrap=Bootstrap(0), labels="fixes.json")
    assert (published.labels, corrected.labels) == ("published", "fixes.json")
    assert (published.macro.f1.value, corrected.macro.f1.value) == (1.0, 0.0)


def test_p141_the_folder_stores_threshold_and_source_and_its_items_give_the_headline_again(
    tmp_path: Path,
) -> None:
    rng = random.Random(4)
    dev, test = items_of([None, 2, 1, None] * 5, "dev"), items_of([None, 0, 3, 1] * 8)
    scores = {i.id: tuple(rng.random() for _ in i.steps) for i in (*dev, *test)}
    threshold = tune_threshold(dev, [scores[i.id] for i in dev], source="dev")
    run = score_run(test, [scores[i.id] for i in test], threshold, scorer="x", bootstrap=Bootstrap(100))
    write_results(tmp_path, Results("t", tuple(test), (run,)))
    stored = json.loads((tmp_path / "results.json").read_text())["runs"][0]["result"]
    assert stored["threshold"]["source"] == "dev"
    assert stored["threshold"]["value"] == threshold.value
    again = recompute(tmp_path).macro.f1.value
    assert again == pytest.approx(stored["macro"]["f1"]["value"], abs=1e-9)


def test_p142_a_stored_file_of_step_scores_gives_the_published_numbers(data_dir: Path) -> None:
    from stepward.prm.evaluation.readers.processbench import read_folder

    by_id = {i.id: i for i in read_folder(data_dir / "processbench")}
    want = json.loads((data_dir / "processbench_logs" / "expected_metrics_open_half.json").read_text())[0]
    with (data_dir / "processbench_logs" / "fover_step_scores.jsonl").open() as file:
        rows = [
            r for r in map(json.loads, file) if r["model"] == want["model"] and r["split"] == want["split"]
        ]
    items = [by_id[r["id"]] for r in rows]
    got = evaluate(
        items, predict([r["scores_to_first_error"] for r in rows], 0.5), scorer="x", bootstrap=Bootstrap(0)
    )
    assert got.macro.f1.value == pytest.approx(want["thr_0_5"]["f1"], abs=1e-9)


def test_p144_a_problem_that_was_trained_on_is_found_in_the_test_set_with_rule_and_similarity() -> None:
    from stepward.prm.audit.contamination import build_index, check_problems
    from stepward.prm.types import Problem

    text = "Natalia sold clips to 48 of her friends in April, and then she sold half as many clips in May."
    other = "A train leaves the station at noon with forty people on board."
    tested = {"math500": ["An unrelated statement about triangles and their angles.", text.lower()]}
    found = check_problems([Problem("train-1", text), Problem("train-2", other)], build_index(tested))
    (match,) = found.matches
    said = str(match)
    assert "train-1" in said
    assert "math500" in said


@dataclass
class Scorer:
    """A reward model whose score of a step depends on it and on all before it."""

    name: str = "scorer"
    description: Any = None
    calls: list[int] = field(default_factory=list)

    def score(self, problems: Any, solutions: Any) -> list[tuple[float, ...]]:
        self.calls.append(len(solutions))
        return [tuple(0.9 if s == "good" else 0.2 for s in steps) for steps in solutions]


def samples_file(path: Path, first: int, number: int) -> Path:
    """Four samples a problem: two right ones of good steps, two wrong ones of bad steps with one answer."""
    rows = [
        {"problem_id": f"p{p}", "problem": f"Problem {p}", "steps": ["good" if k < 2 else "bad"] * 2,
         "final_answer": "1" if k < 2 else "2", "outcome": "right" if k < 2 else "wrong", "tokens": 10 + k}
        for p in range(first, first + number)
        for k in range(4)
    ]  # fmt: skip
    path.write_text("\n".join(json.dumps(r) for r in rows) + "\n")
    return path


def test_p007_p047_a_step_has_the_same_score_alone_with_others_and_with_what_follows(tmp_path: Path) -> None:
    """The fast path (shared prompts, padded batches, one pass for all steps) against one solution at a time."""
    import torch
    from transformers import LlamaConfig, LlamaModel

    from stepward.prm.models.discriminative import DiscriminativePRM
    from stepward.prm.models.folder import LoadedPrm, PrmDescription
    from stepward.prm.models.heads import HeadSpec, build_head
    from stepward.prm.models.inputs import InputFormat
    from stepward.prm.models.reward_model import DiscriminativeRewardModel
    from stepward.prm.steps import StepFormat
    from stepward.prm.tokenizer import ByteTokenizer
    from stepward.prm.types import Problem

    torch.manual_seed(0)
    spec = HeadSpec("scalar", scale=1.0)
    backbone = LlamaModel(
        LlamaConfig(vocab_size=256, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
                    num_key_value_heads=2, max_position_embeddings=512, initializer_range=0.5)
    )  # fmt: skip
    model = DiscriminativePRM(backbone, build_head(32, spec))
    prm = DiscriminativeRewardModel(
        "random",
        LoadedPrm(
            model, InputFormat(ByteTokenizer(), StepFormat()), None, PrmDescription(spec, StepFormat())
        ),
    )
    rng = random.Random(1)
    problems = [Problem(f"p{i % 5}", f"Problem number {i % 5}") for i in range(20)]
    solutions = [[f"step {rng.randrange(99)} of this" for _ in range(rng.randrange(1, 6))] for _ in range(20)]
    fast = prm.score(problems, solutions)
    for problem, steps, row in zip(problems, solutions, fast, strict=True):
        assert prm.score([problem], [steps])[0] == pytest.approx(row, abs=1e-5)
        for t in range(len(steps)):
            assert prm.score([problem], [steps[: t + 1]])[0][t] == pytest.approx(row[t], abs=1e-5)
    assert len({round(s, 3) for row in fast for s in row}) > 20


def test_p028_a_row_whose_labels_are_all_masked_changes_no_mean_and_is_counted() -> None:
    from types import SimpleNamespace

    from stepward.prm.models.inputs import EncodedSolution
    from stepward.training.collate import Example
    from stepward.training.validation import evaluate as validate

    nan = float("nan")

    def example(name: str, targets: tuple[float, ...]) -> Example:
        encoded = EncodedSolution((1, 2), 0, (0, 1))
        return Example(
            name, name, encoded, (0, 1), targets, (1.0, 1.0), (0, 0), (0, 0), nan, True, None, False
        )

    good, masked = example("good", (1.0, 0.0)), example("masked", (nan, nan))
    model: Any = SimpleNamespace(score_encoded=lambda encoded: [(0.8, 0.4)] * len(encoded))
    alone, both = validate(model, [good]), validate(model, [good, masked])
    # -(ln .8 + ln .6) / 2
    assert alone["cross_entropy"] == pytest.approx(0.36698, abs=1e-5)
    assert both == {**alone, "skipped": 1}
    # Nothing but masked rows: no loss at all, and not NaN.
    assert validate(model, [masked]) == {"skipped": 1}


def test_best_of_n_counts_tokens_and_learns_its_aggregation_on_other_problems(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from types import SimpleNamespace

    from stepward.flows import evaluate as flow
    from stepward.flows.config import EvaluateConfig

    monkeypatch.setattr(flow, "load", lambda name: Scorer(description=SimpleNamespace(training={})))
    config = EvaluateConfig(
        prm="scorer", out=tmp_path / "out", samples=samples_file(tmp_path / "test.jsonl", 0, 6),
        aggregation_from=samples_file(tmp_path / "other.jsonl", 100, 6), bootstrap=100,
    )  # fmt: skip
    by_number, by_tokens = flow.run_evaluation(config).best_of_n
    assert (by_number.cut_by, by_tokens.cut_by) == ("samples", "tokens")
    methods = {p.method for p in by_number.points}
    assert {"best_of_n[learned]", "weighted_majority[learned]", "best_of_n[min]"} <= methods
    best = next(p for p in by_number.points if p.method == "best_of_n[learned]" and p.cut == 4)
    assert best.accuracy.value == 1.0
    # samples cost 10 to 13 tokens, 11.5 on average: with their reading n of them cost 23 n
    assert by_tokens.cuts == (23, 46, 92)
    paid = next(p for p in by_tokens.points if p.method == "best_of_n[min]" and p.cut == 46)
    free = next(p for p in by_tokens.points if p.method == "majority" and p.cut == 46)
    assert paid.generated_tokens + paid.scored_tokens <= 46
    assert free.num_samples > paid.num_samples
    seen = EvaluateConfig(
        prm="scorer",
        out=tmp_path / "out",
        samples=tmp_path / "test.jsonl",
        aggregation_from=tmp_path / "test.jsonl",
    )
    with pytest.raises(TunedOnTestError, match="fit it on others"):
        flow.run_evaluation(seen)


def test_pools_at_a_token_budget_are_paid_in_full() -> None:
    from stepward.prm.evaluation.best_of_n import SamplePool

    pool = SamplePool("p", (0, 1), (True, False), (10, 10), ((0.9,), (0.1,)))
    result = evaluate_pools([pool], [20], cut_by="tokens", bootstrap=Bootstrap(0))
    point = next(p for p in result.points if p.method == "best_of_n[min]")
    # One sample of ten tokens and its reading: best-of-N has no choice and is right half of the time.
    assert (point.num_samples, point.generated_tokens, point.scored_tokens) == (1, 10, 10)
    assert point.accuracy.value == 0.5
