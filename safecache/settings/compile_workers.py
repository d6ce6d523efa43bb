"""Whether this process is one of Inductor's compile workers, or the side process that forks them."""

from __future__ import annotations

import os
import sys

__all__ = ["is_one"]

_MAIN = os.path.join("compile_worker", "__main__.py")


def is_one() -> bool:
    """By what was started: torch/_inductor/compile_worker/__main__.py. Not true where the pool is made."""
    return str(getattr(sys.modules.get("__main__"), "__file__", "")).endswith(_MAIN)
