"""Brings a cache within its limits: removes whole groups, the least recently used first, and none that is in use.

In use are libraries that running processes have mapped, and locks that they hold. What a process looks for first is
moved to the trash, then the stamps are looked at again, and then the rest follows. A process stamps what it reads
before it opens it: so either its stamp is seen here and all is put back, or it finds nothing. Killed at any point, a
removal leaves a miss.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cached_property
from typing import NamedTuple

from safecache.errors import CacheWriteError
from safecache.fs import filesystem, folders, mounts, opening, ownership, stamps, temporaries
from safecache.places import metadata
from safecache.reporting.kinds import Eviction, Kind
from safecache.settings import config
from safecache.store import entry_files
from safecache.store.groups import File, Group, iter_files
from safecache.upkeep.inventory import Inventory, take_inventory

__all__ = [
    "Limits",
    "Sweep",
    "find_running_torch",
    "hold_lock",
    "list_mapped_files",
    "lock_descriptor",
    "remove_group",
    "sweep",
]


def list_mapped_files() -> dict[tuple[str, int], int]:
    """Map (name, inode) of each file that is mapped into memory to the id of one process that has it mapped.

    Covers the processes of this host that this user may inspect. Paths and devices are not compared: a container sees
    other paths, and overlayfs reports other devices.
    """
    found: dict[tuple[str, int], int] = {}
    for pid in os.listdir("/proc"):
        if pid.isdigit():
            # Gone since, or of another user.
            with suppress(OSError), open(f"/proc/{pid}/maps", encoding="utf-8", errors="surrogateescape") as file:
                for line in file:
                    fields = line.rstrip("\n").split(None, 5)
                    if len(fields) == 6 and fields[5].startswith("/"):
                        name = os.path.basename(fields[5].removesuffix(" (deleted)"))
                        found.setdefault((name, int(fields[4])), int(pid))
    return found


def find_running_torch(found: Mapping[tuple[str, int], int]) -> int | None:
    """Return the ID of a process in ``found`` that has a library of torch in memory, or None."""
    return next((pid for (name, _), pid in found.items() if name.startswith("libtorch_")), None)


def hold_lock(path: str | None) -> AbstractContextManager[bool]:
    """Hold the lock file at ``path`` for a block; False, and it is not held, where another process has it.

    Torch looks for a library and builds it under such a lock. Where there is none, nobody builds.
    """
    try:
        descriptor = folders.open_within(path, os.O_RDWR | os.O_NONBLOCK) if path is not None else None
    except (FileNotFoundError, NotADirectoryError):
        descriptor = None
    return _hold_descriptor(descriptor)


@contextmanager
def _hold_descriptor(descriptor: int | None) -> Iterator[bool]:
    if descriptor is None:
        yield True
        return
    try:
        yield lock_descriptor(descriptor)
    finally:
        os.close(descriptor)


def lock_descriptor(descriptor: int) -> bool:
    """Lock what is open there, at once; False if another process has locked it."""
    try:
        return filesystem.try_lock(descriptor)
    except OSError as error:
        return error.errno != errno.EACCES  # a file system without locks has nobody who holds one


def remove_group(group: Group, root: str) -> bool:
    """Remove the group's files and records, but not its lock; False, and it is where it was, if it was used since.

    ``root``: the cache, from which all of that is reached.

    Raises OSError where the file system refuses, with what was moved back in its place.
    """
    seen = max(group.stamps, default=0.0)
    trash = _Trash(root, metadata.make_path(group.root, metadata.TRASH))
    first, rest = group.steps
    try:
        trash.take(first)
        if trash.find_latest(group) > seen:
            trash.put_back()
            return False
        trash.take(rest)
    except OSError:
        trash.put_back()
        raise
    finally:
        trash.empty()
    # Last: without its record a file would be refused, with a warning, where without the file a record says nothing.
    for record in group.records:
        with suppress(FileNotFoundError), folders.open_parent(root, record.path) as (folder, name):
            folder.unlink(name)
    return True


class _Trash:
    """A directory in the trash, where nobody looks for anything, made when something is moved there."""

    def __init__(self, root: str, trash: str) -> None:
        self._root, self._directory = root, os.path.join(trash, secrets.token_hex(8))
        self._moved: list[tuple[str, str]] = []

    def take(self, paths: list[str]) -> None:
        for path in paths:
            place = os.path.join(self._directory, f"{len(self._moved)}.{os.path.basename(path)}"[:200])
            with (
                suppress(FileNotFoundError),  # another process was faster
                folders.open_parent(self._root, path) as (folder, name),
                folders.open_parent(self._root, place, make=True) as (trash, new),
            ):
                folder.rename(name, trash, new)
                self._moved.append((path, place))

    def find_latest(self, group: Group) -> float:
        """The latest stamp of all that was in the group, and of what has come to it in a directory that is here."""
        moved = [file for _, place in self._moved for file in iter_files(place)]
        left = [now for file in [*group.files, *group.records] for now in iter_files(file.path)]
        return max((file.modified for file in moved + left), default=0.0)

    def put_back(self) -> None:
        while self._moved:
            path, place = self._moved.pop()
            with (
                suppress(OSError),  # then it is a miss
                folders.open_parent(self._root, place) as (trash, moved),
                folders.open_parent(self._root, path, make=True) as (folder, name),
            ):
                try:
                    trash.rename(moved, folder, name)
                except OSError:
                    # There is a directory again, with new entries in it.
                    with trash.enter(moved) as old, folder.enter(name) as new:
                        for each in old.list_names():
                            with suppress(OSError):
                                old.rename(each, new, each)

    def empty(self) -> None:
        with suppress(OSError), folders.open_parent(self._root, self._directory) as (trash, name):
            trash.remove(name)  # what stays, the next sweep removes


_FX_KEY = re.compile(Kind.FX_ENTRY.tiers.key.encode())
_DAY = 86400.0
# In the time in which no stamp is renewed, what refers to others goes before them, and last what took a compiler.
_RANK = {kind: rank for rank, kind in enumerate(Kind)}


class Limits(NamedTuple):
    """Limits of a cache: bytes, files, and seconds since the last use; None for no limit."""

    size: int | None = None
    files: int | None = None
    age: float | None = None


class Sweep(NamedTuple):
    """Result of sweep(). ``removed``: groups; ``kept``: groups beyond a limit, each with why it stays.

    ``size`` and ``files``: of the groups that are left. ``reaped``: bytes of what dead writers had left.
    """

    removed: list[Group]
    kept: list[tuple[Group, str]]
    size: int
    files: int
    reaped: int


def sweep(
    root: str, limits: Limits, *, now: float | None = None, heed_jobs: bool = True, dry_run: bool = False
) -> Sweep | None:
    """Remove groups from the cache directory ``root``, by kind and last use, until ``limits`` hold; keep those in use.

    Returns None if another process is sweeping ``root``. ``now``: time in seconds since the epoch, to compare with
    stamps. ``heed_jobs``: if False, no group counts as in use. ``dry_run``: remove nothing, and report what would be
    removed.

    Raises CacheWriteError for a directory of another user, unless it is shared; OSError for one that cannot be read.
    """
    root = os.path.realpath(root)
    owner = os.lstat(root).st_uid
    if _is_foreign(owner):
        raise CacheWriteError(f"{root} belongs to uid {owner}, and is left alone")
    # Nothing depends on it that no other sweep is under way: two of them only do the same work twice.
    is_far = mounts.is_over_a_network(root)
    with _hold_descriptor(None if is_far else os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as is_alone:
        if not is_alone:
            return None
        inventory = take_inventory(root)
        moment = time.time() if now is None else now
        reaped = 0 if dry_run else _reap_leftovers(inventory, root, moment)
        return _Sweeper(root, inventory, limits, moment, heed_jobs=heed_jobs, dry_run=dry_run).run(reaped)


def _is_foreign(owner: int) -> bool:
    return not ownership.is_own_uid(owner) and not config.current().shared


def _reap_leftovers(inventory: Inventory, root: str, now: float) -> int:
    """Remove what dead writers, and sweeps that were killed, have left."""
    size = 0
    for directory in inventory.writing:
        with suppress(OSError), folders.open_directory(root, directory) as folder:  # gone, or another thing by now
            size += temporaries.reap(folder)
    for group in inventory.groups:
        if group.kind is not Kind.TEMPORARY:
            continue
        # Of directories: of a sweep that was killed, or of a Triton whose pid says nothing on another host.
        [path] = group.paths
        is_of_sweep = os.path.basename(os.path.dirname(path)) == metadata.TRASH
        if is_of_sweep or (os.path.isdir(path) and now - max(group.stamps) > _DAY):
            with suppress(OSError), folders.open_parent(root, path) as (folder, name):
                folder.remove(name)
            size += group.size
    return size


class _Sweeper:
    def __init__(
        self, root: str, inventory: Inventory, limits: Limits, now: float, *, heed_jobs: bool, dry_run: bool
    ) -> None:
        self._root, self._limits, self._now = root, limits, now
        self._heed_jobs, self._dry_run = heed_jobs, dry_run
        self._over_a_network = mounts.is_over_a_network(root)
        self._groups = [group for group in inventory.groups if group.kind is not Kind.TEMPORARY]
        self._size = sum(group.size for group in self._groups)
        self._files = sum(len(group.all_files) for group in self._groups)
        self._used = {id(group): self._find_last_use(group) for group in self._groups}
        # By the paths of AOT entries: the keys of the graphs that they refer to.
        self._references: dict[str, set[str]] = {}
        self._referred_to: set[str] = set()

    def run(self, reaped: int) -> Sweep:
        removed, kept = [], []
        self._count_references()
        for group in sorted(self._groups, key=self._rank_group):
            if not self._is_due(group):
                continue
            objection = self._find_objection(group) or self._remove(group)
            if objection is None:
                removed.append(group)
                self._size -= group.size
                self._files -= len(group.all_files)
            else:
                kept.append((group, objection))
                self._referred_to |= self._references.get(group.paths[0], set()) if group.paths else set()
        return Sweep(removed, kept, self._size, self._files, reaped)

    def _find_last_use(self, group: Group) -> float:
        """A stamp in the future, of a clock that was wrong, would never age: it is set to now.

        But of a library: a large one is read anew in each process if its status is not the one that was sealed.
        """
        past = [stamp for stamp in group.stamps if stamp <= self._now + stamps.GRACE]
        if past:
            return max(past)
        stamped = [file for file in group.all_files if not file.path.endswith((".so", ".gch"))] or group.all_files
        for file in [] if self._dry_run else stamped:
            with suppress(OSError), folders.open_parent(self._root, file.path) as (folder, name):
                folder.touch(name, self._now)
        return self._now

    def _rank_group(self, group: Group) -> tuple[Eviction, float, int, float]:
        used = self._used[id(group)]
        return group.kind.upkeep.eviction, used // stamps.INTERVAL, _RANK[group.kind], used

    def _is_due(self, group: Group) -> bool:
        size, files, age = self._limits
        if age is not None and group.kind.upkeep.eviction is Eviction.LAST:
            age *= 2
        return (
            (group.kind is Kind.RECORD and self._measure_age(group) >= stamps.GRACE)
            or (size is not None and self._size > size)
            or (files is not None and self._files > files)
            or (age is not None and self._measure_age(group) > age)
        )

    def _measure_age(self, group: Group) -> float:
        return self._now - self._used[id(group)]

    def _count_references(self) -> None:
        """An FX graph entry was used when an AOTAutograd entry was that refers to it.

        Without it that entry would be a hit that leads nowhere, and stock torch adds another at each start.
        """
        graphs = {group.name: group for group in self._groups if group.kind is Kind.FX_ENTRY}
        if not any(self._is_due(group) for group in graphs.values()):
            return
        for group in self._groups:
            if group.kind is Kind.AOT_ENTRY:
                keys = {key for file in group.files for key in _read_unverified_keys(file)}
                self._references[group.paths[0]] = keys
                for graph in (graphs[key] for key in keys if key in graphs):
                    self._used[id(graph)] = max(self._used[id(graph)], self._used[id(group)])

    def _find_objection(self, group: Group) -> str | None:
        """Why the group is not removed though a limit says so; None if nothing stands against it."""
        foreign = next(filter(_is_foreign, group.owners), None)
        if foreign is not None:
            return f"it belongs to uid {foreign}"
        if group.kind is Kind.FX_ENTRY and group.name in self._referred_to:
            return "an AOTAutograd entry that stays refers to it"
        if not self._heed_jobs:
            return None
        # Who has a library mapped on another host cannot be seen here.
        grace = _DAY if self._over_a_network and group.kind.upkeep.is_code else stamps.GRACE
        if self._measure_age(group) < grace:
            return f"it was used in the last {grace / 3600:.0f} h"
        return self._find_job_objection(group) if group.kind.upkeep.is_code else None

    def _find_job_objection(self, group: Group) -> str | None:
        pids = (self._mapped_files.get((os.path.basename(file.path), file.inode)) for file in group.files)
        pid = next(filter(None, pids), None)
        if pid is not None:
            return f"process {pid} has it mapped"
        # Inductor looks for a header once in a process, and has the compiler include it in all it builds from then on.
        pid = find_running_torch(self._mapped_files) if group.kind is Kind.HEADER else None
        return None if pid is None else f"process {pid} runs torch, and may be about to include it"

    @cached_property
    def _mapped_files(self) -> dict[tuple[str, int], int]:
        return list_mapped_files()

    def _remove(self, group: Group) -> str | None:
        """Remove it; why it is there still, if it is."""
        if self._dry_run:
            return None
        try:
            with hold_lock(group.lock.path if group.lock else None) as free:
                if not free and self._heed_jobs:
                    return "its lock is held"
                if not remove_group(group, self._root):
                    return "it was used just now"
                if group.lock and free:
                    # While it is held: filelock takes no lock of a file that has no name any more.
                    with (
                        suppress(FileNotFoundError),
                        folders.open_parent(self._root, group.lock.path) as (folder, name),
                    ):
                        folder.unlink(name)
        except OSError as error:
            return f"it cannot be removed: {error.strerror}"
        return None


def _read_unverified_keys(file: File) -> set[str]:
    """The FX cache keys in an AOTAutograd entry: found in its bytes, of which nothing is unpickled."""
    try:
        content = entry_files.read_unverified(file.path, entry_files.max_entry_size(Kind.AOT_ENTRY))
    except (OSError, opening.UnusableEntry):
        return set()
    return {key.decode() for key in _FX_KEY.findall(content)}
