"""The embedded policy: a tiny Llama that learns to solve generated word problems, and to err like a reader.

``train_embedded`` makes the checkpoint that ships with the package, from nothing but the generator and a seed,
in minutes on one core. What comes out is an ordinary Hugging Face folder.
"""

import json
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING

from stepward.prm.seeds import derive_seed
from stepward.prm.word_problems.problems import MAX_AMOUNT, Split, Story, generate, parse
from stepward.training.misreadings import write_solution, write_step

if TYPE_CHECKING:
    import torch
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

SCRIPT_VERSION = "1"
ROUNDS = ((2400, 2e-2), (1200, 2e-2), (1000, 1e-2))
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
    rounds: Sequence[tuple[int, float]] = ROUNDS,
    batch_size: int = 32,
    sharpness: float = 1.25,
    num_problems: int = 40_000,
    drill_share: float = 0.12,
    vocab_size: int = 1024,
    report: Callable[[int, float], None] | None = None,
) -> dict[str, float]:
    """Train the embedded policy and write it as a Hugging Face checkpoint.

    Args:
        out: Folder to write; made where missing.
        seed: Of the problems, the misreadings, the initial weights and the order.
        rounds: Of each round the optimizer steps and the highest learning rate of the matrices (Muon); the
            rest learns at a fifth of it (AdamW). A rate falls to nothing over the second half of its round.
        batch_size: Solutions a step.
        sharpness: Factor on the logits of the finished policy. Where it is torn evenly, as by a trap, nothing
            changes; what it does by mistake once in ten times becomes rarer.
        num_problems: Distinct problems of the training split; each is solved anew every time it comes up.
        drill_share: Share of the first round's steps, at its start, spent on equations alone.
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
    encoded = [(_ids(tokenizer, prompt, special=True), story) for prompt, story in stories]
    num_drill = int(drill_share * rounds[0][0])
    loss = 0.0
    for index, (steps, peak_lr) in enumerate(rounds):
        rng = rng if index == 0 else random.Random(derive_seed(seed, "embedded_policy", *["more"] * index))
        drills = islice(_batches(_drills(tokenizer, rng), batch_size), 0 if index else num_drill)
        solutions = _solution_batches(encoded, tokenizer, rng, batch_size)
        loss = _fit(model, chain(drills, solutions), steps, peak_lr, report)
    _sharpen(model, sharpness)
    made_from = {"seed": seed, "rounds": rounds, "sharpness": sharpness, "num_problems": num_problems}
    _save(out, model, tokenizer, made_from)
    return {"loss": loss, "parameters": float(sum(p.numel() for p in model.parameters()))}


# ---- Examples ----------------------------------------------------------------------------------------------


def _ids(tokenizer: "PreTrainedTokenizerFast", text: str, *, special: bool = False) -> list[int]:
    ids: list[int] = tokenizer(text, add_special_tokens=special)["input_ids"]  # pyright: ignore[reportAssignmentType]
    return ids


def _solutions(
    encoded: Sequence[tuple[list[int], Story]], tokenizer: "PreTrainedTokenizerFast", rng: random.Random
) -> Iterator[Example]:
    """Problems in random order, each solved anew, misreadings and all, every time it comes up."""
    while True:
        for index in rng.sample(range(len(encoded)), len(encoded)):
            prompt, story = encoded[index]
            ids = _ids(tokenizer, SEPARATOR.join(write_solution(story, rng)) + EOS)
            yield [*prompt, *ids], len(prompt)


def _drills(tokenizer: "PreTrainedTokenizerFast", rng: random.Random) -> Iterator[Example]:
    """Eight true equations and no problem."""
    while True:
        text = SEPARATOR.join(_drill(rng) for _ in range(8)) + SEPARATOR
        yield _ids(tokenizer, text, special=True), 1


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
        bos_token_id=_special(tokenizer, BOS),
        eos_token_id=_special(tokenizer, EOS),
        pad_token_id=_special(tokenizer, PAD),
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(config)


def _special(tokenizer: "PreTrainedTokenizerFast", token: str) -> int:
    index: int = tokenizer.convert_tokens_to_ids(token)  # pyright: ignore[reportAssignmentType]
    return index


# ---- Training ----------------------------------------------------------------------------------------------


def _batches(examples: Iterator[Example], batch_size: int) -> Iterator[list[Example]]:
    while True:
        yield list(islice(examples, batch_size))


def _solution_batches(
    encoded: Sequence[tuple[list[int], Story]],
    tokenizer: "PreTrainedTokenizerFast",
    rng: random.Random,
    batch_size: int,
) -> Iterator[list[Example]]:
    """Solutions of like length together, within 16 batches in random order, to waste no padding."""
    order = random.Random(0)
    for examples in _batches(_solutions(encoded, tokenizer, rng), 16 * batch_size):
        pool = sorted(examples, key=lambda e: len(e[0]))
        batches = [pool[i : i + batch_size] for i in range(0, len(pool), batch_size)]
        order.shuffle(batches)
        yield from batches


def _fit(
    model: "LlamaForCausalLM",
    batches: Iterator[list[Example]],
    steps: int,
    peak_lr: float,
    report: Callable[[int, float], None] | None,
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


def _sharpen(model: "LlamaForCausalLM", sharpness: float) -> None:
    """Multiply all logits: the last norm's weights scale them, since no bias follows."""
    import torch

    with torch.no_grad():
        model.model.norm.weight.mul_(sharpness)


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
    out: Path,
    model: "LlamaForCausalLM",
    tokenizer: "PreTrainedTokenizerFast",
    provenance: Mapping[str, object],
) -> None:
    from transformers import GenerationConfig

    out.mkdir(parents=True, exist_ok=True)
    model.generation_config = GenerationConfig(
        bos_token_id=_special(tokenizer, BOS),
        eos_token_id=_special(tokenizer, EOS),
        pad_token_id=_special(tokenizer, PAD),
    )
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    # The class name that transformers 4 and 5 both know.
    config_file = out / "tokenizer_config.json"
    config = json.loads(config_file.read_text()) | {"tokenizer_class": "PreTrainedTokenizerFast"}
    config.pop("backend", None)
    config_file.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    # Jinja drops one newline at the end of a template.
    (out / "prompt.jinja").write_text(render_prompt("{{ problem }}") + "\n")
    for file in out.iterdir():
        file.chmod(0o644)
    made_by = {"script": "stepward.training.embedded_policy", "script_version": SCRIPT_VERSION}
    (out / "provenance.json").write_text(json.dumps({**made_by, **provenance}) + "\n")
