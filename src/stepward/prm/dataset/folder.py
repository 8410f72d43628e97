"""What stands where in a dataset folder, and who may write there.

::

    manifest.json                     written last, by sealing: the run, the totals, every shard's checksums
    manifest.partial.json             until then: the run alone
    solutions/shard-00000.parquet     one row a solution
    rollouts/shard-00000.parquet      one row a rollout, joined by solution_id
    receipts/shard-00000.json         written last for each shard: with it the shard is finished
    run_metrics.parquet               seconds, cached tokens, retries: outside the fingerprint
    run_metrics.json, .jsonl          the run's figures now, and its log (flows.watching.observe)
"""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportAttributeAccessIssue=false, reportMissingTypeStubs=false
# pyarrow has no type stubs.

import json
import os
import shutil
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pyarrow.parquet as pq

from stepward.prm.dataset.manifest import Manifest, Receipt, receipt_of
from stepward.prm.durable import TEMP_PREFIX, sync_folder, write_durably
from stepward.prm.errors import StoreError
from stepward.prm.locks import LOCK_NAME, LOCKS

TableName = Literal["solutions", "rollouts"]
TABLES: tuple[TableName, TableName] = ("solutions", "rollouts")

MANIFEST, PARTIAL, RUN_METRICS = "manifest.json", "manifest.partial.json", "run_metrics.parquet"
RUN_STATE, RUN_LOG = "run_metrics.json", "run_metrics.jsonl"
CARD = "README.md"
_RECEIPTS, _METRICS, _OPEN = "receipts", ".metrics", ".open"
_FOLDERS = (*TABLES, _RECEIPTS, _METRICS, _OPEN)
_PLOTS = "plots"

_METRICS_SCHEMA = pa.schema(
    [pa.field("shard", pa.int32()), pa.field("name", pa.string()), pa.field("value", pa.float64())]
)


def shard_path(table: TableName, index: int, file_format: str) -> str:
    """Path of a table's shard, relative to the folder."""
    return f"{table}/shard-{index:05d}.{file_format}"


def receipt_path(index: int) -> str:
    """Path of a shard's receipt, relative to the folder."""
    return f"{_RECEIPTS}/shard-{index:05d}.json"


def metrics_path(index: int) -> str:
    """Path of a shard's metrics until sealing gathers them, relative to the folder."""
    return f"{_METRICS}/shard-{index:05d}.json"


def open_path(table: TableName, run: str, index: int) -> str:
    """Path of a table of a shard that a run stopped in, relative to the folder (see ``prm.dataset.open_shard``)."""
    return f"{_OPEN}/{run}-{index:05d}-{table}.arrow"


def write_table(sink: "str | pa.NativeFile", table: pa.Table, file_format: str) -> None:
    """Write a table to a path or sink: the same bytes for the same rows, whatever chunks it came in.

    Parquet has fixed settings: zstd level 1, dictionaries, one row group for each 64 Ki rows, no time stamps.
    The bytes may differ between versions of pyarrow, which writes its version into each file.

    Raises:
        StoreError: No such file format.
    """
    table = table.combine_chunks()
    if file_format == "parquet":
        with pq.ParquetWriter(
            sink, table.schema, version="2.6", compression="zstd", compression_level=1
        ) as writer:
            # A row group of no rows stops the `datasets` reader; a file without row groups does not.
            if len(table):
                writer.write_table(table, row_group_size=1 << 16)
    elif file_format == "arrow":
        ipc = pa.ipc.IpcWriteOptions(compression="zstd", use_threads=False)
        with pa.ipc.new_file(sink, table.schema, options=ipc) as writer:
            writer.write_table(table)
    else:
        raise StoreError(f"file format {file_format!r} is not known; choose parquet or arrow")


def encode(table: pa.Table, file_format: str = "parquet") -> memoryview:
    """The bytes that ``write_table`` writes."""
    sink = pa.BufferOutputStream()
    write_table(sink, table, file_format)
    return memoryview(sink.getvalue())


def read_table(path: Path) -> pa.Table:
    if path.suffix == ".parquet":
        return pq.read_table(path)
    with pa.memory_map(str(path)) as source:
        return pa.ipc.open_file(source).read_all()


def stored_manifest(folder: Path) -> Manifest | None:
    """The sealed manifest, else that of a run under way, else None.

    Raises:
        StoreError: It was cut or edited.
    """
    for name in (MANIFEST, PARTIAL):
        path = folder / name
        if path.is_file():
            return Manifest.from_json(path.read_text(encoding="utf-8"), place=str(path))
    return None


