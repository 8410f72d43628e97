"""Where a model's files are and what rows call them. No torch here: server engines need only the tokenizer."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from stepward.prm.errors import ModelError

TOKENIZER_FILES = ("*.json", "*.jinja", "tokenizer*")
MODEL_FILES = (*TOKENIZER_FILES, "*.safetensors")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model on this machine.

    Attributes:
        folder: Its files. The path never reaches a row.
        name: The Hub id, or the folder's name.
        commit: The Hub's commit, or None for a folder.
    """

    folder: Path
    name: str
    commit: str | None

    @property
    def revision(self) -> str:
        """The commit, or else a hash of the content."""
        return self.commit or content_revision(self.folder)


def locate_checkpoint(
    name: str | Path, revision: str | None = None, files: tuple[str, ...] = MODEL_FILES
) -> Checkpoint:
    """Find a checkpoint folder, or get one from the Hub.

    Args:
        name: A folder, or a Hub id.
        revision: A commit or tag of the Hub id.
        files: What to get from the Hub.

    Raises:
        ModelError: There is no such folder, and the Hub does not give it.
    """
    folder = Path(name)
    if folder.is_dir():
        return Checkpoint(folder, folder.resolve().name, None)
    if isinstance(name, Path) or name.count("/") != 1 or name.startswith((".", "~", "/")):
        raise ModelError(f"loading {name}: there is no such folder, and it is no Hub id (owner/name)")
    import huggingface_hub

    download = cast(Any, huggingface_hub).snapshot_download
    try:
        found = Path(download(name, revision=revision, allow_patterns=list(files)))
    except Exception as fault:
        raise ModelError(
            f"loading {name}: the Hub did not give it ({type(fault).__name__}); check the id, the revision and "
            "access, or give the folder of a downloaded checkpoint"
        ) from fault
    return Checkpoint(found, name, found.name)


def content_revision(folder: Path) -> str:
    """First 16 hex digits of SHA-256 over the weights and the configuration: the same for the same content."""
    digest = hashlib.sha256()
    for path in sorted([*folder.glob("*.safetensors"), folder / "config.json"]):
        if path.is_file():
            digest.update(path.name.encode() + b"\0")
            with path.open("rb") as file:
                while block := file.read(1 << 20):
                    digest.update(block)
    return digest.hexdigest()[:16]
