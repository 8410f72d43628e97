"""The embedded policy: a tiny Llama that learns to solve generated word problems, and to err like a reader.

``train_embedded`` makes the checkpoint that ships with the package, from nothing but the generator and a seed,
in minutes on one core. What comes out is an ordinary Hugging Face folder.
"""

import json
import math
import random
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepward.prm.seeds import derive_seed
from stepward.prm.word_problems import MAX_AMOUNT, Split, generate, parse
from stepward.training.misreadings import write_solution, write_step

if TYPE_CHECKING:
    import torch
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

SCRIPT_VERSION = "1"
BOS, EOS, PAD = "<s>", "</s>", "<pad>"
SEPARATOR = "\n"

Example = tuple[list[int], int]
"""Token ids and the index of the first one that counts for the loss."""


def render_prompt(statement: str) -> str:
    """What the policy continues: the statement and a newline; the start token comes before it."""
    return statement + SEPARATOR


def train_embedded(
    out: Path,
    *,
    seed: int = 0,
    steps: int = 2400,
    batch_size: int = 32,
    peak_lr: float = 2e-2,
    num_problems: int = 40_000,
    drill_share: float = 0.12,
    vocab_size: int = 1024,
    report: "Any | None" = None,
) -> dict[str, float]:
    """Train the embedded policy and write it as a Hugging Face checkpoint.

    Args:
        out: Folder to write; made where missing.
        seed: Of the problems, the misreadings, the initial weights and the order.
        steps: Optimizer steps.
        batch_size: Solutions a step.
        peak_lr: Highest learning rate of the matrices (Muon); the rest learns at a tenth of it (AdamW).
        num_problems: Distinct problems of the training split; each is solved anew every time it comes up.
        drill_share: Share of the steps, at the start, spent on equations alone.
        vocab_size: Entries of the tokenizer, special tokens and bytes included.
        report: Called with (step, loss) every 50 steps.

    Returns:
        The last loss and the number of parameters.
    """

    problems = list(islice(generate(Split.TRAIN, seed), num_problems))
    stories = [(render_prompt(p.text), parse(p.text)) for p in problems]
    rng = random.Random(derive_seed(seed, "embedded_policy"))
    tokenizer = build_tokenizer(
        [prompt + SEPARATOR.join(write_solution(story, rng)) for prompt, story in stories[:10_000]],
        vocab_size,
    )
    model = build_model(tokenizer, seed)
    encoded = [(tokenizer.encode(prompt), story) for prompt, story in stories]

    def solved() -> Iterator[Example]:
        while True:
            for index in rng.sample(range(len(encoded)), len(encoded)):
                prompt, story = encoded[index]
                text = SEPARATOR.join(write_solution(story, rng))
                ids = tokenizer.encode(text, add_special_tokens=False)
                yield [*prompt, *ids, tokenizer.eos_token_id], len(prompt)

    def drills() -> Iterator[Example]:
        while True:
            text = SEPARATOR.join(_drill(rng) for _ in range(8)) + SEPARATOR
            yield tokenizer.encode(text), 1

    num_drill = int(drill_share * steps)
    loss = _fit(model, _batches(drills(), solved(), num_drill, batch_size), steps, peak_lr, report)
    _save(out, model, tokenizer, {"seed": seed, "steps": steps, "num_problems": num_problems})
    return {"loss": loss, "parameters": float(sum(p.numel() for p in model.parameters()))}


