"""``stepward train``: a dataset folder -> a reward model, with its card."""

import os
from collections.abc import Callable
from typing import Any

from stepward.flows.build import checkpoint_folder, prompt_template
from stepward.flows.config import TrainConfig
from stepward.prm.dataset.store import open_dataset
from stepward.prm.errors import InputError
from stepward.prm.models.hub import local_folder
from stepward.prm.publishing.model_card import write_model_card
from stepward.prm.seeds import derive_seed
from stepward.prm.steps import StepFormat
from stepward.prm.types import LabeledSolution
from stepward.training.acceleration import start_accelerator
from stepward.training.discriminative import Labelling, TrainResult, train_discriminative
from stepward.training.loop import Progress, Schedule
from stepward.training.preparation import Trained


def train(config: TrainConfig, watch: Callable[[Progress], None] | None = None) -> TrainResult:
    """Train on a dataset folder, or several; validation problems are split off by their ids.

    Args:
        config: The run.
        watch: Called after each optimizer step.

    Raises:
        InputError: There is no row to train on, or two datasets cut steps in different ways.
        ModelError: Base and reference do not fit.
    """
    datasets = [open_dataset(folder) for folder in (config.data, *config.more_data)]
    manifest = datasets[0].manifest
    for other in datasets[1:]:
        if other.manifest.step_format != manifest.step_format:
            raise InputError(
                f"training on {config.data} and {other.folder}: their steps were cut in different ways "
                f"({manifest.step_format} and {other.manifest.step_format}); train on one, or label again"
            )
    rows = [row for dataset in datasets for row in dataset.solutions()]
    if not rows:
        raise InputError(f"training on {config.data}: the dataset has no solution; label more problems")
    training = [r for r in rows if not in_validation(r, config)]
    validation = [r for r in rows if in_validation(r, config)]
    accelerator = _accelerator(config)
    result = train_discriminative(
        training,
        validation,
        base=checkpoint_folder(config.base),
        out=config.out,
        loss=config.loss,
        head=config.head,
        target=config.target,
        labelling=Labelling(
            block_tokens=config.block_tokens, rollouts_per_problem=config.rollouts_per_problem
        ),
        rollouts=(drawn for dataset in datasets for drawn in dataset.rollouts()),
        reference=checkpoint_folder(config.reference) if config.reference is not None else None,
        step_format=StepFormat(**manifest.step_format),
        prompt=prompt_template(config.prompt, local_folder(checkpoint_folder(config.base))),
        schedule=Schedule(
            epochs=config.epochs,
            batch_size=config.batch_size,
            learning_rate=config.learning_rate,
            weight_decay=config.weight_decay,
            share_prompts=config.share_prompts,
            row_tokens=config.row_tokens,
            micro_batch_tokens=config.micro_batch_tokens,
            save_every_steps=config.save_every_steps,
            pair_margin=config.pair_margin,
            pair_scope=config.pair_scope,
        ),
        seed=config.seed,
        device=config.device,
        bfloat16=config.bfloat16,
        trained=Trained(
            frozen_backbone=config.frozen_backbone,
            lora_rank=config.lora_rank,
            gradient_checkpointing=config.gradient_checkpointing,
            liger=config.liger,
        ),
        accelerator=accelerator,
        provenance={
            "dataset": {
                "fingerprint": manifest.fingerprint,
                "labeler": manifest.labeler.name,
                "labeler_version": manifest.labeler.version,
                "labeler_config": manifest.labeler.config_hash,
            },
            "more_datasets": [d.manifest.fingerprint for d in datasets[1:]],
            "allocation": manifest.allocation.value,
        },
        on_progress=watch,
    )
    if accelerator is not None:
        accelerator.end_training()
    if accelerator is None or accelerator.is_main_process:
        write_model_card(result.folder, repo=config.out.name, licence=config.licence, data=config.data)
    return result


def _accelerator(config: TrainConfig) -> Any:
    """accelerate where trackers or several processes (``accelerate launch``, ``torchrun``) ask for it, else None."""
    if not config.trackers and int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return None
    return start_accelerator(
        config.trackers,
        folder=config.out.with_name(f"{config.out.name}.tracked"),
        settings=config.model_dump(mode="json"),
        on_cpu=config.device == "cpu",
    )


def in_validation(row: LabeledSolution, config: TrainConfig) -> bool:
    """Whether a row's problem is held out: a fixed share of all problems, by a hash of their ids."""
    return derive_seed(config.seed, "validation", row.problem.id) / 2**63 < config.validation_share
