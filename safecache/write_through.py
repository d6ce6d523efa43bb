"""What is made here is written to the shared level too, below a local one: its record first, where it has one.

As bytes that are in the local level by then: a reader on another node verifies them as ever.
"""

from __future__ import annotations

import os
import stat

from safecache import bounds, checks, layers, levels, records, store
from safecache.kinds import Kind

__all__ = ["send", "send_content"]


def send(path: str, kind: Kind, root: str = "", *, anew: bool = True) -> bool:
    """Have the file at ``path``, and its record, in the shared level too, if it lies in a local one.

    False if it is not there then; what cannot be written is reported. ``root``: where its records are kept, unless at
    the top of the level. Not ``anew``: a file of that size is left as it is. Raises CacheWriteError in strict mode.
    """
    level = levels.find(path)
    if level is None:
        return False
    modes: list[int] = []

    def check(status: os.stat_result) -> None:
        checks.check_regular(status)
        modes.append(stat.S_IMODE(status.st_mode))

    try:
        content = store.read(path, bounds.largest(kind), check=check)
        record = records.stored(path, root or level.place, kind)
    except (OSError, checks.UnusableEntry):
        return False  # it is gone, or exchanged: who reads it here finds that out, and says it
    return send_content(path, content, kind, root, record=record, mode=modes[-1], anew=anew)


def send_content(
    path: str,
    content: bytes,
    kind: Kind,
    root: str = "",
    *,
    record: bytes | None = None,
    mode: int = 0o666,
    anew: bool = True,
) -> bool:
    """As send(), of ``content`` and this ``record``."""
    level = levels.find(path)
    if level is None or levels.is_left_alone(level.shared, reading=False):
        return False
    target, target_root = level.counterpart(path), level.counterpart(root or level.place)
    try:
        if not anew and _has_size(target, len(content)):
            return True
        if record is not None:
            store.publish(records.path_of(target, target_root, kind), record, target_root)
        store.publish(target, content, target_root, mode)
    except OSError as error:
        layers.fail(level.shared, error, reading=False)
        return False
    return True


def _has_size(path: str, size: int) -> bool:
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return False
    return stat.S_ISREG(status.st_mode) and status.st_size == size
