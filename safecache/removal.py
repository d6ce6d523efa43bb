"""Takes one group out of a cache, unless it is used meanwhile. Killed at any point, this leaves a miss.

What a process looks for first is moved aside, then the stamps are looked at again, and then the rest follows. A process
stamps what it reads before it opens it: so either its stamp is seen here and all is put back, or it finds nothing.
"""

from __future__ import annotations

import os
import secrets
from contextlib import suppress

from safecache import folders
from safecache.folders import Folder
from safecache.groups import TRASH_FOLDER, Group, below

__all__ = ["remove"]


def remove(group: Group, root: str) -> bool:
    """Remove the group's files and records, but not its lock; False, and it is where it was, if it was used since.

    ``root``: the cache, from which all of that is reached.

    Raises OSError where the file system refuses, with what was moved back in its place.
    """
    seen = max(group.stamps, default=0.0)
    aside = _Aside(root, os.path.join(group.root, ".safecache", TRASH_FOLDER))
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
        with suppress(FileNotFoundError), folders.above(root, record.path) as (folder, name):
            folder.unlink(name)
    return True


class _Aside:
    """A directory below the cache, where nobody looks for anything, made when something is moved there."""

    def __init__(self, root: str, trash: str) -> None:
        self._root, self._directory = root, os.path.join(trash, secrets.token_hex(8))
        self._moved: list[tuple[str, str]] = []

    def take(self, paths: list[str]) -> None:
        for path in paths:
            place = os.path.join(self._directory, f"{len(self._moved)}.{os.path.basename(path)}"[:200])
            with (
                suppress(FileNotFoundError),  # another process was faster
                folders.above(self._root, path) as (folder, name),
                folders.above(self._root, place, make=True) as (aside, new),
            ):
                folder.rename(name, aside, new)
                self._moved.append((path, place))

    def latest(self, group: Group) -> float:
        """The latest stamp of all that was in the group, and of what has come to it in a directory that is here."""
        moved = [file for _, place in self._moved for file in below(place)]
        left = [now for file in [*group.files, *group.records] for now in below(file.path)]
        return max((file.modified for file in moved + left), default=0.0)

    def put_back(self) -> None:
        while self._moved:
            path, place = self._moved.pop()
            with (
                suppress(OSError),  # then it is a miss
                folders.above(self._root, place) as (aside, moved),
                folders.above(self._root, path, make=True) as (folder, name),
            ):
                try:
                    aside.rename(moved, folder, name)
                except OSError:
                    # There is a directory again, with new entries in it.
                    _merge(aside, moved, folder, name)

    def empty(self) -> None:
        with suppress(OSError), folders.above(self._root, self._directory) as (trash, name):
            trash.remove(name)  # what stays, the next sweep removes


def _merge(source: Folder, place: str, destination: Folder, name: str) -> None:
    with suppress(OSError), source.enter(place) as old, destination.enter(name) as new:
        for each in old.names():
            with suppress(OSError):  # then it is a miss
                old.rename(each, new, each)
