"""Who writes which shard of a folder: one process all of them, or several together, each those that it claims.

A process that works alone locks the folder. Those that work together share that lock, so that neither kind starts
beside the other, and each claims a shard before it begins it: with a kernel lock, or with a lease where the file
system has no locks between machines.
"""

import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from stepward.prm.errors import StoreError
from stepward.prm.locks import LOCK_NAME, LOCKS, KernelLock, Lease, Lock

_JOIN_WITHIN_S = 60.0
_SEAL = "seal"


class Claims:
    """The shards that this process may write. Made by ``alone`` or ``together``.

    Args:
        folder: The dataset folder.
        lock: The folder's lock, held alone or shared.
        shared: Other processes may write here too.
        lease_s: Seconds of a lease; None = kernel locks.
    """

    def __init__(self, folder: Path, lock: KernelLock, *, shared: bool, lease_s: float | None) -> None:
        self._folder, self._lock, self._shared, self._lease_s = folder, lock, shared, lease_s
        self._held: dict[str, Lock] = {}

    def take(self, index: int) -> bool:
        """Claim a shard; False where another process is at it."""
        return self._take(f"shard-{index:05d}")

    def take_seal(self) -> bool:
        """Claim the right to seal; False where another process is at it."""
        return self._take(_SEAL)

    def check(self, index: int) -> None:
        """Raise StoreError where this process may not, or no longer, make that shard final."""
        if not self._shared:
            return
        lock = self._held.get(f"shard-{index:05d}")
        if lock is None:
            raise StoreError(f"shard {index} of {self._folder} was not claimed before it was written")
        lock.check()

    def give_back(self, index: int) -> None:
        """Let others have a shard; a second call does nothing."""
        if lock := self._held.pop(f"shard-{index:05d}", None):
            lock.release()

    def release(self) -> None:
        """Give everything back."""
        for lock in self._held.values():
            lock.release()
        self._held.clear()
        self._lock.release()

    def _take(self, name: str) -> bool:
        if not self._shared or name in self._held:
            return True
        lock = _lock_at(self._folder, name, self._lease_s)
        if not lock.try_acquire():
            return False
        self._held[name] = lock
        return True


def _lock_at(folder: Path, name: str, lease_s: float | None) -> Lock:
    (folder / LOCKS).mkdir(exist_ok=True)
    if lease_s is None:
        return KernelLock(folder / LOCKS / f"{name}.lock")
    return Lease(folder / LOCKS / f"{name}.lease", ttl_s=lease_s)


@contextmanager
def admission(folder: Path, lease_s: float) -> Generator[None]:
    """The right to make a folder ready, one machine after the other, where they share no kernel locks.

    Raises:
        StoreError: It was not to be had within a lease's time and a minute.
    """
    lease = _lock_at(folder, "admission", lease_s)
    end = time.monotonic() + lease_s + _JOIN_WITHIN_S
    while not lease.try_acquire():
        if time.monotonic() > end:
            raise StoreError(f"{folder} could not be made ready: another machine has {LOCKS}/admission.lease")
        time.sleep(0.2)
    try:
        yield
    finally:
        lease.release()


def lock_alone(folder: Path) -> KernelLock:
    """Lock a folder for this process.

    Raises:
        StoreError: Another process, or another store of this one, writes it.
    """
    lock = KernelLock(folder / LOCK_NAME)
    if not lock.try_acquire():
        raise StoreError(
            f"{folder} is being written by another run ({lock.owner()}); wait for it, stop it, or write to another "
            "folder"
        )
    return lock


def lock_to_join(folder: Path) -> tuple[KernelLock, bool]:
    """Enter a folder that several processes write.

    Returns:
        The lock, and whether nobody else is in. Then it is held alone, until ``try_acquire(shared=True)`` lets the
        others in.

    Raises:
        StoreError: A run that works alone writes it.
    """
    lock = KernelLock(folder / LOCK_NAME)
    end = time.monotonic() + _JOIN_WITHIN_S
    while True:
        if lock.try_acquire():
            return lock, True
        if lock.try_acquire(shared=True):
            return lock, False
        if time.monotonic() > end:
            raise StoreError(
                f"{folder} is being written by a run that works alone ({lock.owner()}); wait for it or stop it. "
                "To label one folder from several processes start all of them with --shards i/n"
            )
        time.sleep(0.05)
