"""Holders of file locks: the process that the kernel names, and whether /proc shows it making progress, proc(5).

The kernel names no process in another container or on another host. Such a process is proven by its heartbeats.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple, TypeVar

from safecache.fs import ownership
from safecache.reporting import events, waits
from safecache.session import Part, inherit
from safecache.settings import config

__all__ = ["Holder", "Watch", "describe", "find_holder", "tell_end", "tell_wait"]

# Seconds: how often to look, and how long a process without a moment on any core counts as alive. A compile that waits
# wakes up several times a second.
_INTERVAL = 0.5
STALLED = 10.0
_MOST = 1000
_LOCKS = "/proc/locks"


class _State:
    def __init__(self) -> None:
        # Seconds that were waited for holders which proved nothing, by uid: that of the holder, or else of the file.
        self.unproven: dict[int, float] = {}
        # Who was waited for until the time was up.
        self.given_up: set[tuple[str, int]] = set()
        self.is_told = False


_state: Part[_State] = Part(_State, inherit)

_WAITING = (
    "safecache: waiting for {0} to finish {1}; compiling it here after {2:g} s at most"
    " (SAFECACHE_WAIT). Help: SAFECACHE_WAIT=compile=0 disables waiting"
)
_GIVEN_UP = (
    "safecache: gave up waiting for {0}: {1} not finished after {2:.0f} s, or the process is not running."
    " Compiling it here; not waiting for that process again"
)


T = TypeVar("T")


class Holder(NamedTuple):
    """Process that the kernel names as the holder of a lock; ``uid``: the user who has started it."""

    pid: int
    uid: int

    @property
    def name(self) -> str:
        """Name of the process, without its arguments, which can contain a secret; "gone" if it has ended."""
        try:
            return _read_proc(f"/proc/{self.pid}/comm").strip()
        except OSError:
            return "gone"


class Watch:
    """Watch on the process that holds the lock (flock(2)) on one file, for as long as this process waits for it.

    ``status``: of the file. ``listen``: reads the holder's heartbeats, and returns whether they are a proof; by default
    there is none. ``waited``: the seconds that wait() took.
    """

    def __init__(self, status: os.stat_result, listen: Callable[[], bool] = bool) -> None:
        self._status, self._listen = status, listen
        self.holder = find_holder(status)
        self._is_heard = self.holder is None and listen()
        self._seen = self._looked = self._moved = time.monotonic()
        self._ran, self._waited_unproven = -1, 0.0
        self.waited = 0.0

    @property
    def is_proven(self) -> bool:
        """Tell whether the holder works for this user, or for a user whom SAFECACHE_TRUST=shared includes."""
        return self.is_own or self._is_heard or (self.holder is not None and config.current().shared)

    @property
    def is_own(self) -> bool:
        """Tell whether the kernel names a process of this user."""
        return self.holder is not None and ownership.is_own_uid(self.holder.uid)

    @property
    def is_given_up(self) -> bool:
        """Tell whether this process has waited for this holder, or without a proof for its user, in vain before."""
        return self._holder_key in _state.now.given_up or (
            not self.is_proven and _state.now.unproven.get(self._user, 0.0) >= waits.UNPROVEN
        )

    @property
    def _user(self) -> int:
        return self._status.st_uid if self.holder is None else self.holder.uid

    @property
    def _holder_key(self) -> tuple[str, int]:
        """Holder in ``given_up``: one process of this user, or another user as a whole, who may start many."""
        return ("process", self.holder.pid) if self.holder is not None and self.is_own else ("user", self._user)

    def is_in_vain(self) -> bool:
        """Tell whether to end the wait: after STALLED seconds without progress, or waits.UNPROVEN without a proof.

        Seconds without a proof add up for each user, over all waits of this process.
        """
        now = time.monotonic()
        since, self._seen = now - self._seen, now
        if not self.is_proven:
            self._waited_unproven += since
            _state.now.unproven[self._user] = _state.now.unproven.get(self._user, 0.0) + since
        if now - self._looked >= _INTERVAL:
            self._update_holder(now)
            if self.is_proven and self._waited_unproven:
                _state.now.unproven[self._user] -= self._waited_unproven
                self._waited_unproven = 0.0
        return self.is_given_up or (self.is_proven and now - self._moved >= STALLED)

    def wait(
        self,
        attempt: Callable[[float], T | None],
        limit: float,
        say: Callable[[], None],
        pauses: tuple[float, float] = (0.0, 0.0),
    ) -> T | None:
        """Call ``attempt`` until it returns something, as waits.wait() does, and return that; None for a wait in vain.

        A wait is in vain after ``limit`` seconds, or sooner: see is_in_vain(). No later wait of this process is for
        that holder then. ``say``: reports a long wait. ``pauses``: see waits.wait().
        """
        if limit <= 0 or self.is_given_up:
            return None
        began = time.monotonic()
        try:
            found, _ = waits.wait(attempt, limit, say=say, is_in_vain=self.is_in_vain, pauses=pauses)
        finally:
            self.waited = time.monotonic() - began
        if found is None and self.is_proven:
            _state.now.given_up.add(self._holder_key)
        return found

    def _update_holder(self, now: float) -> None:
        self._looked = now
        holder = find_holder(self._status)
        self._is_heard = holder is None and self._listen()
        ran = _sum_run_time(holder.pid) if holder is not None else None
        if holder != self.holder or ran is None or ran != self._ran:
            self.holder, self._ran, self._moved = holder, ran or -1, now


def find_holder(status: os.stat_result) -> Holder | None:
    """Return the process that holds the lock on the file of this ``status``; None unless the kernel names exactly one.

    The kernel names none that is in another container or on another host, and none where /proc is hidden.
    """
    try:
        with open(_LOCKS) as file:
            held = [fields for fields in map(str.split, file) if len(fields) > 5 and fields[1] == "FLOCK"]
        device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}"
        # Some file systems (btrfs, overlayfs) state another device in stat(2) than the kernel has.
        inode = [fields for fields in held if fields[5].endswith(f":{status.st_ino}")]
        found = [fields for fields in inode if fields[5].startswith(device)] or inode
        if len({fields[4] for fields in found}) != 1 or (pid := int(found[0][4])) <= 0:
            return None
        # Not the owner of /proc/<pid>, which is root for a process that may not be traced; nor the effective uid, which
        # is another user's while a set-user-ID program runs.
        (line,) = (line for line in _read_proc(f"/proc/{pid}/status").splitlines() if line.startswith("Uid:"))
        return Holder(pid, int(line.split()[1]))
    except (OSError, ValueError, IndexError):
        return None


def describe(holder: Holder | None) -> str:
    """Return a name of the holder for messages; None stands for a process that is not seen from here."""
    if holder is None:
        return "a process that is not seen from here"
    if holder.pid == os.getpid():
        return "another thread of this process"
    return f"process {holder.pid} ({holder.name})"


def tell_wait(who: str, what: str, most: float) -> None:
    """Warn, once per process, that this process waits at most ``most`` seconds for ``who`` to finish ``what``."""
    if not _state.now.is_told:
        _state.now.is_told = True
        events.log_line(logging.WARNING, _WAITING.format(who, what, most))


def tell_end(who: str, what: str, waited: float) -> None:
    """Warn that this process gave up waiting for ``who`` to finish ``what``, after ``waited`` seconds."""
    events.log_line(logging.WARNING, _GIVEN_UP.format(who, what, waited))


def _sum_run_time(pid: int) -> int | None:
    """Return for how many ns the threads of a process and of its descendants have run in all; None if unknown."""
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
                total += int(_read_proc(f"/proc/{each}/task/{thread}/schedstat").split()[0])
                left += map(int, _read_proc(f"/proc/{each}/task/{thread}/children").split())
    return total or None


def _read_proc(path: str) -> str:
    with open(path, errors="replace") as file:
        return file.read()
