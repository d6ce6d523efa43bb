"""Torch's compile workers, started when something is to be compiled: a process that finds everything has none.

Torch starts them, which takes some seconds of CPU time, before it looks anything up. Here they are started once an
entry is not found, or, where another process compiles that, once a graph of it is not.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from safecache.session import Part, inherit

__all__ = ["are_postponed", "found", "has_found", "postpone", "start"]

# What starts them, in a list while that is postponed.
_postponed: Part[list[Callable[[], None]]] = Part(list, inherit)


class _Thread(threading.local):
    has_found = False


_thread = _Thread()


def postpone(begin: Callable[[], None]) -> None:
    """Call ``begin``, which starts the workers, once they are needed."""
    _postponed.now[:] = [begin]


def are_postponed() -> bool:
    """Whether they are to be started later."""
    return bool(_postponed.now)


def start() -> None:
    """They are needed now. Does nothing unless they were postponed."""
    postponed = _postponed.now
    while postponed:
        postponed.pop()()


@contextmanager
def found() -> Iterator[None]:
    """In this block this thread takes a kernel that it has found, for which torch asks whether there are workers."""
    before, _thread.has_found = _thread.has_found, True
    try:
        yield
    finally:
        _thread.has_found = before


def has_found() -> bool:
    """Whether this thread is in such a block."""
    return _thread.has_found
