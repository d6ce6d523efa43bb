"""Reads of files whose type, owner and size are untrusted, and so checked first."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from safecache.errors import EntryRefusedError
from safecache.fs import filesystem, folders, ownership
from safecache.reporting.kinds import Reason
from safecache.reporting.report import Refusal
from safecache.settings import config, units

__all__ = [
    "OpenFile",
    "UnusableEntry",
    "check_private",
    "check_regular",
    "check_up_to",
    "copy_regular",
    "digest_regular",
    "has_content",
    "name_type",
    "read_end",
    "read_regular",
]


class UnusableEntry(Exception):
    """Objection to reading a file in an entry's place: ``reason`` and ``detail`` say why, ``status`` identifies it."""

    def __init__(self, reason: Reason, detail: str, status: os.stat_result) -> None:
        super().__init__(reason, detail, status)
        self.reason = reason
        self.detail = detail
        self.status = status

    def __str__(self) -> str:
        return f"it is {self.detail}"

    @property
    def refusal(self) -> Refusal:
        """Refusal of a file that is not even read."""
        return Refusal(self.reason, str(self), found=self.status)


def check_regular(status: os.stat_result) -> None:
    """Raise UnusableEntry for anything but a regular file of this user or root, or of anybody in a shared cache."""
    if not stat.S_ISREG(status.st_mode):
        raise UnusableEntry(Reason.NOT_A_FILE, f"a {name_type(status.st_mode)}", status)
    if ownership.is_foreign(status) and not config.current().shared:
        raise UnusableEntry(Reason.FOREIGN_OWNER, f"of uid {status.st_uid}", status)


def check_private(path: str) -> Callable[[os.stat_result], None]:
    """Return a check that raises as check_regular(), and EntryRefusedError if others could have written ``path``."""

    def check(status: os.stat_result) -> None:
        check_regular(status)
        objection = ownership.find_opened_exposure(path, status)
        if objection is not None:
            raise EntryRefusedError(f"not private: {objection}")

    return check


def name_type(mode: int) -> str:
    """Return the file type in ``mode`` (stat(2)) as a word, such as FIFO."""
    names = {stat.S_IFIFO: "FIFO", stat.S_IFDIR: "directory", stat.S_IFLNK: "symbolic link", stat.S_IFSOCK: "socket"}
    names[stat.S_IFREG] = "file"
    return names.get(stat.S_IFMT(mode), "device")


def check_up_to(most: int, check: Callable[[os.stat_result], None] = check_regular) -> Callable[[os.stat_result], None]:
    """Return a check that raises as ``check`` does, and UnusableEntry for a file of more than ``most`` bytes."""

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
    """Read and return up to ``limit`` bytes of ``path``, once ``check`` accepts the status of the opened file.

    Raises what ``check`` raises, and OSError. Does not wait for a FIFO, nor take over a terminal. ``flags``: more flags
    of open(2); with O_NOFOLLOW, no link inside a known cache is followed. ``passing``: the errnos to retry after.
    """

    def read() -> bytes:
        with _open_scope(path, check, flags) as (descriptor, size):
            # In one call, and another that finds the end: a large file is not copied.
            try:
                return b"".join(_iter_chunks(descriptor, size + 1, limit))
            except MemoryError as error:
                # As the kernel reports it, so that callers need to handle only that.
                raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM), path) from error

    return filesystem.retry(read, passing)


def read_end(
    path: str,
    check: Callable[[os.stat_result], None],
    most: int,
    *,
    flags: int = 0,
    passing: frozenset[int] = filesystem.READING,
) -> tuple[bytes, int]:
    """Return the last ``most`` bytes of a file, or all, and its size in bytes. Opens and raises as read_regular()."""

    def read() -> tuple[bytes, int]:
        with _open_scope(path, check, flags) as (descriptor, size):
            start = max(0, size - most)
            content = filesystem.pread(descriptor, most, start)
            return content, start + len(content)

    return filesystem.retry(read, passing)


