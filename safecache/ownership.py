"""Who can write the files on a path: what ``SAFECACHE_TRUST=private`` and ``safecache adopt`` ask."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator

__all__ = ["foreign_owner", "why_not_private"]

_MOST_LINKS = 40  # as the kernel


def foreign_owner(status: os.stat_result) -> bool:
    """Whether the file belongs to somebody other than this user and root."""
    return status.st_uid not in (os.geteuid(), 0)


def why_not_private(path: str) -> str | None:
    """Why somebody other than this user (and root) could have written ``path`` or replaced it; None if nobody could.

    Every directory and symbolic link on the way from the root counts. A sticky directory such as /tmp is no objection
    to what lies in it: there only an owner (or root) can rename or remove a name (see unlink(2)), and the owner of
    that name is checked next.
    """
    try:
        steps = list(_steps(os.path.abspath(path)))
        for step in steps:
            objection = _objection(step, os.lstat(step), last=step is steps[-1])
            if objection is not None:
                return objection
    except OSError as error:
        return f"{error.filename or path}: {error.strerror}"
    return None


def _steps(path: str) -> Iterator[str]:
    """Every name that the kernel looks up on the way to the absolute ``path``, links and their targets included."""
    names = path.split(os.sep)[::-1]
    reached = os.sep
    yield reached
    links = 0
    while names:
        name = names.pop()
        if name in ("", "."):
            continue
        if name == "..":
            reached = os.path.dirname(reached)
            continue
        step = os.path.join(reached, name)
        yield step
        if not os.path.islink(step):
            reached = step
            continue
        links += 1
        if links > _MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        target = os.readlink(step)
        reached = os.sep if os.path.isabs(target) else reached
        names += target.split(os.sep)[::-1]


def _objection(step: str, status: os.stat_result, *, last: bool) -> str | None:
    if foreign_owner(status):
        return f"{step} belongs to uid {status.st_uid}"
    if stat.S_ISLNK(status.st_mode):
        return None  # a link has no mode of its own; who may replace it is up to its directory
    sticky = status.st_mode & stat.S_ISVTX and not last
    if status.st_mode & 0o022 and not sticky:
        return f"{step} has mode {stat.S_IMODE(status.st_mode):04o}"
    return None
