"""Before the first step: the model to start from, what of it is trained, and whether there is anything to learn."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepward.prm.errors import FormatError, InputError, ModelError
from stepward.prm.models.discriminative import DiscriminativePRM
from stepward.prm.models.folder import PRM_FILE, load_prm, needs_reference, read_description
from stepward.prm.models.heads import HeadSpec, head_spec
from stepward.prm.models.implicit import ImplicitPRM
from stepward.prm.models.published import single_id
from stepward.prm.models.weights import new_prm
from stepward.prm.steps import StepFormat
from stepward.prm.tokenizer import JsonTokenizer, load_tokenizer
from stepward.training.collate import Example
from stepward.training.objectives import OBJECTIVES, Objective


@dataclass(frozen=True, slots=True)
class Trained:
    """Which weights move.

    Attributes:
        frozen_backbone: The head alone.
        lora_rank: r > 0 trains low-rank adapters of all linear layers of the backbone, and the head (needs peft).
        lora_alpha: Scale of the adapters.
        gradient_checkpointing: Trade time for memory.
        liger: Patch the backbone with Liger's kernels (needs liger-kernel and a GPU).
    """

    frozen_backbone: bool = False
    lora_rank: int = 0
    lora_alpha: int = 16
    gradient_checkpointing: bool = False
    liger: bool = False


def objective_and_head(
    loss: str, head: str | HeadSpec | None, tokenizer: JsonTokenizer
) -> tuple[Objective, HeadSpec]:
    """The objective by name and a head that it can train; a vocabulary head without ids takes '-' and '+'.

    Raises:
        InputError: No such loss, or a head that does not go with it.
        ModelError: The tokenizer has no single token for a vocabulary head's words.
    """
    if loss not in OBJECTIVES:
        raise InputError(f"unknown loss {loss!r}; known: {', '.join(OBJECTIVES)}")
    objective = OBJECTIVES[loss]
    if head == "vocabulary":
        spec = head_spec("vocabulary", token_ids=(single_id(tokenizer, "-"), single_id(tokenizer, "+")))
    else:
        spec = head if isinstance(head, HeadSpec) else head_spec(head or objective.head)
    if objective.allowed and spec.kind not in objective.allowed:
        raise InputError(f"the loss {loss} trains the head {' or '.join(objective.allowed)}, not {spec.kind}")
    if not objective.allowed and spec.kind in ("beta", "ensemble", "implicit"):
        raise InputError(
            f"the loss {loss} leaves part of the head {spec.kind} untrained; use the loss "
            f"{next(n for n, o in OBJECTIVES.items() if spec.kind in o.allowed)}"
        )
    return objective, spec


def require_signal(examples: Sequence[Example], loss: str, *, from_outcomes: bool) -> None:
    """Refuse a training set that teaches nothing.

    Raises:
        InputError: No label is known, or all are of one class.
    """
    if from_outcomes:
        known = [e.outcome for e in examples if not math.isnan(e.outcome)]
    else:
        known = [t for e in examples for t in e.targets if not math.isnan(t)]
    what = "outcomes" if from_outcomes else "step labels"
    if not known:
        raise InputError(
            f"training with {loss}: all {what} of {len(examples)} solutions are unknown; label them, or choose "
            "another target"
        )
    if min(known) == max(known):
        raise InputError(
            f"training with {loss}: all {len(known)} known {what} are {known[0]:g}; one class teaches nothing. Add "
            "harder or easier problems, or choose another target"
        )


def start_model(
    base: Path, spec: HeadSpec, step_format: StepFormat, *, with_reference: bool
) -> DiscriminativePRM | ImplicitPRM:
    """A fresh head on a base model, or a reward model of ours to go on from.

    Raises:
        FormatError: The reward model was trained with another StepFormat than the dataset's.
        ModelError: It has another head, or reads a reference where none is given (or the other way round).
    """
    if not (base / PRM_FILE).exists():
        return new_prm(base, spec, with_reference=with_reference)
    description, _ = read_description(base)
    if description.step_format.hash != step_format.hash:
        raise FormatError(
            f"the reward model {base.name} reads steps as {description.step_format.to_json()} and the dataset has "
            f"{step_format.to_json()}: its step ends would mean something else. Train from its base model, or label "
            "again with its format"
        )
    model = load_prm(base).model
    if description.head.kind != spec.kind or description.head.outputs != spec.outputs:
        raise ModelError(
            f"the reward model {base.name} has the head {description.head.kind} and {spec.kind} was asked for; ask for "
            "its own, or train from its base model"
        )
    if needs_reference(model) != with_reference:
        raise ModelError(
            f"the reward model {base.name} {'reads' if needs_reference(model) else 'does not read'} a reference; "
            "hand one in where it does, and none where it does not"
        )
    return model


def prepare(model: Any, trained: Trained, device: str) -> None:
    """Put the model on its device and choose what moves.

    Raises:
        InputError: LoRA without peft, or with a frozen backbone; Liger's kernels without liger-kernel.
    """
    model.to(device)
    if trained.liger:
        _patch_with_liger(model.backbone)
    if trained.gradient_checkpointing:
        model.backbone.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        model.backbone.enable_input_require_grads()
    if trained.frozen_backbone:
        if trained.lora_rank:
            raise InputError("a frozen backbone has no adapters to train; drop frozen_backbone or lora_rank")
        model.backbone.requires_grad_(False)
    elif trained.lora_rank:
        try:
            from peft import LoraConfig, get_peft_model  # pyright: ignore[reportMissingImports]
        except ImportError as fault:
            raise InputError("lora_rank needs peft: pip install 'stepward[train]'") from fault
        adapters = LoraConfig(
            r=trained.lora_rank, lora_alpha=trained.lora_alpha, target_modules="all-linear", bias="none"
        )
        model.backbone = get_peft_model(model.backbone, adapters)


def _patch_with_liger(backbone: Any) -> None:
    """Through transformers' own integration; the losses here are not the language model's, so those stay out."""
    from transformers.integrations.liger import apply_liger_kernel

    try:
        apply_liger_kernel(backbone, {"cross_entropy": False, "fused_linear_cross_entropy": False})
    except ImportError as fault:
        raise InputError("liger needs the package: pip install liger-kernel (GPU alone)") from fault


def trained_names(model: Any) -> str:
    """What moves, for a log: each weight of head and input by name, those of the backbone by number.

    Public case huggingface/peft #577: a head that nobody trains is seen before the first step.
    """
    named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    own = [f"{n} {tuple(p.shape)}" for n, p in named if not n.startswith("backbone.")]
    rest = [p for n, p in named if n.startswith("backbone.")]
    every = sum(p.numel() for p in model.parameters())
    moved = sum(p.numel() for _, p in named)
    return (
        f"training {moved:,} of {every:,} weights: {', '.join(own) or 'no head'}, and {len(rest)} tensors of the "
        "backbone"
    )


def merge_adapters(model: Any) -> None:
    """Fold LoRA adapters into the weights, so that the saved model is an ordinary one."""
    if hasattr(model.backbone, "merge_and_unload"):
        model.backbone = model.backbone.merge_and_unload()


def check_separator(model: Any, step_format: StepFormat, tokenizer: JsonTokenizer, trained: Trained) -> None:
    """Refuse a separator that the model has never seen and will not learn.

    Reserved tokens have all-zero embeddings in many base models. Full fine-tuning trains them; LoRA and a frozen
    backbone do not, and every score would be read at the same blank token.

    Raises:
        ModelError: The separator's last token has a zero embedding that stays as it is.
    """
    ids = tokenizer.encode(step_format.separator)
    if not ids or not (trained.frozen_backbone or trained.lora_rank):
        return
    norm = float(model.backbone.get_input_embeddings().weight[ids[-1]].detach().norm())
    if norm == 0.0:
        raise ModelError(
            f"the separator {step_format.separator!r} ends in the id {ids[-1]}, whose embedding has norm {norm:g} and "
            "would not be trained; use another step format, or fine-tune all weights"
        )


def matching_tokenizer(base: Path, reference: Path | None) -> JsonTokenizer:
    """The base's tokenizer, which the reference must share.

    Raises:
        ModelError: It does not.
    """
    tokenizer = load_tokenizer(base)
    if reference is not None and load_tokenizer(reference).hash != tokenizer.hash:
        raise ModelError(
            f"the reference {reference.name} has another tokenizer than the base {base.name}: their ids name other "
            "tokens; take a reference of the same family"
        )
    return tokenizer
