"""Opening what may be anything: a name in a directory that others can write, or a path from a setting."""

from __future__ import annotations

import os
from collections.abc import Callable

__all__ = ["read_regular"]


def read_regular(path: str, check: Callable[[os.stat_result], None], *, flags: int = 0, limit: int = -1) -> bytes:
    """Up to ``limit`` bytes of ``path``, after ``check`` has let the opened file pass; it raises what it likes.

    A FIFO is not waited for, a terminal not taken over, and the check is of the very file that is read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC | flags)
    try:
        check(os.fstat(descriptor))
    except BaseException:
        os.close(descriptor)
        raise
    with os.fdopen(descriptor, "rb") as file:
        return file.read(limit)
