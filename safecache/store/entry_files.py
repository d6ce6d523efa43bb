"""Entry files: read and published, of bounded size, without ever following or waiting for what is not a file."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator

from safecache.fs import filesystem, folders, opening, stamps, temporaries
from safecache.fs.folders import Folder
from safecache.places import layout
from safecache.ports import Published, tell
from safecache.reporting import events
from safecache.reporting.kinds import ENTRIES, UNSEALED_BYTES, Kind, Reason
from safecache.settings import config, units
from safecache.signing import keyring, seal
from safecache.store.quarantine import quarantine

__all__ = [
    "RECORD",
    "digest",
    "max_entry_size",
    "publish",
    "quarantine",
    "read_unverified",
    "read_unverified_entry",
    "replace",
    "write",
    "write_stream",
]

_MIB, _GIB = 1 << 20, 1 << 30

# A record has some hundred bytes; that of the list of a kernel's files, a digest for each of these dozen.
RECORD = _MIB

# Where unsealed ones are used: graphs that hold their constants have some GB.
_UNSEALED_AND_USED = 4 * _GIB


def max_entry_size(kind: Kind, *, unsealed: bool = False) -> int:
    """Return the size limit, in bytes, for a file of this kind. Only a trusted seal lets read() exceed that.

    ``unsealed``: that of entries which are used without a seal, whatever the settings say, as for adopting.
    """
    if kind in ENTRIES and (unsealed or config.current().trust == "private"):
        return _UNSEALED_AND_USED
    return kind.proof.max_bytes


# What the file system says between two calls of a put if another process has cleared the cache: tried again at once.
_CLEARED, _AT_ONCE = frozenset({errno.ENOENT}), (0.0, 0.0)
# Bytes. Our own seals have some hundreds.
_LONGEST_SEAL = 16 << 10
_IN_THE_WAY = frozenset({errno.EEXIST, errno.ENOTDIR, errno.ELOOP})


def digest(path: str, most: int) -> bytes:
    """Return the SHA-256 of the file at ``path``. Raises OSError, and UnusableEntry as check_up_to(``most``) does."""
    return opening.digest_regular(path, opening.check_up_to(most), flags=os.O_NOFOLLOW, limit=most)


def read_unverified_entry(path: str, most: int = UNSEALED_BYTES, *, listed: bool = False) -> bytes:
    """Read the entry at ``path``, up to ``most`` bytes or the size that a trusted key has sealed; mark it as used.

    No link is followed, and no FIFO waited for. Raises UnusableEntry for what check_regular() refuses, and for a larger
    file, of which only the end is read. Raises OSError where the file system refuses or memory is short, and
    FileNotFoundError for an entry that is gone. ``listed``: its directory has just named it. A missing file is then
    looked for again, since another host may have moved it there.
    """
    passing = filesystem.LISTED if listed else filesystem.READING
    # A device is not even opened; the check is repeated on what was opened, since the name may change in between.
    status = filesystem.retry(lambda: filesystem.lstat(path), passing)
    opening.check_regular(status)
    stamps.mark_used(path, status)
    return read_unverified(path, most, passing=passing)


def read_unverified(
    path: str,
    most: int,
    *,
    check: Callable[[os.stat_result], None] = opening.check_regular,
    passing: frozenset[int] = filesystem.READING,
) -> bytes:
    """Read the file at ``path`` like read_entry(), but without marking it as used.

    ``check``: called with the file's status, in place of opening.check_regular(). ``passing``: the errnos to retry
    after.
    """
    try:
        return _read_up_to(path, most, check, passing)
    except opening.UnusableEntry as unusable:
        if unusable.reason is not Reason.TOO_LARGE:
            raise
        sealed = _find_sealed_size(path, unusable.status, passing)
    return _read_up_to(path, sealed, check, passing)


def _read_up_to(path: str, most: int, check: Callable[[os.stat_result], None], passing: frozenset[int]) -> bytes:
    return opening.read_regular(
        path, opening.check_up_to(most, check), flags=os.O_NOFOLLOW, limit=most, passing=passing
    )


def _find_sealed_size(path: str, status: os.stat_result, passing: frozenset[int]) -> int:
    """Return the file's size in bytes, as sealed by a trusted key. Raises UnusableEntry if none has, and OSError."""
    end, size = opening.read_end(path, opening.check_regular, _LONGEST_SEAL, flags=os.O_NOFOLLOW, passing=passing)
    verdict = seal.inspect_size(end, size, keyring.current().find)
    if verdict.reason is None:
        return size
    said = f"{verdict.reason.value} {verdict.key_id.hex()}" if verdict.key_id else verdict.reason.value
    detail = f"of {units.write_size(size)}, too large to be read where no trusted key has sealed so much ({said})"
    raise opening.UnusableEntry(Reason.TOO_LARGE, detail, status)


def publish(path: str, content: bytes, root: str, mode: int = 0o666) -> None:
    """Write ``content`` to ``path`` in the cache ``root``, whole or not at all; quarantine what is in the way.

    An obstacle is a directory at ``path``, or anything but a directory where one should be, even a link to one. The
    umask and setgid directories decide what users share. Raises OSError, with no temporary file left behind. A
    quarantined obstacle is reported, or raises EntryRefusedError in strict mode. One in the way of an entry is not: its
    lookup has met it before. The next call finds it gone.
    """
    _retry_put(lambda: _publish(path, content, root, mode))
    tell(Published(root))


