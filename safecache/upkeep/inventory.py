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
from safecache.fs import opening, temporaries
from safecache.fs.folders import Item, list_items
from safecache.places import layout, metadata
from safecache.places.layout import HEADERS_FOLDER, CodeFile
from safecache.places.refs import Ref, locate
from safecache.reporting.kinds import ENTRIES, Kind
from safecache.settings import config
from safecache.signing import seal
from safecache.store import entry_files, manifests
from safecache.store.groups import File, Group, iter_files

__all__ = ["Inventory", "list_bundles", "take_inventory"]

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


def take_inventory(root: str) -> Inventory:
    """Return the inventory of the cache directory ``root``: Inductor's, Triton's, or its headers'. Raises OSError."""
    os.scandir(root).close()
    config.name_cache(root)
    of_headers = os.path.basename(root) == HEADERS_FOLDER
    found = list(_list_headers(root) if of_headers else _list_parts(root))
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
            group.records = list(_take_records(records, {group.root, root}, group.files))
    # Of something that we do not know, and leave alone.
    other += list(_take_records(records, {root for root, _ in records}, other))
    writing = {
        os.path.dirname(file.path)
        for group in groups
        for file in group.files
        if temporaries.is_temporary(os.path.basename(file.path))
    }
    return Inventory([group for group in groups if group.all_files or group.paths], other, sorted(writing))


def _list_parts(root: str, *, nested: bool = False) -> Iterator[Group | File]:
    """``nested``: in Inductor's, where Triton's caches are, which have no others in them."""
    for item in list_items(root):
        name = item.name
        if not item.is_directory:
            yield from (_group_temporary(root, file) for file in iter_files(item))
        elif name == layout.AOT_FOLDER:
            yield from _list_keyed(root, item.path, Kind.AOT_ENTRY, _AOT_KEY)
        elif name == layout.FX_FOLDER:
            yield from _walk_folders(item, partial(_list_keyed, root, kind=Kind.FX_ENTRY, key=_FX_KEY))
        elif name == layout.TRITON_FOLDER and not nested:
            yield from _walk_folders(item, partial(_list_parts, nested=True))
        elif name == HEADERS_FOLDER:
            yield from _list_headers(item.path)
        elif layout.TRITON_KEY.fullmatch(name):
            yield _make_group(Kind.KERNEL, root, item.path)
        elif layout.CODE_FOLDER.fullmatch(name):
            yield from _group_code(root, item.path, list_items(item.path), Kind.NATIVE_CODE)
        elif _TRITONS_TEMPORARY.fullmatch(name):
            yield _make_group(Kind.TEMPORARY, root, item.path)
        else:
            yield from _list_beside(root, item)


def _list_beside(root: str, item: Item) -> Iterator[Group | File]:
    if item.name == "locks":
        for each in list_items(item.path):
            named = _CODE_NAME.fullmatch(each.name)
            for file in iter_files(each):
                is_lock = named and each.name == f"{named[1]}.lock" and each.is_file
                yield Group(Kind.LOCK, root, named[1], [], [], lock=file) if named and is_lock else file
    elif item.name == metadata.FOLDER:
        for each in list_items(item.path):
            parts = _OURS.get(each.name) if each.is_directory else None
            yield from parts(root, each.path) if parts is not None else iter_files(each)
    else:
        yield from iter_files(item)


def _walk_folders(item: Item, parts: Callable[[str], Iterator[Group | File]]) -> Iterator[Group | File]:
    for each in list_items(item.path):
        yield from parts(each.path) if each.is_directory else iter_files(each)


def _list_keyed(root: str, directory: str, kind: Kind, key: re.Pattern[str]) -> Iterator[Group | File]:
    for item in list_items(directory):
        if item.is_directory and key.fullmatch(item.name):
            yield _make_group(kind, root, item.path)
        else:
            yield from iter_files(item)


def _make_group(kind: Kind, root: str, path: str) -> Group:
    return Group(kind, root, os.path.basename(path), [path], list(iter_files(path)))


def _group_code(root: str, directory: str, items: Iterable[Item], kind: Kind) -> Iterator[Group | File]:
    """Group the files of one folder of generated code by the common part of their names."""
    groups: dict[str, Group] = {}
    for item in items:
        named = _CODE_NAME.fullmatch(item.name)
        if named and kind is Kind.NATIVE_CODE and named[1][1:3] != os.path.basename(directory):
            named = None  # it is not what lies in this folder
        for file in iter_files(item):
            if not item.is_file:
                yield file
            elif named:
                group = groups.setdefault(named[1], Group(kind, root, named[1], [], []))
                group.paths.append(file.path)
                group.files.append(file)
            elif item.name.endswith(".best_config"):
                yield Group(Kind.AUTOTUNING, root, item.name, [file.path], [file])
            else:
                yield _group_temporary(root, file)
    yield from groups.values()


def _group_temporary(root: str, file: File) -> Group | File:
    name = os.path.basename(file.path)
    return Group(Kind.TEMPORARY, root, name, [file.path], [file]) if temporaries.is_temporary(name) else file


