"""Inventory of a cache directory, in groups of files that are useful as a whole or not at all.

A group is a directory of entries for one key; the files of one generated source, with the library built of it; the
directory of a Triton kernel; a precompiled header; a result of autotuning; each with its records and its lock. A file
whose place and name are not recognised is counted, and belongs to no group.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from safecache import history
from safecache.files import opening, temporaries
from safecache.files.folders import Item, listed
from safecache.places import layout, ours
from safecache.places.layout import HEADERS_FOLDER, CodeFile
from safecache.places.refs import Ref, locate
from safecache.reporting.kinds import ENTRIES, Kind
from safecache.settings import config
from safecache.signing import seal
from safecache.store import entry_files, manifests
from safecache.store.groups import File, Group, below

__all__ = ["Inventory", "bundles_in", "take"]

_AOT_KEY, _FX_KEY = re.compile(Kind.AOT_ENTRY.tiers.key), re.compile(Kind.FX_ENTRY.tiers.key)
_CODE_NAME = re.compile(r"(c[a-z2-7]{51})\..+")
_LIBRARIES = (".so", ".o")
_HASH = re.compile(r"[0-9a-f]{64}")
_TRITONS_TEMPORARY = re.compile(r"tmp\.(pid_\d+_)?[0-9a-f-]{36}")


class Inventory(NamedTuple):
    """``other``: the files that belong to no group. ``writing``: the directories that hold temporary files."""

    groups: list[Group]
    other: list[File]
    writing: list[str]


def take(root: str) -> Inventory:
    """Return the inventory of the cache directory ``root``: Inductor's, Triton's, or its headers'. Raises OSError."""
    os.scandir(root).close()
    config.name_cache(root)
    of_headers = os.path.basename(root) == HEADERS_FOLDER
    found = list(_headers(root) if of_headers else _parts(root))
    groups = [part for part in found if isinstance(part, Group)]
    other = [part for part in found if isinstance(part, File)]
    # A lock belongs to the group that is built under it. One with a group is none by itself any more.
    locks = {group.name: group for group in groups if group.kind is Kind.LOCK}
    for group in groups:
        if group.kind in (Kind.NATIVE_CODE, Kind.HEADER) and group.name in locks:
            lock = locks.pop(group.name)
            group.lock, lock.lock = lock.lock, None
    # A record belongs to the group with the file that it is of. Its name is a hash of what that is called.
    records = {(group.root, group.name): group for group in groups if group.kind is Kind.RECORD}
    for group in groups:
        if group.kind not in (Kind.RECORD, Kind.QUARANTINE):
            group.records = list(_taken(records, {group.root, root}, group.files))
    # Of something that we do not know, and leave alone.
    other += list(_taken(records, {root for root, _ in records}, other))
    writing = {
        os.path.dirname(file.path)
        for group in groups
        for file in group.files
        if temporaries.is_temporary(os.path.basename(file.path))
    }
    return Inventory([group for group in groups if group.all_files or group.paths], other, sorted(writing))


def _parts(root: str, *, nested: bool = False) -> Iterator[Group | File]:
    """``nested``: in Inductor's, where Triton's caches are, which have no others in them."""
    for item in listed(root):
        name = item.name
        if not item.is_directory:
            yield from (_temporary_or_other(root, file) for file in below(item))
        elif name == layout.AOT_FOLDER:
            yield from _keyed(root, item.path, Kind.AOT_ENTRY, _AOT_KEY)
        elif name == layout.FX_FOLDER:
            yield from _in_each(item, partial(_keyed, root, kind=Kind.FX_ENTRY, key=_FX_KEY))
        elif name == layout.TRITON_FOLDER and not nested:
            yield from _in_each(item, partial(_parts, nested=True))
        elif name == HEADERS_FOLDER:
            yield from _headers(item.path)
        elif layout.TRITON_KEY.fullmatch(name):
            yield _directory(Kind.KERNEL, root, item.path)
        elif layout.CODE_FOLDER.fullmatch(name):
            yield from _code(root, item.path, listed(item.path), Kind.NATIVE_CODE)
        elif _TRITONS_TEMPORARY.fullmatch(name):
            yield _directory(Kind.TEMPORARY, root, item.path)
        else:
            yield from _beside(root, item)


