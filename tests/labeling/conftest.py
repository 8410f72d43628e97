"""A tiny random model and its tokenizer, made on the spot: no network, no stored weights."""

import json
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def tiny_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a byte-level tokenizer of 300 ids, for engines that need no weights; id 0 is the end token."""
    folder = tmp_path_factory.mktemp("tokenizers") / "tiny"
    folder.mkdir()
    write_tokenizer(folder)
    return folder


def write_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["so we add 12 and 30 and get 42.\n\nthe answer is 42\n"] * 3, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|end|>"}))


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of 2 layers with grouped queries, the tiny tokenizer and a context of 96."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("checkpoints") / "tiny-llama"
    folder.mkdir()
    write_tokenizer(folder)
    torch.manual_seed(5)
    config = LlamaConfig(
        vocab_size=300,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=96,
        initializer_range=0.6,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=0,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    # A bundled sampler that nobody asked for: it must change nothing.
    (folder / "generation_config.json").write_text(
        json.dumps(
            {"eos_token_id": 0, "do_sample": True, "temperature": 0.1, "top_k": 2, "repetition_penalty": 1.05}
        )
    )
    return folder
