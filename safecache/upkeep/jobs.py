"""What running processes have in use of a cache: libraries that they have mapped, and locks that they hold."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from safecache.files import folders

__all__ = ["lock", "locked", "mapped", "running_torch"]


def mapped() -> dict[tuple[str, int], int]:
    """Which process has a file mapped, by the file's name and inode.

    Of this host, and of what this user may look into. Not by path, which a container sees otherwise, nor by device,
    which overlayfs tells otherwise.
    """
    found: dict[tuple[str, int], int] = {}
    for pid in os.listdir("/proc"):
        if pid.isdigit():
            # Gone since, or of another user.
            with suppress(OSError), open(f"/proc/{pid}/maps", encoding="utf-8", errors="surrogateescape") as file:
                for line in file:
                    fields = line.rstrip("\n").split(None, 5)
                    if len(fields) == 6 and fields[5].startswith("/"):
                        name = os.path.basename(fields[5].removesuffix(" (deleted)"))
                        found.setdefault((name, int(fields[4])), int(pid))
    return found


def running_torch(found: Mapping[tuple[str, int], int]) -> int | None:
    """A process that runs torch, if there is one among those that have files ``mapped``."""
    return next((pid for (name, _), pid in found.items() if name.startswith("libtorch_")), None)


@contextmanager
def locked(path: str | None) -> Iterator[bool]:
    """Hold the lock file at ``path`` for this block; False, and it is not held, where another process has it.

    Torch looks for a library and builds it under such a lock. Where there is none, nobody builds.
    """
    descriptor = _open(path) if path is not None else None
    if descriptor is None:
        yield True
        return
    try:
        yield lock(descriptor)
    finally:
        os.close(descriptor)


def _open(path: str) -> int | None:
    try:
        return folders.open_within(path, os.O_RDWR | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        return None


def lock(descriptor: int) -> bool:
    """Lock what is open there, at once; False if another process has locked it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        # A file system without locks has nobody who holds one.
        return error.errno not in (errno.EWOULDBLOCK, errno.EACCES)
    return True
