"""A lease on a cache key: a locked file in the cache, which says who compiles what belongs under the key.

The kernel releases the lock (flock(2)) when its holder dies, however it dies. Nothing that is right depends on a
lease: whoever can write to the cache can hold, break or forge any, and makes others wait or compile by that, no more.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import stat
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from safecache.files import filesystem, folders
from safecache.places import ours
from safecache.places.refs import Ref
from safecache.session import Part
from safecache.settings import config
from safecache.signing import seal
from safecache.signing.heartbeats import Beats, Renewals

__all__ = ["Lease", "open_lease"]

# What a holder leaves for those who wait for its file: it has ended, whether it has published anything or not.
_ENDED = b"ended"
# What a holder leaves that has no key to seal a beat; and what one of an earlier release has left.
_UNSEALED = b"held"
_OF_EARLIER = re.compile(rb"\d+\n[^\n]*\n[\d.]+")
_LARGEST = 4096


class _State:
    """The leases of this process: at the end it lets go of them."""

    def __init__(self) -> None:
        self.open: weakref.WeakSet[Lease] = weakref.WeakSet()
        self.renewals = Renewals("safecache-leases", 0.5)

    def end(self) -> None:
        for lease in list(self.open):
            lease.close(unlock=True)

    def in_child(self) -> _State:
        # A child gets its parent's descriptors, and would hold its locks for as long as it lives.
        self.renewals.end_all()
        for lease in list(self.open):
            lease._lock = threading.Lock()
            lease.close()
        return _State()


_state: Part[_State] = Part(_State, _State.in_child)


class Lease:
    """The lease on one key, open and not yet, or no longer, held."""

    def __init__(self, root: str, name: str, descriptor: int) -> None:
        self.root, self.name = root, name
        self._descriptor = descriptor
        self._beats: Beats | None = None
        self._lock = threading.Lock()
        # What is to be done once it is released.
        self.then: list[Callable[[], None]] = []
        _state.now.open.add(self)

    @property
    def status(self) -> os.stat_result:
        """That of the file which is locked. Raises OSError."""
        return filesystem.fstat(self._descriptor)

    def is_genuine(self, *, shared: bool) -> bool:
        """Whether it may be written: a file of this name alone, and, unless ``shared``, of this user. Raises OSError.

        Another name of it, or what it holds, would tell of a file that somebody has put in the place of a lease. One
        that has no name any more was a lease: its holder has ended since it was opened.
        """
        status = self.status
        if not stat.S_ISREG(status.st_mode) or status.st_size > _LARGEST or status.st_nlink > 1:
            return False
        if status.st_uid != os.geteuid() and not shared:
            return False
        content = self.read()
        return (
            content in (b"", _ENDED, _UNSEALED)
            or seal.split(content) is not None
            or _OF_EARLIER.fullmatch(content) is not None
        )

    def try_to_hold(self) -> bool:
        """Lock it; False if somebody else has. What was written in it before stays there. Raises OSError."""
        return filesystem.try_lock(self._descriptor)

    def has_ended(self) -> bool:
        """Whether who held it has released it, or it was removed: a new one is what counts then. Raises OSError.

        Call it with the lock held: what its last holder could not remove is removed.
        """
        with suppress(FileNotFoundError), self._folder() as folder:
            if os.path.samestat(folder.status(self.name), self.status):
                if self.read() != _ENDED:
                    return False
                folder.unlink(self.name)
        return True

    def sign(self, began: float) -> None:
        """Write into it, once it is locked, a beat of this process, and go on: see heartbeats. Raises OSError.

        ``began``: in seconds since the epoch.
        """
        self._beats = Beats(self.subject, began)
        self._beat()
        _state.now.renewals.begin(self, self._renew)

    def _renew(self) -> None:
        with suppress(OSError):  # a full disk: whom no kernel tells of this process, then does not wait for it
            self._beat()

    def _beat(self) -> None:
        with self._lock:
            if self._descriptor >= 0 and self._beats is not None:
                self._write(self._beats.make_next() or _UNSEALED)

    @property
    def subject(self) -> str:
        """What a beat for it states."""
        return f"lease {self.name}"

    def read(self) -> bytes:
        """What is written in it, unverified; nothing where that cannot be read."""
        try:
            return os.pread(self._descriptor, _LARGEST, 0)
        except OSError:
            return b""

    def release(self) -> None:
        """End it, for all who wait: they look again. It is unlocked in any case."""
        _state.now.renewals.end(self)
        with self._lock, suppress(OSError):
            self._beats = None
            self._write(_ENDED)
            with self._folder() as folder:
                folder.unlink(self.name)
        self.close(unlock=True)

    def close(self, *, unlock: bool = False) -> None:
        """Leave it as it is. ``unlock``: for children of this process too, that may hold its descriptor."""
        _state.now.renewals.end(self)
        with self._lock:
            descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            with suppress(OSError):
                if unlock:
                    filesystem.flock(descriptor, fcntl.LOCK_UN)
            with suppress(OSError):
                filesystem.close(descriptor)

    def _write(self, content: bytes) -> None:
        os.pwrite(self._descriptor, content, 0)
        os.ftruncate(self._descriptor, len(content))

    @contextmanager
    def _folder(self) -> Iterator[folders.Folder]:
        with folders.open_subdirectory(self.root, [ours.FOLDER, ours.LEASES]) as folder:
            yield folder


def open_lease(ref: Ref) -> Lease:
    """The lease on this key, in its cache. Raises OSError, also for what is no lease of this user.

    Only with SAFECACHE_TRUST=shared are there leases which others can open, and so hold.
    """
    name = f"{ref.kind.word}-{hashlib.sha256(ref.key.encode()).hexdigest()[:32]}"
    shared = config.current().shared
    with folders.open_subdirectory(ref.root, [ours.FOLDER], make=True) as above:
        with suppress(FileExistsError):
            filesystem.mkdir(ours.LEASES, 0o777 if shared else 0o700, dir_fd=above.descriptor)
        with above.enter(ours.LEASES) as folder:
            if not shared:
                _close_to_others(folder)
            descriptor = folder.open(name, os.O_RDWR | os.O_CREAT, 0o666 if shared else 0o600)
    lease = Lease(ref.root, name, descriptor)
    try:
        if filesystem.is_scarce(descriptor):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        if not lease.is_genuine(shared=shared):
            raise OSError(f"the lease {name} is no lease")
    except OSError:
        lease.close()
        raise
    return lease


def _close_to_others(folder: folders.Folder) -> None:
    """Raises PermissionError for another user's folder."""
    status = filesystem.fstat(folder.descriptor)
    if status.st_uid != os.geteuid():
        raise PermissionError(errno.EPERM, "another user's leases", folder.place)
    if status.st_mode & 0o077:
        os.chmod(os.curdir, 0o700, dir_fd=folder.descriptor)
