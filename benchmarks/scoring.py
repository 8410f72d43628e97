"""How fast a small PRM scores ProcessBench's solutions: one pass a solution against one a prefix, and the bare model.

The PRM is a Llama of random weights (6 layers, width 256) with a tokenizer of 8,192 ids trained on the texts: speed
does not depend on what was learned. The sample is every n-th solution of the 1,675 in order of subset and length, the
same for all three. The peer scores each prefix of a solution by itself, batched by length as ours is. The bare model
runs the backbone on the batches of ours and nothing else. CPU seconds of the process, one thread, best of two rounds.
"""

import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from benchmarks.report import Row
from stepward.prm.evaluation.items import Item
from stepward.prm.evaluation.readers.processbench import read_folder
from stepward.prm.models.batches import batches_by_prompt, make_batch
from stepward.prm.models.discriminative import DiscriminativePRM, attention_inputs
from stepward.prm.models.folder import PrmDescription, save_prm
from stepward.prm.models.heads import HeadSpec, build_head
from stepward.prm.models.load import load
from stepward.prm.models.reward_model import DiscriminativeRewardModel
from stepward.prm.steps import StepFormat
from stepward.prm.types import Problem

LAYERS, WIDTH, IDS = 6, 256, 8192


def small_prm(folder: Path, texts: list[str]) -> DiscriminativeRewardModel:
    """A random Llama with a scalar head, and a byte-level BPE tokenizer of these texts."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaModel

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=IDS, special_tokens=["<|end|>"], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    tokenizer.train_from_iterator(texts, trainer)
    base = folder / "base"
    base.mkdir()
    tokenizer.save(str(base / "tokenizer.json"))
    (base / "tokenizer_config.json").write_text('{"eos_token": "<|end|>"}')
    torch.manual_seed(0)
    backbone = LlamaModel(
        LlamaConfig(
            vocab_size=IDS, hidden_size=WIDTH, intermediate_size=704, num_hidden_layers=LAYERS,
            num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=8192, bos_token_id=None,
            eos_token_id=0,
        )
    )  # fmt: skip
    spec = HeadSpec("scalar")
    model = DiscriminativePRM(backbone, build_head(WIDTH, spec))
    save_prm(folder / "prm", model, PrmDescription(spec, StepFormat()), tokenizer_from=base)
    return load(folder / "prm")  # pyright: ignore[reportReturnType]


def stratified(items: list[Item], number: int) -> list[Item]:
    """Every n-th item in order of subset and length."""
    ordered = sorted(items, key=lambda i: (i.subset, sum(map(len, i.steps)), i.id))
    stride = max(1, len(ordered) // number)
    return ordered[stride // 2 :: stride][:number]


def cpu_s(work: Callable[[], object]) -> float:
    """Best of two."""
    found: list[float] = []
    for _ in range(2):
        began = time.process_time()
        work()
        found.append(time.process_time() - began)
    return min(found)


def rows(data: Path, number: int = 64) -> list[Row]:
    """The figures, on a stratified sample of ``number`` solutions."""
    torch.set_num_threads(1)
    items = read_folder(data / "processbench")
    with TemporaryDirectory() as place:
        prm = small_prm(Path(place), [s for item in items for s in (item.problem, *item.steps)])
        part = stratified(items, number)
        problems = [Problem(i.id, i.problem) for i in part]
        steps = [i.steps for i in part]
        prefixes = [(p, s[: t + 1]) for p, s in zip(problems, steps, strict=True) for t in range(len(s))]
        encoded = [prm.prm.inputs.encode(p, s) for p, s in zip(problems, steps, strict=True)]
        batches = [
            make_batch([encoded[i] for i in group], share_prompts=True)
            for group in batches_by_prompt(encoded, prm.batch_tokens)
        ]
        backbone = prm.prm.model.backbone

        def bare() -> None:
            with torch.inference_mode():
                for batch in batches:
                    backbone(input_ids=batch.input_ids, **attention_inputs(backbone, batch, causal=True))

        prm.score(problems[:2], steps[:2])
        ours = cpu_s(lambda: prm.score(problems, steps))
        bare_s = cpu_s(bare)
        began = time.process_time()
        apart = prm.score([p for p, _ in prefixes], [s for _, s in prefixes])
        apart_s = time.process_time() - began
        whole = prm.score(problems, steps)
        ends = [apart[k] for k in range(len(apart))]
        position = 0
        worst = 0.0
        for row in whole:
            worst = max(worst, *(abs(row[t] - ends[position + t][t]) for t in range(len(row))))
            position += len(row)
    tokens = sum(len(e.token_ids) for e in encoded)
    name = f"{len(part)} of {len(items):,} ProcessBench solutions, {tokens:,} tokens"
    return [
        Row(
            f"solutions a CPU second, one pass each against one a prefix ({name})",
            len(part) / ours,
            len(part) / apart_s,
            3.0,
            of_ratio=True,
        ),
        Row(
            "tokens a CPU second, scoring against the bare model on the same batches",
            tokens / ours,
            tokens / bare_s,
            0.9,
            of_ratio=True,
        ),
        Row(
            "largest difference of a step's score, one pass against its own prefix",
            worst,
            None,
            1e-4,
            lower_is_better=True,
        ),
    ]
