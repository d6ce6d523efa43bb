"""This process: what begins anew in a forked child and at ``safecache.reset()``, and what is done at its end."""

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
    """The state of a Part in a forked child: that of its parent."""
    return state


class Part(Generic[State]):
    """The state of one module, in ``now``: what ``make`` returns, made anew by reset().

    ``in_child`` returns the state of a forked child, given its parent's; without it that is made anew too. Who reads
    ``now`` twice may be given two states: read it once where that matters. ``lock``: for those who change it.
    """

    def __init__(self, make: Callable[[], State], in_child: Callable[[State], State] | None = None) -> None:
        self.lock = ForkLock()
        self.now = make()
        self._make, self._in_child = make, in_child
        _known.append(self)

    def reset(self) -> None:
        """Make it anew; a state that has a method end() is ended before."""
        end = getattr(self.now, "end", None)
        if end is not None:
            end()
        self.now = self._make()

    def renew(self) -> None:
        """As in a forked child."""
        self.now = self._make() if self._in_child is None else self._in_child(self.now)


def reset() -> None:
    """Forget what this process has learned and said: counters, warnings, digests, keys, and which directories failed.

    As a process that begins: for tests, and after a change of keys or directories. Hooks and settings stay as they are.
    """
    for part in reversed(_known):  # who uses others before these
        if isinstance(part, Part):
            part.reset()


def call_at_exit(work: Callable[[], Result]) -> Callable[[], Result]:
    """Call ``work`` once when this process ends in order, also one that multiprocessing has started. Returns ``work``.

    In that one handlers of atexit are not run. A child that this process forks later may call it too.
    """
    multiprocessing = sys.modules.get("multiprocessing.util")
    atexit.register(work if multiprocessing is None else multiprocessing.Finalize(None, work, exitpriority=10))
    return work


class ForkLock:
    """A reentrant lock of a module, which in a forked child no thread of the parent holds.

    The thread that forks while it holds the lock holds it in the child too.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        _known.append(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def renew(self) -> None:
        """As in a forked child."""
        try:
            self._lock.release()
        except RuntimeError:  # another thread of the parent holds it, or nobody does
            self._lock = threading.RLock()
        else:
            self._lock.acquire()


# Nobody forks while another thread holds it.
fork_lock = ForkLock()


def _after_in_child() -> None:
    """Release the lock and renew each part; what fails in one hinders no other."""
    fork_lock.__exit__()
    for each in list(_known):
        try:
            each.renew()
        except Exception:
            sys.excepthook(*sys.exc_info())


os.register_at_fork(before=fork_lock.__enter__, after_in_parent=fork_lock.__exit__, after_in_child=_after_in_child)
