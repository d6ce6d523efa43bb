"""What missed and is not saved yet. All that a process which only hits loads of how misses are explained."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress

from safecache.reporting.kinds import Kind

__all__ = ["await_save", "reset", "saved"]

# Those of this process whose compiles are under way, or were never saved; and what is to be done with the cache's path.
_waiting: dict[tuple[Kind, str], Callable[[str], None]] = {}
_MOST_WAITING = 256


def await_save(kind: Kind, key: str, then: Callable[[str], None]) -> None:
    """A lookup of this key has missed: call ``then`` with the cache's root when it is saved."""
    while len(_waiting) >= _MOST_WAITING:
        with suppress(KeyError, StopIteration):  # another thread has
            del _waiting[next(iter(_waiting))]
    _waiting[kind, key] = then


def saved(kind: Kind, key: str, root: str) -> None:
    """Something was saved under this key in the cache ``root``, perhaps after a miss."""
    then = _waiting.pop((kind, key), None)
    if then is not None:
        then(root)


# A forked child has not begun the compiles of its parent.


def reset() -> None:
    """Forget what waits for a save."""
    _waiting.clear()


os.register_at_fork(after_in_child=_waiting.clear)
