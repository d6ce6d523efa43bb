"""Locks that torch takes around what may be done already: a warm start does not wait for whoever holds one.

Correctness hangs on no lock here: what is used without one was verified, and what is built is built under it.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["Lock", "ask", "guarding", "source_of"]

# Inductor's lock of a source has the name of that.
_OF_SOURCE = re.compile(r"(c[a-z2-7]{51})\.lock")


class Lock:
    """One that torch is about to take: at ``path``, and ``held`` once it is taken."""

    def __init__(self, path: str, take: Callable[[], object]) -> None:
        self.path = path
        self.held = False
        self._take = take

    def take(self) -> None:
        """Wait for it, as torch does, unless it is held."""
        if not self.held:
            self._take()
            self.held = True


Guard = Callable[[Lock], None]


class _Thread(threading.local):
    guard: Guard | None = None


_thread = _Thread()


@contextmanager
def guarding(guard: Guard | None) -> Iterator[None]:
    """In this block ``guard`` decides whether a lock that this thread asks for is taken; None: each is."""
    outer, _thread.guard = _thread.guard, guard
    try:
        yield
    finally:
        _thread.guard = outer


def source_of(lock: Lock) -> str | None:
    """The key of the source that is built under the lock; None for another one."""
    found = _OF_SOURCE.fullmatch(os.path.basename(lock.path))
    return found[1] if found else None


def ask(path: str, take: Callable[[], object], release: Callable[[], object]) -> Lock | None:
    """What has become of a lock, once the guard was asked; None if there is no guard.

    Raises what that raises, with the lock released.
    """
    guard = _thread.guard
    if guard is None:
        return None
    lock = Lock(path, take)
    try:
        guard(lock)
    except BaseException:
        if lock.held:
            release()
        raise
    return lock
