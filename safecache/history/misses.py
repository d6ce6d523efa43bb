"""What missed and is not saved yet. All that a process which only hits loads of how misses are explained."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from safecache.places.refs import Ref
from safecache.reporting.kinds import Kind
from safecache.session import Part

__all__ = ["await_save", "saved"]

# Those of this process, not of its parent, whose compiles are under way, or were never saved; and what is then to be
# done with the cache's path.
_waiting: Part[dict[tuple[Kind, str], Callable[[Ref], None]]] = Part(dict)
_MOST_WAITING = 256


def await_save(ref: Ref, then: Callable[[Ref], None]) -> None:
    """A lookup of this key has missed: call ``then`` when it is saved, in whichever cache, with what is."""
    waiting = _waiting.now
    while len(waiting) >= _MOST_WAITING:
        with suppress(KeyError, StopIteration):  # another thread has
            del waiting[next(iter(waiting))]
    waiting[ref.kind, ref.key] = then


def saved(ref: Ref) -> None:
    """Something was saved under this key, perhaps after a miss."""
    then = _waiting.now.pop((ref.kind, ref.key), None)
    if then is not None:
        then(ref)
