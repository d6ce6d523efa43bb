"""Users who can write to a path: checked for ``SAFECACHE_TRUST=private``, ``safecache adopt``, and before all builds.

A file with several names (hard links) is judged by its own owner and mode, and by the path in use. Another name gives
nobody the right to write to it. Another user's directory on the path is an objection all the same.
"""

from __future__ import annotations

import errno
import functools
import os
import stat
from collections.abc import Iterator

__all__ = [
    "find_exposure",
    "find_opened_exposure",
    "find_outside_exposure",
    "find_own_group",
    "is_foreign",
    "is_own",
    "is_own_uid",
    "name_owner",
]

_MOST_LINKS = 40  # as the kernel
_ALL_UIDS = (1 << 32) - 1  # the last number is not a uid: chown(2)
_USUAL_OVERFLOW_UID = 65534


def is_foreign(status: os.stat_result) -> bool:
    """Tell whether the file is known to belong to somebody other than this user and root."""
    return status.st_uid not in (os.geteuid(), 0)


def is_own_uid(uid: int) -> bool:
    """Tell whether a file with this owner is known to belong to this user or root.

    In a user namespace, all unmapped users appear as one uid (user_namespaces(7)). If this process is unmapped too, it
    has that uid itself: then owners cannot be known, and no file counts as its own.
    """
    return uid in (os.geteuid(), 0) and uid != _read_overflow_uid()


def is_own(status: os.stat_result) -> bool:
    """Tell whether nobody else could write to a file with this ``status``. Its directory is not checked."""
    return is_own_uid(status.st_uid) and not status.st_mode & 0o022


def name_owner(uid: int) -> str:
    """Return a name of the file owner ``uid`` for messages."""
    return f"uid {uid}, which may be anybody in this user namespace" if uid == _read_overflow_uid() else f"uid {uid}"


@functools.cache
def _read_overflow_uid() -> int | None:
    """Return the uid that unmapped users appear as; None if all users are mapped, so that it is an ordinary one."""
    try:
        with open("/proc/self/uid_map") as uid_map:
            mapped = sum(int(line.split()[-1]) for line in uid_map)
        with open("/proc/sys/kernel/overflowuid") as file:
            return None if mapped >= _ALL_UIDS else int(file.read())
    except (OSError, ValueError):
        return _USUAL_OVERFLOW_UID


@functools.cache
def find_own_group() -> int | None:
    """Return the gid of this process if that group has this user's name and lists no other member; else None.

    None also for root. Where every user has such a group (useradd(8)), pam_umask(8) sets a umask of 002, and a cache is
    group-writable.
    """
    import grp
    import pwd

    user = os.geteuid()
    try:
        name, group = pwd.getpwuid(user).pw_name, grp.getgrgid(os.getegid())
    except KeyError:
        return None
    return group.gr_gid if user and group.gr_name == name and set(group.gr_mem) <= {name} else None


def find_exposure(path: str, *, group: int | None = None, unknown: bool = False) -> str | None:
    """Return why somebody other than this user and root could have written or replaced ``path``; None if nobody could.

    ``group``: a gid whose write permission is no objection. ``unknown``: an unmapped owner is no objection either; for
    what this process has just created below directories of an unmapped root. An OSError is returned as an objection.

    Every directory and symbolic link on the way from the root counts. A sticky directory such as /tmp is no objection
    to the files in it: there only an owner (or root) can rename or remove a name (see unlink(2)), and the owner of that
    name is checked next.
    """
    try:
        # Not abspath(), which takes link/.. for the directory of the link: to the kernel it is the target's parent.
        *above, last = _iter_steps(path if os.path.isabs(path) else os.path.join(os.getcwd(), path))
        for step, status in above:
            objection = _find_objection(step, status, last=False, group=group, unknown=unknown)
            if objection is not None:
                return objection
        return _find_objection(*last, last=True, group=group, unknown=unknown)
    except OSError as error:
        return f"{error.filename or path}: {error.strerror}"


def find_outside_exposure(path: str) -> str | None:
    """Return why others than this user and own_group() could have written ``path``; or None. See why_not_private()."""
    objection = find_exposure(path)
    # Only now, since it may have to ask a server.
    return objection and find_exposure(path, group=find_own_group())


def find_opened_exposure(path: str, status: os.stat_result) -> str | None:
    """Return why others could have written ``path``, opened with this ``status``; or None. See why_not_private()."""
    return _find_objection(path, status, last=True, group=None, unknown=False) or find_exposure(path)


def _iter_steps(path: str) -> Iterator[tuple[str, os.stat_result]]:
    """Yield every name that the kernel looks up on the way to the absolute ``path``, through links and targets."""
    names = path.split(os.sep)[::-1]
    reached = os.sep
    yield reached, os.lstat(reached)
    links = 0
    while names:
        name = names.pop()
        if name in ("", "."):
            continue
        if name == "..":
            reached = os.path.dirname(reached)
            yield reached, os.lstat(reached)
            continue
        step = os.path.join(reached, name)
        status = os.lstat(step)
        yield step, status
        if not stat.S_ISLNK(status.st_mode):
            reached = step
            continue
        links += 1
        if links > _MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        target = os.readlink(step)
        reached = os.sep if os.path.isabs(target) else reached
        names += target.split(os.sep)[::-1]


def _find_objection(step: str, status: os.stat_result, *, last: bool, group: int | None, unknown: bool) -> str | None:
    if not is_own_uid(status.st_uid) and not (unknown and status.st_uid == _read_overflow_uid()):
        return f"{step} belongs to {name_owner(status.st_uid)}"
    if stat.S_ISLNK(status.st_mode):
        return None  # a link has no mode of its own; who may replace it is up to its directory
    sticky = status.st_mode & stat.S_ISVTX and not last
    others = 0o002 if status.st_gid == group else 0o022
    if status.st_mode & others and not sticky:
        return f"{step} has mode {stat.S_IMODE(status.st_mode):04o}"
    return None
