"""What lies in caches, group by group, as a person asks for it: by name, size and age, with who made and sealed it.

Nothing is unpickled, executed or loaded for it, and nothing that is read is believed to be more than a label.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from safecache import inventory, kernel_metadata, mentions, signers
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
    """``other``: how many files belong to no group, and their bytes."""

    items: list[Item]
    other: tuple[int, int]


class Description(NamedTuple):
    """What an item's files say. ``kernels``: by name; ``states``: how many files there are of each signer's state.

    ``gpu``: what a kernel is for, as is written beside it, else what the build had. ``torch``, ``triton``: with what it
    was built, by its seal, or else as a kernel says. Empty where that is not told.
    """

    kernels: tuple[str, ...]
    gpu: str
    torch: str
    triton: str
    signers: tuple[str, ...]
    states: Mapping[str, int]
    provenance: Mapping[str, str]

    @property
    def name(self) -> str:
        """The first kernel, and how many more there are."""
        more = f" (+{len(self.kernels) - 1})" if len(self.kernels) > 1 else ""
        return f"{self.kernels[0]}{more}" if self.kernels else ""


def take(directories: Iterable[str], kinds: Collection[GroupKind]) -> Catalogue:
    """The items of these kinds in these cache directories. Raises OSError for one that cannot be read."""
    items, files, size = [], 0, 0
    for directory in directories:
        found = inventory.take(directory)
        items += [_item(directory, group) for group in found.groups if group.kind in kinds]
        files += len(found.other)
        size += sum(file.size for file in found.other)
    return Catalogue(items, (files, size))


def _item(directory: str, group: Group) -> Item:
    stamps = group.stamps
    made = [file.modified for file in group.all_files] or stamps
    # That of a directory changes with what is added to it, not with what is used.
    if len(group.paths) == 1 and group.files and group.files[0].path != group.paths[0]:
        made = [*made, *_modified(group.paths[0])]
    return Item(directory, group, group.size, min(made, default=0.0), max(stamps, default=0.0))


def _modified(path: str) -> list[float]:
    try:
        return [os.lstat(path).st_mtime]
    except OSError:
        return []


def describe(item: Item, graphs: Mapping[str, Group]) -> Description | None:
    """What the files of the item say now; None if they are gone. ``graphs``: the FX graph entries by their keys."""
    group = item.group
    if not any(os.path.lexists(path) for path in group.paths or [file.path for file in group.all_files]):
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
        metadata.gpu or provenance.get("gpu", ""),
        provenance.get("torch", ""),
        provenance.get("triton", "") or metadata.triton,
        tuple(dict.fromkeys(seal.signer for seal in seals if seal.signer)),
        Counter(seal.state for seal in seals),
        provenance,
    )


def _kernels(group: Group, graphs: Mapping[str, Group]) -> tuple[str, ...]:
    """Those that its bytes name, or else those of the graphs that it refers to."""
    paths = [file.path for file in group.files]
    found = mentions.kernels(paths)
    if found or group.kind is not GroupKind.AOT_ENTRY:
        return found
    return mentions.kernels(file.path for key in mentions.keys(paths) if key in graphs for file in graphs[key].files)
