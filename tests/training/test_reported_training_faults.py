"""Public fault reports on training, each with its right value.

Others stand beside what they test: P001 and P027 in test_collate, P005, P029, P030 and P041 in test_discriminative,
P037 in test_collate; those on tokens and step boundaries in prm's test_reported_step_faults.
"""

import json
import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import AutoModelForTokenClassification

from stepward.prm.errors import InputError, ModelError
from stepward.prm.models.batches import Batch, make_batch
from stepward.prm.models.folder import PrmDescription, load_prm, save_prm
from stepward.prm.models.heads import head_spec
from stepward.prm.models.inputs import EncodedSolution, InputFormat
from stepward.prm.models.load import load
from stepward.prm.models.weights import new_prm
from stepward.prm.steps import StepFormat
from stepward.prm.tokenizer import load_tokenizer
from stepward.prm.types import LabeledSolution
from stepward.training.checkpoint import newest_state
from stepward.training.collate import Example, collate
from stepward.training.discriminative import train_discriminative
from stepward.training.loop import Loop, Progress, Schedule, fit
from stepward.training.objectives import OBJECTIVES, Labels, Objective
from stepward.training.preparation import (
    Trained,
    merge_adapters,
    objective_and_head,
    prepare,
    require_signal,
    trained_names,
)

Sums = Callable[..., list[LabeledSolution]]
Row = Callable[..., LabeledSolution]
FIXTURES = [["even 1"], ["odd 2"], ["even 3", "odd 4"], ["even 5", "even 6"], ["odd 7", "odd 8", "even 9"]]
SCORE = """
import json, sys
from stepward.prm.models.load import load
model = load(sys.argv[1])
print(json.dumps(model.score(["p"] * 5, json.loads(sys.argv[2]))))
"""


