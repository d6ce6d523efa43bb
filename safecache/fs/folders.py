"""Directories below a cache's root, each opened from its parent without following links, and operations in them.

A user who can write to a cache can replace any name in it by a link, or another directory, at any time. A path through
that name then leads wherever that user wants. Names looked up from an open directory cannot be redirected.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import cached_property
from typing import NamedTuple

from safecache.fs import filesystem, mounts
from safecache.settings import config

__all__ = [
    "Folder",
    "Item",
    "create_scratch",
    "get_mtime",
    "get_status",
    "is_there",
    "list_directory",
    "list_items",
    "open_directory",
    "open_parent",
    "open_subdirectory",
    "open_within",
    "touch",
    "walk_files",
]

# Not O_RDONLY: in a shared cache, a user may be allowed to enter a directory but not to list it.
_ENTER = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
# The most removed in one go: no group of a cache has more.
_MOST_DIRECTORIES = 100_000
_LIST = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
# Removed, replaced, another user's, or nested more deeply than a path can express.
_NOT_LISTED = {errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENAMETOOLONG}


class Item(NamedTuple):
    """Path of a file or directory, and its status (for a link, the link's own)."""

    path: str
    status: os.stat_result

    @property
    def name(self) -> str:
        """Name of the item in its directory."""
        return os.path.basename(self.path)

    @property
    def is_directory(self) -> bool:
        """Tell whether the item is a directory, and not a link to one."""
        return stat.S_ISDIR(self.status.st_mode)

    @property
    def is_file(self) -> bool:
        """Tell whether the item is a regular file, and not a link to one."""
        return stat.S_ISREG(self.status.st_mode)


class Folder:
    """An open directory. Its methods take names in the directory, never follow a link, and raise OSError.

    ``descriptor``: of the directory; open_subdirectory() and enter() close it. ``place``: the path by which the
    directory was reached, for complete paths in error messages.
    """

    def __init__(self, descriptor: int, place: str = "") -> None:
        self.descriptor = descriptor
        self.place = place

    def _error_scope(self, name: str) -> _Telling:
        """Return a context manager that adds the directory's path to an OSError about ``name``."""
        return _Telling(self.place, name)

    @cached_property
    def is_over_a_network(self) -> bool:
        """Tell whether the directory is on a network file system: see mounts.is_over_a_network()."""
        return mounts.is_over_a_network(self.path)

    @contextmanager
    def enter(self, path: str, *, make: bool = False) -> Iterator[Folder]:
        """Open the directory at ``path`` below this one, for this block. ``make``: create missing directories."""
        with _Closing(self._descend(path, make=make), os.path.join(self.place, path)) as folder:
            yield folder

    def _descend(self, path: str, *, make: bool) -> int:
        try:
            with self._error_scope(path):
                return filesystem.descend(self.descriptor, path)
        except FileNotFoundError:
            if not make:
                raise
        return self._make_directory(path)

    def _make_directory(self, path: str) -> int:
        above, _, name = path.rpartition(os.sep)
        with ExitStack() as stack:
            parent = stack.enter_context(self.enter(above, make=True)) if above else self
            stack.enter_context(parent._error_scope(name))
            with suppress(FileExistsError):
                filesystem.mkdir(name, dir_fd=parent.descriptor)
            return filesystem.descend(parent.descriptor, name)

    def list_names(self) -> list[str]:
        """Return the names of all entries, in no particular order."""
        with (
            self._error_scope("."),
            _Closing(filesystem.open(".", _LIST, dir_fd=self.descriptor), self.place) as folder,
        ):
            return filesystem.listdir(folder.descriptor)

    def get_status(self, name: str) -> os.stat_result:
        """Return the status of ``name`` (for a link, the link's own)."""
        with self._error_scope(name):
            return filesystem.lstat(name, dir_fd=self.descriptor)

    def open(self, name: str, flags: int, mode: int = 0o666) -> int:
        """Open ``name`` and return the descriptor, without waiting for the other end of a FIFO."""
        flags |= os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        with self._error_scope(name):
            return filesystem.open(name, flags, mode, dir_fd=self.descriptor)

    @property
    def path(self) -> str:
        """Path of this very directory, valid in this process even if the directory is moved."""
        return f"/proc/self/fd/{self.descriptor}"

    def sync(self) -> None:
        """Sync the directory's names to disk, if its file system and permissions allow that."""
        try:
            descriptor = filesystem.open(".", _LIST, dir_fd=self.descriptor)
        except PermissionError:
            return  # it can be written, but not read
        try:
            filesystem.fsync(descriptor)
        except OSError as error:
            # Some file systems cannot, and need not.
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):
                raise
        finally:
            filesystem.close(descriptor)

    def write(self, name: str, content: bytes) -> None:
        """Create the file ``name``. Raises FileExistsError if ``name`` exists; a partly written file is removed."""
        descriptor = self.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            filesystem.write_all(descriptor, content)
        except OSError:
            self.unlink(name)
            raise
        finally:
            filesystem.close(descriptor)

    def unlink(self, name: str) -> None:
        """Remove ``name``, which must not be a directory."""
        with self._error_scope(name):
            filesystem.unlink(name, dir_fd=self.descriptor)

    def touch(self, name: str, moment: float | None = None) -> None:
        """Set the times of ``name`` (a link's own) to ``moment``, in seconds since the epoch; None means now."""
        times = None if moment is None else (moment, moment)
        with self._error_scope(name):
            filesystem.utime(name, times, dir_fd=self.descriptor, follow_symlinks=False)

    def link(self, name: str, to: Folder, new: str) -> None:
        """Hard-link ``name`` to ``new`` in the folder ``to``. Raises FileExistsError if ``new`` exists."""
        with self._error_scope(name):
            filesystem.link(name, new, src_dir_fd=self.descriptor, dst_dir_fd=to.descriptor, follow_symlinks=False)

    def rename(self, name: str, to: Folder, new: str) -> None:
        """Move ``name`` to ``new`` in the folder ``to``, replacing a file of that name."""
        with self._error_scope(name):
            filesystem.rename(name, new, src_dir_fd=self.descriptor, dst_dir_fd=to.descriptor)

    def rmdir(self, name: str) -> None:
        """Remove an empty directory."""
        with self._error_scope(name):
            filesystem.rmdir(name, dir_fd=self.descriptor)

    def remove(self, name: str) -> None:
        """Remove ``name`` and its contents, at any depth but on this device only. Raises OSError if something is left.

        Takes three descriptors and no recursion: nested directories are first moved up. Terminates even if others keep
        adding directories.
        """
        if not stat.S_ISDIR(self.get_status(name).st_mode):
            self.unlink(name)
            return
        with self.enter(name) as top:
            device = filesystem.fstat(self.descriptor).st_dev
            left = top._remove_files(top, device)
            for _ in range(_MOST_DIRECTORIES):
                if not left:
                    break
                directory = left.pop()
                with suppress(OSError), top.enter(directory) as folder:
                    left += folder._remove_files(top, device)
                with suppress(OSError):
                    top.rmdir(directory)
        self.rmdir(name)

    def _remove_files(self, top: Folder, device: int) -> list[str]:
        """Remove this directory's files and move its directories up to ``top``; return their names there."""
        if filesystem.fstat(self.descriptor).st_dev != device:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        directories = []
        for name in self.list_names():
            with suppress(OSError):  # another process removed it, or it is another user's
                if not stat.S_ISDIR(self.get_status(name).st_mode):
                    self.unlink(name)
                elif self is top:
                    directories.append(name)
                else:
                    new = secrets.token_hex(16)
                    self.rename(name, top, new)
                    directories.append(new)
        return directories


