"""Opening what may be anything: checked for its type, its owner and its size before it is read."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from safecache.errors import EntryRefusedError
from safecache.files import filesystem, folders, ownership
from safecache.reporting.kinds import Reason
from safecache.settings import config, units

__all__ = [
    "UnusableEntry",
    "check_private",
    "check_regular",
    "check_up_to",
    "copy_regular",
    "digest_regular",
    "holds",
    "read_end",
    "read_regular",
    "type_name",
]


class UnusableEntry(Exception):
    """Something lies in the entry's place that is not read: ``reason`` and ``detail`` say what, ``status`` which."""

    def __init__(self, reason: Reason, detail: str, status: os.stat_result) -> None:
        super().__init__(reason, detail, status)
        self.reason = reason
        self.detail = detail
        self.status = status

    def __str__(self) -> str:
        return f"it is {self.detail}"


def check_regular(status: os.stat_result) -> None:
    """Raise UnusableEntry for anything but a regular file of this user or root, or of anybody in a shared cache."""
    if not stat.S_ISREG(status.st_mode):
        raise UnusableEntry(Reason.NOT_A_FILE, f"a {type_name(status.st_mode)}", status)
    if ownership.foreign_owner(status) and not config.current().shared:
        raise UnusableEntry(Reason.FOREIGN_OWNER, f"of uid {status.st_uid}", status)


def check_private(path: str) -> Callable[[os.stat_result], None]:
    """What raises as check_regular() does, and EntryRefusedError for a file opened at ``path`` that others could write.

    Or could have put there.
    """

    def check(status: os.stat_result) -> None:
        check_regular(status)
        objection = ownership.why_opened_not_private(path, status)
        if objection is not None:
            raise EntryRefusedError(f"not private: {objection}")

    return check


def type_name(mode: int) -> str:
    """What a file of this mode is, in a word."""
    names = {stat.S_IFIFO: "FIFO", stat.S_IFDIR: "directory", stat.S_IFLNK: "symbolic link", stat.S_IFSOCK: "socket"}
    names[stat.S_IFREG] = "file"
    return names.get(stat.S_IFMT(mode), "device")


def check_up_to(most: int, check: Callable[[os.stat_result], None] = check_regular) -> Callable[[os.stat_result], None]:
    """What raises as ``check`` does, and UnusableEntry for a file of more than so many bytes."""

    def check_size(status: os.stat_result) -> None:
        check(status)
        if status.st_size > most:
            detail = f"of {units.write_size(status.st_size)}, and no more than {units.write_size(most)} are read"
            raise UnusableEntry(Reason.TOO_LARGE, detail, status)

    return check_size


_CHUNK = 1 << 20
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


def read_regular(
    path: str,
    check: Callable[[os.stat_result], None],
    *,
    flags: int = 0,
    limit: int = sys.maxsize,
    passing: frozenset[int] = filesystem.READING,
) -> bytes:
    """Up to ``limit`` bytes of ``path``, after ``check`` has let the opened file pass; it raises what it likes.

    A FIFO is not waited for, a terminal not taken over, and the check is of the very file that is read.
    ``passing``: the numbers of the errors to try again after.
    """

    def read() -> bytes:
        with _opened(path, check, flags) as (descriptor, size):
            # In one call, and another that says that there is no more: a large file is not copied on its way.
            try:
                return b"".join(_chunks(descriptor, size + 1, limit))
            except MemoryError as error:
                # As the kernel says it: then who reads this has one thing to expect.
                raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM), path) from error

    return filesystem.retried(read, passing)


def read_end(
    path: str,
    check: Callable[[os.stat_result], None],
    most: int,
    *,
    flags: int = 0,
    passing: frozenset[int] = filesystem.READING,
) -> tuple[bytes, int]:
    """The last ``most`` bytes of a file, or all that it has, and its size. Opened as read_regular does."""

    def read() -> tuple[bytes, int]:
        with _opened(path, check, flags) as (descriptor, size):
            start = max(0, size - most)
            content = filesystem.pread(descriptor, most, start)
            return content, start + len(content)

    return filesystem.retried(read, passing)


def holds(path: str, content: bytes, check: Callable[[os.stat_result], None], *, flags: int = 0) -> bool:
    """Whether that is all that is in the file, opened as read_regular does. One of another size is not read."""

    def compared() -> bool:
        with _opened(path, check, flags) as (descriptor, size):
            if size != len(content):
                return False
            left = memoryview(content)
            for chunk in _chunks(descriptor, _CHUNK, size):
                if chunk != left[: len(chunk)]:
                    return False
                left = left[len(chunk) :]
            return not left

    return filesystem.retried(compared, filesystem.READING)


def digest_regular(
    path: str, check: Callable[[os.stat_result], None], *, flags: int = 0, limit: int = sys.maxsize
) -> bytes:
    """The SHA-256 of up to ``limit`` bytes of a file that need not fit into memory, opened as read_regular does."""

    def digested() -> bytes:
        digest = hashlib.sha256()
        with _opened(path, check, flags) as (descriptor, _):
            for chunk in _chunks(descriptor, _CHUNK, limit):
                digest.update(chunk)
        return digest.digest()

    return filesystem.retried(digested, filesystem.READING)


def copy_regular(
    path: str,
    check: Callable[[os.stat_result], None],
    destination: str,
    *,
    flags: int = 0,
    limit: int = sys.maxsize,
) -> bytes:
    """Copy up to ``limit`` bytes of a file that need not fit into memory to a new one; the SHA-256 of what was copied.

    Leaves all or nothing.
    """
    return filesystem.retried(lambda: _copy(path, check, destination, flags, limit), filesystem.READING)


def _copy(path: str, check: Callable[[os.stat_result], None], destination: str, flags: int, limit: int) -> bytes:
    digest = hashlib.sha256()
    with _opened(path, check, flags) as (descriptor, _):
        copy = filesystem.open(destination, _NEW, 0o666)
        try:
            try:
                for chunk in _chunks(descriptor, _CHUNK, limit):
                    digest.update(chunk)
                    filesystem.write_all(copy, chunk)
            finally:
                filesystem.close(copy)
        except BaseException:
            filesystem.unlink(destination)
            raise
    return digest.digest()


def _chunks(descriptor: int, most: int, limit: int = sys.maxsize) -> Iterator[bytes]:
    while limit and (chunk := filesystem.read(descriptor, min(most, limit))):
        yield chunk
        limit -= len(chunk)


@contextmanager
def _opened(path: str, check: Callable[[os.stat_result], None], flags: int) -> Iterator[tuple[int, int]]:
    """The descriptor of the file, and the size that it has now."""
    # Who follows no link at the end, for anybody may have put it there, follows none on the way from the cache either.
    open_ = folders.open_within if flags & os.O_NOFOLLOW else filesystem.open
    descriptor = open_(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC | flags)
    try:
        status = filesystem.fstat(descriptor)
        check(status)
        yield descriptor, status.st_size
    finally:
        with suppress(OSError):  # nothing was written through it
            filesystem.close(descriptor)
