"""Train a generative reward model: rationale and verdict per step, with loss on the completion alone.

Rationales come from tool evidence (GroundedPRM), from stored critiques (GenPRM, ThinkPRM) or are left plain. The
export of verdict prompts feeds reinforcement learning of a critic in TRL's GRPO trainer (StepWiser, SPARK).
"""

import hashlib
import json
import math
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from stepward.prm.errors import InputError, StoreError
from stepward.prm.models.batches import Batch
from stepward.prm.models.discriminative import attention_inputs
from stepward.prm.models.folder import TOKENIZER_FILES
from stepward.prm.models.heads import HeadSpec
from stepward.prm.models.hub import local_folder
from stepward.prm.models.implicit import ImplicitHead
from stepward.prm.models.inputs import EncodedSolution
from stepward.prm.models.verdicts import CRITIC_FILE, VerdictFormat
from stepward.prm.models.weights import load_causal_lm, quiet
from stepward.prm.policy import Tokenizer
from stepward.prm.prompts import PromptTemplate, plain_template
from stepward.prm.seeds import derive_seed
from stepward.prm.tokenizer import load_tokenizer
from stepward.prm.types import LabeledSolution, Problem, StepLabel, VerdictKind
from stepward.training.collate import Example
from stepward.training.loop import Loop, Progress, Schedule, fit, threads
from stepward.training.objectives import Objective

_KIND_WORDS = {VerdictKind.SUPPORTED: "holds", VerdictKind.REFUTED: "does not hold"}


@dataclass(frozen=True, slots=True)
class Critique:
    """One example of supervised fine-tuning.

    Attributes:
        solution_id: The row that it judges.
        problem_id: Its problem.
        question: What the critic reads.
        completion: What it should write; the loss is on this alone.
    """

    solution_id: str
    problem_id: str
    question: str
    completion: str


def critiques(
    rows: Sequence[LabeledSolution], verdict_format: VerdictFormat | None = None
) -> tuple[list[Critique], dict[str, int]]:
    """Training examples of labelled rows.

    Args:
        rows: Their labels must be known up to the first wrong step, or throughout.
        verdict_format: Question and verdicts.

    Returns:
        The examples, and how many rows were left out by reason.
    """
    verdict_format = verdict_format or VerdictFormat()
    result: list[Critique] = []
    left_out = {"label unknown before the first error": 0}
    for row in rows:
        judged = row.labels if row.first_error is None else row.labels[: row.first_error + 1]
        labels = [s.label for s in judged]
        if not labels or any(label is None for label in labels):
            left_out["label unknown before the first error"] += 1
            continue
        steps = [s.text for s in row.solution.steps]
        completion = verdict_format.answer([rationale(s) for s in judged], [int(v or 0) for v in labels])
        question = verdict_format.question(row.problem, steps)
        result.append(Critique(row.solution.id, row.problem.id, question, completion))
    return result, left_out


def rationale(label: StepLabel) -> str:
    """A stored critique, else the evidence of tools that agree with the label, else a plain sentence."""
    if label.rationale:
        return " ".join(label.rationale.split())
    agreeing = VerdictKind.SUPPORTED if label.label else VerdictKind.REFUTED
    evidence = [
        f"{v.evidence} ({v.verifier}: {_KIND_WORDS[v.kind]})"
        for v in label.verdicts
        if v.kind is agreeing and v.evidence
    ]
    if evidence:
        return "; ".join(evidence)
    return "The step follows." if label.label else "The step does not follow."


def verdict_prompts(
    rows: Sequence[LabeledSolution], verdict_format: VerdictFormat | None = None, *, seed: int = 0
) -> list[dict[str, Any]]:
    """Rows for TRL's GRPO trainer: a prompt and the true first error, right and wrong solutions in equal number.

    StepWiser found class balance decisive, so the larger class is thinned, by a hash of seed and solution id.
    ``verdict_reward`` is the reward function that goes with them.
    """
    verdict_format = verdict_format or VerdictFormat()
    decided = [r for r in rows if r.first_error is not None or all(s.label is not None for s in r.labels)]
    wrong = [r for r in decided if r.first_error is not None]
    right = [r for r in decided if r.first_error is None]
    keep = min(len(wrong), len(right))

    def thinned(group: list[LabeledSolution]) -> list[LabeledSolution]:
        return sorted(group, key=lambda r: derive_seed(seed, "verdict_prompts", r.solution.id))[:keep]

    return [
        {
            "prompt": [
                {
                    "role": "user",
                    "content": verdict_format.question(r.problem, [s.text for s in r.solution.steps]),
                }
            ],
            "first_error": -1 if r.first_error is None else r.first_error,
            "num_steps": len(r.solution.steps),
            "solution_id": r.solution.id,
        }
        for r in sorted([*thinned(wrong), *thinned(right)], key=lambda r: r.solution.id)
    ]


def verdict_reward(
    completions: Sequence[Any],
    first_error: Sequence[int],
    num_steps: Sequence[int],
    verdict_format: VerdictFormat | None = None,
    **_: Any,
) -> list[float]:
    """TRL reward of a critic: 1 where format and first error are right, 0 where either is not.

    A critique without a verdict on each step up to its first wrong one has no right format.
    """
    verdict_format = verdict_format or VerdictFormat()
    rewards: list[float] = []
    for completion, truth, steps in zip(completions, first_error, num_steps, strict=True):
        text = completion if isinstance(completion, str) else completion[-1]["content"]
        found = verdict_format.find(text, steps)
        named = next((i for i, v in enumerate(found) if v is not None and not v[1]), None)
        complete = named is not None or all(v is not None for v in found)
        rewards.append(float(complete and (-1 if named is None else named) == truth))
    return rewards