# Both are no generators: a dozen of them are entered for each file that is published, and a generator takes longer.


class _Telling:
    """Context manager of Folder._telling()."""

    def __init__(self, place: str, name: str) -> None:
        self._place, self._name = place, name

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, OSError) and error.filename == self._name:
            error.filename = os.path.join(self._place, self._name)


class _Closing:
    """Context manager that yields the folder of a descriptor, and closes the descriptor."""

    def __init__(self, descriptor: int, place: str) -> None:
        self._folder = Folder(descriptor, place)

    def __enter__(self) -> Folder:
        return self._folder

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):  # nothing was written through it
            filesystem.close(self._folder.descriptor)


@contextmanager
def open_subdirectory(root: str, folders: Iterable[str] = (), *, make: bool = False) -> Iterator[Folder]:
    """Open the directory at ``folders`` below ``root`` for this block, and yield its Folder.

    Links to ``root`` are followed, since its user chose them; links below it are not. If ``root`` is inside another
    known cache, as Triton's may be in Inductor's, links in that cache are not followed either. ``make``: create missing
    folders. Raises OSError.
    """
    top, path = config.split_cache_path(root)
    path = os.path.join(path, *folders)
    descriptor = filesystem.open(top, _ENTER)
    if path:
        with _Closing(descriptor, top) as folder:  # and no longer: a process may have few descriptors left
            descriptor = folder._descend(path, make=make)
    with _Closing(descriptor, os.path.join(top, path) if path else top) as folder:
        yield folder


def open_directory(root: str, directory: str, *, make: bool = False) -> AbstractContextManager[Folder]:
    """Open ``directory``, a path that is ``root`` or below it, for this block. Raises OSError, also for any other path.

    Like open_subdirectory(): follows no link below ``root``; ``make`` creates missing directories.
    """
    if not directory:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), directory)
    prefix = os.path.join(root, "")
    names = directory[len(prefix) :].split(os.sep)
    if not prefix or not directory.startswith(prefix) or not {"", os.curdir, os.pardir}.isdisjoint(names):
        names = os.path.relpath(directory, root or os.curdir).split(os.sep)
    if os.pardir in names:
        raise OSError(errno.EXDEV, f"not below {root}", directory)
    return open_subdirectory(root, [] if names == [os.curdir] else names, make=make)


