"""The budget of waits: how long this process may still wait for others, over all features together.

Whatever is waited for (a lease, a lock, a marker, a remote) may never come. Each wait has a limit of its own, and what
was waited in vain before is taken from it: all waits in vain of a process end after the longest of their limits. A rank
of a process group has half of the group's limit for all that it waits between two collectives, in vain or not: the
other half is left for its compiles, before the other ranks take it for hanging.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Hashable

__all__ = ["NOTICE", "UNPROVEN", "charge", "remaining", "reset", "set_group"]

# Seconds for which a holder is waited for that does not prove that it works for this user.
UNPROVEN = 2.0
# Seconds after which a wait that goes on is reported: a server that is probed has not many more.
NOTICE = 5.0

_lock = threading.Lock()
_in_vain = 0.0
# Of this process group: after which collective, and the seconds that were waited since.
_in_group: tuple[Hashable, float] = (None, 0.0)
_find_group: Callable[[], tuple[float, Hashable] | None] | None = None


def set_group(find: Callable[[], tuple[float, Hashable] | None]) -> None:
    """Have ``find`` tell the seconds for waits between two collectives, and a value that changes with each collective.

    It returns None for a process that is no rank of a group.
    """
    global _find_group
    _find_group = find


def remaining(limit: float) -> float:
    """Return for how many seconds a wait may go on that has this limit, in seconds, of its own; 0 if not at all."""
    with _lock:
        return max(0.0, min(limit - _in_vain, _group_remaining()))


def charge(seconds: float, *, in_vain: bool) -> None:
    """Take the seconds of a wait from the budget. Only those ``in_vain`` count beyond the next collective."""
    global _in_vain, _in_group
    with _lock:
        group = _find_group() if _find_group is not None else None
        if group is not None:
            _, mark = group
            before = _in_group[1] if _in_group[0] == mark else 0.0
            _in_group = mark, before + seconds
        if in_vain:
            _in_vain += seconds


def _group_remaining() -> float:
    group = _find_group() if _find_group is not None else None
    if group is None:
        return math.inf
    limit, mark = group
    return limit - (_in_group[1] if _in_group[0] == mark else 0.0)


def reset() -> None:
    """Forget what was waited for."""
    global _in_vain, _in_group, _lock
    _in_vain, _in_group, _lock = 0.0, (None, 0.0), threading.Lock()


os.register_at_fork(after_in_child=reset)