def _beside(root: str, item: Item) -> Iterator[Group | File]:
    if item.name == "locks":
        for each in listed(item.path):
            named = _CODE_NAME.fullmatch(each.name)
            for file in below(each):
                is_lock = named and each.name == f"{named[1]}.lock" and each.is_file
                yield Group(Kind.LOCK, root, named[1], [], [], lock=file) if named and is_lock else file
    elif item.name == ours.FOLDER:
        for each in listed(item.path):
            parts = _OURS.get(each.name) if each.is_directory else None
            yield from parts(root, each.path) if parts is not None else below(each)
    else:
        yield from below(item)


def _in_each(item: Item, parts: Callable[[str], Iterator[Group | File]]) -> Iterator[Group | File]:
    for each in listed(item.path):
        yield from parts(each.path) if each.is_directory else below(each)


def _keyed(root: str, directory: str, kind: Kind, key: re.Pattern[str]) -> Iterator[Group | File]:
    for item in listed(directory):
        if item.is_directory and key.fullmatch(item.name):
            yield _directory(kind, root, item.path)
        else:
            yield from below(item)


def _directory(kind: Kind, root: str, path: str) -> Group:
    return Group(kind, root, os.path.basename(path), [path], list(below(path)))


def _code(root: str, directory: str, items: Iterable[Item], kind: Kind) -> Iterator[Group | File]:
    """Group the files of one folder of generated code by the common part of their names."""
    groups: dict[str, Group] = {}
    for item in items:
        named = _CODE_NAME.fullmatch(item.name)
        if named and kind is Kind.NATIVE_CODE and named[1][1:3] != os.path.basename(directory):
            named = None  # it is not what lies in this folder
        for file in below(item):
            if not item.is_file:
                yield file
            elif named:
                group = groups.setdefault(named[1], Group(kind, root, named[1], [], []))
                group.paths.append(file.path)
                group.files.append(file)
            elif item.name.endswith(".best_config"):
                yield Group(Kind.AUTOTUNING, root, item.name, [file.path], [file])
            else:
                yield _temporary_or_other(root, file)
    yield from groups.values()


def _temporary_or_other(root: str, file: File) -> Group | File:
    name = os.path.basename(file.path)
    return Group(Kind.TEMPORARY, root, name, [file.path], [file]) if temporaries.is_temporary(name) else file


def _headers(directory: str, *, of_key: bool = False) -> Iterator[Group | File]:
    """Each key has a directory of its own below that of stock torch."""
    files = []
    for item in listed(directory):
        if not item.is_directory:
            files.append(item)
        elif item.name.startswith("safecache-") and not of_key:
            yield from _headers(item.path, of_key=True)
        else:
            yield from _beside(directory, item)
    yield from _code(directory, directory, files, Kind.HEADER)


def _files(root: str, directory: str, kind: Kind, is_one: Callable[[str], object]) -> Iterator[Group | File]:
    """Each file of such a name is a group."""
    for file in below(directory):
        name = os.path.basename(file.path)
        yield Group(kind, root, name, [file.path], [file]) if is_one(name) else _temporary_or_other(root, file)


def _directories(root: str, directory: str, kind: Kind) -> Iterator[Group | File]:
    """Each directory is a group: a draft of one is written beside the others, under a name with a dot."""
    for item in listed(directory):
        if item.is_directory:
            yield _directory(Kind.TEMPORARY if item.name.startswith(".") else kind, root, item.path)
        else:
            yield from below(item)


def _keys(root: str, directory: str) -> Iterator[Group | File]:
    """Group the key records of each kind by name."""
    for item in listed(directory):
        yield from _directories(root, item.path, Kind.KEY_RECORD) if item.is_directory else below(item)


