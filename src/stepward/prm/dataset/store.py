"""A dataset folder: ShardStore writes it, Dataset reads it (``folder`` draws it, ``integrity`` checks it).

Every file is whole or absent (``prm.durable``). A shard without its receipt does not exist: it is written again.
So ``kill -9`` or a full disk at any moment leaves a folder that the same run resumes, and the finished dataset has
the same bytes as one that was never disturbed.
"""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportAttributeAccessIssue=false, reportMissingTypeStubs=false
# pyarrow has no type stubs.

import hashlib
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from stepward.prm.dataset.claims import Claims, admission, lock_alone, lock_to_join
from stepward.prm.dataset.columns import ROLLOUTS_SCHEMA, SCHEMA_VERSION, SOLUTIONS_SCHEMA
from stepward.prm.dataset.folder import (
    MANIFEST,
    PARTIAL,
    TableName,
    admit,
    metrics_path,
    read_receipts,
    read_table,
    receipt_path,
    refuse_foreign,
    shard_path,
    stored_manifest,
    write_metrics_table,
    write_table,
)
from stepward.prm.dataset.integrity import verify
from stepward.prm.dataset.manifest import (
    FileReceipt,
    Manifest,
    Receipt,
    canonical_json,
    fingerprint_of,
    sum_of,
)
from stepward.prm.dataset.schema import (
    check_rollouts,
    check_solutions,
    conform,
    rollout_of,
    rollouts_table,
    rows_of,
    solution_of,
    solutions_table,
)
from stepward.prm.dataset.totals import totals_of
from stepward.prm.durable import place_durably, write_durably
from stepward.prm.errors import StoreError
from stepward.prm.locks import LOCKS
from stepward.prm.types import LabeledSolution, Rollout

if TYPE_CHECKING:
    import polars as pl

__all__ = ["Dataset", "Manifest", "ShardStore", "open_dataset", "verify"]


