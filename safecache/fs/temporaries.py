"""Temporary files beside those that they will replace: locked while their writer lives, synced if asked."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import stat
import time
from collections.abc import Iterable, Iterator

from safecache.fs import filesystem, folders
from safecache.fs.folders import Folder
from safecache.session import Part, inherit
from safecache.settings import config

__all__ = ["Temporary", "is_temporary", "lock", "reap", "reap_once", "reserve_temporary", "should_fsync"]


def should_fsync(folder: Folder) -> bool:
    """Tell whether to sync files in ``folder`` before they are renamed, and the folder after that. Raises OSError.

    ``auto``: on a network file system. There, errors such as a full disk are reported only when data is written back,
    and other hosts may read before that.
    """
    chosen = config.current().fsync
    return chosen == "always" or (chosen == "auto" and folder.is_over_a_network)


_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL
_OURS = re.compile(r"\.[0-9a-f]{16}\.tmp")
_TORCHS = re.compile(r"\.\d+\.\d+\.tmp")
# Seconds. Clocks differ; and without a lock, only a file's age shows that its writer must be dead.
_PATIENCE, _PATIENCE_WITHOUT_LOCK = 3600.0, 86400.0

_reaped: Part[set[str]] = Part(set, inherit)


class Temporary:
    """New file ``name`` in ``folder``, with ``mode`` less the umask, locked if possible. Raises OSError."""

    def __init__(self, folder: folders.Folder, mode: int) -> None:
        self.name = _make_name()
        self._descriptor = folder.open(self.name, _CREATE, mode)
        lock(folder, self._descriptor)

    def write(self, parts: Iterable[bytes], *, durably: bool) -> None:
        """Write ``parts`` in order, and sync if ``durably``. Raises OSError, also for what only a close reports.

        After an error the file is useless: data that could not be written back once counts as written in the next sync.
        """
        for part in parts:
            filesystem.write_all(self._descriptor, part)
        if durably:
            filesystem.fsync(self._descriptor)
        # Some file systems report a full disk only on close. A duplicate is closed, as the file must stay locked.
        filesystem.close(filesystem.dup(self._descriptor))

    def close(self) -> None:
        """Close and unlock the file. Call this once the file is renamed or removed."""
        filesystem.close(self._descriptor)


def _make_name() -> str:
    # Random: two containers on one volume can have the same pid and thread id, of which torch makes its names.
    return f".{secrets.token_hex(8)}.tmp"


def lock(folder: Folder, descriptor: int) -> None:
    """Lock this new file in ``folder``, if possible, so that reap() keeps it for as long as it is open."""
    with contextlib.suppress(OSError):  # a file system without locks
        if not folder.is_over_a_network:
            filesystem.try_lock(descriptor)


@contextlib.contextmanager
def reserve_temporary(path: str) -> Iterator[str]:
    """Yield a path beside ``path``, for another program to write to; a file left there is removed afterwards."""
    temporary = os.path.join(os.path.dirname(path), _make_name())
    try:
        yield temporary
    finally:
        directory, name = os.path.split(temporary)
        with contextlib.suppress(FileNotFoundError), folders.open_subdirectory(directory or os.curdir) as folder:
            folder.unlink(name)


def is_temporary(name: str) -> bool:
    """Tell whether ``name`` is that of a temporary file, safecache's or torch's."""
    return (_OURS.fullmatch(name) or _TORCHS.fullmatch(name)) is not None


def reap_once(folder: folders.Folder, directory: str) -> None:
    """Call reap() on ``folder``, which is at the path ``directory``, once per process. Never raises OSError."""
    if directory not in _reaped.now:
        _reaped.now.add(directory)
        with contextlib.suppress(OSError):
            reap(folder)


def reap(folder: folders.Folder, *, only_ours: bool = False) -> int:
    """Remove temporary files of dead writers, torch's among them unless ``only_ours``; return their size in bytes.

    A writer is dead if its file is over an hour old and unlocked, or over a day old where locks tell nothing. Raises
    OSError if the directory cannot be read.
    """
    size = 0
    locks = not folder.is_over_a_network
    for name in folder.list_names():
        ours = _OURS.fullmatch(name) is not None
        if ours or (_TORCHS.fullmatch(name) and not only_ours):
            with contextlib.suppress(OSError):
                size += _remove_if_dead(folder, name, locked=ours and locks)
    return size


def _remove_if_dead(folder: folders.Folder, name: str, *, locked: bool) -> int:
    status = folder.get_status(name)
    patience = _PATIENCE if locked else _PATIENCE_WITHOUT_LOCK
    if not stat.S_ISREG(status.st_mode) or time.time() - status.st_mtime < patience:
        return 0
    descriptor = folder.open(name, os.O_RDONLY)
    try:
        if locked and not filesystem.try_lock(descriptor):
            return 0  # its writer lives
        folder.unlink(name)
    finally:
        filesystem.close(descriptor)
    return status.st_size
