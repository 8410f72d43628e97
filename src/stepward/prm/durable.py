"""Files that are whole or absent.

A file is written beside its place, flushed to the disk and renamed: after ``kill -9``, a power cut or a full disk
there is the old file, the new file or none, never half of one. Where a lost rename would lose more than work that
can be done again, the folder is flushed too.
"""

import os
from collections.abc import Callable
from pathlib import Path

from stepward.prm.errors import StoreError

TEMP_PREFIX = ".writing-"


def write_durably(path: Path, data: bytes | memoryview, *, sync_rename: bool = True) -> None:
    """Write a whole file or none.

    Args:
        path: Its place.
        data: Its bytes.
        sync_rename: Flush the folder, so that a power cut cannot undo the rename.

    Raises:
        StoreError: The disk is full or not writable; what was written beside the place is removed.
    """

    def write(temp: Path) -> None:
        with open(temp, "wb") as file:
            file.write(data)

    place_durably(path, write, sync_rename=sync_rename)


def place_durably(path: Path, write: Callable[[Path], object], *, sync_rename: bool = True) -> None:
    """Let ``write`` write a file beside its place, and put it there whole.

    Args:
        path: Its place.
        write: Writes the whole file to the path it is given.
        sync_rename: Flush the folder, so that a power cut cannot undo the rename.

    Raises:
        StoreError: The disk is full or not writable; what was written beside the place is removed.
    """
    temp = path.with_name(TEMP_PREFIX + path.name)
    try:
        write(temp)
        handle = os.open(temp, os.O_RDWR)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
        os.replace(temp, path)
        if sync_rename:
            sync_folder(path.parent)
    except OSError as fault:
        _remove_quietly(temp)
        raise StoreError(
            f"writing {path} failed: {fault.strerror or fault}. What was finished before is whole; free space or "
            "mend the disk, then run again with --resume"
        ) from fault


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries, so that a rename in it survives a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _remove_quietly(path: Path) -> None:
    # The fault that brought us here is the one to tell; a temporary file is swept on the next resume.
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return
