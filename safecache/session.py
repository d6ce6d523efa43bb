"""State of this process: what a forked child and ``safecache.reset()`` begin anew, and what is done at its end."""

from __future__ import annotations

import atexit
import os
import sys
import threading

# Not imported from typing, as in safecache/__init__.py.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Generic, TypeVar

    State = TypeVar("State")
    Result = TypeVar("Result")
else:
    State = None

    class Generic:
        def __class_getitem__(cls, _: object) -> type:
            return cls


__all__ = ["ForkLock", "Part", "call_at_exit", "fork_lock", "inherit", "reset"]

_known: list[Part[Any] | ForkLock] = []


def inherit(state: State) -> State:
    """Return ``state`` unchanged. Given to a Part, it lets a forked child keep its parent's state."""
    return state


class Part(Generic[State]):
    """State of one module, in ``now``: what ``make`` returns, made anew by reset().

    ``in_child``: returns the state of a forked child, given its parent's; without it ``make`` is called there too.
    Another thread may replace ``now`` between two reads: read it once where that matters. ``lock``: to be held by
    writers. A state may have a method end(), which reset() calls before it is replaced.
    """

    def __init__(self, make: Callable[[], State], in_child: Callable[[State], State] | None = None) -> None:
        self.lock = ForkLock()
        self.now = make()
        self._make, self._in_child = make, in_child
        _known.append(self)

    def reset(self) -> None:
        """Make the state anew, after a call of the old state's end(), if it has that method."""
        end = getattr(self.now, "end", None)
        if end is not None:
            end()
        self.now = self._make()

    def renew(self) -> None:
        """Replace the state in a forked child."""
        self.now = self._make() if self._in_child is None else self._in_child(self.now)


def reset() -> None:
    """Forget what this process has learned and said: counters, warnings, digests, keys, and which directories failed.

    For tests, and after a change of keys or directories. Hooks and settings stay as they are.
    """
    for part in reversed(_known):  # who uses others before these
        if isinstance(part, Part):
            part.reset()


def call_at_exit(work: Callable[[], Result]) -> Callable[[], Result]:
    """Call ``work`` once when this process ends in order, also in a child of multiprocessing. Returns ``work``.

    Such a child runs no handlers of atexit, but multiprocessing's own finalizers. A child that this process forks later
    may call ``work`` too.
    """
    multiprocessing = sys.modules.get("multiprocessing.util")
    atexit.register(work if multiprocessing is None else multiprocessing.Finalize(None, work, exitpriority=10))
    return work


class ForkLock:
    """Reentrant lock of a module, free in a forked child if another thread of the parent held it.

    If the thread that forks holds it, the child holds it too.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        _known.append(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def renew(self) -> None:
        """Replace the lock in a forked child, unless the thread that forked holds it."""
        try:
            self._lock.release()
        except RuntimeError:  # another thread of the parent holds it, or nobody does
            self._lock = threading.RLock()
        else:
            self._lock.acquire()


# Nobody forks while another thread holds it.
fork_lock = ForkLock()


def _renew_parts() -> None:
    """Release the lock and renew each part; what fails in one hinders no other."""
    fork_lock.__exit__()
    for each in list(_known):
        try:
            each.renew()
        except Exception:
            sys.excepthook(*sys.exc_info())


os.register_at_fork(before=fork_lock.__enter__, after_in_parent=fork_lock.__exit__, after_in_child=_renew_parts)
