"""When a file of a cache was last used: its time of modification, which a use sets anew.

Not the time of access, which mounts with noatime or relatime do not keep. Go's build cache does the same (``used`` in
cmd/go/internal/cache): what is written anew, copied or restored from a backup counts as used then. On the way to a hit
that costs no system call but once in INTERVAL for a file.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from safecache.files import folders
from safecache.settings import config

__all__ = ["GRACE", "INTERVAL", "reset", "suspended", "use"]

# Seconds. A stamp that is younger is left as it is.
INTERVAL = 1800.0
# What has a younger stamp, and so may have been used within this time less INTERVAL, is in use and not removed.
GRACE = 3600.0

_suspended = False
# Whose files on which device refuse: on read-only mounts, or of others. Asked once, not for each file.
_refusing: set[tuple[int, int]] = set()


def use(path: str, status: os.stat_result) -> None:
    """Stamp the file, of which this is the status, *before* it is read: who removes it looks for a new stamp then.

    By the clock of the file system, in which all hosts agree. A file that cannot be stamped ages from its writing on.
    """
    if -INTERVAL < time.time() - status.st_mtime < INTERVAL or _suspended:
        return
    owner = (status.st_dev, status.st_uid)
    # Clang compares the times of headers with those in a precompiled one. Layers below a cache are never written.
    lower = any(path.startswith(os.path.join(layer, "")) for layer in config.current().lower)
    if lower or path.endswith(".h") or owner in _refusing:
        return
    try:
        folders.touch(path)
    except (FileNotFoundError, NotADirectoryError):
        return  # who reads it next finds that out too
    except OSError:
        _refusing.add(owner)


@contextmanager
def suspended() -> Iterator[None]:
    """For this block, nothing that is read counts as used: a command looks at all entries, and needs none."""
    global _suspended
    outer, _suspended = _suspended, True
    try:
        yield
    finally:
        _suspended = outer


def reset() -> None:
    """Try to stamp everywhere again."""
    _refusing.clear()
