"""A lease on a cache key: a locked file in the cache, which says who compiles what belongs under the key.

The kernel releases the lock (flock(2)) when its holder dies, however it dies. Nothing that is right depends on a
lease: whoever can write to the cache can hold, break or forge any, and makes others wait or compile by that, no more.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import stat
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from safecache.files import filesystem, folders
from safecache.places import ours
from safecache.reporting.kinds import Kind
from safecache.settings import config

__all__ = ["Holder", "Lease", "open_lease", "reset"]

# What a holder leaves for those who wait for its file: it has ended, whether it has published anything or not.
_ENDED = b"ended"
_LARGEST = 4096
_HERE: list[str] = []

# A child gets its parent's descriptors, and would hold its locks for as long as it lives.
_open: weakref.WeakSet[Lease] = weakref.WeakSet()


class Holder(NamedTuple):
    """Who says that they hold a lease; ``namespace``: which process ids are meant, on which host."""

    pid: int
    namespace: str
    began: float

    @property
    def process(self) -> tuple[int, str]:
        """Which process, whatever else it holds."""
        return self.pid, self.namespace

    @property
    def is_here(self) -> bool:
        """Whether this process can see it."""
        return self.namespace == _namespace()


class Lease:
    """The lease on one key, open and not yet, or no longer, held."""

    def __init__(self, root: str, name: str, descriptor: int) -> None:
        self.root, self.name = root, name
        self._descriptor = descriptor
        # What is to be done once it is released.
        self.then: list[Callable[[], None]] = []
        _open.add(self)

    @property
    def is_foreign(self) -> bool:
        """Whether it is another user's, although this cache is not shared on purpose."""
        return filesystem.fstat(self._descriptor).st_uid != os.geteuid() and not config.current().shared

    def try_to_hold(self) -> bool:
        """Lock it; False if somebody else has. What was written in it before stays there. Raises OSError."""
        try:
            filesystem.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def has_ended(self) -> bool:
        """Whether who held it has released it, or it was removed: a new one is what counts then. Raises OSError.

        Call it with the lock held: what its last holder could not remove is removed.
        """
        with suppress(FileNotFoundError), self._folder() as folder:
            if os.path.samestat(folder.status(self.name), filesystem.fstat(self._descriptor)):
                if self._content() != _ENDED:
                    return False
                folder.unlink(self.name)
        return True

    def sign(self, began: float) -> None:
        """Write into it, once it is locked, that this process holds it. Raises OSError."""
        self._write(f"{os.getpid()}\n{_namespace()}\n{began}".encode())

    def holder(self) -> Holder | None:
        """Who has signed it; None if that cannot be read."""
        try:
            pid, namespace, began = self._content().decode().split("\n")
            return Holder(int(pid), namespace, float(began))
        except (OSError, ValueError):
            return None

    def release(self) -> None:
        """End it, for all who wait: they look again. It is unlocked in any case."""
        with suppress(OSError):
            self._write(_ENDED)
            with self._folder() as folder:
                folder.unlink(self.name)
        self.close(unlock=True)

    def close(self, *, unlock: bool = False) -> None:
        """Leave it as it is. ``unlock``: for children of this process too, that may hold its descriptor."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            with suppress(OSError):
                if unlock:
                    filesystem.flock(descriptor, fcntl.LOCK_UN)
            with suppress(OSError):
                filesystem.close(descriptor)

    def _content(self) -> bytes:
        return os.pread(self._descriptor, _LARGEST, 0)

    def _write(self, content: bytes) -> None:
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, content, 0)

    @contextmanager
    def _folder(self) -> Iterator[folders.Folder]:
        with folders.opened(self.root, [ours.FOLDER, ours.LEASES]) as folder:
            yield folder


def open_lease(kind: Kind, key: str, root: str) -> Lease:
    """The lease on this key in the cache ``root``. Raises OSError, also for what is no file of ours."""
    name = f"{kind.word}-{hashlib.sha256(key.encode()).hexdigest()[:32]}"
    with folders.opened(root, [ours.FOLDER, ours.LEASES], make=True) as folder:
        descriptor = folder.open(name, os.O_RDWR | os.O_CREAT)
    lease = Lease(root, name, descriptor)
    if filesystem.is_scarce(descriptor):
        lease.close()
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    status = filesystem.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_size > _LARGEST:
        lease.close()
        raise OSError(f"the lease {name} is no lease")
    return lease


def _namespace() -> str:
    """Processes with the same one see each other in /proc: those of the same namespace of ids since the same boot."""
    if not _HERE:
        with suppress(OSError), open("/proc/sys/kernel/random/boot_id") as file:
            _HERE.append(f"{file.read().strip()} {os.stat('/proc/self/ns/pid').st_ino}")
    return _HERE[0] if _HERE else f"unknown {os.getpid()}"


def reset() -> None:
    """End what this process holds."""
    for lease in list(_open):
        lease.close(unlock=True)
    _HERE.clear()


def _after_fork() -> None:
    for lease in list(_open):
        lease.close()
    _HERE.clear()


os.register_at_fork(after_in_child=_after_fork)
