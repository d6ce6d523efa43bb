"""Copies: of a lower tier's files into a cache, and of files made here into the shared level."""

from __future__ import annotations

import os
import stat

from safecache.files import opening
from safecache.places.layout import CodeFile
from safecache.remote import tier
from safecache.reporting import report
from safecache.reporting.kinds import Kind, Travel
from safecache.settings import config
from safecache.store import entry_files, manifests
from safecache.tiers import layers, levels

__all__ = ["put", "send", "send_content"]


def put(path: str, content: bytes, root: str, kind: Kind, mode: int = 0o666) -> bool:
    """Write ``content`` to ``path`` in the cache ``root``; False, and reported, if that fails.

    Raises CacheWriteError for it in strict mode.
    """
    try:
        entry_files.publish(path, content, root, mode)
    except OSError as error:
        report.fail_write(f"copy {kind.noun} {path} from a lower tier", error, "Using the lower tier.", root)
        return False
    return True


def send(path: str, kind: Kind, root: str = "", *, anew: bool = True, key: str = "") -> bool:
    """Have the file at ``path`` sent to the remote, and if it lies in a local level copy it to the shared one.

    ``key``: what the seal of the file states, if it has one of its own.

    False if it is not there afterwards; a failed write is reported. ``root``: where its records are kept, if not at the
    top of the level. Not ``anew``: leaves a file of the same size alone. Raises CacheWriteError in strict mode.
    """
    if kind.tiers.travel is Travel.FILES and kind.tiers.is_pulled:
        tier.made_file(kind, path, root or config.cache_directory() or "", key)
    level = levels.find(path)
    if level is None:
        return False
    modes: list[int] = []

    def check(status: os.stat_result) -> None:
        opening.check_regular(status)
        modes.append(stat.S_IMODE(status.st_mode))

    try:
        content = entry_files.read(path, entry_files.largest(kind), check=check)
        record = manifests.stored(CodeFile(path, root or level.place, kind))
    except (OSError, opening.UnusableEntry):
        return False  # it is gone or was replaced, which its next reader here will report
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
    """As send(), with this ``content`` and ``record``; None: it has no record."""
    level = levels.find(path)
    if level is None or levels.is_left_alone(level.shared, reading=False):
        return False
    target, target_root = level.counterpart(path), level.counterpart(root or level.place)
    try:
        if not anew and _has_size(target, len(content)):
            return True
        if record is not None:
            entry_files.publish(manifests.path_of(CodeFile(target, target_root, kind)), record, target_root)
        entry_files.publish(target, content, target_root, mode)
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
