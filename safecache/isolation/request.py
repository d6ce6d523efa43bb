"""A compile that is wanted: of what, under which cache key, and how long it may take and how much memory."""

from __future__ import annotations

import functools
import hashlib
import os
from contextlib import suppress
from typing import Any, NamedTuple

from safecache.settings import config, settings

__all__ = ["Limits", "Request", "current_limits"]

# Seconds. A sound compile of a large kernel takes minutes at most. While autotuning, a slow one is not worth the wait:
# there are other configurations to choose from.
_TIMEOUT, _TIMEOUT_WHILE_TUNING = 600.0, 120.0
_MOST_MEMORY = 16 * 10**9
_CGROUP_LIMIT = "/sys/fs/cgroup/memory.max"


class Limits(NamedTuple):
    """The limits of a compile: ``timeout`` in seconds, ``memory`` in bytes."""

    timeout: float
    memory: int


class Request(NamedTuple):
    """What triton.compile() is about to look up in the cache ``root``: ``key`` is its cache key.

    ``metadata``: the name of the file that the lookup is for.
    """

    source: Any
    backend: Any
    options: Any
    key: str
    metadata: str
    root: str
    limits: Limits

    @property
    def hash(self) -> str:
        """What the kernel's directory is named after."""
        return hashlib.sha256(self.key.encode()).hexdigest()


def current_limits(*, tuning: bool) -> Limits:
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
