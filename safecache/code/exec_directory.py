"""``SAFECACHE_EXEC_DIR``: the one approved directory that code is loaded from, wherever the caches lie."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat

from safecache.files import mounts, opening, ownership
from safecache.places.layout import CodeFile
from safecache.reporting import events
from safecache.reporting.kinds import Kind, Reason
from safecache.settings import config
from safecache.store import entry_files, gate

__all__ = ["executable_path", "load_path", "objection"]


class _Refused(Exception):
    """The directory or the object is not used; carries the reason and a remedy."""

    def __init__(self, reason: Reason, detail: str, remedy: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.remedy = remedy


def load_path(file: CodeFile) -> str:
    """Verify the library, and find where to load it from: executable_path(), or out of others' reach.

    Raises EntryRefusedError, in every mode, if nothing attests it; OSError if it or its record cannot be read.
    """
    verified, content = gate.verified_load_path(file)
    copied = executable_path(file.path, content)
    return verified if copied == file.path else copied


def executable_path(path: str, content: bytes | None = None) -> str:
    """Where to load the shared object at ``path`` from: its copy in ``SAFECACHE_EXEC_DIR``; ``path`` itself if unset.

    ``content``: its bytes, if they were verified; otherwise only this user or root may have been able to write it. The
    copy lies in a directory of this user with mode 0700, under the digest of its content. If it cannot be made, a
    warning says why and ``path`` is returned; strict mode raises the reason's error.
    """
    chosen = config.current().exec_dir
    if chosen is None:
        return path
    try:
        return _copy(path, chosen, content)
    except _Refused as refused:
        events.report(refused.reason, str(refused), cause=str(refused), remedy=refused.remedy, error=refused)
    except OSError as error:
        detail = f"{path} was not copied to SAFECACHE_EXEC_DIR={chosen}: {error}."
        events.report(Reason.EXEC_DIR_UNUSABLE, detail, cause=chosen, remedy="Code is loaded from where it lies.")
    return path


def objection(directory: str) -> str | None:
    """Why code must not be loaded from this directory; None if it may."""
    if not os.path.isdir(directory):
        return "it is not a directory"
    others = ownership.why_not_private(directory)
    if others is not None:
        return f"others can write to it: {others}"
    if mounts.forbids_execution(directory):
        return f"it lies on {mounts.mount_of(directory)}, and no code can be loaded from there"
    return None


def _copy(path: str, chosen: str, content: bytes | None) -> str:
    against = objection(chosen)
    if against is not None:
        detail = f"SAFECACHE_EXEC_DIR={chosen} is not used: {against}."
        raise _Refused(Reason.EXEC_DIR_UNUSABLE, detail, "Name a directory that only you or root can write to.")
    content = _verified(path) if content is None else content
    own = os.path.join(chosen, f"safecache-{os.geteuid()}")
    _make_private(own)
    directory = os.path.join(own, hashlib.sha256(content).hexdigest()[:32])
    _make_private(directory)
    copy = os.path.join(directory, os.path.basename(path))
    if not _holds(copy, content):
        entry_files.replace(copy, content, 0o700)
    return copy


def _verified(path: str) -> bytes:
    """The bytes of an object, if only this user or root could have written it. Raises _Refused if others could."""
    others = ownership.why_not_private(path)
    if others is not None and not others.startswith(f"{path}: "):  # an unreadable file fails as in stock torch
        detail = f"{path} is not copied to SAFECACHE_EXEC_DIR: others could have written it: {others}."
        raise _Refused(Reason.NOT_PRIVATE, detail, "Keep the cache where only you can write.")
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
    is_ours = status.st_uid == os.geteuid() and ownership.own_uid(status.st_uid)
    if not stat.S_ISDIR(status.st_mode) or not is_ours or status.st_mode & 0o077:
        detail = f"{directory} is not a directory of this user's with mode 0700, and so not used for code."
        raise _Refused(Reason.EXEC_DIR_UNUSABLE, detail, "Remove it.")


def _holds(copy: str, content: bytes) -> bool:
    try:
        return opening.holds(copy, content, _check_regular, flags=os.O_NOFOLLOW)
    except OSError:
        return False
