"""Errors that pass by themselves: of network file systems, and where another process has just removed a directory."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from typing import TypeVar

__all__ = ["patiently"]

_Result = TypeVar("_Result")

# NFS, GPFS and Lustre have them for a moment after another host renamed or removed a file (triton-lang/triton#11512).
_PASSING = frozenset({errno.ESTALE, errno.EBUSY, errno.ENOENT})
_PAUSES = (0.0, 0.01, 0.05)


def patiently(action: Callable[[], _Result]) -> _Result:
    """What ``action`` returns, tried up to four times within a tenth of a second. Raises its last error."""
    for pause in _PAUSES:
        try:
            return action()
        except OSError as error:
            if error.errno not in _PASSING:
                raise
        time.sleep(pause)
    return action()
