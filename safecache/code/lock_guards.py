"""Locks that torch takes around work that may be done already: a warm start does not wait for whoever holds one.

Correctness depends on no lock here: a file used without one was verified, and every build happens under its lock.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["Lock", "ask", "guarding", "source_of"]

# Inductor names a source's lock after the source.
_OF_SOURCE = re.compile(r"(c[a-z2-7]{51})\.lock")


class Lock:
    """A lock that torch is about to take, at ``path``; ``held`` once it is taken."""

    def __init__(self, path: str, take: Callable[[], object]) -> None:
        self.path = path
        self.held = False
        self._take = take

    def take(self) -> None:
        """Wait for the lock, as torch does, unless it is held already. Raises what torch's lock does."""
        if not self.held:
            self._take()
            self.held = True


Guard = Callable[[Lock], None]


class _Thread(threading.local):
    guard: Guard | None = None


_thread = _Thread()


@contextmanager
def guarding(guard: Guard | None) -> Iterator[None]:
    """In this block ``guard`` decides whether to take a lock that this thread asks for; None: take every lock."""
    outer, _thread.guard = _thread.guard, guard
    try:
        yield
    finally:
        _thread.guard = outer


def source_of(lock: Lock) -> str | None:
    """The cache key of the source that is built under the lock; None for any other lock."""
    found = _OF_SOURCE.fullmatch(os.path.basename(lock.path))
    return found[1] if found else None


def ask(path: str, take: Callable[[], object], release: Callable[[], object]) -> Lock | None:
    """Ask the guard about the lock at ``path``; returns the lock, ``held`` or not, and None if there is no guard.

    Raises what the guard does, with the lock released.
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
