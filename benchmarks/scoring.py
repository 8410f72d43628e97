"""How fast a small PRM scores ProcessBench's solutions: one pass a solution against one a prefix, and the bare model.

    python -m benchmarks.scoring [--solutions 1675] [--part K/N] [--parts FOLDER]

The PRM has the shape of the one that the quickstart trains (a Llama of 3 layers, width 128), random weights, a context
of 8,192 ids and a tokenizer of 8,192 ids trained on the texts: speed does not depend on what was learned. The sample is
every n-th solution of the 1,675 in order of subset and length, the same for all three. The bare model runs the backbone
on the token ids of the batches of ours and nothing else; the two take turns batch by batch, twice, and the better round
of each batch counts, so that a machine whose speed drifts does not decide. The peer scores each prefix of a solution by
itself, batched by length with the fast causal kernel, once. CPU seconds of the process, one thread. A run may come in
N parts (every N-th solution of the sample), which stay in FOLDER; ``benchmarks.evaluation scoring`` sums them.
"""

import argparse
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from benchmarks.public_data import data_folder
from benchmarks.report import Row
from stepward.prm.evaluation.items import Item
from stepward.prm.evaluation.readers.processbench import read_folder
from stepward.prm.models.batches import batches_by_length, batches_by_prompt, make_batch
from stepward.prm.models.discriminative import DiscriminativePRM, attention_inputs
from stepward.prm.models.folder import PrmDescription, save_prm
from stepward.prm.models.heads import HeadSpec, build_head
from stepward.prm.models.inputs import EncodedSolution
from stepward.prm.models.load import load
from stepward.prm.models.reward_model import DiscriminativeRewardModel
from stepward.prm.steps import StepFormat
from stepward.prm.types import Problem

LAYERS, WIDTH, INNER, IDS = 3, 128, 384, 8192


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
            vocab_size=IDS, hidden_size=WIDTH, intermediate_size=INNER, num_hidden_layers=LAYERS,
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


def turns(
    prm: DiscriminativeRewardModel, asked: list[tuple[Problem, tuple[str, ...]]], groups: list[list[int]]
) -> tuple[float, float, list[tuple[float, ...]]]:
    """CPU seconds of scoring, from text to scores, and of the bare model on the same batches; and the scores."""
    backbone = prm.prm.model.backbone
    ours = bare = 0.0
    scores: list[tuple[float, ...]] = [()] * len(asked)
    for group in groups:
        problems, steps = [asked[i][0] for i in group], [asked[i][1] for i in group]
        encoded = [prm.prm.inputs.encode(p, s) for p, s in zip(problems, steps, strict=True)]
        batch = make_batch(encoded, share_prompts=True)
        best = [float("inf")] * 2
        for _ in range(2):
            began = time.process_time()
            found = prm.score(problems, steps)
            middle = time.process_time()
            with torch.inference_mode():
                backbone(input_ids=batch.input_ids, **attention_inputs(backbone, batch, causal=True))
            end = time.process_time()
            best = [min(best[0], middle - began), min(best[1], end - middle)]
        ours, bare = ours + best[0], bare + best[1]
        for i, row in zip(group, found, strict=True):
            scores[i] = row
    return ours, bare, scores


def apart(prm: DiscriminativeRewardModel, encoded: list[EncodedSolution]) -> list[list[float]]:
    """Each step's score from a pass over the prefix that ends with it, batched by length."""
    prefixes = [
        EncodedSolution(e.token_ids[: end + 1], e.prompt_length, (end,))
        for e in encoded
        for end in e.step_ends
    ]
    model = prm.prm.model
    found = [0.0] * len(prefixes)
    with torch.inference_mode():
        for group in batches_by_length([len(p.token_ids) for p in prefixes], prm.batch_tokens):
            values = model.probability(model(make_batch([prefixes[i] for i in group]))).tolist()
            for i, value in zip(group, values, strict=True):
                found[i] = value
    ends = iter(found)
    return [[next(ends) for _ in e.step_ends] for e in encoded]


@dataclass(frozen=True, slots=True)
class Measured:
    """Sums over a part of the sample; seconds are of the CPU."""

    solutions: int
    tokens: int
    ours_s: float
    bare_s: float
    apart_s: float
    worst: float


def measure(data: Path, number: int, part: int = 1, of: int = 1) -> Measured:
    """Part ``part`` (from 1) of ``of`` of the sample."""
    torch.set_num_threads(1)
    items = read_folder(data / "processbench")
    with TemporaryDirectory() as place:
        prm = small_prm(Path(place), [s for item in items for s in (item.problem, *item.steps)])
        mine = stratified(items, number)[part - 1 :: of]
        asked = [(Problem(i.id, i.problem), i.steps) for i in mine]
        prm.score([p for p, _ in asked[:2]], [s for _, s in asked[:2]])
        encoded = [prm.prm.inputs.encode(p, s) for p, s in asked]
        began = time.process_time()
        groups = batches_by_prompt(encoded, prm.batch_tokens)  # among all solutions at once
        planned_s = time.process_time() - began
        ours_s, bare_s, whole = turns(prm, asked, groups)
        began = time.process_time()
        each = apart(prm, encoded)
        apart_s = time.process_time() - began
    worst = max(abs(a - b) for r, e in zip(whole, each, strict=True) for a, b in zip(r, e, strict=True))
    tokens = sum(len(e.token_ids) for e in encoded)
    return Measured(len(mine), tokens, ours_s + planned_s, bare_s, apart_s, worst)


def rows(data: Path, number: int = 64, parts: Path | None = None) -> list[Row]:
    """The figures, on a stratified sample of ``number`` solutions or from the parts that are there."""
    stored = sorted(parts.glob("scoring-*.json")) if parts else []
    found = [Measured(**json.loads(p.read_text())) for p in stored] or [measure(data, number)]
    solutions, tokens = sum(m.solutions for m in found), sum(m.tokens for m in found)
    ours_s, bare_s, apart_s = (sum(getattr(m, n) for m in found) for n in ("ours_s", "bare_s", "apart_s"))
    return [
        Row(
            f"solutions a CPU second, one pass each against one a prefix ({solutions:,} of 1,675 ProcessBench "
            f"solutions, {tokens:,} tokens)",
            solutions / ours_s, solutions / apart_s, 3.0, of_ratio=True,
        ),
        Row(
            "tokens a CPU second, scoring against the bare model on the same batches",
            tokens / ours_s, tokens / bare_s, 0.9, of_ratio=True,
        ),
        Row(
            "largest difference of a step's score, one pass against its own prefix",
            max(m.worst for m in found), None, 1e-4, lower_is_better=True,
        ),
    ]  # fmt: skip


def main() -> None:
    """Measure one part and store it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--solutions", type=int, default=1675)
    parser.add_argument("--part", default="1/1", help="K/N")
    parser.add_argument("--parts", type=Path, default=Path("runs/scoring"))
    options = parser.parse_args()
    part, of = map(int, options.part.split("/"))
    found = measure(data_folder(), options.solutions, part, of)
    options.parts.mkdir(parents=True, exist_ok=True)
    (options.parts / f"scoring-{part}-{of}.json").write_text(json.dumps(asdict(found)))
    print(found)


if __name__ == "__main__":
    main()
