"""Train a discriminative (or implicit) process reward model on labelled solutions.

``train_discriminative`` collates, checks that there is something to learn, trains, and writes a complete folder that
``stepward.prm.models.load`` reads.
"""

import hashlib
import json
import logging
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stepward.prm.errors import InputError, StoreError
from stepward.prm.models.batches import batches_by_prompt, make_batch
from stepward.prm.models.discriminative import can_share_prompts, reference_logprobs, take_logprobs
from stepward.prm.models.folder import (
    PRM_FILE,
    LoadedPrm,
    PrmDescription,
    read_description,
    save_prm,
)
from stepward.prm.models.heads import HeadSpec
from stepward.prm.models.hub import local_folder
from stepward.prm.models.inputs import InputFormat
from stepward.prm.models.reward_model import DiscriminativeRewardModel
from stepward.prm.models.weights import load_reference
from stepward.prm.prompts import PromptTemplate, plain_template
from stepward.prm.seeds import derive_seed
from stepward.prm.steps import StepFormat
from stepward.prm.types import LabeledSolution, Rollout
from stepward.training.checkpoint import newest_state
from stepward.training.collate import CollationReport, Example, collate, reweigh
from stepward.training.loop import Loop, Progress, Schedule, fit, is_sharded, threads
from stepward.training.objectives import require_pairs
from stepward.training.preparation import (
    Trained,
    check_separator,
    matching_tokenizer,
    merge_adapters,
    objective_and_head,
    prepare,
    require_signal,
    start_model,
    trained_names,
)
from stepward.training.rollouts import rollout_rows
from stepward.training.validation import evaluate

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TrainResult:
    """What a training run gives back.

    Attributes:
        folder: The reward model, complete.
        history: Metrics after each epoch.
        training_rows: What became of the training rows.
        validation_rows: What became of the validation rows, or None without any.
        dataset_fingerprint: Hash of ids, positions and targets as trained on.
    """

    folder: Path
    history: tuple[dict[str, Any], ...]
    training_rows: CollationReport
    validation_rows: CollationReport | None
    dataset_fingerprint: str


@dataclass(frozen=True, slots=True)
class Labelling:
    """How labels become targets; see ``collate`` and ``reweigh``.

    Attributes:
        target: A name in ``collate.TARGETS``.
        confidence_weights: Weigh a step by the certainty of its value.
        mask_after_first_error: Learn nothing from steps after the first error.
        balance_classes: Right and wrong steps weigh the same in total.
        balance_problems: Problems weigh the same.
        block_tokens: n > 0 puts the outcome at every n-th step token (VGS).
        over_limit: ``refuse`` or ``cut``.
        rollouts_per_problem: n > 0 trains on so many of each problem's rollouts as well; see ``rollout_rows``.
    """

    target: str = "label"
    confidence_weights: bool = False
    mask_after_first_error: bool = False
    balance_classes: bool = False
    balance_problems: bool = False
    block_tokens: int = 0
    over_limit: str = "refuse"
    rollouts_per_problem: int = 0


