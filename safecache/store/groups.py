"""The groups of files in a cache that are of use as a whole or not at all."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from safecache.fs import folders
from safecache.fs.folders import Item
from safecache.reporting.kinds import Kind

__all__ = [
    "KINDS",
    "File",
    "Group",
    "iter_files",
]

# What a process looks for first. Once it is away, nobody begins to use the rest.
_LOOKED_FOR_FIRST = re.compile(r"__grp__.+|.+\.(py|cpp|c|h|hpp|cu|cuh)")

# By what they are called in a command and in a narrow column.
KINDS = {kind.word: kind for kind in Kind if kind.plural}


class File(NamedTuple):
    """A file as it was listed, links and the like included."""

    path: str
    size: int
    modified: float
    owner: int
    inode: int

    @classmethod
    def make_from_item(cls, item: Item) -> File:
        """Return the File for a listed item."""
        status = item.status
        return cls(item.path, status.st_size, status.st_mtime, status.st_uid, status.st_ino)


@dataclass
class Group:
    """Files in a cache that are removed together, with their records and their lock.

    ``paths``: what to move to remove the group, files or one directory. ``files``: all files there. ``root``: the
    directory whose ``.safecache`` has the records.
    """

    kind: Kind
    root: str
    name: str
    paths: list[str]
    files: list[File]
    records: list[File] = field(default_factory=list)
    lock: File | None = None

    @property
    def all_files(self) -> list[File]:
        """Files of the group, with its records and its lock."""
        return self.files + self.records + ([self.lock] if self.lock else [])

    @property
    def size(self) -> int:
        """Size of all files in bytes."""
        return sum(file.size for file in self.all_files)

    @property
    def stamps(self) -> list[float]:
        """Times when the files were used, in seconds since the epoch. Holding a lock does not change its time."""
        stamped = self.files + self.records or self.all_files
        return [file.modified for file in stamped] or [folders.get_mtime(path) for path in self.paths]

    @property
    def owners(self) -> set[int]:
        """Uids that own the files; those of its directories, where these are empty or nobody else may look."""
        found = {file.owner for file in self.all_files}
        if not found:
            for path in self.paths:
                with suppress(OSError):  # it is gone
                    found.add(folders.get_status(path).st_uid)
        return found

    @property
    def steps(self) -> tuple[list[str], list[str]]:
        """Paths to move first, and paths to move after another look at the stamps."""
        if self.kind is Kind.KERNEL:
            first = [file.path for file in self.files if _is_looked_for_first(file.path)]
            return first, self.paths
        if self.kind is Kind.NATIVE_CODE:
            first = [path for path in self.paths if _is_looked_for_first(path)]
            return first, [path for path in self.paths if path not in first]
        return self.paths, []


def _is_looked_for_first(path: str) -> bool:
    return _LOOKED_FOR_FIRST.fullmatch(os.path.basename(path)) is not None


def iter_files(top: str | Item) -> Iterator[File]:
    """Yield every file at or below ``top``; none if it is gone or access is denied. Raises OSError."""
    return map(File.make_from_item, folders.walk_files(top))
