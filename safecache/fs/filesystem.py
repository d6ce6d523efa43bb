"""File-system calls of the store, all in one place, and the errnos after which a call is retried.

Tests replace a name here to make that call fail, stop short or be recorded. So the store opens, reads and writes files
through this module, not through ``os``.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import struct
from collections.abc import Callable, Iterable
from fcntl import flock
from functools import cache
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
    utime,
    write,
)
from os.path import realpath
from time import monotonic, sleep
from typing import TypeVar

__all__ = [
    "GONE",
    "LISTED",
    "NOWHERE",
    "PASSING",
    "READING",
    "close",
    "descend",
    "dup",
    "flock",
    "fstat",
    "fsync",
    "get_identity",
    "is_scarce",
    "link",
    "listdir",
    "lstat",
    "mkdir",
    "open",
    "pread",
    "read",
    "realpath",
    "rename",
    "retry",
    "rmdir",
    "sleep",
    "stat",
    "try_lock",
    "unlink",
    "utime",
    "write",
    "write_all",
]

# Another host has just replaced or removed the file (NFS: ESTALE, EBUSY), or a signal came (PEP 475 covers few calls).
PASSING = frozenset({errno.EINTR, errno.ESTALE, errno.EBUSY, errno.EAGAIN})
# Also errors that one process may meet and its neighbours do not. In a distributed job, a rank that alone compiles
# hangs all others, so a hit must not become a miss by chance.
READING = PASSING | {errno.EIO, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ETIMEDOUT}
# Another process has cleared the cache meanwhile, or another host's rename is not visible here yet.
GONE = PASSING | {errno.ENOENT}
# For a file that a directory or a list has just named.
LISTED = READING | GONE

# Seconds. After an error that itself took long, as over a network that is down, there is no retry.
_WAITS = (0.01, 0.05, 0.2)
_PATIENCE = 1.0

T = TypeVar("T")
# AT_FDCWD: the directory to pass with an absolute path.
NOWHERE = -100

# For openat2(2), since Linux 5.6: its number, the same wherever CPython runs on Linux; struct open_how; RESOLVE_BENEATH
# and RESOLVE_NO_SYMLINKS.
_OPENAT2, _HOW, _BENEATH, _NO_LINKS = 437, struct.Struct("QQQ"), 0x08, 0x04
# The errors of systems that lack it, or (by seccomp) do not allow it.
_NOT_THERE = frozenset({errno.ENOSYS, errno.EPERM, errno.EINVAL})


def retry(action: Callable[[], T], errors: frozenset[int], waits: Iterable[float] = _WAITS) -> T:
    """Call ``action`` and return its result; retry after an OSError whose errno is one of ``errors``.

    ``waits``: seconds to sleep before each retry. Raises the last error; once a second has passed, there is no retry.
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


def try_lock(descriptor: int, how: int = fcntl.LOCK_EX) -> bool:
    """Lock an open file (flock(2)) and return at once; False if another process has the lock. Raises OSError.

    ``how``: LOCK_EX, or LOCK_SH for a lock that several processes may hold.
    """
    try:
        flock(descriptor, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


_ENTER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def descend(directory: int, path: str, flags: int = _ENTER) -> int:
    """Open ``path`` below the open ``directory``, or below the root if it is absolute; return the descriptor.

    By default it must be a directory, and the descriptor only serves to look up names. Takes one system call where the
    kernel has openat2(2), else two for each name. Raises OSError; NotADirectoryError for a link anywhere on the way.
    """
    try:
        if _has_openat2():
            return _openat2(directory, path, flags)
        return _descend_by_steps(directory, path, flags)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path) from error
        error.filename = path
        raise


def _descend_by_steps(directory: int, path: str, flags: int) -> int:
    first, _, rest = path.partition(os.sep)
    if first == os.pardir:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), path)  # as openat2(2) does if it leaves the directory
    if not rest:
        return open(first, flags | os.O_NOFOLLOW, dir_fd=directory)
    above = open(first or os.sep, _ENTER, dir_fd=directory)
    try:
        return _descend_by_steps(above, rest.lstrip(os.sep), flags)
    finally:
        close(above)


def _openat2(directory: int, path: str, flags: int) -> int:
    if "\0" in path:
        raise ValueError("embedded null character")  # as os.open() does
    how = _HOW.pack(flags | os.O_NOFOLLOW, 0, _NO_LINKS if os.path.isabs(path) else _NO_LINKS | _BENEATH)
    found: int = _get_system_call()(_OPENAT2, directory, os.fsencode(path), how, len(how))
    if found < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), path)
    return found


@cache
def _get_system_call() -> Callable[..., int]:
    call = ctypes.CDLL(None, use_errno=True).syscall
    call.restype = ctypes.c_long
    call.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t]
    return call


@cache
def _has_openat2() -> bool:
    try:
        descriptor = open("/", _ENTER)
        try:
            close(_openat2(descriptor, ".", _ENTER))
        finally:
            close(descriptor)
    except (OSError, AttributeError) as error:
        return getattr(error, "errno", errno.ENOSYS) not in _NOT_THERE
    return True


def get_identity(status: stat_result) -> list[int]:
    """Return device, inode, size and ctime of a file. No write keeps all four, since only the kernel sets the ctime."""
    return [status.st_dev, status.st_ino, status.st_size, status.st_ctime_ns]


# Descriptors. Torch itself needs about 10 at once.
_SPARE = 16


def is_scarce(descriptor: int) -> bool:
    """Tell whether fewer than 16 descriptors are left; torch needs about 10 at once. ``descriptor``: any open one."""
    spare = []
    try:
        for _ in range(_SPARE):
            spare.append(os.dup(descriptor))
    except OSError:
        return True
    finally:
        for each in spare:
            os.close(each)
    return False


def write_all(descriptor: int, content: bytes) -> None:
    """Write all of ``content``, in as many calls as necessary. Raises OSError, also if a call writes nothing."""
    left = memoryview(content)
    while left:
        written = write(descriptor, left)
        if not written:  # as with a faulty FUSE server: this would never end
            raise OSError(errno.EIO, "nothing was written")
        left = left[written:]
