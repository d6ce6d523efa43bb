"""Has the compile server start at the first sign that something will be compiled."""

from __future__ import annotations

import os
import sys

from safecache import config

__all__ = ["begin"]

_has_looked = False


def begin() -> None:
    """Start the server if the cache is empty, once in a process; it is started no later than at the first miss.

    To be called before the first key is computed: for that Triton's 500 MB are hashed, which takes as long. A process
    that hits pays one look at one directory.
    """
    global _has_looked
    if _has_looked:
        return
    _has_looked = True
    chosen, knobs = config.current(), sys.modules["triton"].knobs.cache
    if chosen.lower or chosen.local or knobs.manager_class or knobs.remote_manager_class:
        return  # it may be somewhere else
    if _is_empty(knobs.dir):
        from safecache.isolation import client

        client.current().start()


def _is_empty(directory: str) -> bool:
    """But for what is ours. Not where that cannot be told: Triton will say so."""
    try:
        with os.scandir(directory) as found:
            return all(entry.name.startswith(".") for entry in found)
    except FileNotFoundError:
        return True
    except OSError:
        return False