def train_discriminative(
    examples: Sequence[LabeledSolution],
    validation: Sequence[LabeledSolution],
    *,
    base: Path | str,
    out: Path,
    loss: str = "bce",
    target: str = "label",
    head: str | HeadSpec | None = None,
    reference: Path | str | None = None,
    step_format: StepFormat | None = None,
    prompt: PromptTemplate | None = None,
    max_tokens: int = 0,
    labelling: Labelling | None = None,
    rollouts: Iterable[tuple[str, Rollout]] = (),
    schedule: Schedule | None = None,
    seed: int = 0,
    device: str = "cpu",
    bfloat16: bool = False,
    trained: Trained | None = None,
    num_threads: int = 1,
    accelerator: Any = None,
    overwrite: bool = False,
    provenance: dict[str, Any] | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> TrainResult:
    """Train and save one reward model.

    A run that was killed is resumed by calling again with the same arguments: on a CPU it ends with the same
    weights as one that was not.

    Args:
        examples: Training rows.
        validation: Rows of other problems: step accuracy, F1 and the threshold come from them.
        base: Folder or Hub id of the backbone, or of a reward model of ours to go on from.
        out: Folder of the finished model; ``.{name}.training`` beside it holds checkpoints until then.
        loss: A name in ``objectives.OBJECTIVES``.
        target: A name in ``collate.TARGETS``; overrides ``labelling.target``.
        head: A head by name or spec; the loss's usual one where None.
        reference: Folder or Hub id of a frozen language model with the same tokenizer, whose log-probability of each
            step token becomes an extra input. It is stored with the model. The implicit loss needs one.
        step_format: How steps are rendered; newline where None.
        prompt: Template of the problem statement; plain where None.
        max_tokens: Most ids of a solution; 0 = the backbone's limit.
        labelling: How labels become targets.
        rollouts: (solution id, rollout), as ``Dataset.rollouts`` gives them; read where ``labelling`` asks for any.
        schedule: How the weights are moved.
        seed: Of the head's first weights, of the order and of dropout.
        device: Where to compute; an accelerator's own device goes before it.
        bfloat16: Autocast to bfloat16; weights stay float32.
        trained: Which weights move: all, the head alone, or LoRA adapters.
        num_threads: CPU threads; sums over more than one are not the same each time.
        accelerator: An ``accelerate.Accelerator`` for several processes or trackers; see ``acceleration``.
        overwrite: Replace a finished model of another run in ``out``.
        provenance: Dataset manifest facts for the checkpoint, such as the label rule.
        on_progress: Called after each optimizer step.

    Raises:
        InputError: Unknown loss or target, no usable row, no label known, one class only, or no pair where the loss
            is over pairs.
        ModelError: Base, tokenizer and reference do not fit, or the loss is not finite.
        StoreError: ``out`` or its checkpoints belong to another run.
    """
    schedule = schedule or Schedule()
    labelling = replace(labelling or Labelling(), target=target)
    trained = trained or Trained()
    base_folder = local_folder(base)
    reference_folder = None if reference is None else local_folder(reference)
    tokenizer = matching_tokenizer(base_folder, reference_folder)
    objective, spec = objective_and_head(loss, head, tokenizer)
    if spec.kind == "implicit" and reference_folder is None:
        reference_folder = base_folder
    with threads(num_threads), torch.random.fork_rng():
        torch.manual_seed(derive_seed(seed, "head"))
        format_of_steps = step_format or StepFormat()
        model = start_model(base_folder, spec, format_of_steps, with_reference=reference_folder is not None)
        check_separator(model, format_of_steps, tokenizer, trained)
        limit = max_tokens or int(getattr(model.backbone.config, "max_position_embeddings", 0) or 0)
        inputs = InputFormat(tokenizer, format_of_steps, prompt or plain_template(), limit)
        train_set, train_report = _training_set(examples, rollouts, inputs, labelling, seed)
        require_signal(train_set, loss, from_outcomes=objective.needs_outcome)
        if objective.by_problem:
            require_pairs(train_set, schedule.pair_margin, schedule.pair_scope)
        valid_set, valid_report = _validation_set(validation, inputs, labelling)
        fingerprint = dataset_fingerprint(train_set)
        facts = {
            "base": base_folder.name if Path(base).is_dir() else str(base),
            "loss": loss,
            "labelling": asdict(labelling),
            "schedule": asdict(schedule),
            "seed": seed,
            "trained": asdict(trained),
            "bfloat16": bfloat16,
            "tokenizer_hash": tokenizer.hash,
            "dataset_fingerprint": fingerprint,
            "rows": asdict(train_report),
            **(provenance or {}),
        }
        description = PrmDescription(
            spec, inputs.step_format, inputs.prompt, limit, model.causal, reference_folder is not None, facts
        )
        run = _run_hash(description, base_folder, reference_folder)
        if (out / PRM_FILE).exists() and not overwrite:
            return _finished(out, run, train_report, valid_report, fingerprint)
        place = device if accelerator is None else str(accelerator.device)
        reference_model = None if reference_folder is None else load_reference(reference_folder).to(place)
        prepare(model, trained, place)
        LOG.info(trained_names(model))
        scorer = DiscriminativeRewardModel(
            "validation", LoadedPrm(model, inputs, reference_model, description), schedule.micro_batch_tokens
        )
        checkpoints = out.with_name(f".{out.name}.training")
        if overwrite:
            _drop_other_run(checkpoints, run)
        whole: dict[str, Tensor] = {}
        loop = Loop(
            model=model,
            examples=train_set,
            logprobs=_logprobs(reference_model, train_set, schedule.micro_batch_tokens),
            objective=objective,
            schedule=schedule,
            seed=seed,
            run=run,
            folder=checkpoints,
            evaluate=lambda: evaluate(scorer, valid_set),
            on_progress=on_progress,
            accelerator=accelerator,
            autocast=bfloat16,
            collect=whole.update,
        )
        history = fit(loop)
        if is_sharded(accelerator) and whole:
            model = start_model(
                base_folder, spec, format_of_steps, with_reference=reference_folder is not None
            )
            prepare(model, trained, "cpu")
            model.load_state_dict(whole)
        if accelerator is None or accelerator.is_main_process:
            description = replace(description, training={**facts, "run": run}, history=history)
            merge_adapters(model)
            save_prm(out, model.cpu(), description, tokenizer_from=base_folder, reference=reference_model)
            shutil.rmtree(checkpoints, ignore_errors=True)
        if accelerator is not None:
            accelerator.wait_for_everyone()
    return TrainResult(out, history, train_report, valid_report, fingerprint)


def dataset_fingerprint(examples: Sequence[Example]) -> str:
    """Hash of what is trained on: solution ids, token ids, positions, targets and weights, in order."""
    digest = hashlib.sha256()
    for e in examples:
        digest.update(
            repr(
                (e.solution_id, e.encoded.token_ids, e.places, e.targets, e.weights, e.trials, e.outcome)
            ).encode()
        )
    return digest.hexdigest()[:16]


def _training_set(
    rows: Sequence[LabeledSolution],
    rollouts: Iterable[tuple[str, Rollout]],
    inputs: InputFormat,
    labelling: Labelling,
    seed: int,
) -> tuple[list[Example], CollationReport]:
    rolled_in: dict[str, int] = {}
    if labelling.rollouts_per_problem:
        further, rolled_in = rollout_rows(
            rows, rollouts, inputs.step_format, inputs.tokenizer,
            per_problem=labelling.rollouts_per_problem, seed=seed,
        )  # fmt: skip
        if not further:
            raise InputError(
                f"training on {labelling.rollouts_per_problem} rollouts a problem: none came with the "
                f"{len(rows)} solutions; hand in the dataset's rollouts, or leave rollouts_per_problem at 0"
            )
        rows = [*rows, *further]
    examples, report = collate(
        rows,
        inputs,
        target=labelling.target,
        confidence_weights=labelling.confidence_weights,
        mask_after_first_error=labelling.mask_after_first_error,
        over_limit=labelling.over_limit,
        block_tokens=labelling.block_tokens,
        rolled_in=rolled_in,
    )
    return (
        reweigh(
            examples, balance_classes=labelling.balance_classes, balance_problems=labelling.balance_problems
        ),
        report,
    )


def _validation_set(
    rows: Sequence[LabeledSolution], inputs: InputFormat, labelling: Labelling
) -> tuple[list[Example], CollationReport | None]:
    """Validation is by steps whatever the training targets are, at their plain weights."""
    if not rows:
        return [], None
    return collate(rows, inputs, target="label", over_limit=labelling.over_limit)


def _logprobs(reference: Any, examples: Sequence[Example], batch_tokens: int) -> list[Tensor] | None:
    """The reference's log-probabilities of every example's ids, computed once.

    The batches depend on the examples alone: a resumed run gets the same bits.
    """
    if reference is None:
        return None
    device = next(reference.parameters()).device
    result: list[Tensor] = [torch.empty(0)] * len(examples)
    encoded = [e.encoded for e in examples]
    share = can_share_prompts(reference)
    for group in batches_by_prompt(encoded, batch_tokens):
        batch = make_batch([encoded[i] for i in group], share_prompts=share)
        values = reference_logprobs(reference, batch.to(device)).cpu()
        for i, row in zip(group, take_logprobs(batch, values), strict=True):
            result[i] = row
    return result


def _run_hash(description: PrmDescription, base: Path, reference: Path | None) -> str:
    """Identity of a run: its settings, its data and the weights it starts from."""
    digest = hashlib.sha256(
        json.dumps(
            [
                description.head.to_dict(),
                description.step_format.to_json(),
                asdict(description.prompt),
                description.max_tokens,
                description.training,
            ],
            sort_keys=True,
            default=str,
        ).encode()
    )
    for folder in [f for f in (base, reference) if f is not None]:
        for path in sorted(folder.glob("*.safetensors")):
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:16]


def _drop_other_run(checkpoints: Path, run: str) -> None:
    found = newest_state(checkpoints)
    if found is not None and found[0].run != run:
        shutil.rmtree(checkpoints)


def _finished(
    out: Path, run: str, train: CollationReport, valid: CollationReport | None, fingerprint: str
) -> TrainResult:
    """The result of a run that had ended already.

    Raises:
        StoreError: The folder holds another run's model.
    """
    description, _ = read_description(out)
    if description.training.get("run") != run:
        raise StoreError(
            f"{out} holds a reward model of another run (data, base or settings differ); name another folder, or say "
            "overwrite"
        )
    return TrainResult(out, description.history, train, valid, fingerprint)
