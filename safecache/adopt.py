"""Seals the entries of a cache that stock torch, or another key, has left: once, on the user's word."""

from __future__ import annotations

import os
from functools import partial
from typing import NamedTuple

from safecache import keyring, layout, ownership, provenance, seal, store, trust, vouching
from safecache.errors import EntryRefusedError, KeyringError
from safecache.keyring import Key

__all__ = ["Adoption", "adopt"]


class Adoption(NamedTuple):
    """What became of the entries: how many were sealed, how many were already, and which not, with the reason."""

    sealed: int
    already_sealed: int
    skipped: list[tuple[str, str]]


def adopt(root: str) -> Adoption:
    """Seal every intact entry below the cache directory ``root`` with our key, replacing the file without a seal.

    Compiled code is sealed too, by a record beside the cache.

    What somebody else could have written is never sealed: raises EntryRefusedError for a directory that is not
    private, and skips such files. Raises KeyringError without a key, OSError for a directory that cannot be read.
    """
    os.scandir(root).close()
    keys = keyring.current()
    if keys.signing is None:
        raise KeyringError(keys.problem)
    objection = ownership.why_not_private(root)
    if objection is not None:
        raise EntryRefusedError(f"{root} is not private, so its entries are not sealed: {objection}")
    steps = [(at.path, partial(_seal_file, at, root, keys, keys.signing)) for at in layout.walk(root)]
    steps += [(path, partial(vouching.adopt, path, root)) for path in layout.libraries(root)]
    done, skipped = [], []
    for path, seal_it in steps:
        try:
            done.append(seal_it())
        except (store.UnusableEntry, EntryRefusedError, OSError) as error:
            detail = error.detail if isinstance(error, store.UnusableEntry) else str(error)
            skipped.append((path, detail))
    return Adoption(done.count(True), done.count(False), skipped)


def _seal_file(location: layout.Location, root: str, keys: keyring.Keyring, key: Key) -> bool:
    """Seal one file; False if it is sealed already. Raises for one that is not private or not intact."""
    content = store.read_entry(location.path)
    reason = seal.verify(content, location.kind, location.cache_key, keys.find).reason
    if reason is None:
        return False
    if reason not in trust.UNVOUCHED:
        raise EntryRefusedError(f"{reason.value}: {trust.EVIDENCE[reason]}")
    objection = ownership.why_not_private(location.path)
    if objection is not None:
        raise EntryRefusedError(f"not private: {objection}")
    if os.path.basename(location.path) != layout.entry_name(content):
        raise EntryRefusedError("damaged: its name is not the hash of its content")
    payload = seal.payload_of(content)
    adopted = seal.attach(payload, location.kind, location.cache_key, key, {**provenance.describe(), "adopted": "yes"})
    store.publish(os.path.join(os.path.dirname(location.path), layout.entry_name(adopted)), adopted, root)
    os.unlink(location.path)
    return True
