"""Whether what was found, or opened, is a file that may be read at all: of which type, whose, and how large."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable

from safecache.errors import EntryRefusedError
from safecache.files import ownership
from safecache.reporting.kinds import Reason
from safecache.settings import config, units

__all__ = ["UnusableEntry", "check_private", "check_regular", "check_up_to", "type_name"]


class UnusableEntry(Exception):
    """Something lies in the entry's place that is not read: ``reason`` and ``detail`` say what, ``status`` which."""

    def __init__(self, reason: Reason, detail: str, status: os.stat_result) -> None:
        super().__init__(reason, detail, status)
        self.reason = reason
        self.detail = detail
        self.status = status

    def __str__(self) -> str:
        return f"it is {self.detail}"


def check_regular(status: os.stat_result) -> None:
    """Raise UnusableEntry for anything but a regular file of this user or root, or of anybody in a shared cache."""
    if not stat.S_ISREG(status.st_mode):
        raise UnusableEntry(Reason.NOT_A_FILE, f"a {type_name(status.st_mode)}", status)
    if ownership.foreign_owner(status) and not config.current().shared:
        raise UnusableEntry(Reason.FOREIGN_OWNER, f"of uid {status.st_uid}", status)


def check_private(path: str) -> Callable[[os.stat_result], None]:
    """What raises as check_regular() does, and EntryRefusedError for a file opened at ``path`` that others could write.

    Or could have put there.
    """

    def check(status: os.stat_result) -> None:
        check_regular(status)
        objection = ownership.why_opened_not_private(path, status)
        if objection is not None:
            raise EntryRefusedError(f"not private: {objection}")

    return check


def type_name(mode: int) -> str:
    """What a file of this mode is, in a word."""
    names = {stat.S_IFIFO: "FIFO", stat.S_IFDIR: "directory", stat.S_IFLNK: "symbolic link", stat.S_IFSOCK: "socket"}
    names[stat.S_IFREG] = "file"
    return names.get(stat.S_IFMT(mode), "device")


def check_up_to(most: int, check: Callable[[os.stat_result], None] = check_regular) -> Callable[[os.stat_result], None]:
    """What raises as ``check`` does, and UnusableEntry for a file of more than so many bytes."""

    def check_size(status: os.stat_result) -> None:
        check(status)
        if status.st_size > most:
            detail = f"of {units.write_size(status.st_size)}, and no more than {units.write_size(most)} are read"
            raise UnusableEntry(Reason.TOO_LARGE, detail, status)

    return check_size
