"""Who may write what: kernel locks, and leases where a file system has none.

A kernel lock (``flock``) is lost with its process, so that nothing is ever locked by the dead. It binds the
processes of one machine, and of all machines on NFS from version 4. Where it binds nobody else (object stores mounted
as folders, some parallel file systems), a ``Lease`` does: a file that its owner touches and that anybody may take over
once it has not been touched for its time.
"""

import contextlib
import fcntl
import os
import socket
import threading
import time
import uuid
from pathlib import Path
from typing import Protocol

from stepward.prm.errors import StoreError

LOCK_NAME = ".lock"  # of a folder
LOCKS = ".locks"  # the folder of finer ones


class Lock(Protocol):
    """The right to do one thing, held by one process at a time."""

    def try_acquire(self) -> bool:
        """Take it, or say False where somebody else has it; never waits for them."""
        ...

    def check(self) -> None:
        """Raise StoreError where the right was lost since it was taken."""
        ...

    def release(self) -> None:
        """Give it back; a second call does nothing."""
        ...


class KernelLock:
    """A lock that the kernel takes back from a killed process at once.

    It belongs to the open file. Workers made by ``fork`` would share it and keep it held after their parent was
    killed, so a child closes its copy, which does not unlock the parent's.

    Args:
        path: The lock's file; made where it is not there, and never removed by its owner.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._handle: int | None = None

    def try_acquire(self, *, shared: bool = False) -> bool:
        """Take the lock for this process alone, or beside others that share it. Held already, it is converted."""
        if not self._flock(fcntl.LOCK_SH if shared else fcntl.LOCK_EX):
            return False
        if not shared and self._handle is not None:
            os.ftruncate(self._handle, 0)
            os.pwrite(self._handle, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        return True

    def owner(self) -> str:
        """Who wrote their name into the file last, for messages."""
        try:
            return self._path.read_text(errors="replace").strip() or "unknown process"
        except OSError:
            return "unknown process"

    def _flock(self, how: int) -> bool:
        handle = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644) if self._handle is None else self._handle
        _held.add(handle)
        try:
            fcntl.flock(handle, how | fcntl.LOCK_NB)
        except OSError:
            # A conversion that fails has given the old lock up.
            _held.discard(handle)
            os.close(handle)
            self._handle = None
            return False
        self._handle = handle
        return True

    def check(self) -> None:
        """The kernel does not take a lock from a living process."""

    def release(self) -> None:
        """Give it back; a second call does nothing."""
        if self._handle is not None:
            _held.discard(self._handle)
            os.close(self._handle)
            self._handle = None


def holders(path: Path) -> list[int]:
    """Processes of this machine that hold a kernel lock on a file, as the kernel lists them; nothing is locked."""
    try:
        status = path.stat()
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return []
    place = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    # 1: FLOCK  ADVISORY  WRITE 4711 fd:01:1234 0 EOF
    fields = [line.split() for line in lines]
    return [int(f[4]) for f in fields if len(f) > 5 and f[1] == "FLOCK" and f[5] == place]


class Lease:
    """A right for a time, renewed while its owner lives, by nothing but files and their times.

    A lease is taken by linking a file of the owner's own to its name, which succeeds for one process only. One that
    was not renewed for ``ttl_s`` is taken over by renaming over it; who did so last reads its own name in it after
    a pause and is the owner. Ages are measured against the file system's own clock. ``check`` before anything is
    made final keeps an owner that slept past its time from finishing what another has taken up; what both write
    before that is the same bytes under names that are renamed whole.

    Args:
        path: The lease's file.
        ttl_s: Seconds without renewal after which others may take it. Longer than any pause of a healthy process.
        settle_s: Pause before a take-over is believed; longer than a rename takes to be seen by all.
    """

    def __init__(self, path: Path, *, ttl_s: float = 120.0, settle_s: float = 2.0) -> None:
        self._path, self._ttl_s, self._settle_s = path, ttl_s, settle_s
        self._owner = f"{socket.gethostname()} {os.getpid()} {uuid.uuid4().hex}"
        self._end: threading.Event | None = None

    def try_acquire(self) -> bool:
        """Take the lease, or say False where a living owner has it."""
        mine = self._path.with_name(f"{self._path.name}.{uuid.uuid4().hex}")
        mine.write_text(self._owner)
        try:
            try:
                os.link(mine, self._path)
            except FileExistsError:
                if not self._is_over(mine):
                    return False
                os.replace(mine, self._path)
                time.sleep(self._settle_s)
        finally:
            mine.unlink(missing_ok=True)
        if not self._is_mine():
            return False
        self._end = threading.Event()
        threading.Thread(target=self._renew, args=(self._end,), name="lease", daemon=True).start()
        return True

    def check(self) -> None:
        """Raise StoreError where another process has taken the lease over."""
        if not self._is_mine():
            raise StoreError(
                f"the lease {self._path} was taken over: this process did not renew it for {self._ttl_s:.0f} s. "
                "Nothing is lost, its new owner does the work; give leases a longer time if this process was healthy"
            )

    def release(self) -> None:
        """Give it back; a second call does nothing."""
        if self._end is not None:
            self._end.set()
            self._end = None
            if self._is_mine():
                self._path.unlink(missing_ok=True)

    def _is_mine(self) -> bool:
        try:
            return self._path.read_text() == self._owner
        except OSError:
            return False

    def _is_over(self, now: Path) -> bool:
        try:
            return now.stat().st_mtime - self._path.stat().st_mtime > self._ttl_s
        except FileNotFoundError:
            return False

    def _renew(self, end: threading.Event) -> None:
        while not end.wait(self._ttl_s / 4):
            if not self._is_mine():
                return
            with contextlib.suppress(
                OSError
            ):  # the next turn tries again; check() finds a lease that was lost
                os.utime(self._path)


_held: set[int] = set()


def _forget_locks() -> None:
    for handle in _held:
        os.close(handle)
    _held.clear()


os.register_at_fork(after_in_child=_forget_locks)