class CompletionModel(nn.Module):
    """A causal language model that gives the log-probability of the ids at the score positions, ``[n, 1]``."""

    def __init__(self, backbone: Any) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = ImplicitHead(HeadSpec("implicit", scale=1.0))

    def forward(self, batch: Batch, logprobs: Tensor | None = None) -> Tensor:
        base: Any = self.backbone
        inputs = attention_inputs(base, batch, causal=True)
        states = getattr(base, base.base_model_prefix)(input_ids=batch.input_ids, **inputs).last_hidden_state
        # An id is predicted where the id before it stands; only those positions meet the output embedding.
        before = batch.previous[batch.score_rows, batch.score_columns]
        logits = base.get_output_embeddings()(states[batch.score_rows, before]).float()
        target = batch.input_ids[batch.score_rows, batch.score_columns]
        return logits.log_softmax(-1).gather(1, target[:, None])


COMPLETION = Objective("implicit", lambda raw, head, y: -raw[:, 0] * y.weight, lambda y: y.weight.sum())


def train_generative(
    examples: Sequence[Critique],
    *,
    base: Path | str,
    out: Path,
    prompt: PromptTemplate | None = None,
    verdict_format: VerdictFormat | None = None,
    max_tokens: int = 0,
    schedule: Schedule | None = None,
    seed: int = 0,
    device: str = "cpu",
    bfloat16: bool = False,
    num_threads: int = 1,
    on_progress: Callable[[Progress], None] | None = None,
) -> Path:
    """Fine-tune a causal language model as a critic and save it as an ordinary causal LM folder.

    Args:
        examples: From ``critiques``, or critiques of another source that passed its filters.
        base: Folder or Hub id.
        out: Folder of the critic; refused where it exists.
        prompt: Template for the question; plain where None.
        verdict_format: Stored beside the model.
        max_tokens: Longer examples are refused by name; 0 = the base's limit.
        schedule: How the weights are moved; packing works as for other models.
        seed: Of the order.
        device: Where to compute.
        bfloat16: Autocast.
        num_threads: CPU threads.
        on_progress: Called after each step.

    Raises:
        InputError: No example, or one over the limit.
        StoreError: ``out`` exists.
    """
    if out.exists():
        raise StoreError(f"{out} exists; name another folder for the critic")
    if not examples:
        raise InputError("training a critic on no example; label more rows up to their first wrong step")
    folder = local_folder(base)
    tokenizer = load_tokenizer(folder)
    prompt = prompt or plain_template()
    schedule = schedule or Schedule()
    with threads(num_threads), torch.random.fork_rng():
        model = CompletionModel(load_causal_lm(folder)).to(device)
        limit = max_tokens or int(getattr(model.backbone.config, "max_position_embeddings", 0) or 0)
        encoded = [_encode(c, tokenizer, prompt, limit) for c in examples]
        settings = json.dumps([asdict(schedule), seed, limit, prompt.hash, tokenizer.hash], sort_keys=True)
        run = hashlib.sha256(
            (settings + "".join(c.question + c.completion for c in examples)).encode()
        ).hexdigest()
        checkpoints = out.with_name(f".{out.name}.training")
        history = fit(
            Loop(
                model, encoded, None, COMPLETION, schedule, seed, run[:16], checkpoints, dict,
                on_progress=on_progress, autocast=bfloat16,
            )
        )  # fmt: skip
        partial = out.with_name(f".{out.name}.partial")
        with quiet():
            model.backbone.cpu().save_pretrained(partial)
    for name in TOKENIZER_FILES:
        if (folder / name).exists():
            shutil.copyfile(folder / name, partial / name)
    facts = {
        "verdict_format": json.loads((verdict_format or VerdictFormat()).to_json()),
        "prompt": asdict(prompt),
        "history": list(history),
        "examples": len(examples),
    }
    (partial / CRITIC_FILE).write_text(json.dumps(facts, indent=1, sort_keys=True) + "\n")
    partial.rename(out)
    shutil.rmtree(checkpoints, ignore_errors=True)
    return out


def _encode(critique: Critique, tokenizer: Tokenizer, prompt: PromptTemplate, limit: int) -> Example:
    """The example whose score positions are the completion's ids, the end token among them."""
    start = prompt.render(Problem(critique.problem_id, critique.question), tokenizer).ids
    completion = tokenizer.encode(critique.completion) + tuple(sorted(tokenizer.eos_ids)[:1])
    ids = start + completion
    if limit and len(ids) > limit:
        raise InputError(
            f"the critique of solution {critique.solution_id} has {len(ids)} ids and the model takes {limit}; shorten "
            "the rationale or leave it out"
        )
    places = tuple(range(len(start), len(ids)))
    blank = (0,) * len(places)
    return Example(
        critique.solution_id, critique.problem_id, EncodedSolution(ids, len(start), places), places,
        (1.0,) * len(places), (1.0,) * len(places), blank, blank, math.nan, True, None, False,
    )  # fmt: skip
