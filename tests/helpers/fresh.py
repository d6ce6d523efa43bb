"""A process that has made and read nothing yet, without starting one."""

from __future__ import annotations

from safecache.built_code import triton_files
from safecache.store import attestations
from safecache.tiers import fallback, levels


def forget_kernels() -> None:
    """What this process knows of Triton's files."""
    attestations._state.reset()
    triton_files._aside.reset()


def forget_levels() -> None:
    """Which local tiers there are, and what failed."""
    levels._state.reset()
    fallback._state.reset()