def _left(root: str, directory: str) -> Iterator[Group]:
    """Yield what a killed process may have left in ``directory``."""
    return (_directory(Kind.TEMPORARY, root, item.path) for item in listed(directory))


def _quarantine(root: str, directory: str) -> Iterator[Group]:
    """Files, each with its note."""
    groups: dict[str, Group] = {}
    for item in listed(directory):
        name = item.name.removesuffix(".json")
        group = groups.setdefault(name, Group(Kind.QUARANTINE, root, name, [], []))
        group.paths.append(item.path)
        group.files.extend(below(item))
    yield from groups.values()


# By their names, what is in the directories of our own.
_OURS: dict[str, Callable[[str, str], Iterator[Group | File]]] = {
    ours.QUARANTINE: _quarantine,
    ours.RECORDS: partial(_files, kind=Kind.RECORD, is_one=_HASH.fullmatch),
    ours.KNOWN_BAD: partial(_files, kind=Kind.KNOWN_BAD, is_one=_HASH.fullmatch),
    ours.JOURNAL: partial(_files, kind=Kind.JOURNAL, is_one=history.is_one),
    ours.CRASHES: partial(_directories, kind=Kind.CRASH_REPORT),
    ours.DIFFERENCES: partial(_directories, kind=Kind.DIFFERENCE),
    ours.KEYS: _keys,
    **dict.fromkeys((ours.LEASES, ours.TRASH, ours.TRIALS), _left),
}


def _taken(records: dict[tuple[str, str], Group], roots: set[str], files: list[File]) -> Iterator[File]:
    """Take the files of those records that are of these files. What is left of a record is empty."""
    for root in roots:
        for path in (file.path for file in files):
            # Safecache 0.1.0 gave a library a record by its name alone, as other files that are no code have it still.
            for called in (os.path.basename(path), path.removeprefix(os.path.join(root, ""))):
                record = records.pop((root, manifests.hashed_name(called)), None)
                if record is not None:
                    yield from record.files
                    record.paths, record.files = [], []


def bundles_in(directory: str) -> Iterator[Ref]:
    """Yield the bundles of the cache ``directory`` that can be copied, unverified and without headers. Raises OSError.

    A precompiled header has 150 MB.
    """
    found = take(directory)
    for group in found.groups:
        yield from _of_group(group)
    for file in found.other:
        ref = _of_dynamo(directory, file.path)
        if ref is not None:
            yield ref


def _of_group(group: Group) -> Iterator[Ref]:
    if group.kind in (*ENTRIES, Kind.KERNEL):
        if group.files:
            root = os.path.dirname(group.paths[0]) if group.kind is Kind.KERNEL else group.root
            yield Ref(group.kind, group.name, root)
    elif group.kind in (Kind.NATIVE_CODE, Kind.AUTOTUNING):
        for path in group.paths:
            # Sources are written by who has the entry, and a probe's marker goes with the probe.
            is_code = path.endswith(_LIBRARIES) or manifests.exists(CodeFile(path, group.root))
            if group.kind is Kind.AUTOTUNING or (is_code and not path.endswith(layout.LOADED)):
                yield locate(group.kind, path, group.root)


def _of_dynamo(root: str, path: str) -> Ref | None:
    """A profile or a precompiled function: the key of a profile is in its seal alone."""
    directory, name = os.path.split(path)
    above = os.path.join(root, layout.DYNAMO_FOLDER)
    if os.path.dirname(directory) == above and name == layout.PACKAGE_FILE:
        return Ref(Kind.DYNAMO_PACKAGE, os.path.basename(directory), root)
    if directory != above:
        return None
    with suppress(OSError, opening.UnusableEntry):
        key = seal.stated_key(entry_files.read(path, entry_files.max_entry_size(Kind.PGO_STATE)))
        if key is not None and Ref(Kind.PGO_STATE, key, root).path == path:
            return Ref(Kind.PGO_STATE, key, root)
    return None