def _list_headers(directory: str, *, of_key: bool = False) -> Iterator[Group | File]:
    """Each key has a directory of its own below that of stock torch."""
    files = []
    for item in list_items(directory):
        if not item.is_directory:
            files.append(item)
        elif item.name.startswith("safecache-") and not of_key:
            yield from _list_headers(item.path, of_key=True)
        else:
            yield from _list_beside(directory, item)
    yield from _group_code(directory, directory, files, Kind.HEADER)


def _group_files(root: str, directory: str, kind: Kind, is_one: Callable[[str], object]) -> Iterator[Group | File]:
    """Each file of such a name is a group."""
    for file in iter_files(directory):
        name = os.path.basename(file.path)
        yield Group(kind, root, name, [file.path], [file]) if is_one(name) else _group_temporary(root, file)


def _group_directories(root: str, directory: str, kind: Kind) -> Iterator[Group | File]:
    """Each directory is a group: a draft of one is written beside the others, under a name with a dot."""
    for item in list_items(directory):
        if item.is_directory:
            yield _make_group(Kind.TEMPORARY if item.name.startswith(".") else kind, root, item.path)
        else:
            yield from iter_files(item)


def _group_key_records(root: str, directory: str) -> Iterator[Group | File]:
    """Group the key records of each kind by name."""
    for item in list_items(directory):
        yield from _group_directories(root, item.path, Kind.KEY_RECORD) if item.is_directory else iter_files(item)


def _list_leftovers(root: str, directory: str) -> Iterator[Group]:
    """Yield what a killed process may have left in ``directory``."""
    return (_make_group(Kind.TEMPORARY, root, item.path) for item in list_items(directory))


def _group_quarantine(root: str, directory: str) -> Iterator[Group]:
    """Files, each with its note."""
    groups: dict[str, Group] = {}
    for item in list_items(directory):
        name = item.name.removesuffix(".json")
        group = groups.setdefault(name, Group(Kind.QUARANTINE, root, name, [], []))
        group.paths.append(item.path)
        group.files.extend(iter_files(item))
    yield from groups.values()


# By their names, what is in the directories of our own.
_OURS: dict[str, Callable[[str, str], Iterator[Group | File]]] = {
    metadata.QUARANTINE: _group_quarantine,
    metadata.RECORDS: partial(_group_files, kind=Kind.RECORD, is_one=_HASH.fullmatch),
    metadata.KNOWN_BAD: partial(_group_files, kind=Kind.KNOWN_BAD, is_one=_HASH.fullmatch),
    metadata.JOURNAL: partial(_group_files, kind=Kind.JOURNAL, is_one=history.is_journal_name),
    metadata.CRASHES: partial(_group_directories, kind=Kind.CRASH_REPORT),
    metadata.DIFFERENCES: partial(_group_directories, kind=Kind.DIFFERENCE),
    metadata.KEYS: _group_key_records,
    **dict.fromkeys((metadata.LEASES, metadata.TRASH, metadata.TRIALS), _list_leftovers),
}


def _take_records(records: dict[tuple[str, str], Group], roots: set[str], files: list[File]) -> Iterator[File]:
    """Take the files of those records that are of these files. What is left of a record is empty."""
    for root in roots:
        for path in (file.path for file in files):
            # Safecache 0.1.0 gave a library a record by its name alone, as other files that are no code have it still.
            for called in (os.path.basename(path), path.removeprefix(os.path.join(root, ""))):
                record = records.pop((root, manifests.hash_name(called)), None)
                if record is not None:
                    yield from record.files
                    record.paths, record.files = [], []


def list_bundles(directory: str) -> Iterator[Ref]:
    """Yield the bundles of the cache ``directory`` that can be copied, unverified and without headers. Raises OSError.

    A precompiled header has 150 MB.
    """
    found = take_inventory(directory)
    for group in found.groups:
        yield from _list_refs(group)
    for file in found.other:
        ref = _read_unverified_dynamo(directory, file.path)
        if ref is not None:
            yield ref


def _list_refs(group: Group) -> Iterator[Ref]:
    if group.kind in (*ENTRIES, Kind.KERNEL):
        if group.files:
            root = os.path.dirname(group.paths[0]) if group.kind is Kind.KERNEL else group.root
            yield Ref(group.kind, group.name, root)
    elif group.kind in (Kind.NATIVE_CODE, Kind.AUTOTUNING):
        for path in group.paths:
            # Sources are written by who has the entry, and a probe's marker goes with the probe.
            is_code = path.endswith(_LIBRARIES) or manifests.has_record_file(CodeFile(path, group.root))
            if group.kind is Kind.AUTOTUNING or (is_code and not path.endswith(layout.LOADED)):
                yield locate(group.kind, path, group.root)


def _read_unverified_dynamo(root: str, path: str) -> Ref | None:
    """A profile or a precompiled function: the key of a profile is in its seal alone."""
    directory, name = os.path.split(path)
    above = os.path.join(root, layout.DYNAMO_FOLDER)
    if os.path.dirname(directory) == above and name == layout.PACKAGE_FILE:
        return Ref(Kind.DYNAMO_PACKAGE, os.path.basename(directory), root)
    if directory != above:
        return None
    with suppress(OSError, opening.UnusableEntry):
        key = seal.stated_key(entry_files.read_unverified(path, entry_files.max_entry_size(Kind.PGO_STATE)))
        if key is not None and Ref(Kind.PGO_STATE, key, root).path == path:
            return Ref(Kind.PGO_STATE, key, root)
    return None
