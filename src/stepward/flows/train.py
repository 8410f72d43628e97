"""``stepward train``: a dataset folder -> a reward model."""

from collections.abc import Callable

from stepward.flows.build import checkpoint_folder, prompt_template
from stepward.flows.config import TrainConfig
from stepward.prm.dataset.store import open_dataset
from stepward.prm.errors import InputError
from stepward.prm.models.load import local_folder
from stepward.prm.seeds import derive_seed
from stepward.prm.steps import StepFormat
from stepward.prm.types import LabeledSolution
from stepward.training.discriminative import TrainResult, train_discriminative
from stepward.training.loop import Progress, Schedule


def train(config: TrainConfig, watch: Callable[[Progress], None] | None = None) -> TrainResult:
    """Train on a dataset folder; validation problems are split off by their ids.

    Args:
        config: The run.
        watch: Called after each optimizer step.

    Raises:
        InputError: The dataset has no row to train on.
        ModelError: Base and reference do not fit.
    """
    dataset = open_dataset(config.data)
    rows = list(dataset.solutions())
    if not rows:
        raise InputError(f"training on {config.data}: the dataset has no solution; label more problems")
    training = [r for r in rows if not in_validation(r, config)]
    validation = [r for r in rows if in_validation(r, config)]
    manifest = dataset.manifest
    return train_discriminative(
        training,
        validation,
        base=checkpoint_folder(config.base),
        out=config.out,
        loss=config.loss,
        target=config.target,
        reference=checkpoint_folder(config.reference) if config.reference is not None else None,
        step_format=StepFormat(**manifest.step_format),
        prompt=prompt_template(config.prompt, local_folder(checkpoint_folder(config.base))),
        schedule=Schedule(
            epochs=config.epochs,
            batch_size=config.batch_size,
            learning_rate=config.learning_rate,
            weight_decay=config.weight_decay,
        ),
        seed=config.seed,
        provenance={
            "dataset": {"fingerprint": manifest.fingerprint, "labeler": manifest.labeler.name},
            "allocation": manifest.allocation.value,
        },
        on_progress=watch,
    )


def in_validation(row: LabeledSolution, config: TrainConfig) -> bool:
    """Whether a row's problem is held out: a fixed share of all problems, by a hash of their ids."""
    return derive_seed(config.seed, "validation", row.problem.id) / 2**63 < config.validation_share
