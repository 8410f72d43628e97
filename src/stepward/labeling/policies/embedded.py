"""The embedded engine: the checkpoint that ships with Stepward, exact on every machine with a CPU."""

from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from stepward.prm.errors import ModelError

if TYPE_CHECKING:
    from stepward.labeling.policies.transformers import TransformersPolicy


def embedded_folder() -> Path:
    """The folder of the shipped checkpoint."""
    return Path(str(files("stepward.labeling.policies") / "embedded_checkpoint"))


def load_embedded(*, batch_size: int = 128, prefix_cache_mib: int = 256) -> "TransformersPolicy":
    """Load the shipped policy: float64, one thread, the same tokens for any batch.

    Args:
        batch_size: Most rollouts sampled at once.
        prefix_cache_mib: Memory for the keys and values of prompts and solutions.

    Raises:
        ModelError: The installation lacks the checkpoint.
    """
    from stepward.labeling.policies.transformers import load_transformers  # torch: seconds

    folder = embedded_folder()
    if not folder.is_dir():
        raise ModelError(
            "loading the embedded policy: this installation has no embedded_checkpoint folder; install Stepward "
            "from a wheel or a full checkout"
        )
    policy = load_transformers(
        folder, exact=True, batch_size=batch_size, prefix_cache_mib=prefix_cache_mib, engine="embedded"
    )
    return replace(policy, info=replace(policy.info, name="stepward/embedded"))
