"""Directories below a cache's root, each entered from the one above it and through no link, and what is done in them.

Whoever can write to a cache can put a link, or another directory, in the place of any name in it, at any time. What is
reached by its name from there on is then wherever he wants it to be; what is reached from an open directory is not.
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

from safecache.files import filesystem, mounts
from safecache.settings import config

__all__ = [
    "Folder",
    "Item",
    "above",
    "at",
    "below",
    "is_there",
    "listed",
    "modified",
    "names_in",
    "open_within",
    "opened",
    "scratch",
    "status",
    "touch",
]

# Not O_RDONLY: who shares a cache may be let in and not be shown what else lies there.
_ENTER = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
# To remove in one go: no cache has more in one of its groups.
_MOST_DIRECTORIES = 100_000
_LIST = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
# Gone, another thing by now, another user's, or nested more deeply than a path can say.
_NOT_LISTED = {errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENAMETOOLONG}


class Item(NamedTuple):
    """Something that lies at ``path``, and its status; of a link its own."""

    path: str
    status: os.stat_result

    @property
    def name(self) -> str:
        """In its directory."""
        return os.path.basename(self.path)

    @property
    def is_directory(self) -> bool:
        """And no link to one."""
        return stat.S_ISDIR(self.status.st_mode)

    @property
    def is_file(self) -> bool:
        """A regular one, and no link to one."""
        return stat.S_ISREG(self.status.st_mode)


class Folder:
    """An open directory. Names are of what lies in it: no method follows a link, and all raise OSError.

    ``place``: what it was reached by, for whoever reads of an error: that has the whole path.
    """

    def __init__(self, descriptor: int, place: str = "") -> None:
        self.descriptor = descriptor
        self.place = place

    @contextmanager
    def _telling(self, name: str) -> Iterator[None]:
        """Where what has this name lies, in an error of this block."""
        try:
            yield
        except OSError as error:
            if error.filename == name:
                error.filename = os.path.join(self.place, name)
            raise

    @cached_property
    def is_over_a_network(self) -> bool:
        """See mounts.is_over_a_network()."""
        return mounts.is_over_a_network(self.path)

    @contextmanager
    def enter(self, path: str, *, make: bool = False) -> Iterator[Folder]:
        """The directory of this name, or at this path below, made if it is to be and is not there."""
        try:
            with self._telling(path):
                descriptor = filesystem.descend(self.descriptor, path)
        except FileNotFoundError:
            if not make:
                raise
            descriptor = self._made(path)
        with _closing(descriptor, os.path.join(self.place, path)) as folder:
            yield folder

    def _made(self, path: str) -> int:
        above, _, name = path.rpartition(os.sep)
        with ExitStack() as stack:
            parent = stack.enter_context(self.enter(above, make=True)) if above else self
            stack.enter_context(parent._telling(name))
            with suppress(FileExistsError):
                filesystem.mkdir(name, dir_fd=parent.descriptor)
            return filesystem.descend(parent.descriptor, name)

    def names(self) -> list[str]:
        """Of all that lies there, in no order."""
        with self._telling("."), _closing(filesystem.open(".", _LIST, dir_fd=self.descriptor), self.place) as folder:
            return filesystem.listdir(folder.descriptor)

    def status(self, name: str) -> os.stat_result:
        """Of a link its own."""
        with self._telling(name):
            return filesystem.lstat(name, dir_fd=self.descriptor)

    def open(self, name: str, flags: int, mode: int = 0o666) -> int:
        """Its descriptor; a FIFO is not waited for."""
        flags |= os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        with self._telling(name):
            return filesystem.open(name, flags, mode, dir_fd=self.descriptor)

    @property
    def path(self) -> str:
        """Of this very directory, in this process, wherever it is moved."""
        return f"/proc/self/fd/{self.descriptor}"

    def sync(self) -> None:
        """Wait until the names in it are on the disk, where that can be waited for."""
        try:
            descriptor = filesystem.open(".", _LIST, dir_fd=self.descriptor)
        except PermissionError:
            return  # one to write to and not to read
        try:
            filesystem.fsync(descriptor)
        except OSError as error:
            # Some file systems cannot, and need not.
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):
                raise
        finally:
            filesystem.close(descriptor)

    def write(self, name: str, content: bytes) -> None:
        """A new file. Raises FileExistsError if there is one; what could not be written whole is removed."""
        descriptor = self.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            filesystem.write_all(descriptor, content)
        except OSError:
            self.unlink(name)
            raise
        finally:
            filesystem.close(descriptor)

    def unlink(self, name: str) -> None:
        """Remove what is no directory."""
        with self._telling(name):
            filesystem.unlink(name, dir_fd=self.descriptor)

    def touch(self, name: str, moment: float | None = None) -> None:
        """Set its times, to now by default; of a link its own."""
        times = None if moment is None else (moment, moment)
        with self._telling(name):
            filesystem.utime(name, times, dir_fd=self.descriptor, follow_symlinks=False)

    def link(self, name: str, to: Folder, new: str) -> None:
        """Give it another name there, where nothing has that yet."""
        with self._telling(name):
            filesystem.link(name, new, src_dir_fd=self.descriptor, dst_dir_fd=to.descriptor, follow_symlinks=False)

    def rename(self, name: str, to: Folder, new: str) -> None:
        """Move it there; a file that has the name already is replaced."""
        with self._telling(name):
            filesystem.rename(name, new, src_dir_fd=self.descriptor, dst_dir_fd=to.descriptor)

    def rmdir(self, name: str) -> None:
        """Remove a directory in which there is nothing."""
        with self._telling(name):
            filesystem.rmdir(name, dir_fd=self.descriptor)

    def remove(self, name: str) -> None:
        """Remove it, with all that is in it however deep that is, and on this device alone; or else as much as can be.

        Takes three descriptors, and no depth of the stack: what is nested is moved up, and so is nested no more. Ends,
        whoever goes on adding directories.
        """
        if not stat.S_ISDIR(self.status(name).st_mode):
            self.unlink(name)
            return
        with self.enter(name) as top:
            device = filesystem.fstat(self.descriptor).st_dev
            left = top._without_files(top, device)
            for _ in range(_MOST_DIRECTORIES):
                if not left:
                    break
                directory = left.pop()
                with suppress(OSError), top.enter(directory) as folder:
                    left += folder._without_files(top, device)
                with suppress(OSError):
                    top.rmdir(directory)
        self.rmdir(name)

    def _without_files(self, top: Folder, device: int) -> list[str]:
        """The names in ``top`` of the directories that were in here, moved up, and the files removed."""
        if filesystem.fstat(self.descriptor).st_dev != device:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        directories = []
        for name in self.names():
            with suppress(OSError):  # another process has, or it is another user's
                if not stat.S_ISDIR(self.status(name).st_mode):
                    self.unlink(name)
                elif self is top:
                    directories.append(name)
                else:
                    new = secrets.token_hex(16)
                    self.rename(name, top, new)
                    directories.append(new)
        return directories


@contextmanager
def _closing(descriptor: int, place: str) -> Iterator[Folder]:
    try:
        yield Folder(descriptor, place)
    finally:
        with suppress(OSError):  # nothing was written through it
            filesystem.close(descriptor)


@contextmanager
def opened(root: str, folders: Iterable[str] = (), *, make: bool = False) -> Iterator[Folder]:
    """The directory that these lead to from ``root``, which may be reached through links: who names it means them.

    Unless it lies in a cache that has a name itself, as Triton's in Inductor's: then no link from there on is followed.
    ``make``: those of the folders that are not there. Raises OSError.
    """
    top, path = config.within_cache(root)
    path = os.path.join(path, *folders)
    with ExitStack() as stack:
        folder = stack.enter_context(_closing(filesystem.open(top, _ENTER), top))
        if path:
            with folder.enter(path, make=make) as below:
                stack.close()  # a process may have few descriptors left
                yield below
        else:
            yield folder


def at(root: str, directory: str, *, make: bool = False) -> AbstractContextManager[Folder]:
    """As opened(), of the directory at this path: the root, or one below it."""
    if not directory:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), directory)
    names = os.path.relpath(directory, root or os.curdir).split(os.sep)
    if os.pardir in names:
        raise OSError(errno.EXDEV, f"not below {root}", directory)
    return opened(root, [] if names == [os.curdir] else names, make=make)


@contextmanager
def above(root: str, path: str, *, make: bool = False) -> Iterator[tuple[Folder, str]]:
    """The directory below ``root``, or that itself, in which what is at ``path`` lies, and its name there.

    Raises OSError, also for a path that does not lead below the root.
    """
    directory, name = os.path.split(os.path.normpath(path))
    with at(root, directory, make=make) as folder:
        yield folder, name


def open_within(path: str, flags: int) -> int:
    """The descriptor of what is at ``path``, itself no link; and reached through none from the cache that it lies in.

    Raises OSError.
    """
    top, within = config.within_cache(path)
    flags |= os.O_NOFOLLOW | os.O_CLOEXEC
    if not within:
        return filesystem.open(path, flags)
    try:
        with opened(top) as folder, folder._telling(within):
            return filesystem.descend(folder.descriptor, within, flags)
    except OSError as error:
        if error.errno != errno.EMFILE:
            raise
    # With one descriptor less: a library is read while its lock is held, and stock needs one.
    return filesystem.descend(filesystem.NOWHERE, os.path.join(filesystem.realpath(top), within), flags)


def names_in(directory: str) -> list[str]:
    """Of all that lies in ``directory``, which is reached as by open_within(). Raises OSError."""
    if not config.within_cache(directory)[1]:
        return filesystem.listdir(directory)
    with _closing(open_within(directory, _LIST), directory) as folder:
        return filesystem.listdir(folder.descriptor)


def status(path: str) -> os.stat_result:
    """Of what is at ``path``, reached as by open_within(); of a link its own. Raises OSError."""
    top, within = config.within_cache(path)
    if not within:
        return filesystem.lstat(path)
    with above(top, path) as (folder, name):
        return folder.status(name)


def modified(path: str) -> float:
    """When what is at ``path`` was changed, as status() says, in seconds since 1970; 0.0 if it is gone."""
    try:
        return status(path).st_mtime
    except OSError:
        return 0.0


def is_there(path: str) -> bool:
    """Whether anything is at ``path``, as status() says; False where that cannot be told."""
    try:
        status(path)
    except OSError:
        return False
    return True


def listed(directory: str) -> list[Item]:
    """What lies in ``directory``, sorted by name; that is reached as opened() says.

    Nothing for one that another process has removed, or that another user has closed. Raises OSError.
    """
    found = []
    try:
        with opened(directory) as folder:
            for name in sorted(folder.names()):
                with suppress(FileNotFoundError):
                    found.append(Item(os.path.join(directory, name), folder.status(name)))
    except OSError as error:
        if error.errno not in _NOT_LISTED:
            raise
    return found


def below(top: str | Item) -> Iterator[Item]:
    """Whatever is no directory at this path, or below it; nothing if it is gone, or nobody may ask. Raises OSError."""
    try:
        left = [Item(top, status(top)) if isinstance(top, str) else top]
    except OSError as error:
        if error.errno not in _NOT_LISTED:
            raise
        return
    while left:
        item = left.pop()
        if item.is_directory:
            left += reversed(listed(item.path))
        else:
            yield item


def touch(path: str) -> None:
    """Set the times of what is at ``path`` to now, reached as by open_within(). Raises OSError."""
    top, within = config.within_cache(path)
    with above(top if within else os.path.dirname(path) or os.curdir, path) as (folder, name):
        folder.touch(name)


@contextmanager
def scratch(directory: str, prefix: str) -> Iterator[Folder]:
    """A directory of mode 0700 in ``directory``, whoever can write there, for this block; its name begins so.

    Raises OSError, also where somebody has put another one in its place.
    """
    name = f"{prefix}{secrets.token_hex(8)}"
    with opened(directory) as folder:
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
