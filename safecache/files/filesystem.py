"""The file-system calls of the store, by name and in one place, and which of their errors may pass.

Tests replace a name here to have that call fail, stop short or be noted; nothing of the store calls os by itself.
"""

from __future__ import annotations

import ctypes
import errno
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
    "identity",
    "link",
    "listdir",
    "lstat",
    "mkdir",
    "open",
    "pread",
    "read",
    "realpath",
    "rename",
    "retried",
    "rmdir",
    "sleep",
    "stat",
    "unlink",
    "utime",
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
# Where a path that is absolute begins, for who has no directory open.
NOWHERE = -100

# Of openat2(2), from Linux 5.6 on: its number, the same wherever CPython runs on Linux; struct open_how; and to follow
# no link, nor leave the directory.
_OPENAT2, _HOW, _BENEATH, _NO_LINKS = 437, struct.Struct("QQQ"), 0x08, 0x04
# What systems say that do not have it, or (seccomp) do not let it be called.
_NOT_THERE = frozenset({errno.ENOSYS, errno.EPERM, errno.EINVAL})


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


_ENTER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def descend(directory: int, path: str, flags: int = _ENTER) -> int:
    """A descriptor of what is at ``path`` below an open directory, itself a directory to look up names in by default.

    Of an absolute path, from the root of the file system on.

    One system call where the kernel has openat2(2); else one for each name, and one to close it. Raises OSError, and
    NotADirectoryError for a link, wherever on the way it lies.
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
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), path)  # as of openat2(2), which would have it come back
    if not rest:
        return open(first, flags | os.O_NOFOLLOW, dir_fd=directory)
    above = open(first or os.sep, _ENTER, dir_fd=directory)
    try:
        return _descend_by_steps(above, rest.lstrip(os.sep), flags)
    finally:
        close(above)


def _openat2(directory: int, path: str, flags: int) -> int:
    if "\0" in path:
        raise ValueError("embedded null character")  # as of os.open()
    how = _HOW.pack(flags | os.O_NOFOLLOW, 0, _NO_LINKS if os.path.isabs(path) else _NO_LINKS | _BENEATH)
    found: int = _system_call()(_OPENAT2, directory, os.fsencode(path), how, len(how))
    if found < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), path)
    return found


@cache
def _system_call() -> Callable[..., int]:
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
