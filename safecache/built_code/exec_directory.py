"""``SAFECACHE_EXEC_DIR``: the one approved directory that code is loaded from, wherever the caches lie."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat

from safecache.fs import mounts, opening, ownership
from safecache.places.layout import CodeFile
from safecache.reporting import events
from safecache.reporting.kinds import Kind, Reason
from safecache.settings import config
from safecache.store import entry_files, gate

__all__ = ["find_load_path", "find_objection", "place_executable"]


class _Refused(Exception):
    """The directory or the object is not used; carries the reason and a remedy."""

    def __init__(self, reason: Reason, detail: str, remedy: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.remedy = remedy


def find_load_path(file: CodeFile) -> str:
    """Verify the library, and return where to load it from: as executable_path(), or where nobody else can replace it.

    Raises EntryRefusedError, in every mode, if nothing attests it; OSError if the file or its record cannot be read.
    """
    verified, content = gate.verify_load_path(file)
    copied = place_executable(file.path, content)
    return verified if copied == file.path else copied


def place_executable(path: str, content: bytes | None = None) -> str:
    """Return where to load the library at ``path`` from: its copy in ``SAFECACHE_EXEC_DIR``, or ``path`` if unset.

    ``content``: its bytes, if they were verified; without them the file must be one that only this user or root can
    write. The copy is stored under the digest of its content, in a directory of this user with mode 0700. If no copy
    can be made, a warning says why and ``path`` is returned; strict mode raises the reason's error.
    """
    chosen = config.current().exec_dir
    if chosen is None:
        return path
    try:
        return _copy_library(path, chosen, content)
    except _Refused as refused:
        message, why = f"did not copy {path} to SAFECACHE_EXEC_DIR={chosen}", str(refused)
        events.report(refused.reason, message, why=why, cause=why, remedy=refused.remedy, error=refused)
    except OSError as error:
        message, remedy = f"did not copy {path} to SAFECACHE_EXEC_DIR={chosen}", "Loading code from the cache itself."
        events.report(Reason.EXEC_DIR_UNUSABLE, message, why=f"{error}", cause=chosen, remedy=remedy)
    return path


def find_objection(directory: str) -> str | None:
    """Return why code must not be loaded from ``directory``, as a clause for a message; None if it may."""
    if not os.path.isdir(directory):
        return "it is not a directory"
    others = ownership.find_exposure(directory)
    if others is not None:
        return f"others can write to it: {others}"
    if mounts.is_noexec(directory):
        return f"it is on {mounts.find_mount(directory)}, from which no code can be loaded"
    return None


def _copy_library(path: str, chosen: str, content: bytes | None) -> str:
    against = find_objection(chosen)
    if against is not None:
        raise _Refused(Reason.EXEC_DIR_UNUSABLE, against, "Help: name a directory that only you or root can write to")
    content = _read_private_file(path) if content is None else content
    own = os.path.join(chosen, f"safecache-{os.geteuid()}")
    _make_private(own)
    directory = os.path.join(own, hashlib.sha256(content).hexdigest()[:32])
    _make_private(directory)
    copy = os.path.join(directory, os.path.basename(path))
    if not _has_content(copy, content):
        entry_files.replace(copy, content, 0o700)
    return copy


def _read_private_file(path: str) -> bytes:
    """The bytes of an object, if only this user or root could have written it. Raises _Refused if others could."""
    others = ownership.find_exposure(path)
    if others is not None and not others.startswith(f"{path}: "):  # an unreadable file fails as in stock torch
        detail = f"others could have written it: {others}"
        raise _Refused(Reason.NOT_PRIVATE, detail, "Help: keep the cache where only you can write")
    return opening.read_regular(path, _check_code)


def _check_regular(status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise OSError("not a regular file")


def _check_code(status: os.stat_result) -> None:
    _check_regular(status)
    if status.st_size > entry_files.max_entry_size(Kind.NATIVE_CODE):
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))


def _make_private(directory: str) -> None:
    with contextlib.suppress(FileExistsError):
        os.mkdir(directory, 0o700)
    status = os.lstat(directory)
    is_ours = status.st_uid == os.geteuid() and ownership.is_own_uid(status.st_uid)
    if not stat.S_ISDIR(status.st_mode) or not is_ours or status.st_mode & 0o077:
        detail = f"{directory} is not a directory of this user with mode 0700"
        raise _Refused(Reason.EXEC_DIR_UNUSABLE, detail, "Help: remove it")


def _has_content(copy: str, content: bytes) -> bool:
    try:
        return opening.has_content(copy, content, _check_regular, flags=os.O_NOFOLLOW)
    except OSError:
        return False
