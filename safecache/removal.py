"""Takes one group out of a cache, unless it is used meanwhile. Killed at any point, this leaves a miss.

What a process looks for first is moved aside, then the stamps are looked at again, and then the rest follows. A process
stamps what it reads before it opens it: so either its stamp is seen here and all is put back, or it finds nothing.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from contextlib import suppress

from safecache.groups import TRASH_FOLDER, Group, below

__all__ = ["remove"]


def remove(group: Group) -> bool:
    """Remove the group's files and records, but not its lock; False, and it is where it was, if it was used since.

    Raises OSError where the file system refuses, with what was moved back in its place.
    """
    seen = max(group.stamps, default=0.0)
    aside = _Aside(os.path.join(group.root, ".safecache", TRASH_FOLDER, secrets.token_hex(8)))
    first, rest = group.steps
    try:
        aside.take(first)
        if aside.latest(group) > seen:
            aside.put_back()
            return False
        aside.take(rest)
    except OSError:
        aside.put_back()
        raise
    finally:
        aside.empty()
    # Last: without its record a file would be refused, with a warning, where without the file a record says nothing.
    for record in group.records:
        with suppress(FileNotFoundError):
            os.unlink(record.path)
    return True


class _Aside:
    """A directory below the cache, where nobody looks for anything, made when something is moved there."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._moved: list[tuple[str, str]] = []

    def take(self, paths: list[str]) -> None:
        for path in paths:
            parent = os.path.dirname(path)
            if os.path.realpath(parent) != parent:
                # It was a directory when it was listed.
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            os.makedirs(self._directory, exist_ok=True)
            place = os.path.join(self._directory, f"{len(self._moved)}.{os.path.basename(path)}"[:200])
            with suppress(FileNotFoundError):  # another process was faster
                os.rename(path, place)
                self._moved.append((path, place))

    def latest(self, group: Group) -> float:
        """The latest stamp of all that was in the group, and of what has come to it in a directory that is here."""
        moved = [file for _, place in self._moved for file in below(place)]
        left = [now for file in [*group.files, *group.records] for now in below(file.path)]
        return max((file.modified for file in moved + left), default=0.0)

    def put_back(self) -> None:
        while self._moved:
            path, place = self._moved.pop()
            try:
                os.rename(place, path)
            except OSError:
                # There is a directory again, with new entries in it.
                _merge(place, path)

    def empty(self) -> None:
        shutil.rmtree(self._directory, ignore_errors=True)  # what stays, the next sweep removes


def _merge(source: str, directory: str) -> None:
    for name in os.listdir(source) if os.path.isdir(source) else ():
        with suppress(OSError):  # then it is a miss
            os.rename(os.path.join(source, name), os.path.join(directory, name))
