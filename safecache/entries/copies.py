"""Copies: of a lower tier's files into a cache, and of files made here into the shared level."""

from __future__ import annotations

import os
import stat

from safecache.files import opening
from safecache.places.layout import CodeFile
from safecache.places.refs import Ref, locate
from safecache.ports import plugs
from safecache.reporting import report
from safecache.reporting.kinds import Travel
from safecache.settings import config
from safecache.store import entry_files, manifests
from safecache.tiers import layers, levels

__all__ = ["propagate_file", "send_content", "write_copy"]


def write_copy(file: CodeFile, content: bytes, mode: int = 0o666) -> bool:
    """Write ``content`` to the file in its cache; False, and reported, if that fails.

    Raises CacheWriteError for it in strict mode.
    """
    try:
        entry_files.publish(file.path, content, file.root, mode)
    except OSError as error:
        what = f"copy {file.kind.noun} {file.path} from a lower tier"
        report.fail_write(what, error, "Using the lower tier.", file.root)
        return False
    return True


def propagate_file(file: CodeFile, *, anew: bool = True, key: str = "") -> bool:
    """Have the file sent to the remote, and if it lies in a local level copy it to the shared one.

    ``key``: what the seal of the file states, if it has one of its own.

    False if it is not there afterwards; a failed write is reported. Without a root, the top of its level keeps its
    record. Not ``anew``: leaves a file of the same size alone. Raises CacheWriteError in strict mode.
    """
    path, kind = file.path, file.kind
    if kind.tiers.travel is Travel.FILES and kind.tiers.is_pulled:
        cache = file.root or config.cache_directory() or ""
        plugs.tiers.keep(Ref(kind, key, cache) if key else locate(kind, path, cache))
    level = levels.find(path)
    if level is None:
        return False
    modes: list[int] = []

    def check(status: os.stat_result) -> None:
        opening.check_regular(status)
        modes.append(stat.S_IMODE(status.st_mode))

    try:
        content = entry_files.read(path, entry_files.max_entry_size(kind), check=check)
        record = manifests.read_record_bytes(file._replace(root=file.root or level.place))
    except (OSError, opening.UnusableEntry):
        return False  # it is gone or was replaced, which its next reader here will report
    return send_content(file, content, record=record, mode=modes[-1], anew=anew)


def send_content(
    file: CodeFile, content: bytes, *, record: bytes | None = None, mode: int = 0o666, anew: bool = True
) -> bool:
    """As propagate_file(), with this ``content`` and ``record``; None: it has no record."""
    level = levels.find(file.path)
    if level is None or levels.is_left_alone(level.shared, reading=False):
        return False
    root = level.counterpart(file.root or level.place)
    target = file._replace(path=level.counterpart(file.path), root=root)
    try:
        if not anew and _has_size(target.path, len(content)):
            return True
        if record is not None:
            entry_files.publish(manifests.record_path(target), record, root)
        entry_files.publish(target.path, content, root, mode)
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
