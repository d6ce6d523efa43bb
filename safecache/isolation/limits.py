"""How long a compile may take, and how much memory."""

from __future__ import annotations

import functools
import os
from contextlib import suppress
from typing import NamedTuple

from safecache.settings import config, settings

__all__ = ["Limits", "current"]

# Seconds. A sound compile of a large kernel takes minutes at most. In an autotuning run, what takes longer than that is
# not worth the wait: there are others to choose from.
_TIMEOUT, _TIMEOUT_WHILE_TUNING = 600.0, 120.0
_MOST_MEMORY = 16 * 10**9
_CGROUP_LIMIT = "/sys/fs/cgroup/memory.max"


class Limits(NamedTuple):
    """Seconds, and bytes."""

    timeout: float
    memory: int


def current(*, tuning: bool) -> Limits:
    """Those of the settings of now. ``tuning``: the compile is one of several configurations of a kernel."""
    chosen = config.current()
    timeout = chosen.compile_timeout or (_TIMEOUT_WHILE_TUNING if tuning else _TIMEOUT)
    return Limits(timeout, chosen.compile_memory or max(settings.LEAST_COMPILE_MEMORY, _half_of_memory()))


@functools.cache
def _half_of_memory() -> int:
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    # A container's limit, beyond which the kernel kills, and perhaps not the worker. Without one it says "max".
    with suppress(OSError, ValueError), open(_CGROUP_LIMIT, encoding="ascii") as file:
        memory = min(memory, int(file.read()))
    return min(_MOST_MEMORY, memory // 2)
