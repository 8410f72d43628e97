"""Is a dataset on disk what was written? Finds a cut, swapped, edited, missing or added shard."""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from stepward.prm.dataset.folder import TABLES, names_in, read_receipts, stored_manifest
from stepward.prm.dataset.manifest import FileReceipt, fingerprint_of, sum_of
from stepward.prm.errors import StoreError


@dataclass(frozen=True, slots=True)
class Verification:
    """What ``verify`` found.

    Attributes:
        sealed: Whether the dataset is finished.
        num_shards: Shards that are looked at.
        num_bytes: Bytes that were read and hashed.
        faults: A sentence for each fault, with the file's name; empty = everything is as it was written.
    """

    sealed: bool
    num_shards: int
    num_bytes: int
    faults: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """No fault."""
        return not self.faults


def verify(folder: str | Path) -> Verification:
    """Hash every shard and compare with what the manifest, or in an unfinished run the receipts, state.

    Raises:
        StoreError: There is no dataset at all. Faults of a dataset that is there are returned, not raised.
    """
    path = Path(folder)
    try:
        manifest = stored_manifest(path)
    except StoreError as fault:
        return Verification(False, 0, 0, (str(fault),))
    if manifest is None:
        raise StoreError(f"{path} holds no dataset: there is no manifest to verify it against")
    sealed = manifest.fingerprint is not None
    receipts = read_receipts(path, manifest.run_id)
    shards = manifest.shards if sealed else tuple(receipts[i] for i in sorted(receipts))
    faults: list[str] = []
    if sealed:
        if fingerprint_of(shards) != manifest.fingerprint:
            faults.append("manifest.json: the fingerprint is not that of its shards; it was edited")
        if sum_of(s.totals for s in shards) != manifest.totals:
            faults.append("manifest.json: the totals are not the sum of its shards; it was edited")
    for shard in shards:
        # Bytes that were written hold the rows that were written: nothing but the checksum need be looked at.
        faults += [fault for file in shard.files if (fault := file_fault(path, file)) is not None]
        if sealed and receipts.get(shard.index) not in (None, shard):
            faults.append(f"receipt of shard {shard.index}: it is not what manifest.json states")
    known = {f.path for s in shards for f in s.files}
    there = [f"{table}/{name}" for table in TABLES for name in names_in(path / table)]
    if sealed:
        faults += [
            f"{place}: no shard of this dataset; it was added" for place in there if place not in known
        ]
    num_bytes = sum(f.num_bytes for s in shards for f in s.files)
    return Verification(sealed, len(shards), num_bytes, tuple(faults))


def file_fault(folder: Path, stated: FileReceipt) -> str | None:
    """What is wrong with a file of a folder, or None where its bytes are those that were written."""
    try:
        with open(f"{folder}/{stated.path}", "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size != stated.num_bytes:
                return f"{stated.path}: has {size} bytes, {stated.num_bytes} were written; it was cut or replaced"
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        return f"{stated.path}: missing"
    except OSError as fault:
        return f"{stated.path}: cannot be read ({fault.strerror})"
    return (
        None if digest == stated.sha256 else f"{stated.path}: the checksum differs; it was edited or swapped"
    )
