"""How many jobs this process may run at once."""

from __future__ import annotations

import os

from safecache import config, cpu_quota

__all__ = ["workers"]

_MOST = 8


def workers() -> int:
    """One for each CPU that this process may use, of 8 at most, shared with the other ranks of a job on this host."""
    ranks = config.child_environment().get("LOCAL_WORLD_SIZE", "")
    share = int(ranks) if ranks.isascii() and ranks.isdigit() else 1
    return max(1, min(_usable(), _MOST) // max(1, share))


def _usable() -> int:
    allowed, quota = len(os.sched_getaffinity(0)), cpu_quota.quota()
    return allowed if quota is None else min(allowed, max(1, int(quota)))
