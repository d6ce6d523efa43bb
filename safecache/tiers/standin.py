"""A private directory in place of a cache directory that cannot be used, for as long as that is so.

Torch asks the environment for the directory each time, and so do the processes that this one starts.
"""

from __future__ import annotations

import os
import threading

from safecache.files import mounts, ownership, private_directory
from safecache.settings import config
from safecache.tiers import directory_faults, levels

__all__ = ["begin", "end", "original", "reset"]

_standins: dict[str, str] = {}
_originals: dict[str, str] = {}
_lock = threading.Lock()


def original(directory: str) -> str | None:
    """The cache directory that ``directory`` stands in for; None if it is none of ours."""
    return _originals.get(directory)


def begin(directory: str) -> str:
    """Have torch use a private directory in place of ``directory``, the same each time. Raises OSError if it cannot."""
    with _lock:
        place = _standins.get(directory)
        if place is None or not os.path.isdir(place):
            place = private_directory.lasting(_is_fit)
            _standins[directory] = place
            _originals[place] = directory
    config.redirect_cache(place, directory)
    return place


def _is_fit(place: str) -> bool:
    return directory_faults.probe(place) is None and (
        config.current().exec_dir is not None or not mounts.forbids_execution(place)
    )


def end(directory: str) -> None:
    """Have torch use ``directory`` again."""
    config.redirect_cache(directory, None)


def _inherit() -> None:
    """Go on with what the process that started this one has begun, unless it has ended, and its directory with it."""
    found = config.redirected()
    if found is None or found[0] != config.cache_directory() or levels.is_place(*found):
        return
    place, directory = found
    # Its name could be taken by anybody once it is removed.
    if private_directory.join(place) and ownership.why_not_private(place) is None:
        _standins[directory] = place
        _originals[place] = directory
    else:
        end(directory)


def _renew_lock() -> None:
    # A thread of the parent may hold the lock at the moment of the fork; the child has no such thread.
    global _lock
    _lock = threading.Lock()


def reset() -> None:
    """Forget which directories stand in for others; torch uses what it uses."""
    _standins.clear()
    _originals.clear()


os.register_at_fork(after_in_child=_renew_lock)
_inherit()
