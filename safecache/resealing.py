"""Seals entry files anew, in place: those of a cache that we vouch for, or those that already verify."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import NamedTuple

from safecache import bounds, checks, config, folders, keyring, layout, records, seal, store, trust
from safecache.errors import EntryRefusedError
from safecache.keyring import Key
from safecache.layout import Code, Location
from safecache.reasons import Reason

__all__ = ["Resealing", "countersign", "each", "replace"]


class Resealing(NamedTuple):
    """What became of the entries: how many were sealed, how many were already, and which not, with the reason."""

    sealed: int
    already_sealed: int
    skipped: list[tuple[str, str]]


def each(steps: Iterable[tuple[str, Callable[[], bool]]]) -> Resealing:
    """Do the step of every path: it says whether it sealed what lies there, and raises where it must not."""
    done, skipped = [], []
    for path, step in steps:
        try:
            done.append(step())
        except (checks.UnusableEntry, EntryRefusedError, OSError) as error:
            detail = error.detail if isinstance(error, checks.UnusableEntry) else str(error)
            skipped.append((path, detail))
    return Resealing(done.count(True), done.count(False), skipped)


def replace(location: Location, content: bytes, root: str, key: Key, origin: Mapping[str, str]) -> None:
    """Put the payload of ``content``, sealed with ``key``, in place of the file there. Raises OSError."""
    payload, namespace = seal.payload_of(content), config.current().namespace
    sealed = seal.attach(payload, location.kind, location.cache_key, key, origin, namespace)
    store.publish(os.path.join(os.path.dirname(location.path), layout.entry_name(sealed)), sealed, root)
    with folders.above(root, location.path) as (folder, name):
        folder.unlink(name)


def countersign(locations: Iterable[Location], code: Iterable[Code]) -> Resealing:
    """Seal everything that verifies now, by any trusted key, with our own. What does not verify is skipped.

    The provenance stays that of the build, with the id of the key that vouched for it. Raises KeyringError without a
    key to seal with.
    """
    key = keyring.sealing_key()
    keys, namespace = keyring.current(), config.current().namespace

    def seal_entry(location: Location) -> bool:
        content = store.read_entry(location.path, bounds.largest(location.kind))
        verdict = seal.verify(content, location.kind, location.cache_key, keys.find, namespace)
        origin = _countersigned(verdict, key)
        if origin is not None:
            replace(location, content, layout.cache_root(location.path), key, origin)
        return origin is not None

    def seal_record(file: Code) -> bool:
        verdict, stated = records.read(*file)
        origin = _countersigned(verdict, key)
        if origin is None:
            return False
        if store.digest(file.path, bounds.largest(file.kind)).hex() != stated["sha256"]:
            raise EntryRefusedError(f"{Reason.DAMAGED.value}: its digest is not the one that was sealed")
        return records.write(*file, stated, key, origin)

    return each(
        [(location.path, partial(seal_entry, location)) for location in locations]
        + [(file.path, partial(seal_record, file)) for file in code]
    )


def _countersigned(verdict: seal.Verdict, key: Key) -> dict[str, str] | None:
    """The provenance to seal again with ``key``; None if that has sealed it. Raises EntryRefusedError if nobody has."""
    if verdict.reason in trust.UNVOUCHED:
        raise EntryRefusedError(f"{verdict.reason.value}: nobody that is trusted has sealed it")
    if verdict.reason is not None:
        raise EntryRefusedError(f"{verdict.reason.value}: {trust.evidence(verdict)}")
    if verdict.key_id is None or verdict.key_id == key.id:
        return None
    return {**(verdict.provenance or {}), "countersigned": verdict.key_id.hex()}
