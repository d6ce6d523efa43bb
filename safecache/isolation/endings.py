"""How jobs end that do not end with a reply."""

from __future__ import annotations

import math
import os
import re
import signal
from typing import Any, NamedTuple

from safecache.isolation.connection import Ended

__all__ = ["Ending", "is_out_of_memory", "of_death", "of_garbage", "of_memory", "of_timeout"]

# What C++, LLVM, glibc, Python and ptxas say when no memory is to be had.
_OUT_OF_MEMORY = re.compile(
    r"out of memory|std::bad_alloc|MemoryError|cannot allocate memory|memory allocation fail|allocation failed",
    re.IGNORECASE,
)
# Code that does not look whether it was given memory ends otherwise, such as with SIGSEGV.
_FULL = 0.9
_ERRORS = ("MemoryError", "builtins.MemoryError")


class Ending(NamedTuple):
    """``how`` and ``number``: "signal" and which; "exit", its status; "timeout" and "memory", the seconds and bytes."""

    how: str
    number: int


def of_timeout(seconds: float) -> Ending:
    """The job was killed because its time was up."""
    return Ending("timeout", math.ceil(seconds))


def of_memory(size: int) -> Ending:
    """The job wanted more memory than its limit."""
    return Ending("memory", size)


def of_death(ended: Ended, output: str, memory: int) -> Ending:
    """The worker was gone. For want of memory, if it said so, or else had as good as all that it was allowed."""
    if _OUT_OF_MEMORY.search(output) or ended.peak >= _FULL * memory:
        return of_memory(memory)
    if ended.status is None:
        return Ending("signal", signal.SIGKILL)  # which was sent, and has had no effect yet
    if ended.status < 0:
        return Ending("signal", -ended.status)
    return Ending("exit", ended.status)


def of_garbage() -> Ending:
    """What the worker replied was none."""
    return Ending("exit", os.EX_PROTOCOL)


def is_out_of_memory(reply: dict[str, Any], output: str) -> bool:
    """Whether a job failed because of its limit, and not of the kernel: it need not end the worker."""
    error = reply.get("error")
    if not isinstance(error, dict):
        return False
    return error.get("type") in _ERRORS or bool(_OUT_OF_MEMORY.search(f"{error.get('message')} {output}"))
