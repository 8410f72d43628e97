"""``stepward import``: a foreign file into a dataset folder, shard by shard."""

from itertools import islice
from pathlib import Path

from stepward import __version__
from stepward.prm.dataset.store import Manifest, ShardStore
from stepward.prm.formats.registry import ImportReport, format_named, import_rows
from stepward.prm.records import read_records
from stepward.prm.types import Allocation, LabelerInfo

SHARD_ROWS = 5_000


def import_dataset(
    format_name: str, source: str, out: Path, *, name: str | None = None, overwrite: bool = False
) -> ImportReport:
    """Read a foreign source into ``out``.

    Args:
        format_name: A name of ``formats()``.
        source: File, folder or Hub id.
        out: Dataset folder.
        name: ``Problem.source`` of the rows; the source's own name where None.
        overwrite: Replace the dataset that is there.

    Raises:
        ConfigError: The format is unknown or only written.
        StoreError: The folder is in use, or no row could be read.
    """
    form = format_named(format_name)
    origin = name or Path(source).name.split(".")[0]
    config = {"import": format_name, "source": origin}
    manifest = Manifest(
        config=config,
        code_version=__version__,
        allocation=Allocation.FIXED_K,
        labeler=LabelerInfo(f"imported:{format_name}", "1", ""),
    )
    report = ImportReport()
    with ShardStore.create_or_resume(out, manifest, overwrite=overwrite) as store:
        rows = import_rows(form, read_records(source), report, source=origin)
        index = 0
        while shard := list(islice(rows, SHARD_ROWS)):
            store.write_shard(index, shard)
            index += 1
        store.seal()
    return report