class ShardStore:
    """The owner of a dataset folder while it is written. Made by ``create_or_resume``; a context manager.

    Shards may be written in any order and from several threads, each once. Several processes write one folder
    ``together`` when each claims a shard before it begins it.
    """

    def __init__(self, folder: Path, manifest: Manifest, claims: Claims) -> None:
        self.folder = folder
        self.manifest = manifest
        self._claims = claims

    @classmethod
    def create_or_resume(
        cls,
        folder: str | Path,
        manifest: Manifest,
        *,
        resume: bool = False,
        overwrite: bool = False,
        together: bool = False,
        lease_s: float | None = None,
    ) -> "ShardStore":
        """Lock a folder and make it ready for this run.

        Args:
            folder: Made where it is not there.
            manifest: The run, without totals.
            resume: Go on with what the same run has finished here.
            overwrite: Delete the dataset that is here, whichever run's it is, and nothing else.
            together: Other processes of the same run write here too; implies ``resume``.
            lease_s: With ``together``: claim shards by leases of so many seconds, for file systems without locks
                between machines; None = kernel locks.

        Raises:
            StoreError: Another process writes here that is not of this run; the folder holds another run's
                dataset, or this run's without ``resume``; or it holds files that are no dataset (those are never
                deleted).
        """
        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        refuse_foreign(path)
        lock, first = lock_to_join(path) if together else (lock_alone(path), True)
        try:
            with admission(path, lease_s) if lease_s is not None else nullcontext():
                admit(
                    path,
                    manifest,
                    resume=resume or together,
                    overwrite=overwrite,
                    others=not first or lease_s is not None,
                )
            if together and first and not lock.try_acquire(shared=True):
                raise StoreError(f"{path} was taken by a run that works alone; start again when it is done")
        except BaseException:
            lock.release()
            raise
        return cls(path, manifest, Claims(path, lock, shared=together, lease_s=lease_s))

    def __enter__(self) -> "ShardStore":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give the lock back. What is finished stays; an unsealed folder can be resumed."""
        self._claims.release()

    def finished(self) -> frozenset[int]:
        """Shards that this run has finished, by their receipts and the size of their files.

        A receipt that cannot be read, or whose file has another size, counts as not finished: the shard is
        written again. Checksums are compared by ``verify``, not here.
        """
        return frozenset(read_receipts(self.folder, self.manifest.run_id))

    def claim(self, index: int) -> bool:
        """Whether this process is to write that shard: it is not finished, and no other process is at it."""
        if not self._claims.take(index):
            return False
        if read_receipts(self.folder, self.manifest.run_id, only=index):
            self._claims.give_back(index)
            return False
        return True

    def give_back(self, index: int) -> None:
        """Let other processes have a shard that was claimed and is not written."""
        self._claims.give_back(index)

    def write_shard(
        self,
        index: int,
        solutions: Sequence[LabeledSolution],
        rollouts: Iterable[tuple[str, Rollout]] = (),
        metrics: Mapping[str, float] | None = None,
    ) -> Receipt:
        """Write one shard; when this returns, it survives ``kill -9`` and a power cut.

        Args:
            index: Its number, from 0.
            solutions: Its rows; all solutions of a problem stand together and in one shard.
            rollouts: (solution id, rollout): the rollout continues prefix ``rollout.num_steps`` of that solution.
            metrics: Seconds, cached tokens, retries: what depends on time or machine. Kept apart.

        Raises:
            StoreError: The shard is finished already, or the disk is full.
            FormatError: A row breaks the contract.
        """
        return self.write_tables(index, solutions_table(solutions), rollouts_table(rollouts), metrics)

    def write_tables(
        self,
        index: int,
        solutions: pa.Table,
        rollouts: pa.Table | None = None,
        metrics: Mapping[str, float] | None = None,
    ) -> Receipt:
        """Like ``write_shard``, with tables of the two schemas (see ``schema.conform`` for others)."""
        if index < 0 or read_receipts(self.folder, self.manifest.run_id, only=index):
            raise StoreError(
                f"shard {index} of {self.folder} is finished (or below 0); a shard is written once"
            )
        drawn: pa.Table = ROLLOUTS_SCHEMA.empty_table() if rollouts is None else rollouts
        _same_schema(solutions, SOLUTIONS_SCHEMA)
        _same_schema(drawn, ROLLOUTS_SCHEMA)
        check_solutions(solutions)
        check_rollouts(drawn)
        files = (self._write("solutions", index, solutions), self._write("rollouts", index, drawn))
        if metrics:
            write_durably(
                self.folder / metrics_path(index), canonical_json(metrics).encode(), sync_rename=False
            )
        self._claims.check(index)
        receipt = Receipt(index, self.manifest.run_id, files, totals_of(solutions, drawn.num_rows))
        write_durably(self.folder / receipt_path(index), canonical_json(asdict(receipt)).encode())
        self._claims.give_back(index)
        return receipt

    def _write(self, table: TableName, index: int, rows: pa.Table) -> FileReceipt:
        path = shard_path(table, index, self.manifest.file_format)
        place = self.folder / path
        # A rename that a power cut undoes leaves a receipt without its file: the shard is written again.
        place_durably(
            place, lambda temp: write_table(str(temp), rows, self.manifest.file_format), sync_rename=False
        )
        with place.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        return FileReceipt(path, digest, place.stat().st_size, len(rows))

    def seal(self, *, contamination: Mapping[str, Any] | None = None) -> Manifest:
        """Write manifest.json, with totals and fingerprint: the dataset is finished.

        Args:
            contamination: What a check against benchmarks found, where it is known only now.

        Raises:
            StoreError: No shard is finished, or numbers are missing between the first and the last.
        """
        if not self._claims.take_seal():
            return self.manifest  # another process of the run is doing so
        receipts = read_receipts(self.folder, self.manifest.run_id)
        shards = tuple(receipts[i] for i in sorted(receipts))
        if [s.index for s in shards] != list(range(len(shards))) or not shards:
            raise StoreError(
                f"sealing {self.folder}: finished are the shards {sorted(receipts)[:20]}; a dataset has at least "
                "one, numbered from 0 without a gap. Run again with --resume to write the others"
            )
        totals = sum_of(s.totals for s in shards)
        note = self.manifest.contamination if contamination is None else contamination
        sealed = replace(
            self.manifest,
            totals=totals,
            shards=shards,
            fingerprint=fingerprint_of(shards),
            contamination=note,
        )
        write_metrics_table(self.folder)
        write_durably(self.folder / MANIFEST, sealed.to_json().encode())
        (self.folder / PARTIAL).unlink(missing_ok=True)
        shutil.rmtree(self.folder / LOCKS, ignore_errors=True)
        self.manifest = sealed
        return sealed


@dataclass(frozen=True, slots=True)
class Dataset:
    """A dataset on disk. Nothing is read until asked for; rows come shard by shard, so memory stays flat.

    Attributes:
        folder: Where it is.
        manifest: What made it; ``manifest.shards`` are the shards that are read.
    """

    folder: Path
    manifest: Manifest

    def files(self, table: TableName = "solutions") -> list[Path]:
        """Paths of a table's shards, in order, as the receipts name them (other files are not the dataset's)."""
        at = 0 if table == "solutions" else 1
        return [self.folder / shard.files[at].path for shard in self.manifest.shards]

    def __len__(self) -> int:
        """Number of solutions."""
        return sum(shard.totals.solutions for shard in self.manifest.shards)

    def batches(
        self,
        table: TableName = "solutions",
        *,
        columns: Sequence[str] | None = None,
        batch_rows: int = 1024,
    ) -> Iterator[pa.RecordBatch]:
        """Arrow batches of a table, in order.

        Args:
            table: ``solutions`` or ``rollouts``.
            columns: Only these; all where None.
            batch_rows: Most rows of a batch.
        """
        for index, path in enumerate(self.files(table)):
            if path.suffix == ".parquet" and self.manifest.schema_version == SCHEMA_VERSION:
                with pq.ParquetFile(path) as file:
                    yield from file.iter_batches(batch_rows, columns=columns)
            else:
                whole = self.shard(table, index)
                yield from (whole.select(columns) if columns else whole).to_batches(batch_rows)

    def shard(self, table: TableName, index: int) -> pa.Table:
        """One shard as a table of the contract."""
        path = self.files(table)[index]
        return conform(read_table(path), SOLUTIONS_SCHEMA if table == "solutions" else ROLLOUTS_SCHEMA)

    def _frame(self, table: TableName, index: int) -> "pl.DataFrame":
        import polars

        return polars.DataFrame(self.shard(table, index))

    def solutions(self) -> Iterator[LabeledSolution]:
        """All rows as records, in order."""
        for batch in self.batches("solutions", batch_rows=256):
            yield from map(solution_of, rows_of(batch))

    def rollouts(self) -> Iterator[tuple[str, Rollout]]:
        """All rollouts as (solution id, rollout), in order."""
        for batch in self.batches("rollouts"):
            yield from map(rollout_of, rows_of(batch))

    def scan(self, table: TableName = "solutions") -> "pl.LazyFrame":
        """The table as a polars LazyFrame, with the columns of this version whichever wrote it."""
        import polars

        if self.manifest.schema_version != SCHEMA_VERSION:
            schema = SOLUTIONS_SCHEMA if table == "solutions" else ROLLOUTS_SCHEMA
            types: Any = polars.DataFrame(schema.empty_table()).schema
            shards = range(len(self.manifest.shards))
            return polars.concat([polars.defer(partial(self._frame, table, i), schema=types) for i in shards])
        read = polars.scan_parquet if self.manifest.file_format == "parquet" else polars.scan_ipc
        return read(self.files(table))


def open_dataset(folder: str | Path, *, partial: bool = False) -> Dataset:
    """Open a dataset folder for reading.

    Args:
        folder: The folder.
        partial: Also take a run that is not finished: its finished shards.

    Raises:
        StoreError: There is no dataset, or it is not finished and ``partial`` is False.
    """
    path = Path(folder)
    manifest = stored_manifest(path)
    if manifest is None:
        raise StoreError(f"{path} holds no dataset: neither {MANIFEST} nor {PARTIAL} is there")
    if manifest.fingerprint is None:
        if not partial:
            raise StoreError(
                f"{path} is not finished: {MANIFEST} is missing. Finish the run with --resume, or read the shards "
                "that are finished with open_dataset(folder, partial=True)"
            )
        receipts = read_receipts(path, manifest.run_id)
        manifest = replace(manifest, shards=tuple(receipts[i] for i in sorted(receipts)))
    return Dataset(path, manifest)


def _same_schema(table: pa.Table, schema: pa.Schema) -> None:
    if not table.schema.equals(schema):
        raise StoreError(
            "writing a shard: the table's columns and types are not the contract's; bring it there with "
            f"stepward.prm.dataset.schema.conform(table). It has {table.schema.names}"
        )
