"""Files that are whole or absent, and a folder that has one writer.

A file is written beside its place, flushed to the disk and renamed: after ``kill -9``, a power cut or a full disk
there is the old file, the new file or none, never half of one. Where a lost rename would lose more than work that
can be done again, the folder is flushed too.
"""

import fcntl
import os
import socket
from pathlib import Path

from stepward.prm.errors import StoreError

TEMP_PREFIX = ".writing-"
LOCK_NAME = ".lock"


def write_durably(path: Path, data: bytes | memoryview, *, sync_rename: bool = True) -> None:
    """Write a whole file or none.

    Args:
        path: Its place.
        data: Its bytes.
        sync_rename: Flush the folder, so that a power cut cannot undo the rename.

    Raises:
        StoreError: The disk is full or not writable; what was written beside the place is removed.
    """
    temp = path.with_name(TEMP_PREFIX + path.name)
    try:
        with open(temp, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temp, path)
        if sync_rename:
            sync_folder(path.parent)
    except OSError as fault:
        _remove_quietly(temp)
        raise StoreError(
            f"writing {path} ({len(data)} bytes) failed: {fault.strerror or fault}. What was finished before is "
            "whole; free space or mend the disk, then run again with --resume"
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


class FolderLock:
    """The right to write a folder: a kernel lock that a killed process loses at once.

    The lock belongs to the open file. Workers made by ``fork`` would share it and keep the folder locked after
    their parent was killed, so a child closes its copy, which does not unlock the parent's.

    Args:
        folder: It must exist.

    Raises:
        StoreError: Another process, or another store of this one, writes the folder.
    """

    def __init__(self, folder: Path) -> None:
        self._handle: int | None = None
        self._path = folder / LOCK_NAME

    def acquire(self) -> None:
        """Take the lock or refuse; never waits."""
        handle = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as fault:
            owner = os.pread(handle, 200, 0).decode(errors="replace").strip()
            os.close(handle)
            raise StoreError(
                f"{self._path.parent} is being written by another run ({owner or 'unknown process'}); wait for it, "
                "stop it, or write to another folder"
            ) from fault
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        self._handle = handle
        _held.add(handle)

    def release(self) -> None:
        """Give the lock back; a second call does nothing."""
        if self._handle is not None:
            _held.discard(self._handle)
            os.close(self._handle)
            self._handle = None


_held: set[int] = set()


def _forget_locks() -> None:
    for handle in _held:
        os.close(handle)
    _held.clear()


os.register_at_fork(after_in_child=_forget_locks)
