"""Locks that torch takes around work that may be done already: a warm start does not wait for whoever holds one.

Correctness depends on no lock here: a file used without one was verified, and every build happens under its lock.
"""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

from safecache.history import lookups
from safecache.history.lookups import Time
from safecache.reporting import events
from safecache.reporting.kinds import Kind
from safecache.settings import config

__all__ = ["NOTICE", "Lock", "ask", "guarding", "source_of", "wait"]

# Seconds after which a wait is reported: a server that is probed has not many more.
NOTICE = 5.0
_LOCKS = "/proc/locks"

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


T = TypeVar("T")


def wait(path: str, most: float, attempt: Callable[[float], T]) -> T:
    """What ``attempt`` returns, which waits for the lock so many seconds, without end if negative; ``most`` in all.

    After five seconds a line says who holds it. Raises what ``attempt`` does: filelock.Timeout at the end.
    """
    began = time.perf_counter()
    try:
        return _wait(path, most, attempt)
    finally:
        waited = time.perf_counter() - began
        lookups.add_seconds(Kind.NATIVE_CODE, Time.WAITED, waited, config.cache_directory() or "")


def _wait(path: str, most: float, attempt: Callable[[float], T]) -> T:
    if 0 <= most <= NOTICE:
        return attempt(most)
    from filelock import Timeout

    try:
        return attempt(NOTICE)
    except Timeout:
        limit = f"for at most {most:g} s (SAFECACHE_LOCK_TIMEOUT)" if most >= 0 else "without a limit, as torch does"
        events.say(logging.WARNING, f"safecache: waiting for the lock {path} {limit}: {_holder(path)} holds it.")
    return attempt(most - NOTICE if most >= 0 else most)


def _holder(path: str) -> str:
    """The process that the kernel names in /proc/locks, proc(5); without the arguments, in which a secret can be."""
    with suppress(OSError, ValueError, IndexError):
        status = os.stat(path)
        place = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
        with open(_LOCKS) as file:
            held = [fields for fields in map(str.split, file) if fields[5] == place and fields[1] == "FLOCK"]
        pid = int(held[0][4])
        if pid <= 0:
            return "a process of another container"
        if pid == os.getpid():
            return "another thread of this process"
        with open(f"/proc/{pid}/comm", errors="replace") as file:
            return f"process {pid} ({file.read().strip()})"
    return "a process that the kernel does not name, perhaps on another host,"
