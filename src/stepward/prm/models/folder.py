"""A reward model as a folder: everything that is needed to score, in safetensors and JSON.

::

    prm.json                     head, StepFormat, prompt, limits, what it was trained on, metric history
    tokenizer.json, ...          the tokenizer's own files
    config.json, model.safetensors       layouts token_classification and causal_lm: transformers' own files,
                                         so AutoModelForTokenClassification (or CausalLM) loads the folder
    backbone/, head.safetensors          layout parts: a head or an input that transformers has no class for
    reference/                           the frozen language model of the surprisal input

A missing weight is an error, never a fresh one.
"""
# pyright: basic

import json
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForTokenClassification

from stepward.prm.errors import ModelError
from stepward.prm.models.discriminative import DiscriminativePRM, SurprisalInput
from stepward.prm.models.heads import HeadSpec, VocabularyHead, as_head, build_head
from stepward.prm.models.implicit import ImplicitPRM
from stepward.prm.models.inputs import InputFormat, SolutionEncoder
from stepward.prm.models.weights import (
    from_pretrained,
    load_reference,
    load_strict,
    model_width,
    quiet,
    read_tensors,
    split_lm,
)
from stepward.prm.prompts import PromptTemplate, plain_template
from stepward.prm.steps import StepFormat
from stepward.prm.tokenizer import load_tokenizer

PRM_FILE = "prm.json"
FORMAT_VERSION = 1
TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "tokenizer.model", "vocab.json", "vocab.txt", "merges.txt", "chat_template.jinja", "generation_config.json",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class PrmDescription:
    """What ``prm.json`` holds beside the weights.

    Attributes:
        head: The head.
        step_format: How steps are rendered.
        prompt: Template of the problem statement.
        max_tokens: Most ids of prompt and steps; 0 = no limit.
        causal: False for an encoder.
        reference: Whether the folder holds a reference for the surprisal input.
        training: What it was trained on: base, loss, target, label rule, dataset fingerprint, tokenizer hash.
        history: Metrics by evaluation, oldest first.
    """

    head: HeadSpec
    step_format: StepFormat
    prompt: PromptTemplate = field(default_factory=plain_template)
    max_tokens: int = 0
    causal: bool = True
    reference: bool = False
    training: dict[str, Any] = field(default_factory=dict)
    history: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class LoadedPrm:
    """A reward model in memory."""

    model: DiscriminativePRM | ImplicitPRM
    inputs: SolutionEncoder
    reference: Any
    description: PrmDescription


def save_prm(
    folder: Path,
    model: DiscriminativePRM | ImplicitPRM,
    description: PrmDescription,
    *,
    tokenizer_from: Path,
    reference: Any = None,
) -> None:
    """Write a complete reward model; the folder appears whole or not at all.

    Args:
        folder: Must not exist, or hold an earlier reward model, which is replaced.
        model: The weights; adapters must be merged.
        description: What goes into ``prm.json``.
        tokenizer_from: Folder whose tokenizer files are copied.
        reference: The language model of the surprisal input, where the model has one.

    Raises:
        ModelError: The folder holds something else, or a reference is missing.
    """
    if folder.exists() and any(folder.iterdir()) and not (folder / PRM_FILE).exists():
        raise ModelError(f"{folder} is not empty and holds no reward model; name another folder")
    if needs_reference(model) != (reference is not None):
        raise ModelError("a reward model that reads a reference is saved with it, others without")
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    with quiet():
        layout = _write_weights(partial, model)
        if reference is not None:
            reference.save_pretrained(partial / "reference")
    for name in TOKENIZER_FILES:
        if (tokenizer_from / name).exists():
            shutil.copyfile(tokenizer_from / name, partial / name)
    values = {
        "format_version": FORMAT_VERSION,
        "layout": layout,
        "head": description.head.to_dict(),
        "step_format": json.loads(description.step_format.to_json()),
        "prompt": asdict(description.prompt),
        "max_tokens": description.max_tokens,
        "causal": model.causal,
        "reference": reference is not None,
        "training": description.training,
        "history": list(description.history),
    }
    (partial / PRM_FILE).write_text(json.dumps(values, indent=1, sort_keys=True, ensure_ascii=False) + "\n")
    replaced = folder.with_name(f".{folder.name}.replaced")
    shutil.rmtree(replaced, ignore_errors=True)
    if folder.exists():
        folder.rename(replaced)
    partial.rename(folder)
    shutil.rmtree(replaced, ignore_errors=True)


def needs_reference(model: DiscriminativePRM | ImplicitPRM) -> bool:
    """Whether the model reads a reference's log-probabilities."""
    return isinstance(model, ImplicitPRM) or model.surprisal is not None


def read_description(folder: Path) -> tuple[PrmDescription, str]:
    """``prm.json`` and the layout of the weights.

    Raises:
        ModelError: Written by a newer version, or not readable.
    """
    try:
        values = json.loads((folder / PRM_FILE).read_text())
        if values["format_version"] > FORMAT_VERSION:
            raise ModelError(f"{folder} was written by a newer version (format {values['format_version']})")
        description = PrmDescription(
            head=HeadSpec.from_dict(values["head"]),
            step_format=StepFormat(**values["step_format"]),
            prompt=PromptTemplate(**values["prompt"]),
            max_tokens=values["max_tokens"],
            causal=values["causal"],
            reference=values["reference"],
            training=values["training"],
            history=tuple(values["history"]),
        )
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise ModelError(
            f"{folder / PRM_FILE} cannot be read: {error!r}; train or download it again"
        ) from error
    return description, values["layout"]


