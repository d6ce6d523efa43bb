"""What lies in caches, group by group, as a person asks for it: by name, size and age, with who made and sealed it.

Nothing is unpickled, executed or loaded for it, and nothing that is read is believed to be more than a label.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from safecache import folders, inventory, kernel_metadata, key_records, key_text, mentions, signers
from safecache.groups import Group, GroupKind

__all__ = ["Catalogue", "Description", "Item", "describe", "take"]

_WITH_GRAPHS = (GroupKind.AOT_ENTRY, GroupKind.FX_ENTRY, GroupKind.CODE)


class Item(NamedTuple):
    """A group of ``directory``. ``made`` and ``used``: in seconds since the epoch, as far as the file system tells.

    What is stamped by a use keeps no time of its making: that is the oldest of its files and its directory.
    """

    directory: str
    group: Group
    size: int
    made: float
    used: float


class Catalogue(NamedTuple):
    """``other``: how many files belong to no group, and their bytes. ``records``: where those of keys lie, by key."""

    items: list[Item]
    other: tuple[int, int]
    records: Mapping[str, str]

    @property
    def graphs(self) -> dict[str, Group]:
        """The FX graph entries by their keys."""
        return {item.group.name: item.group for item in self.items if item.group.kind is GroupKind.FX_ENTRY}


class Description(NamedTuple):
    """What an item's files say. ``kernels``: by name; ``states``: how many files there are of each signer's state.

    ``source``: where no kernel is named, the function or kernel that it was compiled from, as the key's record says.

    ``gpu``: what a kernel is for, as is written beside it, else what the build had. ``torch``, ``triton``: with what it
    was built, by its seal, or else as a kernel says. Empty where that is not told.
    """

    kernels: tuple[str, ...]
    source: str
    gpu: str
    torch: str
    triton: str
    signers: tuple[str, ...]
    states: Mapping[str, int]
    provenance: Mapping[str, str]

    @property
    def names(self) -> tuple[str, ...]:
        """All that it may be asked for by."""
        return (*self.kernels, self.source) if self.source else self.kernels

    @property
    def name(self) -> str:
        """The first of its names, and how many more there are."""
        more = f" (+{len(self.names) - 1})" if len(self.names) > 1 else ""
        return f"{self.names[0]}{more}" if self.names else ""


def take(directories: Iterable[str], kinds: Collection[GroupKind]) -> Catalogue:
    """The items of these kinds in these cache directories. Raises OSError for one that cannot be read."""
    items, files, size = [], 0, 0
    records: dict[str, str] = {}
    for directory in directories:
        found = inventory.take(directory)
        items += [_item(directory, group) for group in found.groups if group.kind in kinds]
        files += len(found.other)
        size += sum(file.size for file in found.other)
        kept = (group for group in found.groups if group.kind is GroupKind.KEY_RECORD)
        records.update((key_records.key_of(file.path), file.path) for group in kept for file in group.files)
    return Catalogue(items, (files, size), records)


def _item(directory: str, group: Group) -> Item:
    stamps = group.stamps
    made = [file.modified for file in group.all_files] or stamps
    # That of a directory changes with what is added to it, not with what is used.
    if len(group.paths) == 1 and group.files and group.files[0].path != group.paths[0]:
        made = [*made, folders.modified(group.paths[0]) or made[0]]
    return Item(directory, group, group.size, min(made, default=0.0), max(stamps, default=0.0))


def describe(item: Item, graphs: Mapping[str, Group], records: Mapping[str, str]) -> Description | None:
    """What the files of the item say now; None if they are gone. ``graphs``, ``records``: those of its catalogue."""
    group = item.group
    if not any(folders.is_there(path) for path in group.paths or [file.path for file in group.all_files]):
        return None
    seals = signers.signatures_in(group)
    provenance = next((seal.provenance for seal in seals if seal.provenance), {})
    metadata = kernel_metadata.KernelMetadata("")
    kernels: tuple[str, ...] = ()
    if group.kind is GroupKind.KERNEL:
        metadata = kernel_metadata.read(file.path for file in group.files)
        kernels = (metadata.name,) if metadata.name else ()
    elif group.kind in _WITH_GRAPHS:
        kernels = _kernels(group, graphs)
    return Description(
        kernels,
        "" if kernels else _source(group, records),
        metadata.gpu or provenance.get("gpu", ""),
        provenance.get("torch", ""),
        provenance.get("triton", "") or metadata.triton,
        tuple(dict.fromkeys(seal.signer for seal in seals if seal.signer)),
        Counter(seal.state for seal in seals),
        provenance,
    )


def _source(group: Group, records: Mapping[str, str]) -> str:
    path = records.get(group.name)
    record = key_records.read(path) if path is not None else None
    return key_text.capped(record.name) if record is not None else ""


def _kernels(group: Group, graphs: Mapping[str, Group]) -> tuple[str, ...]:
    """Those that its bytes name, or else those of the graphs that it refers to."""
    paths = [file.path for file in group.files]
    found = mentions.kernels(paths)
    if found or group.kind is not GroupKind.AOT_ENTRY:
        return found
    return mentions.kernels(file.path for key in mentions.keys(paths) if key in graphs for file in graphs[key].files)
