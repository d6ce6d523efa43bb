"""Seals the entries of a cache that stock torch, or another key, has left: once, on the user's word."""

from __future__ import annotations

import os
from functools import partial

from safecache import (
    binding,
    bounds,
    checks,
    config,
    keyring,
    layout,
    ownership,
    packages,
    resealing,
    seal,
    store,
    trust,
    vouching,
)
from safecache.errors import EntryRefusedError
from safecache.resealing import Resealing

__all__ = ["adopt"]


def adopt(root: str) -> Resealing:
    """Seal every intact entry below the cache directory ``root`` with our key, replacing the file without a seal.

    Or the package of AOTInductor which that names.

    Compiled code is sealed too, by a record beside the cache.

    What somebody else could have written is never sealed: raises EntryRefusedError for a directory that is not
    private, and skips such files. Raises KeyringError without a key, OSError for a directory that cannot be read.
    """
    if os.path.isfile(root):
        return resealing.each([(root, partial(packages.adopt, root))])
    os.scandir(root).close()
    key, keys = keyring.sealing_key(), keyring.current()
    objection = ownership.why_not_private(root)
    if objection is not None:
        raise EntryRefusedError(f"{root} is not private, so its entries are not sealed: {objection}")

    def seal_file(location: layout.Location) -> bool:
        content = _adoptable(location, keys)
        if content is not None:
            resealing.replace(location, content, root, key, {**binding.statement(location.kind), "adopted": "yes"})
        return content is not None

    steps = [(location.path, partial(seal_file, location)) for location in layout.walk(root)]
    return resealing.each(steps + [(file.path, partial(vouching.adopt, *file)) for file in layout.code(root)])


def _adoptable(location: layout.Location, keys: keyring.Keyring) -> bytes | None:
    """The content of one file; None if it is sealed already. Raises for one that is not private or not intact."""
    most = bounds.largest(location.kind, unsealed=True)
    content = store.read_entry(location.path, most)
    verdict = seal.verify(content, location.kind, location.cache_key, keys.find, config.current().namespace)
    if verdict.reason is None:
        return None
    if verdict.reason not in trust.UNVOUCHED:
        raise EntryRefusedError(f"{verdict.reason.value}: {trust.evidence(verdict)}")
    refusal = trust.contradiction(content, location.kind, location.cache_key)
    if refusal is not None:
        raise EntryRefusedError(f"{refusal.reason.value}: {refusal.evidence}")
    private = store.read(location.path, most, check=checks.check_private(location.path))
    if private != content:
        raise EntryRefusedError("it was replaced while it was looked at")
    if os.path.basename(location.path) != layout.entry_name(content):
        raise EntryRefusedError("damaged: its name is not the hash of its content")
    return content
