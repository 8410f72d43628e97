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
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForTokenClassification
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

from stepward.prm.errors import ModelError
from stepward.prm.models.discriminative import DiscriminativePRM, SurprisalInput
from stepward.prm.models.heads import HeadSpec, VocabularyHead, as_head, build_head
from stepward.prm.models.implicit import ImplicitPRM
from stepward.prm.models.inputs import InputFormat
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
    inputs: InputFormat
    reference: Any
    description: PrmDescription


def is_causal(config: Any) -> bool:
    """False for encoders: a model type that is trained as a masked language model and not as a decoder."""
    return config.model_type not in MODEL_FOR_MASKED_LM_MAPPING_NAMES or bool(
        getattr(config, "is_decoder", False)
    )


def new_prm(
    base: Path,
    spec: HeadSpec,
    *,
    with_reference: bool = False,
    dtype: torch.dtype = torch.float32,
    attention: str | None = None,
) -> DiscriminativePRM | ImplicitPRM:
    """A fresh head on the weights of a base model. The head's weights come from torch's generator.

    Args:
        base: A folder in transformers' layout.
        spec: The head.
        with_reference: Add the surprisal input.
        dtype: Of the backbone; the head is float32.
        attention: transformers' ``attn_implementation``, or None for its default.

    Raises:
        ModelError: The folder lacks weights of the backbone.
    """
    config = AutoConfig.from_pretrained(base, trust_remote_code=False)
    options: dict[str, Any] = {"dtype": dtype}
    if attention is not None:
        options["attn_implementation"] = attention
    if spec.kind == "implicit":
        return ImplicitPRM(_from_pretrained(AutoModelForCausalLM, base, **options), spec)
    if spec.kind == "vocabulary":
        lm = _from_pretrained(AutoModelForCausalLM, base, **options)
        backbone, head = _split_lm(lm, spec)
    else:
        backbone = _from_pretrained(AutoModel, base, **options)
        head = build_head(_width(backbone), spec)
    surprisal = SurprisalInput(_width(backbone)).to(dtype) if with_reference else None
    return DiscriminativePRM(backbone, head, surprisal, causal=is_causal(config))


def load_reference(folder: Path, dtype: torch.dtype = torch.float32) -> Any:
    """A frozen causal language model for the surprisal input."""
    reference = _from_pretrained(AutoModelForCausalLM, folder, dtype=dtype)
    return reference.eval().requires_grad_(False)


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


def read_tensors(folder: Path, prefix: str = "") -> dict[str, Tensor]:
    """Tensors of a folder's safetensors files whose name begins with ``prefix``, shards joined.

    Raises:
        ModelError: The folder has no safetensors.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ModelError(f"{folder} has no safetensors weights; other weight files are not read")
    tensors: dict[str, Tensor] = {}
    for path in files:
        with safe_open(path, framework="pt") as shard:
            tensors |= {name: shard.get_tensor(name) for name in shard.keys() if name.startswith(prefix)}  # noqa: SIM118
    return tensors


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
        return ImplicitPRM(_from_pretrained(AutoModelForCausalLM, folder, dtype=dtype), spec)
    if layout == "causal_lm":
        backbone, head = _split_lm(_from_pretrained(AutoModelForCausalLM, folder, dtype=dtype), spec)
        return DiscriminativePRM(backbone, head, causal=description.causal)
    if layout == "token_classification":
        backbone = _from_pretrained(AutoModel, folder, dtype=dtype)
        tensors = read_tensors(folder)
        name = _classifier_name(backbone.config, spec.outputs)
        head = build_head(_width(backbone), spec)
        _load_strict(head, {f"linear.{k}": tensors.get(f"{name}.{k}") for k in ("weight", "bias")}, folder)
        return DiscriminativePRM(backbone, head, causal=description.causal)
    backbone = _from_pretrained(AutoModel, folder / "backbone", dtype=dtype)
    tensors = load_file(folder / "head.safetensors")
    head = build_head(_width(backbone), spec)
    _load_strict(head, _under("head.", tensors), folder)
    surprisal = None
    if description.reference:
        surprisal = SurprisalInput(_width(backbone))
        _load_strict(surprisal, _under("surprisal.", tensors), folder)
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


def _split_lm(lm: Any, spec: HeadSpec) -> tuple[nn.Module, nn.Module]:
    """The backbone of a causal LM and a head on two rows of its output embedding."""
    output = lm.get_output_embeddings()
    if getattr(output, "bias", None) is not None:
        raise ModelError("a vocabulary head needs an output embedding without bias")
    if max(spec.token_ids) >= output.weight.shape[0]:
        raise ModelError(f"token ids {spec.token_ids} lie outside the vocabulary of {output.weight.shape[0]}")
    head = VocabularyHead(output.weight.shape[1], spec)
    head.adopt(output.weight.detach())
    return getattr(lm, lm.base_model_prefix), head


def _width(backbone: Any) -> int:
    return backbone.get_input_embeddings().weight.shape[1] if not hasattr(backbone.config, "hidden_size") else (
        backbone.config.hidden_size
    )  # fmt: skip


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor | None]:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}


def _load_strict(module: nn.Module, tensors: dict[str, Tensor | None], folder: Path) -> None:
    """Load a state dict; a missing, additional or misshapen weight is an error that names it."""
    own = module.state_dict()
    missing = sorted(k for k in own if tensors.get(k) is None)
    additional = sorted(k for k in tensors if k not in own)
    if missing or additional:
        raise ModelError(
            f"the head in {folder} does not fit: missing {missing}, not known {additional}; the checkpoint is not "
            "complete, or prm.json names another head"
        )
    present = {k: v for k, v in tensors.items() if v is not None}
    shapes = [
        f"{k} {tuple(v.shape)} for {tuple(own[k].shape)}"
        for k, v in present.items()
        if v.shape != own[k].shape
    ]
    if shapes:
        raise ModelError(f"the head in {folder} has other shapes than prm.json names: {', '.join(shapes)}")
    module.load_state_dict(present)


def _from_pretrained(kind: Any, folder: Path, **options: Any) -> Any:
    """``from_pretrained`` from local safetensors alone, where every weight of the model must be present."""
    with _quiet():
        model, info = kind.from_pretrained(
            folder,
            local_files_only=True,
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
            **options,
        )
    # Poolers of encoders are never read here.
    missing = sorted(k for k in info["missing_keys"] if "pooler" not in k)
    if missing or info["mismatched_keys"]:
        raise ModelError(
            f"{folder} lacks weights of {type(model).__name__}: missing {missing[:5]} ({len(missing)} in all), other "
            f"shapes {list(info['mismatched_keys'])[:5]}; a model with fresh weights would score at random"
        )
    return model


@contextmanager
def _quiet() -> Iterator[None]:
    """Without transformers' report of weights that were not used: the head's, which are read apart."""
    before = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers.logging.set_verbosity(before)
        transformers.logging.enable_progress_bar()
