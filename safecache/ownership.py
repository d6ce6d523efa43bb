"""Who can write the files on a path: what ``SAFECACHE_TRUST=private`` and ``safecache adopt`` ask."""

from __future__ import annotations

import os
import stat

__all__ = ["foreign_owner", "why_not_private"]


def foreign_owner(status: os.stat_result) -> bool:
    """Whether the file belongs to somebody other than this user and root."""
    return status.st_uid not in (os.geteuid(), 0)


def why_not_private(path: str) -> str | None:
    """Why somebody other than this user (and root) could have written ``path`` or replaced it; None if nobody could.

    Every directory from the root down counts, after symbolic links are resolved. A sticky directory such as /tmp is
    no objection to what lies in it: there only an owner (or root) can rename or remove a name (see unlink(2)), and
    the owner of that name is checked next.
    """
    resolved = os.path.realpath(path)
    steps = [resolved]
    while steps[-1] != os.path.dirname(steps[-1]):
        steps.append(os.path.dirname(steps[-1]))
    for step in reversed(steps):
        status = os.lstat(step)
        if foreign_owner(status):
            return f"{step} belongs to uid {status.st_uid}"
        sticky = stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX and step != resolved
        if status.st_mode & 0o022 and not sticky:
            return f"{step} has mode {stat.S_IMODE(status.st_mode):04o}"
    return None
