"""Weights from safetensors: every weight of a model must be present; none is ever made up."""

# pyright: basic
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import safe_open
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

from stepward.prm.errors import ModelError
from stepward.prm.models.discriminative import DiscriminativePRM, SurprisalInput
from stepward.prm.models.heads import HeadSpec, VocabularyHead, build_head
from stepward.prm.models.implicit import ImplicitPRM


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
    config = AutoConfig.from_pretrained(base, trust_remote_code=False, local_files_only=True)
    options: dict[str, Any] = {"dtype": dtype}
    if attention is not None:
        options["attn_implementation"] = attention
    if spec.kind == "implicit":
        return ImplicitPRM(from_pretrained(AutoModelForCausalLM, base, **options), spec)
    if spec.kind == "vocabulary":
        lm = from_pretrained(AutoModelForCausalLM, base, **options)
        backbone, head = split_lm(lm, spec)
    else:
        backbone = from_pretrained(AutoModel, base, **options)
        head = build_head(model_width(backbone), spec)
    surprisal = SurprisalInput(model_width(backbone)).to(dtype) if with_reference else None
    return DiscriminativePRM(backbone, head, surprisal, causal=is_causal(config))


def load_reference(folder: Path, dtype: torch.dtype = torch.float32) -> Any:
    """A frozen causal language model for the surprisal input."""
    return load_causal_lm(folder, dtype).eval().requires_grad_(False)


def load_causal_lm(folder: Path, dtype: torch.dtype = torch.float32) -> Any:
    """A causal language model with all its weights."""
    return from_pretrained(AutoModelForCausalLM, folder, dtype=dtype)


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


def split_lm(lm: Any, spec: HeadSpec) -> tuple[nn.Module, nn.Module]:
    """The backbone of a causal LM and a head on two rows of its output embedding."""
    output = lm.get_output_embeddings()
    if getattr(output, "bias", None) is not None:
        raise ModelError("a vocabulary head needs an output embedding without bias")
    if max(spec.token_ids) >= output.weight.shape[0]:
        raise ModelError(f"token ids {spec.token_ids} lie outside the vocabulary of {output.weight.shape[0]}")
    head = VocabularyHead(output.weight.shape[1], spec)
    head.adopt(output.weight.detach())
    return getattr(lm, lm.base_model_prefix), head


def model_width(backbone: Any) -> int:
    return backbone.get_input_embeddings().weight.shape[1] if not hasattr(backbone.config, "hidden_size") else (
        backbone.config.hidden_size
    )  # fmt: skip


def load_strict(module: nn.Module, tensors: dict[str, Tensor | None], folder: Path) -> None:
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


def from_pretrained(kind: Any, folder: Path, **options: Any) -> Any:
    """``from_pretrained`` from local safetensors alone, where every weight of the model must be present."""
    with quiet():
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
def quiet() -> Iterator[None]:
    """Without transformers' progress bars and its report of weights not used: the head's, which are read apart."""
    before = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers.logging.set_verbosity(before)
        transformers.logging.enable_progress_bar()
