"""Locks that torch takes around work that may be done already: a warm start does not wait for whoever holds one.

Correctness depends on no lock here: a file used without one was verified, and every build happens under its lock.
"""

from __future__ import annotations

import logging
import math
import os
import re
import time
from collections.abc import Callable
from typing import Any, TypeVar

from safecache import compiles
from safecache.fs import holders
from safecache.places.refs import Ref
from safecache.ports import Waited, tell
from safecache.reporting import events, waits
from safecache.reporting.kinds import Kind
from safecache.settings import config

__all__ = ["Lock", "find_source_key", "guard", "release", "wait"]

_GUARDED = "_safecache_lock"
# Seconds between looks at who holds a lock.
_STEP = 0.25

# Inductor names a source's lock after the source.
_OF_SOURCE = re.compile(r"(c[a-z2-7]{51})\.lock")


class Lock:
    """Lock that torch is about to take, at ``path``; ``held`` is True once the lock is taken."""

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


def find_source_key(lock: Lock) -> str | None:
    """Return the cache key of the source that is built under the lock; None for any other lock."""
    found = _OF_SOURCE.fullmatch(os.path.basename(lock.path))
    return found[1] if found else None


T = TypeVar("T")


def guard(instance: Any, path: str, take: Callable[[], object], release: Callable[[], object]) -> bool:
    """Let this thread's guard decide whether to take upstream's lock ``instance``; return False if there is no guard.

    ``path``: the lock's. ``take``, ``release``: what upstream does to take and release it. Raises what the guard
    raises, with the lock released.
    """
    guard: Guard | None = compiles.current.lock_guard
    if guard is None:
        return False
    lock = Lock(path, take)
    try:
        guard(lock)
    except BaseException:
        if lock.held:
            release()
        raise
    setattr(instance, _GUARDED, lock)
    return True


def release(instance: Any, stock: Callable[[], T]) -> T | None:
    """Call ``stock``, which releases the lock ``instance``; return its result, None if the guard has not taken it."""
    lock: Lock | None = vars(instance).pop(_GUARDED, None)
    return stock() if lock is None or lock.held else None


def wait(path: str, most: float, attempt: Callable[[float], T]) -> T:
    """Call ``attempt`` until it has taken the lock at ``path``, and return its result.

    ``attempt``: waits for so many seconds, and raises filelock.Timeout. ``most``: seconds in all; negative: no limit.
    After five seconds a line says who holds the lock. Raises what ``attempt`` raises. That is Timeout sooner than
    ``most`` for a holder that makes no progress, or does not prove that it works for this user, or once the budget is
    spent.
    """
    began = time.perf_counter()
    try:
        return _wait_for_lock(path, most, attempt)
    finally:
        waited = time.perf_counter() - began
        tell(Waited(Ref(Kind.NATIVE_CODE, root=config.cache_directory() or ""), waited))


def _wait_for_lock(path: str, most: float, attempt: Callable[[float], T]) -> T:
    from filelock import Timeout

    try:
        return attempt(0.0)
    except Timeout as error:
        timeout = error
    watch, taken = holders.Watch(os.stat(path)), None

    def take(left: float) -> tuple[T] | None:
        try:
            return (attempt(min(_STEP, left)),)
        except Timeout:
            return None

    def say() -> None:
        until = f"at most {most:g} s (SAFECACHE_WAIT)" if most >= 0 else "as long as it takes, as without safecache"
        who = holders.describe(watch.holder)
        events.log_line(logging.WARNING, f"safecache: waiting for the lock {path}, {until}: {who} holds it.")

    try:
        taken = watch.wait(take, waits.get_remaining_seconds(most if most >= 0 else math.inf), say)
    finally:
        # Another user could let go of each lock just in time, and nothing would be there.
        waits.charge(watch.waited, in_vain=taken is None or not watch.is_own)
    if taken is None:
        raise timeout
    return taken[0]