def load_prm(folder: Path, *, dtype: torch.dtype = torch.float32) -> LoadedPrm:
    """Read what ``save_prm`` wrote.

    Raises:
        ModelError: A weight is missing or has another shape, or the tokenizer is not the one trained with.
    """
    description, layout = read_description(folder)
    model = _read_weights(folder, description, layout, dtype).eval()
    reference = load_reference(folder / "reference", dtype) if needs_reference(model) else None
    tokenizer = load_tokenizer(folder)
    trained = description.training.get("tokenizer_hash")
    if trained is not None and trained != tokenizer.hash:
        raise ModelError(
            f"{folder} was trained with the tokenizer {trained} and holds {tokenizer.hash}; its scores would be of "
            "other ids: restore its own tokenizer.json"
        )
    inputs = InputFormat(tokenizer, description.step_format, description.prompt, description.max_tokens)
    return LoadedPrm(model, inputs, reference, description)


def _write_weights(folder: Path, model: DiscriminativePRM | ImplicitPRM) -> str:
    """Write backbone and head; the name of the layout."""
    backbone: Any = model.backbone
    if isinstance(model, ImplicitPRM):
        backbone.save_pretrained(folder)
        return "causal_lm"
    spec = as_head(model.head).spec
    if isinstance(model.head, VocabularyHead):
        lm = AutoModelForCausalLM.from_config(backbone.config)
        lm.config.tie_word_embeddings = False
        setattr(lm, lm.base_model_prefix, backbone)
        lm.set_output_embeddings(model.head.output_embedding())
        lm.save_pretrained(folder)
        return "causal_lm"
    name = _classifier_name(backbone.config, spec.outputs) if spec.kind in ("scalar", "two_class") else None
    if name is not None and model.surprisal is None:
        config = type(backbone.config).from_dict(backbone.config.to_dict() | _labels(spec.outputs))
        shell = AutoModelForTokenClassification.from_config(config)
        setattr(shell, shell.base_model_prefix, backbone)
        setattr(shell, name, model.head.linear)
        shell.save_pretrained(folder)
        return "token_classification"
    backbone.save_pretrained(folder / "backbone")
    tensors = {f"head.{k}": v for k, v in model.head.state_dict().items()}
    if model.surprisal is not None:
        tensors |= {f"surprisal.{k}": v for k, v in model.surprisal.state_dict().items()}
    save_file({k: v.detach().cpu().contiguous() for k, v in tensors.items()}, folder / "head.safetensors")
    return "parts"


def _read_weights(
    folder: Path, description: PrmDescription, layout: str, dtype: torch.dtype
) -> DiscriminativePRM | ImplicitPRM:
    """The inverse of ``_write_weights``."""
    spec = description.head
    if spec.kind == "implicit":
        return ImplicitPRM(from_pretrained(AutoModelForCausalLM, folder, dtype=dtype), spec)
    if layout == "causal_lm":
        backbone, head = split_lm(from_pretrained(AutoModelForCausalLM, folder, dtype=dtype), spec)
        return DiscriminativePRM(backbone, head, causal=description.causal)
    if layout == "token_classification":
        backbone = from_pretrained(AutoModel, folder, dtype=dtype)
        tensors = read_tensors(folder)
        name = _classifier_name(backbone.config, spec.outputs)
        head = build_head(model_width(backbone), spec)
        load_strict(head, {f"linear.{k}": tensors.get(f"{name}.{k}") for k in ("weight", "bias")}, folder)
        return DiscriminativePRM(backbone, head, causal=description.causal)
    backbone = from_pretrained(AutoModel, folder / "backbone", dtype=dtype)
    tensors = load_file(folder / "head.safetensors")
    head = build_head(model_width(backbone), spec)
    load_strict(head, _under("head.", tensors), folder)
    surprisal = None
    if description.reference:
        surprisal = SurprisalInput(model_width(backbone))
        load_strict(surprisal, _under("surprisal.", tensors), folder)
        surprisal.to(dtype)
    return DiscriminativePRM(backbone, head, surprisal, causal=description.causal)


def _labels(outputs: int) -> dict[str, Any]:
    names = ["right"] if outputs == 1 else ["wrong", "right"]
    return {
        "num_labels": outputs,
        "id2label": dict(enumerate(names)),
        "label2id": {n: i for i, n in enumerate(names)},
        "classifier_dropout": 0.0,
    }


def _classifier_name(config: Any, outputs: int) -> str | None:
    """Name of the linear head in transformers' token classification class of this model type, if it has one."""
    try:
        with torch.device("meta"):
            shell = AutoModelForTokenClassification.from_config(
                type(config).from_dict(config.to_dict() | _labels(outputs))
            )
    except ValueError:
        return None
    found = [n for n, m in shell.named_children() if isinstance(m, nn.Linear)]
    others = [
        n for n, m in shell.named_children()
        if n != shell.base_model_prefix and any(True for _ in m.parameters()) and n not in found
    ]  # fmt: skip
    return found[0] if len(found) == 1 and not others else None


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor | None]:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
