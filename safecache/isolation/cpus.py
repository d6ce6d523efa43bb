"""How many CPUs this process may use, by its affinity and its cgroups, and so how many jobs it may run at once."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress

from safecache.settings import config

__all__ = ["quota", "workers"]

_MOST = 8
_GROUPS, _OWN_GROUPS = "/sys/fs/cgroup", "/proc/self/cgroup"


def workers() -> int:
    """One for each CPU that this process may use, of 8 at most, shared with the other ranks of a job on this host."""
    ranks = config.child_environment().get("LOCAL_WORLD_SIZE", "")
    share = int(ranks) if ranks.isascii() and ranks.isdigit() else 1
    return max(1, min(_usable(), _MOST) // max(1, share))


def _usable() -> int:
    allowed, most = len(os.sched_getaffinity(0)), quota()
    return allowed if most is None else min(allowed, max(1, int(most)))


def quota() -> float | None:
    """How many CPUs' time the tightest of this process's cgroups allows; None without a limit."""
    quotas = []
    for hierarchy, group in _groups():
        while True:
            quotas += [*_limit(os.path.join(hierarchy, group.lstrip("/")))]
            if group in ("", "/"):
                break
            group = os.path.dirname(group)
    return min(quotas, default=None)


def _groups() -> Iterator[tuple[str, str]]:
    """Where the hierarchies are that limit CPU time, and this process's group there (cgroups(7)).

    In a container, often mounted so that the group itself is the top.
    """
    with suppress(OSError), open(_OWN_GROUPS, encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            number, controllers, group = line.rstrip("\n").split(":", 2)
            if number == "0":
                yield _GROUPS, group
            elif "cpu" in controllers.split(","):
                yield from ((os.path.join(_GROUPS, name), group) for name in ("cpu", controllers))


def _limit(directory: str) -> Iterator[float]:
    with suppress(OSError, ValueError), open(os.path.join(directory, "cpu.max"), encoding="ascii") as file:
        most, period = map(int, file.read().split())  # ValueError: "max"
        yield most / period
    with (
        suppress(OSError, ValueError),
        open(os.path.join(directory, "cpu.cfs_quota_us"), encoding="ascii") as quota_file,
        open(os.path.join(directory, "cpu.cfs_period_us"), encoding="ascii") as period_file,
    ):
        quota, period = int(quota_file.read()), int(period_file.read())
        if quota > 0:
            yield quota / period
