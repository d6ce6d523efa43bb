"""How long a compile may take, and how much memory."""

from __future__ import annotations

import functools
import os
from contextlib import suppress
from typing import NamedTuple

from safecache.settings import config, settings

__all__ = ["Limits", "current"]

# Seconds. A sound compile of a large kernel takes minutes at most. While autotuning, a slow one is not worth the wait:
# there are other configurations to choose from.
_TIMEOUT, _TIMEOUT_WHILE_TUNING = 600.0, 120.0
_MOST_MEMORY = 16 * 10**9
_CGROUP_LIMIT = "/sys/fs/cgroup/memory.max"


class Limits(NamedTuple):
    """The limits of a compile: ``timeout`` in seconds, ``memory`` in bytes."""

    timeout: float
    memory: int


def current(*, tuning: bool) -> Limits:
    """The limits by the current settings. ``tuning``: the compile is one of several configurations of a kernel."""
    chosen = config.current()
    timeout = chosen.compile_timeout or (_TIMEOUT_WHILE_TUNING if tuning else _TIMEOUT)
    return Limits(timeout, chosen.compile_memory or max(settings.LEAST_COMPILE_MEMORY, _half_of_memory()))


@functools.cache
def _half_of_memory() -> int:
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    # Beyond a container's limit, the OOM killer may hit a process other than the worker. Without a limit: "max".
    with suppress(OSError, ValueError), open(_CGROUP_LIMIT, encoding="utf-8") as file:
        memory = min(memory, int(file.read()))
    return min(_MOST_MEMORY, memory // 2)
