"""The tiers below a cache: similar directories, which are read where it lacks a file.

First the shared level below a local one, or the cache directory that a fallback directory replaces; then the layers
that the user has named in SAFECACHE_TIERS, which are never written.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from safecache.reporting import events
from safecache.reporting.kinds import Reason
from safecache.settings import config
from safecache.tiers import directory_faults, fallback, levels

__all__ = ["fail", "iter_lower_paths"]

_REMEDY = "Look after it; it is tried again after a minute."


def iter_lower_paths(path: str, root: str) -> Iterator[tuple[str, str]]:
    """The paths, in the tiers below the cache ``root``, that correspond to ``path``, nearest first, each with its tier.

    Such a file need not exist, and is not verified. Raises CacheWriteError in strict mode if the shared level cannot be
    used, EntryRefusedError if others can write to it.
    """
    level, original, named = levels.find(root), fallback.counterpart(root), config.current().layers
    if level is not None and _is_there(level.shared):
        yield level.counterpart(path), level.counterpart(root)
    for layer in named if original is None else (original, *named):
        if layer != root:
            yield os.path.join(layer, os.path.relpath(path, root)), layer


def _is_there(shared: str) -> bool:
    """Whether the shared level can be read: asked each time, as it can come and go, or be made only later."""
    if levels.is_left_alone(shared, reading=True):
        return False
    if not os.access(os.path.join(shared, os.curdir), os.R_OK | os.X_OK, effective_ids=True):
        try:
            os.listdir(shared)  # raises the reason
        except FileNotFoundError:
            return False
        except OSError as error:
            fail(shared, error, reading=True)
            return False
    directory_faults.check(shared)
    return True


def fail(shared: str, error: OSError, *, reading: bool) -> None:
    """Report once that the shared level has failed, and leave it alone for 60 s. Strict mode raises CacheWriteError."""
    levels.leave_alone(shared, reading=reading)
    done = "looked into" if reading else "written"
    text = f"the shared cache {shared} cannot be {done} for now: {error.strerror or error}. The local one serves on."
    events.report(Reason.UNUSABLE_DIRECTORY, text, cause=shared, remedy=_REMEDY, error=error)
