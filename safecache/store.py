"""Entry files: listed, read, published and set aside, without ever following or waiting for what is not a file."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import stat
import time

from safecache import config, durability, files, temporaries
from safecache.ownership import foreign_owner
from safecache.reasons import Reason

__all__ = ["UnusableEntry", "check_regular", "list_entries", "publish", "quarantine", "read_entry", "replace"]

_QUARANTINE = os.path.join(".safecache", "quarantine")
_ATTEMPTS = 3


class UnusableEntry(Exception):
    """Something lies in the entry's place that is not read: ``reason`` and ``detail`` say what."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail


def list_entries(directory: str) -> list[str]:
    """The names of the entries in ``directory``, sorted; none if it does not exist. Raises OSError."""
    try:
        return sorted(name for name in os.listdir(directory) if not name.startswith("."))
    except FileNotFoundError:
        return []


def read_entry(path: str) -> bytes:
    """The bytes of the entry at ``path``.

    Raises UnusableEntry for what check_regular() refuses, at once: a FIFO is not waited for, a link not followed.
    Raises OSError where the file system refuses, FileNotFoundError for an entry that is gone.
    """
    # A device is not even opened; the check is repeated on what was opened, since the name may change in between.
    check_regular(os.lstat(path))
    return files.read_regular(path, check_regular, flags=os.O_NOFOLLOW)


def check_regular(status: os.stat_result) -> None:
    """Raise UnusableEntry for anything but a regular file of this user or root, or of anybody in a shared cache."""
    if not stat.S_ISREG(status.st_mode):
        raise UnusableEntry(Reason.NOT_A_FILE, f"a {_type_name(status.st_mode)}")
    if foreign_owner(status) and not config.current().shared:
        raise UnusableEntry(Reason.FOREIGN_OWNER, f"of uid {status.st_uid}")


def _type_name(mode: int) -> str:
    names = {stat.S_IFIFO: "FIFO", stat.S_IFDIR: "directory", stat.S_IFLNK: "symbolic link", stat.S_IFSOCK: "socket"}
    return names.get(stat.S_IFMT(mode), "device")


def publish(path: str, content: bytes, root: str, mode: int = 0o666) -> None:
    """Make ``content`` appear at ``path``, whole or not at all; a file where its directory should be is set aside.

    All that is made here has its mode less the umask: that and setgid directories decide what users share.
    Raises OSError, with nothing left behind.
    """
    directory = os.path.dirname(path)
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            _make_directory(directory, root)
            replace(path, content, mode, durably=durability.is_wanted(directory))
            break
        except FileNotFoundError:
            # Another process cleared the cache between two of these calls.
            if attempt == _ATTEMPTS:
                raise
    temporaries.reap_once(directory)


def _make_directory(directory: str, root: str) -> None:
    try:
        os.makedirs(directory, exist_ok=True)
    except FileExistsError:
        quarantine(directory, root, Reason.NOT_A_FILE)
        os.makedirs(directory, exist_ok=True)


def replace(path: str, content: bytes, mode: int = 0o666, *, durably: bool = False) -> None:
    """Write a file of this mode, less the umask, and rename it to ``path``. Raises OSError, and leaves nothing.

    ``durably``: what was there, or else this, is there after a loss of power, whole.
    """
    temporary = temporaries.Temporary(os.path.dirname(path), mode)
    try:
        temporary.write(content, durably=durably)
        os.rename(temporary.path, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary.path)
        raise
    finally:
        temporary.close()
    if durably:
        _sync_directory(os.path.dirname(path))


def _sync_directory(directory: str) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some file systems cannot, and need not.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def quarantine(path: str, root: str, reason: Reason) -> str | None:
    """Move what is at ``path`` out of the cache, to ``root/.safecache/quarantine``, with a note of why.

    Returns its new path; None where the file system refuses, and then the entry is where it was.
    """
    directory = os.path.join(root, _QUARANTINE)
    # Cut in bytes: a name of the longest kind must have room for what is added to it.
    name = os.fsdecode(os.fsencode(os.path.basename(path))[:64])
    destination = os.path.join(directory, f"{name}.{secrets.token_hex(4)}")
    note = {"from": path, "reason": reason.value, "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
    try:
        os.makedirs(directory, exist_ok=True)
        os.rename(path, destination)
        with open(destination + ".json", "x", encoding="utf-8") as file:
            json.dump(note, file)
    except OSError:
        return destination if os.path.lexists(destination) else None
    return destination