@pytest.mark.slow
def test_p033_a_new_process_scores_as_the_training_one_did(tiny_llama: Path, tmp_path: Path, sums: Sums):
    schedule = Schedule(epochs=1, batch_size=8, learning_rate=1e-2)
    train_discriminative(sums(16), [], base=tiny_llama, out=tmp_path / "prm", schedule=schedule)
    here = load(tmp_path / "prm").score(["p"] * 5, FIXTURES)
    done = subprocess.run(
        [sys.executable, "-c", SCORE, str(tmp_path / "prm"), json.dumps(FIXTURES)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    there = json.loads(done.stdout.splitlines()[-1])
    assert [x for row in there for x in row] == pytest.approx([x for row in here for x in row], abs=1e-5)


def test_p033_a_reloaded_head_is_the_saved_one_and_a_missing_one_is_an_error(
    tiny_llama: Path, tmp_path: Path
):
    torch.manual_seed(0)
    model = new_prm(tiny_llama, head_spec("scalar"))
    description = PrmDescription(model.head.spec, StepFormat())
    save_prm(tmp_path / "prm", model, description, tokenizer_from=tiny_llama)
    again = load_prm(tmp_path / "prm").model
    assert torch.equal(again.head.linear.weight, model.head.linear.weight)
    _, info = AutoModelForTokenClassification.from_pretrained(tmp_path / "prm", output_loading_info=True)
    assert not info["missing_keys"]
    described = json.loads((tmp_path / "prm/prm.json").read_text())
    described["head"] |= {"kind": "two_class", "outputs": 2}
    (tmp_path / "prm/prm.json").write_text(json.dumps(described))
    with pytest.raises(ModelError, match=r"linear\.weight \(1, 16\) for \(2, 16\)"):
        load_prm(tmp_path / "prm")


def test_p034_a_merged_adapter_keeps_the_trained_head_and_its_width(tiny_llama: Path, tmp_path: Path):
    pytest.importorskip("peft", reason="adapters need peft: pip install 'stepward[train]'")
    model = new_prm(tiny_llama, head_spec("scalar"))
    prepare(model, Trained(lora_rank=2), "cpu")
    with torch.no_grad():
        model.head.linear.weight.fill_(0.5)
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.fill_(0.01)
    batch_of = EncodedSolution((1, 2, 3), 1, (2,))
    before = model(make_batch([batch_of])).item()
    merge_adapters(model)
    save_prm(
        tmp_path / "prm", model, PrmDescription(model.head.spec, StepFormat()), tokenizer_from=tiny_llama
    )
    again = load_prm(tmp_path / "prm").model
    assert again.head.linear.weight.shape == (1, 16)
    assert torch.equal(again.head.linear.weight, model.head.linear.weight)
    assert again(make_batch([batch_of])).item() == pytest.approx(before, abs=1e-5)


def test_p035_what_is_trained_is_logged_before_the_first_step_and_a_head_is_among_it(
    tiny_llama: Path, tmp_path: Path, sums: Sums, caplog: pytest.LogCaptureFixture
):
    def stop(progress: Progress) -> None:
        raise InterruptedError

    with caplog.at_level(logging.INFO, "stepward.training"), pytest.raises(InterruptedError):
        train_discriminative(
            sums(8), [], base=tiny_llama, out=tmp_path / "prm", trained=Trained(frozen_backbone=True),
            on_progress=stop,
        )  # fmt: skip
    (line,) = [r.getMessage() for r in caplog.records if r.name == "stepward.training.discriminative"]
    # 16 weights and a bias of the head; nothing of the backbone.
    assert line.startswith("training 17 of ")
    assert "head.linear.weight (1, 16), head.linear.bias (1,), and 0 tensors of the backbone" in line
    model = new_prm(tiny_llama, head_spec("scalar"))
    model.head.requires_grad_(False)
    assert "no head" in trained_names(model)


def test_p036_a_prm_has_two_classes_where_they_are_asked_for_and_a_scalar_head_one(
    tiny_llama: Path, tmp_path: Path
):
    tokenizer = load_tokenizer(tiny_llama)
    for head, width in (("two_class", 2), ("scalar", 1)):
        _, spec = objective_and_head("bce", head, tokenizer)
        model = new_prm(tiny_llama, spec)
        save_prm(tmp_path / head, model, PrmDescription(spec, StepFormat()), tokenizer_from=tiny_llama)
        config = json.loads((tmp_path / head / "config.json").read_text())
        assert len(config["id2label"]) == width
        assert AutoModelForTokenClassification.from_pretrained(tmp_path / head).score.weight.shape[0] == width
    with pytest.raises(InputError, match="trains the head value3"):
        objective_and_head("outcome_classes", "two_class", tokenizer)


class Reader(nn.Module):
    """Writes down the first id of each solution that it is shown."""

    def __init__(self, seen: list[int]) -> None:
        super().__init__()
        self.head = nn.Linear(1, 1)
        self.seen = seen

    def forward(self, batch: Batch, logprobs: object = None) -> torch.Tensor:
        self.seen += batch.input_ids[:, 0].tolist()
        return self.head(torch.ones(len(batch.score_rows), 1))


def test_p038_a_run_resumed_in_a_later_epoch_sees_the_rows_in_the_order_of_one_that_was_not_stopped(
    tiny_llama: Path, tmp_path: Path, labeled: Row
):
    rows = [labeled(f"p{i}", ["x"], [i % 2]) for i in range(10)]
    examples, _ = collate(rows, InputFormat(load_tokenizer(tiny_llama), StepFormat()))
    numbered = [
        Example(e.solution_id, e.problem_id, EncodedSolution((i, 1), 1, (1,)), (1,), e.targets, (1.0,), (0,), (0,),
                e.outcome, True, None, True)
        for i, e in enumerate(examples)
    ]  # fmt: skip

    def cost(raw: torch.Tensor, head: object, labels: Labels) -> torch.Tensor:
        return labels.weight + 0.0 * raw[:, 0]

    objective = Objective("scalar", cost, lambda y: y.weight.sum())
    schedule = Schedule(epochs=3, batch_size=1, save_every_steps=1)

    def run(folder: Path, seen: list[int], stop_at: int = 0) -> None:
        def stop(progress: Progress) -> None:
            if progress.step == stop_at:
                raise InterruptedError

        fit(Loop(Reader(seen), numbered, None, objective, schedule, 0, "", folder, dict, stop))

    straight: list[int] = []
    run(tmp_path / "straight", straight)
    assert [sorted(straight[k : k + 10]) for k in (0, 10, 20)] == [list(range(10))] * 3
    resumed: list[int] = []
    # Step 7 of the second epoch is the 17th: it was taken and not yet saved when the run stopped, so it is repeated.
    with pytest.raises(InterruptedError):
        run(tmp_path / "resumed", resumed, stop_at=17)
    position, _ = newest_state(tmp_path / "resumed") or pytest.fail("no checkpoint")
    assert (position.epoch, position.batch) == (1, 6)
    del resumed[16:]
    run(tmp_path / "resumed", resumed)
    assert resumed == straight


def test_p027_a_cut_row_never_reports_a_loss_of_zero(tiny_llama: Path, labeled: Row):
    # Its only kept step has no label: nothing to learn from is an error, not a loss of 0.
    row = labeled("abcd", ["xyz", "xyz"], [None, 0])
    tokenizer = load_tokenizer(tiny_llama)
    limit = len(InputFormat(tokenizer, StepFormat()).encode(row.problem, ["xyz"]).token_ids)
    examples, report = collate(
        [row], InputFormat(tokenizer, StepFormat(), max_tokens=limit), over_limit="cut"
    )
    assert (report.steps_cut, report.labelled) == (1, 0)
    with pytest.raises(InputError, match="all step labels of 1 solutions are unknown"):
        require_signal(examples, "bce", from_outcomes=OBJECTIVES["bce"].needs_outcome)
