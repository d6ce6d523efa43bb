"""The directories below a cache, as tiers: read where it lacks something; the shared tier is written too."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from safecache.fs import opening
from safecache.places import layout
from safecache.places.layout import CodeFile
from safecache.places.refs import Ref, locate
from safecache.ports import Bundle, File, plugs
from safecache.reporting import report
from safecache.reporting.kinds import Kind, Reason, Travel
from safecache.reporting.report import Refusal
from safecache.settings import config
from safecache.store import entry_files, gate, manifests
from safecache.tiers import fallback, levels
from safecache.tiers.directory_faults import Unreadable

__all__ = ["REMEDY", "find_candidates", "iter_lower_caches", "propagate_file", "send_content"]

REMEDY = "Recompiling it; a shared tier replaces the file, other tiers keep it."


def find_candidates(ref: Ref) -> Iterator[Bundle]:
    """Yield what the directories below its cache have, the nearest first, but for entries: see Tier.candidates().

    Those are the shared tier below a local one, the directory that a fallback directory replaces, and SAFECACHE_TIERS.
    Kernels are also looked for in Triton's other caches of this user: torch sets TRITON_CACHE_DIR with its first
    autotuner. Entries are read in place.
    """
    for root in iter_lower_caches(ref):
        yield from _read_candidates(ref._replace(root=root))
    for root in layout.find_triton_siblings(ref.root, config.get_environment()) if ref.kind is Kind.KERNEL else ():
        there = ref._replace(root=root)
        # What stock Triton has left there is nobody's mistake.
        if any(gate.is_attested(there.name_file(name), is_lower=True) for name in _list_kernel_names(there)):
            yield from _read_candidates(there)


def iter_lower_caches(ref: Ref) -> Iterator[str]:
    """Yield the caches below that of ``ref``, nearest first; for a kernel, all of Triton's in each layer."""
    for _, root in fallback.iter_lower_paths(ref.root, ref.root):
        if ref.kind is Kind.KERNEL and root != levels.find_counterpart(ref.root):
            try:
                yield from layout.find_triton_caches(root)
            except OSError as error:
                refusal = Refusal(Reason.UNREADABLE, f"{error.strerror}", "Make it readable.")
                report.refuse(refusal, Kind.KERNEL, root, error=error)
        # That a cache with a fallback directory cannot be entered has been reported already.
        elif root != fallback.find_original(ref.root) or os.access(root, os.R_OK | os.X_OK, effective_ids=True):
            yield root


def _read_candidates(ref: Ref) -> Iterator[Bundle]:
    if ref.is_file and os.path.lexists(ref.path):
        names = [name for name in ref.list_names() if os.path.lexists(ref.name_file(name).path)]
    else:
        names = _list_kernel_names(ref) if ref.kind is Kind.KERNEL else []
    files = tuple(filter(None, (_read_unverified(ref, name) for name in names)))
    if files and len(files) == len(names):
        yield Bundle(ref, files, ref.path)


def _list_kernel_names(ref: Ref) -> list[str]:
    """Return the names of a kernel's files: libraries, files with a record of their own or a list's, lists last."""
    try:
        names = ref.list_names()
    except OSError:
        return []
    lists = [name for name in names if name.startswith(manifests.LIST)]
    listed, files = (
        {ref.name_file(name).path for name in lists},
        [ref.name_file(name) for name in names if name not in lists],
    )
    own = (
        f for f in files if f.path.endswith(".so") or manifests.find_list(f) in listed or manifests.has_record_file(f)
    )
    return [os.path.basename(file.path) for file in own] + lists


def _load_unverified(file: CodeFile) -> File:
    """Return the file with its mode and record. Raises OSError, and UnusableEntry for what is no regular file."""
    modes = list[int]()

    def check(status: os.stat_result) -> None:
        opening.check_regular(status)
        modes.append(stat.S_IMODE(status.st_mode))

    check(os.lstat(file.path))
    content = entry_files.read_unverified(file.path, entry_files.max_entry_size(file.kind), check=check)
    record = manifests.read_unverified_record(file) if file.kind.has_record else None
    return File(os.path.basename(file.path), content, record, modes[-1] | stat.S_IWUSR)


def _read_unverified(ref: Ref, name: str) -> File | None:
    """Return the file; None if it is gone or, as reported, cannot be read."""
    file = ref.name_file(name)
    try:
        return _load_unverified(file)
    except FileNotFoundError:
        return None
    except opening.UnusableEntry as unusable:
        report.refuse(Refusal(unusable.reason, f"it is {unusable.detail}"), ref.kind, file.path, REMEDY)
    except Unreadable as error:
        # For a cache that has a fallback directory, this was reported under the same cause.
        refusal = Refusal(Reason.UNREADABLE, error.evidence, cause=ref.root)
        report.refuse(refusal, ref.kind, file.path, REMEDY, error=error)
    except OSError as error:
        report.refuse(Refusal(Reason.UNREADABLE, f"{error.strerror}"), ref.kind, file.path, REMEDY, error=error)
    return None


def propagate_file(file: CodeFile, *, anew: bool = True, key: str = "") -> bool:
    """Queue the file for the remote, and copy it to the shared tier if it is stored in a local one.

    Return whether the shared tier has it afterwards. ``key``: what the file's own seal states, if it has one. ``anew``:
    False keeps a file of the same size there. Without a root, the record is stored at the top of the local tier. A
    failed write is reported; strict mode raises CacheWriteError.
    """
    path, kind = file.path, file.kind
    if kind.tiers.travel is Travel.FILES and kind.tiers.is_pulled:
        cache = file.root or config.cache_directory() or ""
        plugs.tiers.keep(Ref(kind, key, cache) if key else locate(kind, path, cache))
    level = levels.find(path)
    if level is None:
        return False
    try:
        found = _load_unverified(file._replace(root=file.root or level.place))
    except (OSError, opening.UnusableEntry):
        return False  # it is gone or was replaced, which its next reader here will report
    return send_content(file, found.content, record=found.record, mode=found.mode, anew=anew)


def send_content(
    file: CodeFile, content: bytes, *, record: bytes | None = None, mode: int = 0o666, anew: bool = True
) -> bool:
    """Copy ``content`` and ``record`` to the place of ``file`` in the shared tier. Return whether they are there.

    ``record``: None if the file has none. ``mode``: permission bits, less the umask. ``anew``, failures: see
    propagate_file(). False also for a file in no local tier.
    """
    level = levels.find(file.path)
    if level is None or levels.is_left_alone(level.shared, reading=False):
        return False
    root = level.find_counterpart(file.root or level.place)
    target = file._replace(path=level.find_counterpart(file.path), root=root)
    try:
        if not anew and _has_size(target.path, len(content)):
            return True
        if record is not None:
            entry_files.publish(manifests.record_path(target), record, root)
        entry_files.publish(target.path, content, root, mode)
    except OSError as error:
        fallback.fail_shared(level.shared, error, reading=False)
        return False
    return True


def _has_size(path: str, size: int) -> bool:
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return False
    return stat.S_ISREG(status.st_mode) and status.st_size == size
