"""A process that has made and read nothing yet, without starting one."""

from __future__ import annotations

from safecache import session
from safecache.tiers import fallback, levels


def forget_kernels() -> None:
    """What this process knows of Triton's files."""
    session.reset()


def forget_levels() -> None:
    """Which local levels there are, and what failed."""
    levels.reset()
    fallback.reset()
