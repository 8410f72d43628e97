"""A model's folder: the one that was named, or a download from the Hugging Face Hub without code or pickles."""
# pyright: basic

from pathlib import Path

from stepward.prm.errors import ModelError

# Weights and what goes with them; never code, never pickles.
DOWNLOADED = ("*.json", "*.safetensors", "*.jinja", "*.model", "*.txt")
TEMPLATE_FILES = ("tokenizer*.json", "chat_template.jinja", "config.json", "critic.json")


def local_folder(
    name_or_folder: str | Path, revision: str | None = None, *, files: tuple[str, ...] = DOWNLOADED
) -> Path:
    """The folder itself, or a download of ``files`` from the Hugging Face Hub.

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
        return Path(snapshot_download(str(name_or_folder), revision=revision, allow_patterns=list(files)))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as fault:
        raise ModelError(
            f"loading {name_or_folder}: no such folder, and the Hub did not give it ({type(fault).__name__}); check "
            "the name, the network and your access"
        ) from fault
