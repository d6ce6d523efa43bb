"""Budget of waits: how long this process may still wait for others, over all features together.

A lease, a lock, a marker or a remote that is waited for may never come. Each wait has a limit of its own, less the
seconds that were waited in vain before: all waits in vain of a process end after the longest of their limits. A rank of
a process group may spend half of the group's limit on waits between two collectives, in vain or not. The other half is
left for its compiles, before the other ranks take the rank for hanging.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Hashable
from typing import TypeVar

from safecache.reporting import events
from safecache.session import Part, inherit

__all__ = ["NOTICE", "UNPROVEN", "Breaker", "breaker", "charge", "get_remaining_seconds", "refund", "set_group", "wait"]

T = TypeVar("T")
# Seconds for which a holder is waited for that does not prove that it works for this user.
UNPROVEN = 2.0
# Seconds after which a wait that goes on is reported: a server that is probed has not many more.
NOTICE = 5.0

_SPENT = (
    "safecache: waited {0:.0f} s in vain for other processes in all. Waiting for none of them again in this process."
    " Help: safecache doctor, SAFECACHE_WAIT sets the limit"
)
_SPENT_IN_GROUP = (
    "safecache: waited {0:.0f} s for other processes since the last collective, half of the process group's limit."
    " Waiting for none of them until the next collective. Help: give the process group a longer timeout"
)


class Breaker:
    """Circuit breaker: what has failed, under any hashable name, and is suspended for a while."""

    def __init__(self) -> None:
        self._until: dict[Hashable, float] = {}

    def leave_alone(self, what: Hashable, seconds: float) -> None:
        """Suspend ``what`` for so many seconds from now."""
        self._until[what] = time.monotonic() + seconds

    def list_suspended(self) -> dict[Hashable, float]:
        """Return everything that is suspended, with the seconds left."""
        return {what: left for what in list(self._until) if (left := self.get_seconds_left(what))}

    def get_seconds_left(self, what: Hashable) -> float:
        """Return the seconds for which ``what`` is still suspended; 0 if it is not."""
        return max(0.0, self._until.get(what, 0.0) - time.monotonic())


# What this process leaves alone, and its children and compile workers with it.
breaker: Part[Breaker] = Part(Breaker, inherit)
_find_group: Callable[[], tuple[float, Hashable] | None] | None = None


class _State:
    def __init__(self) -> None:
        self.in_vain = 0.0
        # Of this process group: after which collective, and the seconds that were waited since.
        self.in_group: tuple[Hashable, float] = (None, 0.0)

    def sum_waits_since(self, mark: Hashable) -> float:
        return self.in_group[1] if self.in_group[0] == mark else 0.0


_state: Part[_State] = Part(_State)


def set_group(find: Callable[[], tuple[float, Hashable] | None]) -> None:
    """Set ``find``, which returns the seconds of waits allowed between two collectives, and a mark of the last one.

    The mark changes with each collective. ``find`` returns None for a process that is no rank of a group.
    """
    global _find_group
    _find_group = find


def get_remaining_seconds(limit: float) -> float:
    """Return how many seconds a wait may last, given its own ``limit`` in seconds and the budget; 0: do not wait.

    The first time that the budget is spent is logged. A caller that waits reports the seconds with charge().
    """
    in_vain, left, in_group = _state.now.in_vain, math.inf, 0.0
    group = _find_group() if _find_group is not None else None
    if group is not None:
        in_group = _state.now.sum_waits_since(group[1])
        left = group[0] - in_group
    if limit > 0 and in_vain >= limit:
        _tell_once(_SPENT, in_vain)
    elif left <= 0:
        _tell_once(_SPENT_IN_GROUP, in_group)
    return max(0.0, min(limit - in_vain, left))


def wait(
    attempt: Callable[[float], T | None],
    limit: float,
    *,
    say: Callable[[], object] = bool,
    is_in_vain: Callable[[], bool] = bool,
    pauses: tuple[float, float] = (0.0, 0.0),
) -> tuple[T | None, float]:
    """Call ``attempt`` with the seconds left until it returns something; return that, and the seconds it took.

    Returns None in its place after ``limit`` seconds, or once it ``is_in_vain``. After NOTICE seconds calls ``say``.
    ``pauses``: seconds between two attempts, at first and at most. Raises what the three do.
    """
    began, waited, is_told, (pause, longest) = time.monotonic(), 0.0, False, pauses
    while waited < limit and not is_in_vain():
        if waited >= NOTICE and not is_told:
            is_told = True
            say()
        found = attempt(limit - waited)
        waited = time.monotonic() - began
        if found is not None:
            return found, waited
        time.sleep(max(0.0, min(pause, limit - waited)))
        pause, waited = min(2 * pause, longest), time.monotonic() - began
    return None, waited


def charge(seconds: float, *, in_vain: bool) -> None:
    """Charge the seconds of a wait to the budget. Only those ``in_vain`` count beyond the next collective."""
    group = _find_group() if _find_group is not None else None
    with _state.lock:
        state = _state.now
        if group is not None:
            state.in_group = group[1], state.sum_waits_since(group[1]) + seconds
        if in_vain:
            state.in_vain += seconds


def refund(seconds: float) -> None:
    """Take ``seconds`` back that were charged as in vain, because what was waited for has come."""
    with _state.lock:
        state = _state.now
        state.in_vain = max(0.0, state.in_vain - seconds)


def _tell_once(text: str, seconds: float) -> None:
    if events.claim_warning((_tell_once, text)):
        events.log_line(logging.WARNING, text.format(seconds))
