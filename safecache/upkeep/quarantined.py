"""What was set aside: the quarantine, told, put back or removed; and what processes have died of."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import NamedTuple

from safecache.errors import EntryRefusedError
from safecache.files import folders, opening
from safecache.files.folders import Folder
from safecache.places import layout, ours, refs
from safecache.places.layout import CodeFile, Location
from safecache.reporting.kinds import Kind
from safecache.reporting.report import Refusal
from safecache.signing import trust
from safecache.store import entry_files, gate, manifests, quarantine
from safecache.store.groups import Group
from safecache.trials import strikes
from safecache.upkeep import inventory

__all__ = ["Quarantined", "Struck", "list_struck", "listed", "objection", "remove", "restore"]

_NO_HARD_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


class Quarantined(NamedTuple):
    """``name``: within the quarantine of ``root``; what its note says, or nothing; ``size`` without that, in bytes."""

    name: str
    root: str
    origin: str
    reason: str
    time: str
    size: int
    files: int

    @property
    def path(self) -> str:
        """Where it lies."""
        return ours.metadata_path(self.root, ours.QUARANTINE, self.name)


def listed(directories: Iterable[str]) -> list[Quarantined]:
    """All that safecache has moved away from these cache directories, in their order. Raises OSError."""
    found = [group for directory in directories for group in inventory.take(directory).groups]
    return [
        _told(group)
        for group in found
        if group.kind is Kind.QUARANTINE
        and quarantine.is_its_name(group.name)
        and group.name in map(os.path.basename, group.paths)
    ]


def _told(group: Group) -> Quarantined:
    note = f"{group.name}.json"
    there = [file for file in group.files if os.path.basename(file.path) != note]
    said = quarantine.note_at(ours.metadata_path(group.root, ours.QUARANTINE, note))
    size = sum(file.size for file in there)
    return Quarantined(
        group.name, group.root, said.get("from", ""), said.get("reason", ""), said.get("time", ""), size, len(there)
    )


def _find_place(item: Quarantined) -> Location | CodeFile | None:
    """Where it lay below its cache, and as what it is looked for there; None if nothing with a seal belongs there."""
    entry = layout.locate(item.origin)
    if entry is not None:
        parts = entry.path.split(os.sep)[-3 if entry.kind is Kind.AOT_ENTRY else -4 :]
        return entry._replace(path=os.path.join(item.root, *parts))
    folder, name = os.path.split(item.origin)
    folder = os.path.basename(folder)
    if layout.TRITON_KEY.fullmatch(folder) and name:
        return CodeFile(os.path.join(item.root, folder, name), item.root, Kind.KERNEL)
    if not name.endswith((".so", ".o", ".gch")):
        return None
    if folder == os.path.basename(item.root):  # a header's, which has a directory of its key's with its own records
        return CodeFile(os.path.join(item.root, name), item.root, Kind.NATIVE_CODE)
    is_code = layout.CODE_FOLDER.fullmatch(folder)
    return CodeFile(os.path.join(item.root, folder, name), item.root, Kind.NATIVE_CODE) if is_code else None


def objection(item: Quarantined) -> str | None:
    """Why a load would refuse it again, were it put back; None if it would take it. Raises OSError."""
    with quarantine.opened(item.root) as directory:
        return _objection(directory, item, _find_place(item))


def _objection(directory: Folder, item: Quarantined, place: Location | CodeFile | None) -> str | None:
    if place is None:
        return "where it lay, as far as its note tells, nothing is kept that has a seal"
    within, most = _within(directory, item), entry_files.max_entry_size(place.kind)
    try:
        opening.check_regular(directory.status(item.name))
        if isinstance(place, Location):
            found = trust.examine(entry_files.read(within, most), place.kind, place.cache_key, place.path)
            return found.evidence if isinstance(found, Refusal) else None
        digest = entry_files.digest(within, most)
    except opening.UnusableEntry as error:
        return f"it is {error.detail}"
    refusal = gate.refusal_for_content(place, digest, manifests.records(place), is_private=False)
    if refusal is not None and refusal.reason in trust.UNATTESTED:
        return "there is no record of it that a trusted key has sealed"
    return None if refusal is None else refusal.evidence


def _within(directory: Folder, item: Quarantined) -> str:
    return f"{directory.path}/{item.name}"


def restore(item: Quarantined) -> str:
    """Put it back where it lay, and return that path.

    Raises EntryRefusedError for what a load would refuse again; FileExistsError where something lies there by now, and
    other OSErrors. In each case it stays where it is.
    """
    place = _find_place(item)
    with quarantine.opened(item.root) as directory:
        reason = _objection(directory, item, place)
        if place is None or reason is not None:
            raise EntryRefusedError(f"{item.name} is not restored, for it would be refused again: {reason}")
        *way, name = place.path.removeprefix(os.path.join(item.root, "")).split(os.sep)
        with folders.open_subdirectory(item.root, way, make=True) as parent:
            _link(item.name, directory, name, parent)
        quarantine.remove(directory, item.name)
    return place.path


def _link(source: str, above: Folder, name: str, parent: Folder) -> None:
    """Unlike a renaming this replaces nothing, except on a file system without hard links."""
    try:
        above.link(source, parent, name)
    except OSError as error:
        if error.errno not in _NO_HARD_LINKS or os.path.lexists(f"{parent.path}/{name}"):
            raise
        above.rename(source, parent, name)


def remove(item: Quarantined) -> bool:
    """Remove it and its note; False if it is there still, as where another user's cannot be. Raises OSError."""
    with quarantine.opened(item.root) as directory:
        quarantine.remove(directory, item.name)
        return not os.path.lexists(_within(directory, item))


class Struck(NamedTuple):
    """``root``: the cache that it is part of; ``what``: its name; ``moment``: of the last strike, since the epoch."""

    root: str
    hash: str
    what: str
    strikes: int
    moment: float

    @property
    def state(self) -> str:
        """What follows for who looks it up."""
        if self.strikes >= strikes.BARRED:
            return "not looked up for 30 days"
        return "set aside" if self.strikes >= strikes.ASIDE else "set aside at the next death"


def list_struck(roots: Iterable[str]) -> Iterator[Struck]:
    """All in these caches, the last first in each. Raises OSError."""
    for root in roots:
        found = strikes.read(root).keys
        names = {refs.digest(kind.word, key): text for kind, key, text in _names(root)} if found else {}
        for hash, (number, moment) in sorted(found.items(), key=lambda each: -each[1][1]):
            yield Struck(root, hash, names.get(hash, _ELSEWHERE), number, moment)


_ELSEWHERE = "what is not in the cache: compiled ahead of time, or removed"


def _names(root: str) -> Iterator[tuple[Kind, str, str]]:
    for entry in layout.walk(root):
        yield entry.kind, entry.cache_key, f"{entry.kind.noun} {entry.cache_key}"
    paths = [code.path for code in layout.code(root)]
    with suppress(OSError):  # it is not known then what lay there
        paths += [item.origin for item in listed([root])]
    for path in paths:
        moved = layout.locate(path)
        if moved is not None:
            yield moved.kind, moved.cache_key, f"{moved.kind.noun} {moved.cache_key}"
        for name in (path, os.path.dirname(path)):  # a library, or a kernel, which is a directory
            yield Kind.NATIVE_CODE, os.path.relpath(name, root), os.path.relpath(name, root)