def write(path: str, content: bytes, *, make_directories: bool) -> None:
    """Write ``content`` to ``path``, whole or not at all, inside a cache or elsewhere.

    Like publish(), but no size limit is enforced. Obstacles are only quarantined below a cache and with
    ``make_directories``. Raises OSError, also for a missing directory without it.
    """
    directory, name = os.path.split(os.path.join(".", path))  # a name alone has no directory
    root, within = config.split_cache_path(directory)

    def put() -> None:
        if within and make_directories:
            _publish(path, content, root, 0o666)
            return
        made = _make_directories(directory) if make_directories else []
        with folders.open_subdirectory(directory) as folder:
            durably = temporaries.should_fsync(folder)
            _replace(folder, name, (content,), 0o666, durably=durably)
            temporaries.reap_once(folder, directory)
        if durably:
            _sync_directories(set(map(os.path.dirname, made)))

    _retry_put(put)


def _retry_put(put: Callable[[], None]) -> None:
    filesystem.retry(lambda: filesystem.retry(put, _CLEARED, _AT_ONCE), filesystem.PASSING)


def _publish(path: str, content: bytes, root: str, mode: int) -> None:
    directory, name = os.path.split(path)
    made: list[str] = []
    with contextlib.ExitStack() as stack:
        folder = _enter_directory(stack, directory, root, made)
        durably = temporaries.should_fsync(folder)
        try:
            _replace(folder, name, (content,), mode, durably=durably)
        except IsADirectoryError:  # anything else that lies there is replaced
            _clear_way(path, root, folder.get_status(name), path)
            _replace(folder, name, (content,), mode, durably=durably)
        temporaries.reap_once(folder, directory)
    if durably:
        # Up to the root in any case: another process may have made them, and not have got as far as this.
        _sync_directories({*_iter_parents(directory, root), *map(os.path.dirname, made)})


def _enter_directory(stack: contextlib.ExitStack, directory: str, root: str, made: list[str]) -> Folder:
    """Make and open the directory below ``root`` until the ``stack`` ends; add the new ones above it to ``made``."""
    try:
        return stack.enter_context(folders.open_directory(root, directory, make=True))
    except FileNotFoundError:
        made += _make_directories(config.split_cache_path(root)[0])
    except OSError as error:
        if error.errno not in _IN_THE_WAY:
            raise
        _clear_way_above(directory, root)
    return stack.enter_context(folders.open_directory(root, directory, make=True))


def _clear_way(path: str, root: str, found: os.stat_result, saved: str) -> None:
    """Move what was ``found`` at ``path`` out of the way of what is ``saved`` at another, and report it."""
    place = quarantine(path, root, Reason.NOT_A_FILE, found)
    if place is not None and layout.locate(saved) is None:
        what = f"a {opening.name_type(found.st_mode)} was in the place of {path}"
        remedy = f"Moved it to {place}. Help: find out who creates such files in this cache"
        events.report(Reason.NOT_A_FILE, "cleared the way of a save", why=what, cause=what, remedy=remedy)


def _clear_way_above(directory: str, root: str) -> None:
    """Clear the first obstacle between the cache and the directory: anything but a directory. Raises OSError."""
    top = config.split_cache_path(root)[0]
    for above in [*list(_iter_parents(directory, top))[-2::-1], directory]:
        try:
            in_the_way = filesystem.lstat(above)
        except FileNotFoundError:
            return  # a sweep has moved it away for a moment: the next try makes it
        if not stat.S_ISDIR(in_the_way.st_mode):
            within = above.startswith(os.path.join(root, ""))
            _clear_way(above, root if within else top, in_the_way, os.path.join(directory, "file"))
            return


def _make_directories(directory: str) -> list[str]:
    """Make the directory, and those above it; return the ones that were missing. Raises OSError."""
    parent = os.path.dirname(directory)
    try:
        filesystem.mkdir(directory)
        return [directory]
    except FileNotFoundError:
        if parent == directory:
            raise
    except OSError:
        # Not only FileExistsError: a file system may rather say that it is read-only.
        if _is_directory(directory):
            return []
        raise
    made = _make_directories(parent)
    with contextlib.suppress(FileExistsError):
        filesystem.mkdir(directory)
        made.append(directory)
    return made


def _is_directory(path: str) -> bool:
    with contextlib.suppress(OSError):
        return stat.S_ISDIR(filesystem.retry(lambda: filesystem.stat(path), filesystem.READING).st_mode)
    return False


def _iter_parents(directory: str, root: str) -> Iterator[str]:
    root = root.rstrip(os.sep)
    while directory.startswith(root + os.sep):
        directory = os.path.dirname(directory)
        yield directory


def replace(path: str, content: bytes, mode: int = 0o666, *, durably: bool = False) -> None:
    """Write ``content`` to a temporary file and rename it to ``path``. Raises OSError, with nothing left behind.

    ``mode``: permission bits, less the umask. ``durably``: a loss of power leaves the old file or the new one, whole.
    """
    write_stream(path, (content,), mode, durably=durably)


def write_stream(path: str, parts: Iterable[bytes], mode: int = 0o666, *, durably: bool = False) -> None:
    """Write a file in ``parts``, without holding it in memory, and rename it to ``path``. Otherwise see replace()."""
    directory, name = os.path.split(path)
    with folders.open_subdirectory(directory or os.curdir) as folder:
        _replace(folder, name, parts, mode, durably=durably)


def _replace(folder: Folder, name: str, parts: Iterable[bytes], mode: int, *, durably: bool) -> None:
    temporary = temporaries.Temporary(folder, mode)
    try:
        temporary.write(parts, durably=durably)
        folder.rename(temporary.name, folder, name)
    except BaseException:
        with contextlib.suppress(OSError):
            folder.unlink(temporary.name)
        raise
    finally:
        temporary.close()
    if durably:
        folder.sync()


def _sync_directories(directories: Iterable[str]) -> None:
    for directory in sorted(directories):
        with folders.open_subdirectory(directory) as folder:
            folder.sync()
