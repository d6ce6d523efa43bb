"""A directory as a store: reached through descriptors, so that no link below it is followed, whoever writes to it."""

from __future__ import annotations

import errno
import os
import secrets
import stat
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import TypeVar

from safecache.fs import filesystem, folders
from safecache.fs.folders import Folder
from safecache.remote.stores import END, Oversized, Store, Stored, Terms

__all__ = ["DirectoryStore", "make_store"]

_Found = TypeVar("_Found")
# What is not there, or no file: a link, a directory, a socket.
_LACKING = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EISDIR, errno.ENXIO})
# Of a file that is being written. No name of ours begins so.
_DRAFT = "."


def make_store(url: str, terms: Terms) -> DirectoryStore:
    """Return the store in the directory at ``url``. Raises ValueError for a URL that names no directory here."""
    found = urllib.parse.urlsplit(url)
    if found.netloc not in ("", "localhost") or found.path[:1] != "/":
        raise ValueError("a directory is written file:///path")
    return DirectoryStore(urllib.request.url2pathname(found.path), terms)


class DirectoryStore(Store):
    """See stores.Store. The directory itself may be reached through links: its user has chosen them."""

    def __init__(self, root: str, terms: Terms) -> None:
        self._root, self._most = root, terms.most

    def read_unverified(self, names: Iterable[str]) -> Mapping[str, bytes | Oversized]:
        def read_whole(descriptor: int, size: int) -> bytes | Oversized:
            return Oversized(size) if size > self._most else filesystem.pread(descriptor, size, 0)

        return self._map_names(names, read_whole)

    def find_sizes(self, names: Iterable[str]) -> Mapping[str, int]:
        return self._map_names(names, lambda _, size: size)

    def read_unverified_starts(self, names: Iterable[str], size: int) -> Mapping[str, bytes]:
        return self._map_names(names, lambda descriptor, _: filesystem.pread(descriptor, size, 0))

    def _map_names(self, names: Iterable[str], look: Callable[[int, int], _Found]) -> dict[str, _Found]:
        found = {}
        for name in names:
            try:
                above, own = _split_name(name)
                with folders.open_subdirectory(self._root, above) as folder:
                    descriptor = folder.open(own, os.O_RDONLY)
                try:
                    status = filesystem.fstat(descriptor)
                    if stat.S_ISREG(status.st_mode):
                        found[name] = look(descriptor, status.st_size)
                finally:
                    filesystem.close(descriptor)
            except OSError as error:
                if error.errno not in _LACKING:
                    raise
        return found

    def write(self, name: str, content: bytes) -> None:
        self._publish(name, content, lambda folder, draft, own: folder.rename(draft, folder, own))

    def replace(self, name: str, content: bytes, known: bytes | None) -> bool:
        if known is not None:

            def read_end(descriptor: int, size: int) -> tuple[int, bytes]:
                return size, filesystem.pread(descriptor, min(size, END), max(0, size - END))

            ends = self._map_names([name], read_end)
            if ends.get(name) != (len(known), known[-END:]):
                return False
            self.write(name, content)
            return True
        try:
            # A name that is taken, by whatever, stays.
            self._publish(name, content, lambda folder, draft, own: folder.link(draft, folder, own))
        except FileExistsError:
            return False
        return True

    def _publish(self, name: str, content: bytes, place: Callable[[Folder, str, str], None]) -> None:
        above, own = _split_name(name)
        draft = f"{_DRAFT}{own[:100]}.{secrets.token_hex(8)}"
        with folders.open_subdirectory(self._root, above, make=True) as folder:
            folder.write(draft, content)
            try:
                place(folder, draft, own)
            finally:
                with suppress(FileNotFoundError):
                    folder.unlink(draft)

    def list_names(self, below: str) -> Iterator[Stored]:
        with folders.open_subdirectory(self._root) as root:
            left = [below.rstrip("/")]
            while left:
                place = left.pop()
                try:
                    with root.enter(place or os.curdir) as folder:
                        found = [(each, folder.get_status(each)) for each in folder.list_names() if each[:1] != _DRAFT]
                except OSError as error:
                    if error.errno not in _LACKING:
                        raise
                    continue
                for each, status in found:
                    name = f"{place}/{each}" if place else each
                    if stat.S_ISDIR(status.st_mode):
                        left.append(name)
                    elif stat.S_ISREG(status.st_mode):
                        yield Stored(name, status.st_size, status.st_mtime)

    def remove(self, name: str) -> None:
        above, own = _split_name(name)
        with suppress(FileNotFoundError), folders.open_subdirectory(self._root, above) as folder:
            folder.unlink(own)


def _split_name(name: str) -> tuple[list[str], str]:
    """Return the directories, and the file's name. Raises ValueError if ``name`` leads elsewhere, or is a draft's."""
    *above, own = name.split("/")
    if any(each[:1] in ("", _DRAFT) or "\0" in each for each in (*above, own)):
        raise ValueError(f"{name[:100]!r} is no name of ours")
    return above, own
