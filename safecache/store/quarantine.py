"""Quarantine of refused files, each beside a note of the reason; the newest 100 files, up to 256 MiB, are kept.

No link between the cache's root and the quarantine is followed. Otherwise whoever puts one there could have files moved
to a place of his choice, under names and with content of his choice.
"""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress

from safecache.fs import filesystem, folders, opening
from safecache.fs.folders import Folder
from safecache.places import metadata
from safecache.reporting.kinds import UNREAD, Reason
from safecache.settings import config

__all__ = ["find_obstacle", "is_its_name", "is_unchanged", "open_quarantine", "quarantine", "read_note", "remove"]

_PLACE = (metadata.FOLDER, metadata.QUARANTINE)
# The latest tell what is wrong; and a disk that damages all of a cache is not to fill up with what it damaged.
_MOST_FILES, _MOST_BYTES = 100, 256 << 20
_LONGEST_NOTE = 64 << 10
_NAME = re.compile(r"(.+\.[0-9a-f]{8})(\.json)?", re.DOTALL)
_HOLD = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


def quarantine(path: str, root: str, reason: Reason, found: bytes | os.stat_result | None = None) -> str | None:
    """Move the file or directory at ``path`` to the quarantine of the cache ``root``, with a note of the reason.

    Return its new path; None if it stays. It stays where the file system refuses, outside of ``root``, behind a link,
    and where SAFECACHE=observe has it used. ``found``: what was judged there, as its content, or as its status if it is
    large or no file. Anything else, such as what another process has saved there since, stays too. Older files are
    removed from the quarantine: see _MOST_FILES and _MOST_BYTES.
    """
    if config.current().is_observing and reason not in UNREAD:
        return None
    # Cut in bytes: a name of the longest kind must have room for what is added to it.
    name = f"{os.fsdecode(os.fsencode(os.path.basename(path))[:64])}.{secrets.token_hex(4)}"
    moved = False
    # What cannot be looked through has been moved all the same.
    with (
        suppress(OSError),
        folders.open_parent(root, path) as (parent, old),
        _watch_file(source := f"{parent.path}/{old}", found) as is_it,
        folders.open_subdirectory(root, _PLACE, make=True) as place,
    ):
        # What is judged and renamed by its name may be another each time.
        moved = is_it(source) and _move(parent, old, place, name, {"from": path, "reason": reason.value})
        if moved and not is_it(f"{place.path}/{name}"):
            _put_back(parent, old, place, name)
            moved = False
        if moved:
            _remove_oldest(place, name)
    return os.path.join(root, *_PLACE, name) if moved else None


def find_obstacle(root: str) -> str | None:
    """Return what is no directory on the way to the quarantine of ``root``; None if there is no such thing.

    While it is there, no refused file in that cache can be moved away.
    """
    place = root
    for folder in _PLACE:
        place = os.path.join(place, folder)
        try:
            if not stat.S_ISDIR(filesystem.lstat(place).st_mode):
                return place
        except OSError:
            return None
    return None


def open_quarantine(root: str) -> AbstractContextManager[Folder]:
    """Open the quarantine of ``root``. Raises OSError; FileNotFoundError where nothing was ever quarantined."""
    return folders.open_subdirectory(root, _PLACE)


def is_its_name(name: str) -> bool:
    """Tell whether ``name`` is one that quarantine() gives to a file, and not to a note."""
    return _NAME.fullmatch(name) is not None and not name.endswith(".json")


def is_unchanged(path: str, found: bytes | os.stat_result | None) -> bool:
    """Tell whether what was ``found`` is still at ``path``; anything, for None. False if that cannot be told."""
    with suppress(OSError), _watch_file(path, found) as is_it:
        return is_it(path)
    return False


@contextmanager
def _watch_file(path: str, found: bytes | os.stat_result | None) -> Iterator[Callable[[str], bool]]:
    """Yield a test whether a path has what was ``found``, there or where it was moved. Both raise OSError."""
    if found is None:
        yield lambda place: bool(filesystem.lstat(place))
    elif isinstance(found, bytes):
        yield lambda place: opening.has_content(place, found, _check_regular, flags=os.O_NOFOLLOW)
    else:
        # Open, so that nothing else gets its inode: that is all there is to tell by once a renaming has set its time.
        held = filesystem.open(path, _HOLD)
        try:
            unchanged = filesystem.get_identity(filesystem.fstat(held)) == filesystem.get_identity(found)
            yield (
                lambda place: (
                    unchanged and _identify_inode(filesystem.lstat(place)) == _identify_inode(filesystem.fstat(held))
                )
            )
        finally:
            with suppress(OSError):
                filesystem.close(held)


def _identify_inode(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _check_regular(status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise OSError("no longer a file")


def _put_back(parent: Folder, old: str, place: Folder, name: str) -> None:
    """Move the file back to ``old``, unless there is one again. Raises OSError."""
    try:
        place.link(name, parent, old)
    except OSError as error:
        if error.errno != errno.EEXIST:  # a file system without hard links
            place.rename(name, parent, old)
    remove(place, name)


def _move(parent: Folder, old: str, place: Folder, name: str, why: dict[str, str]) -> bool:
    note = name + ".json"
    moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    # First the note: nothing lies there without one, whenever this process is killed.
    with suppress(OSError):
        place.write(note, json.dumps(why | {"time": moment}).encode())
    try:
        filesystem.retry(lambda: parent.rename(old, place, name), filesystem.PASSING)
        return True
    except OSError:
        with suppress(OSError):
            place.get_status(name)
            return True  # done, and reported as if not: NFS may ask a server twice
        with suppress(OSError):
            place.unlink(note)
        return False


def _remove_oldest(place: Folder, newest: str) -> None:
    """Remove the oldest files above the limits, but never the ``newest``. Raises OSError."""
    found = _list_items(place)
    _, size = found.pop(newest, (0, 0))
    for number, name in enumerate(sorted(found, key=lambda name: found[name], reverse=True), start=2):
        size += found[name][1]
        if number > _MOST_FILES or size > _MOST_BYTES:
            remove(place, name)


def _list_items(place: Folder) -> dict[str, tuple[int, int]]:
    """Return by name, for what quarantine() put there, when it was moved (ns) and its size, note included."""
    found: dict[str, tuple[int, int]] = {}
    for name in place.list_names():
        named = _NAME.fullmatch(name)
        if named is None:
            continue
        with suppress(OSError):  # removed by another process
            status = place.get_status(name)
            moment, size = found.get(named[1], (0, 0))
            # A renaming sets the time of change: no writer can set that.
            found[named[1]] = max(moment, status.st_ctime_ns), size + _measure_size(place, name, status)
    return found


def _measure_size(place: Folder, name: str, status: os.stat_result) -> int:
    if not stat.S_ISDIR(status.st_mode):
        return status.st_size
    return sum(item.status.st_size for item in folders.walk_files(f"{place.path}/{name}"))


def read_note(path: str) -> dict[str, str]:
    """Return the fields of the note at ``path``, empty for what is no note. Unverified: anybody may have written it."""
    try:
        said = json.loads(opening.read_regular(path, opening.check_regular, flags=os.O_NOFOLLOW, limit=_LONGEST_NOTE))
    except (OSError, opening.UnusableEntry, ValueError, RecursionError):
        return {}
    return {name: text for name, text in said.items() if isinstance(text, str)} if isinstance(said, dict) else {}


def remove(place: Folder, name: str) -> None:
    """Remove the file ``name`` and its note from this quarantine. Errors are ignored."""
    for each in (name, f"{name}.json"):
        with suppress(OSError):  # gone, or another user's
            place.remove(each)
