"""Heads on stored hidden states."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
import torch

from stepward.prm.errors import InputError, ModelError
from stepward.prm.models.heads import as_head
from stepward.prm.models.inputs import InputFormat
from stepward.prm.models.load import load
from stepward.prm.steps import StepFormat
from stepward.prm.tokenizer import load_tokenizer
from stepward.prm.types import LabeledSolution
from stepward.training.collate import collate
from stepward.training.light_heads import attach, extract_features, read_features, train_light_head

Sums = Callable[..., list[LabeledSolution]]


@pytest.mark.parametrize("kind", ["linear", "mlp"])
def test_a_light_head_scores_in_its_model_as_on_its_features(
    tiny_llama: Path, tmp_path: Path, sums: Sums, kind: str
):
    inputs = InputFormat(load_tokenizer(tiny_llama), StepFormat())
    rows = sums(40)
    examples, _ = collate(rows, inputs)
    path = tmp_path / "features.arrow"
    steps = extract_features(tiny_llama, examples, path, batch_tokens=500)
    features = read_features(path)
    assert steps == len(features.step) == sum(len(e.places) for e in examples)
    head = train_light_head(features, kind=kind, epochs=30, learning_rate=1e-2)
    with torch.no_grad():
        p = as_head(head).probability(head(features.hidden))
    assert ((p >= 0.5) == (features.target >= 0.5)).float().mean() > 0.85
    model = load(attach(tiny_llama, head, tmp_path / "prm", inputs, features=features))
    row = rows[3]
    (scores,) = model.score([row.problem], [[s.text for s in row.solution.steps]])
    mine = [i for i, s in enumerate(features.solution) if s == row.solution.id]
    order = sorted(mine, key=lambda i: features.step[i])
    assert scores == pytest.approx(p[order].tolist(), abs=1e-4)


def test_features_are_an_arrow_table_with_nulls_for_unknown(tiny_llama: Path, tmp_path: Path, sums: Sums):
    examples, _ = collate(sums(3), InputFormat(load_tokenizer(tiny_llama), StepFormat()))
    examples[0] = replace(examples[0], targets=(math.nan, *examples[0].targets[1:]))
    extract_features(tiny_llama, examples, tmp_path / "f.arrow")
    with pa.memory_map(str(tmp_path / "f.arrow")) as source:
        table = pa.ipc.open_file(source).read_all()
    assert table["target"].null_count == 1
    assert table.schema.field("hidden").type == pa.list_(pa.float32(), 16)
    assert int(read_features(tmp_path / "f.arrow").target.isnan().sum()) == 1


def test_features_without_two_classes_or_of_another_model_are_errors(
    tiny_llama: Path, tmp_path: Path, sums: Sums
):
    inputs = InputFormat(load_tokenizer(tiny_llama), StepFormat())
    examples, _ = collate(sums(6), inputs)
    extract_features(tiny_llama, examples, tmp_path / "f.arrow")
    features = read_features(tmp_path / "f.arrow")
    with pytest.raises(InputError, match="all equal"):
        train_light_head(replace(features, target=torch.ones_like(features.target)))
    with pytest.raises(InputError, match="linear, mlp"):
        train_light_head(features, kind="deep")
    head = train_light_head(features, epochs=1)
    with pytest.raises(ModelError, match="another model"):
        attach(tiny_llama, head, tmp_path / "p", inputs, features=replace(features, hidden=torch.zeros(2, 3)))
