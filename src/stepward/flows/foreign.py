"""``stepward import``: a foreign file into a dataset folder, shard by shard."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from stepward import __version__
from stepward.prm.dataset.store import Manifest, ShardStore
from stepward.prm.errors import ConfigError, FormatError
from stepward.prm.formats.registry import ImportReport, formats, import_rows
from stepward.prm.formats.step_sets import READERS, rows_of_set
from stepward.prm.records import read_records
from stepward.prm.types import Allocation, LabeledSolution, LabelerInfo

SHARD_ROWS = 5_000


def import_dataset(
    format_name: str, source: str, out: Path, *, name: str | None = None, overwrite: bool = False
) -> ImportReport:
    """Read a foreign source into ``out``.

    Args:
        format_name: A name of ``formats()``, or of an annotated step set (``step_sets.READERS``).
        source: File, folder or Hub id.
        out: Dataset folder.
        name: ``Problem.source`` of the rows; the source's own name where None.
        overwrite: Replace the dataset that is there.

    Raises:
        ConfigError: The format is unknown or only written.
        ProblemFileError: The source cannot be read.
        FormatError: None of its rows is of the format; nothing is written.
        StoreError: The folder is in use, or holds a dataset.
    """
    origin = name or Path(source).name.split(".")[0]
    config = {"import": format_name, "source": origin}
    manifest = Manifest(
        config=config,
        code_version=__version__,
        allocation=Allocation.FIXED_K,
        labeler=LabelerInfo(f"imported:{format_name}", "1", ""),
    )
    report = ImportReport()
    _known(format_name)
    rows = _rows(format_name, source, origin, report)
    shard = list(islice(rows, SHARD_ROWS))
    if not shard:
        named = "".join(f"\n  {place}: {why}" for place, why in report.rejected[:5])
        raise FormatError(
            f"importing {source}: none of its {report.rows:,} rows is one of {format_name!r}{named}"
        )
    with ShardStore.create_or_resume(out, manifest, overwrite=overwrite) as store:
        index = 0
        while shard:
            store.write_shard(index, shard)
            index += 1
            shard = list(islice(rows, SHARD_ROWS))
        store.seal()
    return report


def _known(format_name: str) -> None:
    names = [*formats(), *READERS]
    if format_name not in names:
        raise ConfigError([f"import: {format_name!r} is unknown; there are {', '.join(names)}"])


def _rows(format_name: str, source: str, origin: str, report: ImportReport) -> Iterator[LabeledSolution]:
    if format_name in READERS:
        return rows_of_set(READERS[format_name](source), report)
    rows = read_records(source, unread=report.unread)
    return import_rows(formats()[format_name], rows, report, source=origin)
