"""Whether anything is left to do, found from the folder before Prefect or an engine is even imported."""

from stepward.flows.config import LabelConfig
from stepward.prm.dataset.manifest import config_hash
from stepward.prm.dataset.store import open_dataset
from stepward.prm.errors import StoreError


def nothing_left(config: LabelConfig) -> str | None:
    """A sentence that says so where this very run has finished in its folder; None where there is work."""
    try:
        dataset = open_dataset(config.out)
    except StoreError:
        return None
    if dataset.manifest.config_hash != config_hash(config.row_settings()):
        return None
    return (
        f"nothing left to do: {config.out} holds the finished dataset "
        f"({len(dataset):,} solutions, fingerprint {str(dataset.manifest.fingerprint)[:16]})"
    )
