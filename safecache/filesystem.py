"""The file-system calls of the store, by name and in one place, and which of their errors may pass.

Tests replace a name here to have that call fail, stop short or be noted; nothing of the store calls os by itself.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable
from fcntl import flock
from os import (
    close,
    dup,
    fstat,
    fsync,
    link,
    listdir,
    lstat,
    mkdir,
    open,
    pread,
    read,
    rename,
    rmdir,
    stat,
    stat_result,
    unlink,
    write,
)
from time import monotonic, sleep
from typing import TypeVar

__all__ = [
    "GONE",
    "LISTED",
    "PASSING",
    "READING",
    "close",
    "dup",
    "flock",
    "fstat",
    "fsync",
    "identity",
    "link",
    "listdir",
    "lstat",
    "mkdir",
    "open",
    "pread",
    "read",
    "rename",
    "retried",
    "rmdir",
    "sleep",
    "stat",
    "unlink",
    "write",
    "write_all",
]

# Another host has just replaced or removed it (NFS says ESTALE, or EBUSY), or a signal came (PEP 475 covers few calls).
PASSING = frozenset({errno.EINTR, errno.ESTALE, errno.EBUSY, errno.EAGAIN})
# And what a process may meet that its neighbours do not. In a distributed job a rank that alone compiles hangs all of
# them, so that a hit must not become a miss by chance.
READING = PASSING | {errno.EIO, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ETIMEDOUT}
# Another process has cleared the cache in between; or another host has moved there what is not yet seen here.
GONE = PASSING | {errno.ENOENT}
# Of what a directory or a list has just named.
LISTED = READING | GONE

# Seconds. An error that itself took long, as over a network that is down, is not waited for again.
_WAITS = (0.01, 0.05, 0.2)
_PATIENCE = 1.0

T = TypeVar("T")


def retried(action: Callable[[], T], errors: frozenset[int], waits: Iterable[float] = _WAITS) -> T:
    """What ``action`` returns, tried again after each wait if it raises OSError with one of these numbers.

    Raises what the last try raised.
    """
    end = monotonic() + _PATIENCE
    for wait in waits:
        try:
            return action()
        except OSError as error:
            if error.errno not in errors or monotonic() > end:
                raise
        sleep(wait)
    return action()


def identity(status: stat_result) -> list[int]:
    """What no writer can leave as it was: the kernel sets the time of change, and only to the time that it is."""
    return [status.st_dev, status.st_ino, status.st_size, status.st_ctime_ns]


def write_all(descriptor: int, content: bytes) -> None:
    """Write ``content``, in as many calls as that takes. Raises OSError."""
    left = memoryview(content)
    while left:
        written = write(descriptor, left)
        if not written:  # as from a FUSE server at fault: without end
            raise OSError(errno.EIO, "nothing was written")
        left = left[written:]