def read_receipts(folder: Path, run: str, *, only: int | None = None) -> dict[int, Receipt]:
    """Receipts of one run whose files are there with the stated size, by shard number."""
    # Plain strings: there may be thousands, and Path objects would take longer than the reading.
    root, found = str(folder), dict[int, Receipt]()
    for name in names_in(folder / _RECEIPTS) if only is None else [Path(receipt_path(only)).name]:
        try:
            with open(f"{root}/{_RECEIPTS}/{name}", "rb") as file:
                receipt = receipt_of(json.loads(file.read()))
            whole = all(os.stat(f"{root}/{f.path}").st_size == f.num_bytes for f in receipt.files)
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if whole and receipt.run == run and f"{_RECEIPTS}/{name}" == receipt_path(receipt.index):
            found[receipt.index] = receipt
    return found


def names_in(folder: Path) -> list[str]:
    """Names of what a folder holds, in order; nothing where it is not there."""
    return sorted(os.listdir(folder)) if folder.is_dir() else []


def refuse_foreign(folder: Path) -> None:
    """Refuse a folder that holds files which no store wrote: they would be in danger.

    Raises:
        StoreError: Such files are there and no manifest is.
    """
    if (folder / MANIFEST).is_file() or (folder / PARTIAL).is_file():
        return
    foreign = sorted(
        p.name
        for p in folder.iterdir()
        if p.name not in (LOCK_NAME, LOCKS) and not p.name.startswith(TEMP_PREFIX)
    )
    if foreign:
        raise StoreError(
            f"{folder} holds files that are no dataset ({', '.join(foreign[:5])}); choose a new or empty folder "
            "(nothing was deleted; --overwrite deletes only datasets)"
        )


def admit(folder: Path, manifest: Manifest, *, resume: bool, overwrite: bool, others: bool = False) -> None:
    """Make a locked folder ready for a run, or refuse it. Arguments as in ``ShardStore.create_or_resume``.

    ``others``: other processes of the run may be writing, so that what looks left over may be theirs.
    """
    try:
        stored = stored_manifest(folder)
    except StoreError:
        if not overwrite:
            raise
        stored = None
    if overwrite:
        _start_over(folder, manifest)
    elif stored is None:
        _begin(folder, manifest)
    elif stored.run_id != manifest.run_id:
        ours, theirs = manifest.identity(), stored.identity()
        raise StoreError(
            f"{folder} holds the dataset of another run (it differs in {_differences(theirs, ours)}). Resume it with "
            "the settings that it was started with and --resume, choose another folder, or delete it with --overwrite"
        )
    elif not resume:
        raise StoreError(
            f"{folder} holds this run's dataset already; go on with it with --resume or delete it with --overwrite"
        )
    for place in (folder, *(folder / name for name in _FOLDERS)):
        place.mkdir(exist_ok=True)
    if not others:
        _sweep(folder)


def _differences(theirs: dict[str, object], ours: dict[str, object]) -> str:
    names: list[str] = []
    for name, value in ours.items():
        other = theirs.get(name)
        if value == other:
            continue
        if isinstance(value, dict) and isinstance(other, dict):
            names += [f"{name}.{k}" for k in sorted({*value, *other}) if value.get(k) != other.get(k)]
        else:
            names.append(name)
    return ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")


def _begin(folder: Path, manifest: Manifest) -> None:
    # Before the subfolders: killed in between, the folder is already known as this run's.
    write_durably(folder / PARTIAL, manifest.to_json().encode())


def _start_over(folder: Path, manifest: Manifest) -> None:
    # The new run is named before anything is deleted: killed in between, the old receipts are another run's and
    # count for nothing, and the folder is never one without a manifest.
    _begin(folder, manifest)
    (folder / MANIFEST).unlink(missing_ok=True)
    sync_folder(folder)
    for name in (*_FOLDERS, _PLOTS):
        if (folder / name).exists():
            shutil.rmtree(folder / name)
    for place in (folder / CARD, *folder.glob("run_metrics*")):
        place.unlink(missing_ok=True)


def _sweep(folder: Path) -> None:
    """Remove what a killed writer left half written."""
    for place in (folder, *(folder / name for name in _FOLDERS)):
        for leftover in place.glob(f"{TEMP_PREFIX}*"):
            leftover.unlink()


def write_metrics_table(folder: Path) -> None:
    """Gather the shards' metrics into run_metrics.parquet: one row a shard and name."""
    rows: list[dict[str, int | str | float]] = []
    for place in sorted((folder / _METRICS).glob("shard-*.json")):
        shard = int(place.stem.removeprefix("shard-"))
        rows += [
            {"shard": shard, "name": name, "value": float(value)}
            for name, value in sorted(json.loads(place.read_bytes()).items())
        ]
    write_durably(folder / RUN_METRICS, encode(pa.Table.from_pylist(rows, schema=_METRICS_SCHEMA)))
