"""Which process says something: its rank and its pid, for lines that many write into one log."""

from __future__ import annotations

import os
import sys

from safecache.settings import config

__all__ = ["label", "rank"]


def label() -> str:
    """Such as ``[rank 3, pid 4711]``; without a rank where there is none."""
    number = rank()
    return f"[rank {number}, pid {os.getpid()}]" if number else f"[pid {os.getpid()}]"


def rank() -> str:
    """That of torch.distributed where it is initialised, as in a server's workers, or else the launcher's."""
    distributed = sys.modules.get("torch.distributed")
    # While it is being imported, or in a torch built without it, these are missing.
    is_initialized = getattr(distributed, "is_initialized", None)
    get_rank = getattr(distributed, "get_rank", None)
    if is_initialized is not None and get_rank is not None and is_initialized():
        return str(get_rank())
    return config.rank()
