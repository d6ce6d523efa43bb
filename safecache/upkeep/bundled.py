"""What of a cache travels: its bundles, without what is made again from them, and headers of 150 MB."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress

from safecache.files import opening
from safecache.places import layout
from safecache.places.layout import CodeFile
from safecache.places.refs import Ref, locate
from safecache.reporting.kinds import ENTRIES, Kind
from safecache.signing import seal
from safecache.store import entry_files, manifests
from safecache.store.groups import Group
from safecache.upkeep import inventory

__all__ = ["lying_in"]

_LIBRARIES = (".so", ".o")


def lying_in(directory: str) -> Iterator[Ref]:
    """Those in the cache ``directory``, none of them verified. Raises OSError."""
    found = inventory.take(directory)
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
