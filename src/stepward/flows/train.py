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
            "more_datasets": [d.manifest.fingerprint for d in datasets[1:]],
            "allocation": manifest.allocation.value,
        },
        on_progress=watch,
    )


def in_validation(row: LabeledSolution, config: TrainConfig) -> bool:
    """Whether a row's problem is held out: a fixed share of all problems, by a hash of their ids."""
    return derive_seed(config.seed, "validation", row.problem.id) / 2**63 < config.validation_share
