"""The mount that a file is on, and whether code may be loaded from it: asked of the kernel, not guessed."""

from __future__ import annotations

import mmap
import os
import re
import tempfile
from collections.abc import Iterable
from typing import NamedTuple

from safecache.session import Part, inherit

__all__ = [
    "Mount",
    "can_execute_from",
    "find_executable_directory",
    "find_mount",
    "is_noexec",
    "is_over_a_network",
]

_MOUNTINFO = "/proc/self/mountinfo"
_NETWORK = re.compile(r"nfs\d?|cifs|smb\d?|lustre|gpfs|beegfs|ceph|glusterfs|9p|afs|virtiofs|fuse\..*")

_network_devices: Part[dict[int, bool]] = Part(dict, inherit)


class Mount(NamedTuple):
    """A mounted file system, as in proc_pid_mountinfo(5); ``options`` are the mount's and the file system's."""

    point: str
    file_system: str
    options: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.point} ({self.file_system}: {','.join(self.options)})"


def find_mount(path: str) -> Mount | None:
    """Return the mount of ``path``, or of its nearest existing parent; None if unknown."""
    path = os.path.realpath(path)
    found = None
    try:
        with open(_MOUNTINFO, encoding="utf-8", errors="surrogateescape") as file:
            for line in file:
                mount = _parse_mount(line)
                # The longest match; of several at one point the last, which hides the others.
                if mount and f"{path}/".startswith(mount.point.rstrip("/") + "/"):
                    found = mount if not found or len(mount.point) >= len(found.point) else found
    except OSError:
        return None
    return found


def _parse_mount(line: str) -> Mount | None:
    before, separator, after = line.partition(" - ")
    fields, rest = before.split(), after.split()
    if not separator or len(fields) < 6 or not rest:
        return None
    options = dict.fromkeys(fields[5].split(",") + (rest[2].split(",") if len(rest) > 2 else []))
    point = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), fields[4])
    return Mount(point, rest[0], tuple(options))


def is_over_a_network(path: str) -> bool:
    """Tell whether ``path`` is on a network file system, which hosts may share; False if unknown. Raises OSError."""
    device, known = os.stat(path).st_dev, _network_devices.now
    if device not in known:
        mount = find_mount(path)
        known[device] = mount is not None and _NETWORK.fullmatch(mount.file_system) is not None
    return known[device]


def is_noexec(path: str) -> bool:
    """Tell whether ``path``, or its nearest existing parent, is on a file system mounted noexec; False if unknown."""
    while not os.path.exists(path) and os.path.dirname(path) != path:
        path = os.path.dirname(path)
    try:
        return bool(os.statvfs(path).f_flag & os.ST_NOEXEC)
    except OSError:
        return False


def can_execute_from(directory: str) -> bool:
    """Tell whether a file written to ``directory`` can be mapped as code, by trying that with an empty page."""
    try:
        with tempfile.NamedTemporaryFile(dir=directory, prefix=".safecache-probe-") as file:
            file.truncate(mmap.PAGESIZE)
            mmap.mmap(file.fileno(), mmap.PAGESIZE, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC).close()
    except OSError:
        return False
    return True


def find_executable_directory(candidates: Iterable[str]) -> str | None:
    """Return the first of ``candidates`` that this process can write to and load code from; None if there is none."""
    return next((directory for directory in candidates if can_execute_from(directory)), None)
