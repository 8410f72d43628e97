"""``load(name_or_folder)``: any reward model, own or published, ready to score."""
# pyright: basic

import os
from pathlib import Path
from typing import TYPE_CHECKING

from stepward.prm.errors import ModelError

if TYPE_CHECKING:
    from stepward.prm.models.reward_model import DiscriminativeRewardModel
    from stepward.prm.models.served import ServedRewardModel

# Weights and what goes with them; never code, never pickles.
DOWNLOADED = ("*.json", "*.safetensors", "*.jinja", "*.model", "*.txt")


def local_folder(name_or_folder: str | Path, revision: str | None = None) -> Path:
    """The folder itself, or a download from the Hugging Face Hub.

    Raises:
        ModelError: Neither a folder nor a model on the Hub.
    """
    folder = Path(name_or_folder)
    if folder.is_dir():
        return folder
    if folder.exists() or str(name_or_folder).count("/") != 1:
        raise ModelError(f"loading {name_or_folder}: not a folder and not a Hub id such as org/name")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(
            snapshot_download(str(name_or_folder), revision=revision, allow_patterns=list(DOWNLOADED))
        )
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as fault:
        raise ModelError(
            f"loading {name_or_folder}: no such folder, and the Hub did not give it ({type(fault).__name__}); check "
            "the name, the network and your access"
        ) from fault


def load(
    name_or_folder: str | Path,
    *,
    device: str = "cpu",
    dtype: str = "float32",
    revision: str | None = None,
    adapter: str | None = None,
    reference: str | Path | None = None,
) -> "DiscriminativeRewardModel | ServedRewardModel":
    """A reward model by folder or Hub id: ``load(name).score([problem], [steps])``.

    Args:
        name_or_folder: What ``stepward train`` wrote, a published model with an adapter, or the URL of a server that
            ``stepward serve`` started (``vllm:http://...`` or ``http://...``; ``served.load_served`` has its options).
        device: Where it computes.
        dtype: float32, bfloat16 or float16.
        revision: Of a Hub id.
        adapter: Layout of a published model (``published.ADAPTERS``) where its config and name do not tell.
        reference: Reference model of a published implicit reward model.

    Raises:
        ModelError: Not a reward model that can be read, or a weight is missing.
    """
    if str(name_or_folder).startswith(("vllm:", "http://", "https://")):
        from stepward.prm.models.served import load_served

        return load_served(str(name_or_folder), adapter=adapter, api_key=os.environ.get("STEPWARD_PRM_KEY"))
    import torch

    from stepward.prm.models.folder import PRM_FILE, load_prm
    from stepward.prm.models.reward_model import DiscriminativeRewardModel

    kinds = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    if dtype not in kinds:
        raise ModelError(f"unknown dtype {dtype!r}; known: {', '.join(kinds)}")
    folder = local_folder(name_or_folder, revision)
    name = str(name_or_folder) if not Path(name_or_folder).is_dir() else folder.resolve().name
    if (folder / PRM_FILE).exists():
        prm = load_prm(folder, dtype=kinds[dtype])
    else:
        from stepward.prm.models.published import load_published

        reference_folder = None if reference is None else local_folder(reference)
        prm = load_published(folder, name, adapter=adapter, reference=reference_folder, dtype=kinds[dtype])
    prm.model.to(device)
    if prm.reference is not None:
        prm.reference.to(device)
    return DiscriminativeRewardModel(f"{name} ({prm.description.head.kind})", prm)