class OpenFile:
    """Open file, to be read at any position: if another file takes its name meanwhile, this one is still read.

    Opens and raises as read_regular(). ``size``: in bytes, when it was opened. The object's last reference closes it.
    """

    def __init__(self, path: str, check: Callable[[os.stat_result], None]) -> None:
        self._descriptor, self.size = filesystem.retry(lambda: _open_file(path, check, 0), filesystem.READING)
        weakref.finalize(self, _close, self._descriptor)

    def read(self, start: int, most: int) -> bytes:
        """Return at most ``most`` bytes from ``start`` on. Raises OSError."""
        left, at, parts = min(most, max(0, self.size - start)), start, list[bytes]()
        # The kernel reads 2 GB at once at most.
        while left and (part := filesystem.pread(self._descriptor, left, at)):
            parts.append(part)
            left, at = left - len(part), at + len(part)
        return b"".join(parts)


def has_content(path: str, content: bytes, check: Callable[[os.stat_result], None], *, flags: int = 0) -> bool:
    """Tell whether a file holds exactly ``content``. Opens and raises as read_regular(), but reads no other size."""

    def compare_content() -> bool:
        with _open_scope(path, check, flags) as (descriptor, size):
            if size != len(content):
                return False
            left = memoryview(content)
            for chunk in _iter_chunks(descriptor, _CHUNK, size):
                if chunk != left[: len(chunk)]:
                    return False
                left = left[len(chunk) :]
            return not left

    return filesystem.retry(compare_content, filesystem.READING)


def digest_regular(
    path: str, check: Callable[[os.stat_result], None], *, flags: int = 0, limit: int = sys.maxsize
) -> bytes:
    """Return the SHA-256 (32 bytes) of up to ``limit`` bytes of a file. Opens and raises as read_regular()."""

    def compute_digest() -> bytes:
        digest = hashlib.sha256()
        with _open_scope(path, check, flags) as (descriptor, _):
            for chunk in _iter_chunks(descriptor, _CHUNK, limit):
                digest.update(chunk)
        return digest.digest()

    return filesystem.retry(compute_digest, filesystem.READING)


def copy_regular(
    path: str,
    check: Callable[[os.stat_result], None],
    destination: str,
    *,
    flags: int = 0,
    limit: int = sys.maxsize,
) -> bytes:
    """Copy up to ``limit`` bytes of a file to the new file ``destination``; return their SHA-256 (32 bytes).

    The file need not fit into memory. Opens and raises as read_regular(). Raises FileExistsError if ``destination``
    exists; a partial copy is removed.
    """
    return filesystem.retry(lambda: _copy_file(path, check, destination, flags, limit), filesystem.READING)


def _copy_file(path: str, check: Callable[[os.stat_result], None], destination: str, flags: int, limit: int) -> bytes:
    digest = hashlib.sha256()
    with _open_scope(path, check, flags) as (descriptor, _):
        copy = filesystem.open(destination, _NEW, 0o666)
        try:
            try:
                for chunk in _iter_chunks(descriptor, _CHUNK, limit):
                    digest.update(chunk)
                    filesystem.write_all(copy, chunk)
            finally:
                filesystem.close(copy)
        except BaseException:
            filesystem.unlink(destination)
            raise
    return digest.digest()


def _iter_chunks(descriptor: int, most: int, limit: int = sys.maxsize) -> Iterator[bytes]:
    while limit and (chunk := filesystem.read(descriptor, min(most, limit))):
        yield chunk
        limit -= len(chunk)


@contextmanager
def _open_scope(path: str, check: Callable[[os.stat_result], None], flags: int) -> Iterator[tuple[int, int]]:
    """Open the file for this block; yield a descriptor of it, and its current size in bytes."""
    descriptor, size = _open_file(path, check, flags)
    try:
        yield descriptor, size
    finally:
        _close(descriptor)


def _open_file(path: str, check: Callable[[os.stat_result], None], flags: int) -> tuple[int, int]:
    # If no link at the end is followed, as anybody may have put it there, none on the way inside the cache is either.
    open_ = folders.open_within if flags & os.O_NOFOLLOW else filesystem.open
    descriptor = open_(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC | flags)
    try:
        status = filesystem.fstat(descriptor)
        check(status)
    except BaseException:
        _close(descriptor)
        raise
    return descriptor, status.st_size


def _close(descriptor: int) -> None:
    with suppress(OSError):  # nothing was written through it
        filesystem.close(descriptor)
