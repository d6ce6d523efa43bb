"""Starts the compile server at the first sign that something will be compiled."""

from __future__ import annotations

import os
import sys

from safecache.settings import config

__all__ = ["OF_THE_COMPILE", "begin"]

# Knobs, and their variables, with which the compile itself is wanted, not a hit: it then runs in this process.
OF_THE_COMPILE = {
    "always_compile": "TRITON_ALWAYS_COMPILE",
    "override": "TRITON_KERNEL_OVERRIDE",
    "dump_ir": "TRITON_KERNEL_DUMP",
}

_has_looked = False


def begin() -> None:
    """Start the server if the cache is empty, once per process; otherwise the first miss starts it.

    Call this before the first cache key is computed: that hashes Triton's 500 MB, which takes as long as the start. A
    process that only hits pays for one look at one directory.
    """
    global _has_looked
    if _has_looked:
        return
    _has_looked = True
    chosen, knobs = config.current(), sys.modules["triton"].knobs
    may_be_elsewhere = chosen.lower or chosen.local or knobs.cache.manager_class or knobs.cache.remote_manager_class
    stays = any(getattr(knobs.compilation, name) for name in OF_THE_COMPILE)
    if not may_be_elsewhere and not stays and _is_empty(knobs.cache.dir):
        from safecache.isolation import client

        client.current().start()


def _is_empty(directory: str) -> bool:
    """Whether the cache holds nothing but our own files; False if it cannot be read, which Triton will report."""
    try:
        with os.scandir(directory) as found:
            return all(entry.name.startswith(".") for entry in found)
    except FileNotFoundError:
        return True
    except OSError:
        return False
