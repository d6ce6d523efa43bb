"""Time at which a cache file was last used: its mtime, which each use updates.

The atime would not do, since noatime and relatime mounts do not maintain it. Go's build cache does the same (``used``
in cmd/go/internal/cache): a file that is rewritten, copied or restored from a backup counts as used then. For a hit,
that takes a system call only once in INTERVAL per file.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from safecache.fs import folders
from safecache.session import Part, inherit
from safecache.settings import config

__all__ = ["GRACE", "INTERVAL", "mark_used", "suspend_stamping"]

# Seconds. A younger stamp is left as it is.
INTERVAL = 1800.0
# Seconds. A file with a younger stamp is in use and not removed: so is any that was used within GRACE - INTERVAL.
GRACE = 3600.0

_suspended = False
# Devices and owners of files that cannot be stamped: on read-only mounts, or of others. Tried once, not per file.
_refusing: Part[set[tuple[int, int]]] = Part(set, inherit)


def mark_used(path: str, status: os.stat_result) -> None:
    """Set the mtime of the file with this ``status`` to now, *before* the read: eviction checks for a new stamp.

    Uses the file system's clock, which all hosts share. Does nothing if the stamp is younger than INTERVAL, for
    headers, and in lower tiers. A file that cannot be stamped ages from when it was written. Raises no OSError.
    """
    if -INTERVAL < time.time() - status.st_mtime < INTERVAL or _suspended:
        return
    owner = (status.st_dev, status.st_uid)
    # Clang compares headers' mtimes with those in a precompiled header. Layers below a cache are never written.
    lower = any(path.startswith(os.path.join(layer, "")) for layer in config.current().layers)
    if lower or path.endswith(".h") or owner in _refusing.now:
        return
    try:
        folders.touch(path)
    except (FileNotFoundError, NotADirectoryError):
        return  # whoever reads it next finds that out too
    except OSError:
        _refusing.now.add(owner)


@contextmanager
def suspend_stamping() -> Iterator[None]:
    """Keep mark_used() from stamping in this block, for commands that read all entries and need none."""
    global _suspended
    outer, _suspended = _suspended, True
    try:
        yield
    finally:
        _suspended = outer
