"""Torch's compile workers, started when something is to be compiled: a process that finds everything has none.

Torch starts them, which takes some seconds of CPU time, before it looks anything up. Here they are started once an
entry is not found, or, where another process compiles that, once a graph of it is not.
"""

from __future__ import annotations

from collections.abc import Callable

from safecache.session import Part, inherit

__all__ = ["are_postponed", "postpone", "start"]

# What starts them, in a list while that is postponed.
_postponed: Part[list[Callable[[], None]]] = Part(list, inherit)


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