def _drill(rng: random.Random) -> str:
    """One true equation in the range that problems use."""
    operator = "+-+-*/"[rng.randrange(6)]
    if operator == "+":
        total = rng.randrange(4, 100)
        left = rng.randrange(2, total - 1)
        return write_step(left, "+", total - left, total, rng)
    if operator == "-":
        left = rng.randrange(4, 100 if rng.random() < 0.3 else MAX_AMOUNT + 20)
        right = rng.randrange(2, left - 1)
        return write_step(left, "-", right, left - right, rng)
    if operator == "*":
        left, right = rng.randrange(2, 31), rng.randrange(2, 13)
        return _drill(rng) if left * right > 99 else write_step(left, "*", right, left * right, rng)
    divisor = rng.randrange(2, 7)
    left = rng.randrange(2 * divisor, MAX_AMOUNT + 1)
    if rng.random() < 0.7:
        left -= left % divisor
    return write_step(left, "/", divisor, left // divisor, rng)


# ---- Tokenizer and model -----------------------------------------------------------------------------------


def build_tokenizer(texts: list[str], vocab_size: int) -> "PreTrainedTokenizerFast":
    """Byte-level BPE whose merges run across words but not across digits, newlines or sentence ends.

    So a phrase is one or two tokens, a number is its digits, and a step boundary is always a token boundary:
    encoding step by step gives the ids of encoding the whole. Any text can be encoded (bytes).
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(SEPARATOR, "isolated"),
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.Split(Regex(r"(?<=[.?!]) "), "merged_with_next"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    core.decoder = decoders.ByteLevel()
    core.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=vocab_size,
            special_tokens=[PAD, BOS, EOS],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    core.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", special_tokens=[(BOS, core.token_to_id(BOS))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=PAD,
        clean_up_tokenization_spaces=False,
        model_max_length=1024,
    )


def build_model(tokenizer: "PreTrainedTokenizerFast", seed: int) -> "LlamaForCausalLM":
    """A Llama of 3 layers and width 128 with random weights."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        attn_implementation="sdpa",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(config)


# ---- Training ----------------------------------------------------------------------------------------------


def _batches(
    drills: Iterator[Example], solved: Iterator[Example], num_drill: int, batch_size: int
) -> Iterator[list[Example]]:
    """Drill batches, then solutions; within 16 batches those of like length go together, to waste no padding."""
    for _ in range(num_drill):
        yield list(islice(drills, batch_size))
    order = random.Random(0)
    while True:
        pool = sorted(islice(solved, 16 * batch_size), key=lambda e: len(e[0]))
        batches = [pool[i : i + batch_size] for i in range(0, len(pool), batch_size)]
        order.shuffle(batches)
        yield from batches


def _fit(
    model: "LlamaForCausalLM",
    batches: Iterator[list[Example]],
    steps: int,
    peak_lr: float,
    report: "Any | None",
) -> float:
    import torch
    from torch.nn.functional import cross_entropy

    matrices = [
        p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n and "lm_head" not in n
    ]
    others = [p for n, p in model.named_parameters() if p.ndim != 2 or "embed" in n or "lm_head" in n]
    optimizers = [
        torch.optim.Muon(matrices, lr=peak_lr, weight_decay=0.01, adjust_lr_fn="original"),
        torch.optim.AdamW(others, lr=peak_lr / 5, betas=(0.9, 0.99), weight_decay=0.0),
    ]
    schedules = [torch.optim.lr_scheduler.LambdaLR(o, lambda s: _rate(s, steps)) for o in optimizers]
    model.train()
    shown = 0.0
    for step in range(steps):
        ids, targets = _collate(next(batches))
        hidden = model.model(input_ids=ids[:, :-1], use_cache=False).last_hidden_state
        counted = targets[:, 1:] >= 0
        logits = model.lm_head(hidden[counted])
        loss = cross_entropy(logits, targets[:, 1:][counted])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer, schedule in zip(optimizers, schedules, strict=True):
            optimizer.step()
            schedule.step()
            optimizer.zero_grad(set_to_none=True)
        shown = loss.item() if step == 0 else 0.95 * shown + 0.05 * loss.item()
        if report is not None and (step + 1) % 50 == 0:
            report(step + 1, shown)
    model.eval()
    return shown


def _rate(step: int, steps: int) -> float:
    """Share of the peak learning rate: a short rise, then a straight fall to nothing over the second half."""
    return min(1.0, (step + 1) / 20, 2 * (steps - step) / steps)


def _collate(batch: list[Example]) -> "tuple[torch.Tensor, torch.Tensor]":
    """ids and targets, both ``[batch, longest]``, padded on the right; -1 where a target does not count."""
    import torch

    longest = math.ceil(max(len(ids) for ids, _ in batch) / 8) * 8
    ids = torch.zeros(len(batch), longest, dtype=torch.long)
    targets = torch.full((len(batch), longest), -1)
    for row, (tokens, start) in enumerate(batch):
        ids[row, : len(tokens)] = torch.tensor(tokens)
        targets[row, start : len(tokens)] = torch.tensor(tokens[start:])
    return ids, targets


def _save(
    out: Path, model: "LlamaForCausalLM", tokenizer: "PreTrainedTokenizerFast", provenance: dict[str, object]
) -> None:
    from transformers import GenerationConfig

    out.mkdir(parents=True, exist_ok=True)
    model.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    # The class name that transformers 4 and 5 both know.
    config_file = out / "tokenizer_config.json"
    config = json.loads(config_file.read_text()) | {"tokenizer_class": "PreTrainedTokenizerFast"}
    config.pop("backend", None)
    config_file.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    for file in out.iterdir():
        file.chmod(0o644)
    made_by = {"script": "stepward.training.embedded_policy", "script_version": SCRIPT_VERSION}
    (out / "provenance.json").write_text(json.dumps({**made_by, **provenance}, indent=2) + "\n")
