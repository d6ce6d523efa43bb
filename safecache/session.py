"""State of this process that a forked child begins anew."""

from __future__ import annotations

import os
import threading

__all__ = ["ForkLock"]

_locks: list[ForkLock] = []


class ForkLock:
    """A reentrant lock of a module, which in a forked child no thread of the parent holds.

    The thread that forks while it holds the lock holds it in the child too.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        _locks.append(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def _renew(self) -> None:
        try:
            self._lock.release()
        except RuntimeError:  # another thread of the parent holds it, or nobody does
            self._lock = threading.RLock()
        else:
            self._lock.acquire()


def _renew_locks() -> None:
    for lock in _locks:
        lock._renew()


os.register_at_fork(after_in_child=_renew_locks)
