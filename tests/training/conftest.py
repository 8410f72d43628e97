"""Tiny models of real architectures, made once a session, and rows to train them on."""

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import BertConfig, BertForMaskedLM, LlamaConfig, LlamaForCausalLM

from stepward.prm.types import (
    Allocation,
    Counts,
    Estimate,
    LabeledSolution,
    LabelerInfo,
    Outcome,
    PolicyInfo,
    Problem,
    Solution,
    Step,
    StepLabel,
)

POLICY = PolicyInfo("tiny", "0", "scripted")


def write_tokenizer(folder: Path) -> None:
    """Byte-level, no merges: one id a byte, so that lengths can be counted by hand."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {c: i for i, c in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def llama_config(**options: int) -> LlamaConfig:
    values = {
        "vocab_size": 258, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 256,
    }  # fmt: skip
    return LlamaConfig(**{**values, **options})


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as transformers writes it: a two-layer Llama causal LM and its tokenizer."""
    folder = tmp_path_factory.mktemp("models") / "tiny-llama"
    with torch.random.fork_rng():
        torch.manual_seed(0)
        LlamaForCausalLM(llama_config()).save_pretrained(folder)
    write_tokenizer(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A two-layer encoder."""
    folder = tmp_path_factory.mktemp("models") / "tiny-bert"
    config = BertConfig(
        vocab_size=258, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=256, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        BertForMaskedLM(config).save_pretrained(folder)
    write_tokenizer(folder)
    return folder


def make_row(
    problem: str,
    steps: list[str],
    labels: list[int | None],
    *,
    index: int = 0,
    outcome: Outcome | None = None,
    counts: list[tuple[int, int]] | None = None,
    values: list[float] | None = None,
    ids: list[tuple[int, ...]] | None = None,
    tokenizer_hash: str = "",
    allocation: Allocation = Allocation.FIXED_K,
) -> LabeledSolution:
    """A dataset row; counts are (right, wrong) at prefixes 0 to T."""
    wrong = next((i for i, label in enumerate(labels) if label == 0), None)
    if outcome is None:
        outcome = Outcome.RIGHT if wrong is None else Outcome.WRONG
    counts = counts or [(0, 0)] * (len(steps) + 1)
    token_ids = ids or [()] * len(steps)
    found = [None] * (len(steps) + 1) if values is None else values
    return LabeledSolution(
        problem=Problem(problem, problem, ("1",)),
        solution=Solution(
            f"{problem}-{index}",
            problem,
            tuple(Step(s, i) for s, i in zip(steps, token_ids, strict=True)),
            outcome=outcome,
        ),
        prefixes=tuple(
            Estimate(Counts(right=r, wrong=w), v) for (r, w), v in zip(counts, found, strict=True)
        ),
        labels=tuple(StepLabel(label) for label in labels),
        first_error=wrong,
        policy=POLICY,
        completer=POLICY,
        tokenizer_hash=tokenizer_hash,
        seed=0,
        allocation=allocation,
        prompt_tokens=0,
        generated_tokens=0,
        labeler=LabelerInfo("test", "1", ""),
    )


@pytest.fixture(scope="session")
def labeled() -> Callable[..., LabeledSolution]:
    """``make_row``."""
    return make_row


@pytest.fixture(scope="session")
def sums() -> Callable[..., list[LabeledSolution]]:
    """``make_sums``."""
    return make_sums


def make_sums(number: int, seed: int = 0) -> list[LabeledSolution]:
    """Solutions that add: a step is wrong where it says 'odd'. Learnable by any model in a few steps."""
    draw = random.Random(seed)
    rows: list[LabeledSolution] = []
    for n in range(number):
        steps, labels = [], []
        wrong = False
        for _ in range(draw.randint(1, 4)):
            bad = draw.random() < 0.35
            wrong = wrong or bad
            steps.append(f"{'odd' if bad else 'even'} {draw.randint(0, 9)}")
            labels.append(0 if wrong else 1)
        counts = [(4, 4), *((0, 8) if v == 0 else (6, 2) for v in labels)]
        values = [0.5, *(0.05 if v == 0 else 0.75 for v in labels)]
        rows.append(make_row(f"p{n // 2}-{seed}", steps, labels, index=n % 2, counts=counts, values=values))
    return rows