@contextmanager
def open_parent(root: str, path: str, *, make: bool = False) -> Iterator[tuple[Folder, str]]:
    """Open the directory that contains ``path`` for this block; yield its Folder, and the name of ``path`` in it.

    Opened by at(): the directory must be ``root`` or below it, else OSError is raised.
    """
    directory, name = os.path.split(os.path.normpath(path))
    with open_directory(root, directory, make=make) as folder:
        yield folder, name


def open_within(path: str, flags: int) -> int:
    """Open ``path`` and return the descriptor, following no link at its end, nor inside the cache that contains it.

    ``flags``: of open(2). Known caches: config.split_cache_path(). Raises OSError.
    """
    top, within = config.split_cache_path(path)
    flags |= os.O_NOFOLLOW | os.O_CLOEXEC
    if not within:
        return filesystem.open(path, flags)
    try:
        with open_subdirectory(top) as folder, folder._error_scope(within):
            return filesystem.descend(folder.descriptor, within, flags)
    except OSError as error:
        if error.errno != errno.EMFILE:
            raise
    # With one descriptor less: a library is read while its lock is held, for which stock code needs one.
    return filesystem.descend(filesystem.NOWHERE, os.path.join(filesystem.realpath(top), within), flags)


def list_directory(directory: str) -> list[str]:
    """Return the names of all entries of ``directory``. Follows no link inside a known cache. Raises OSError."""
    if not config.split_cache_path(directory)[1]:
        return filesystem.listdir(directory)
    with _Closing(open_within(directory, _LIST), directory) as folder:
        return filesystem.listdir(folder.descriptor)


def get_status(path: str) -> os.stat_result:
    """Return the status of ``path`` (for a link, its own). Follows no link inside a known cache. Raises OSError."""
    top, within = config.split_cache_path(path)
    if not within:
        return filesystem.lstat(path)
    with open_parent(top, path) as (folder, name):
        return folder.get_status(name)


def get_mtime(path: str) -> float:
    """Return the mtime of ``path``, as status() finds it, in seconds since the epoch; 0.0 if status() fails."""
    try:
        return get_status(path).st_mtime
    except OSError:
        return 0.0


def is_there(path: str) -> bool:
    """Tell whether status() finds anything at ``path``, a dangling link included; False if it fails."""
    try:
        get_status(path)
    except OSError:
        return False
    return True


def list_items(directory: str) -> list[Item]:
    """Return an Item for each entry of ``directory``, sorted by name. Opens the directory by open_subdirectory().

    Empty if another process has removed the directory, or its permissions forbid access. Raises other OSErrors.
    """
    found = []
    try:
        with open_subdirectory(directory) as folder:
            for name in sorted(folder.list_names()):
                with suppress(FileNotFoundError):
                    found.append(Item(os.path.join(directory, name), folder.get_status(name)))
    except OSError as error:
        if error.errno not in _NOT_LISTED:
            raise
    return found


def walk_files(top: str | Item) -> Iterator[Item]:
    """Yield every non-directory at or below ``top``; nothing if it is gone or access is denied. Raises OSError."""
    try:
        left = [Item(top, get_status(top)) if isinstance(top, str) else top]
    except OSError as error:
        if error.errno not in _NOT_LISTED:
            raise
        return
    while left:
        item = left.pop()
        if item.is_directory:
            left += reversed(list_items(item.path))
        else:
            yield item


def touch(path: str) -> None:
    """Set the times of ``path`` (for a link, its own) to now. Follows no link inside a known cache. Raises OSError."""
    top, within = config.split_cache_path(path)
    with open_parent(top if within else os.path.dirname(path) or os.curdir, path) as (folder, name):
        folder.touch(name)


@contextmanager
def create_scratch(directory: str, prefix: str) -> Iterator[Folder]:
    """Create a directory of mode 0700 in ``directory`` for this block, and yield its Folder.

    Its name begins with ``prefix``. Removed with its contents after the block. Safe even if others can write to
    ``directory``. Raises OSError, also if another user has replaced the new directory.
    """
    name = f"{prefix}{secrets.token_hex(8)}"
    with open_subdirectory(directory) as folder:
        filesystem.mkdir(name, 0o700, dir_fd=folder.descriptor)
        try:
            with folder.enter(name) as own:
                status = filesystem.fstat(own.descriptor)
                if status.st_uid != os.geteuid() or status.st_mode & 0o077:
                    raise PermissionError(errno.EPERM, "it was exchanged", os.path.join(directory, name))
                yield own
        finally:
            with suppress(OSError):
                folder.remove(name)
