"""Which private directories are in use: those that a process has locked, from when they get their name until it ends.

One that was killed leaves its own behind, unlocked: the next that needs one removes it. Nothing is told by a pid, which
another process can have by now, or one of another container.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import shutil
from contextlib import suppress

from safecache import mounts

__all__ = ["join", "leave", "occupy", "reap"]

_PREFIX = "safecache-live-"
_NAME = re.compile(rf"{_PREFIX}[0-9a-f]{{16}}")
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

# A forked child has the same, and so keeps what its parent has locked.
_held: dict[str, int] = {}


def occupy(directory: str) -> str:
    """Lock the directory that this process has just made, for as long as it lives; returns the name that it has then.

    Where that cannot be done it keeps its name, by which nobody takes it for one that is left behind.
    """
    parent = os.path.dirname(directory)
    name = os.path.join(parent, f"{_PREFIX}{secrets.token_hex(8)}")
    with suppress(OSError):
        # There a lock may be for this host alone, and ends with the first of several processes.
        if mounts.is_over_a_network(parent):
            return directory
        descriptor = os.open(directory, _OPEN)
        try:
            # Shared with the processes that this one starts.
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            os.rename(directory, name)
        except BaseException:
            os.close(descriptor)
            raise
        _held[name] = descriptor
        return name
    return directory


def join(directory: str) -> bool:
    """Keep the directory of the process that started this one, should it be killed; False if there is none any more."""
    if _NAME.fullmatch(os.path.basename(directory)) is None or directory in _held:
        return os.path.isdir(directory)
    with suppress(OSError):
        descriptor = os.open(directory, _OPEN)
        with suppress(OSError):  # it is being removed, or has been
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(descriptor), os.lstat(directory)):
                _held[directory] = descriptor
                return True
        os.close(descriptor)
    return False


def leave(directory: str) -> None:
    """Unlock a directory that this process has removed."""
    descriptor = _held.pop(directory, None)
    if descriptor is not None:
        os.close(descriptor)


def reap(parent: str) -> None:
    """Remove those of this user that no living process has locked; what cannot be removed stays."""
    with suppress(OSError):
        for name in os.listdir(parent):
            if _NAME.fullmatch(name):
                with suppress(OSError):
                    _remove_if_left(os.path.join(parent, name))


def _remove_if_left(path: str) -> None:
    descriptor = os.open(path, _OPEN)
    try:
        if os.fstat(descriptor).st_uid == os.geteuid():
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # BlockingIOError: somebody uses it
            shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(descriptor)
