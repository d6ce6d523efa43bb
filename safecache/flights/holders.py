"""Whether the process that holds a lease still gets anywhere, as far as /proc tells, proc(5)."""

from __future__ import annotations

import os
import time
from contextlib import suppress

from safecache.flights.leases import Holder

__all__ = ["Watch", "describe"]

# Seconds: how often to look, and how long a process without a moment on any core counts as alive. A compile that waits
# wakes up several times a second.
_INTERVAL = 1.0
STALLED = 10.0
_MOST = 1000


class Watch:
    """Watches one holder of a lease, for as long as somebody waits for it."""

    def __init__(self, holder: Holder | None) -> None:
        self._is_signed = holder is not None
        self._pid = holder.pid if holder is not None and holder.is_here else 0
        self._ran, self._moved = -1, time.monotonic()
        self._looked = 0.0

    def is_stalled(self) -> bool:
        """Whether it, and all that it has started, has not run for STALLED seconds; False where that is not known.

        One that has not said in that time who it is gets nowhere either: it is the first that it does.
        """
        now = time.monotonic()
        if not self._is_signed:
            return now - self._moved >= STALLED
        if not self._pid or now - self._looked < _INTERVAL:
            return False
        self._looked = now
        ran = _ran(self._pid)
        if ran is None or ran != self._ran:
            self._ran, self._moved = ran or -1, now
        return now - self._moved >= STALLED


def describe(holder: Holder | None) -> str:
    """In words, without its arguments, in which a secret can be."""
    if holder is None or not holder.is_here:
        return "a process that is not seen from here"
    name = "gone"
    with suppress(OSError), open(f"/proc/{holder.pid}/comm", errors="replace") as file:
        name = file.read().strip()
    return f"process {holder.pid} ({name}), since {max(0.0, time.time() - holder.began):.0f} s,"


def _ran(pid: int) -> int | None:
    """How many nanoseconds the threads of a process and of its descendants have run in all; None if that is unknown."""
    total, left, seen = 0, [pid], 0
    while left and seen < _MOST:
        each = left.pop()
        seen += 1
        try:
            threads = os.listdir(f"/proc/{each}/task")
        except OSError:
            continue
        for thread in threads:
            with suppress(OSError, ValueError, IndexError):
                total += int(_read(f"/proc/{each}/task/{thread}/schedstat").split()[0])
                left += map(int, _read(f"/proc/{each}/task/{thread}/children").split())
    return total or None


def _read(path: str) -> str:
    with open(path) as file:
        return file.read()
