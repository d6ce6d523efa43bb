"""Opening what may be anything: a name in a directory that others can write, or a path from a setting."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from typing import BinaryIO

__all__ = ["copy_regular", "digest_regular", "read_regular"]

_CHUNK = 1 << 20


def read_regular(path: str, check: Callable[[os.stat_result], None], *, flags: int = 0, limit: int = -1) -> bytes:
    """Up to ``limit`` bytes of ``path``, after ``check`` has let the opened file pass; it raises what it likes.

    A FIFO is not waited for, a terminal not taken over, and the check is of the very file that is read.
    """
    with _open(path, check, flags) as file:
        return file.read(limit)


def digest_regular(path: str, check: Callable[[os.stat_result], None], *, flags: int = 0) -> bytes:
    """The SHA-256 of a file that need not fit into memory, opened as read_regular does."""
    digest = hashlib.sha256()
    with _open(path, check, flags) as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.digest()


def copy_regular(path: str, check: Callable[[os.stat_result], None], destination: str, *, flags: int = 0) -> bytes:
    """Copy a file that need not fit into memory to a new one; the SHA-256 of what was copied."""
    digest = hashlib.sha256()
    with _open(path, check, flags) as file, open(destination, "xb") as copy:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            copy.write(chunk)
    return digest.digest()


def _open(path: str, check: Callable[[os.stat_result], None], flags: int) -> BinaryIO:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC | flags)
    try:
        check(os.fstat(descriptor))
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise
