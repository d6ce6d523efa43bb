"""Compiled code of a lower layer: copied into the cache once the layer's own record of it has been verified."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from typing import NamedTuple

from safecache.code import gate
from safecache.entries import copies, loading
from safecache.files import checks
from safecache.reporting import events
from safecache.reporting.kinds import Count, Kind, Reason
from safecache.signing.trust import Refusal
from safecache.store import entry_files, manifests
from safecache.tiers import directory_faults, layers, standin

__all__ = ["take"]

_REMEDY = "It is made anew; what lies there stays, or is replaced by that if it is in a shared level."


def _count(reason: Reason, *_: object) -> None:
    events.count(reason)


def take(path: str, root: str, kind: Kind = Kind.NATIVE_CODE) -> str | None:
    """Put the nearest copy of ``path`` in a lower layer there, if it is attested; returns where that lies.

    None if there is none. Raises EntryRefusedError in strict mode for one that is refused.
    """
    for place, layer in layers.below(path, root):
        # That a cache for which a private one stands in cannot be used has been reported.
        note = _count if layer == standin.original(root) else loading.note
        found = _read(place, layer, kind, note)
        if found is not None and _put(path, root, kind, found):
            return place
    return None


_Note = Callable[..., None]


class _Found(NamedTuple):
    """A file that is attested, and by what; without a record it is trusted as private."""

    content: bytes
    mode: int
    record: bytes | None


def _read(place: str, layer: str, kind: Kind, note: _Note) -> _Found | None:
    """What lies at ``place``, if it is attested; ``note``: whom to tell, as loading.note(), if not."""
    try:
        found_there = os.lstat(place)
    except OSError:
        return None  # a layer that cannot be entered is as good as an empty one
    modes = []

    def check(status: os.stat_result) -> None:
        checks.check_regular(status)
        modes.append(stat.S_IMODE(status.st_mode))

    def content() -> bytes:
        check(found_there)
        return entry_files.read(place, entry_files.largest(kind), check=check)

    found = _readable(place, kind, content, note)
    if found is None:
        return None
    try:
        record = manifests.stored(place, layer, kind)
        if gate.states_record(record, place, kind, found, layer):
            events.count(Count.CODE_VERIFIED)
            return _Found(found, modes[-1], record)
        refusal = gate.judge(place, layer, kind)
    except directory_faults.Unreadable as error:
        # Of the cache for which a private one stands in, this was reported under the same cause.
        text = f"{kind.noun} {place} was not used: {error.evidence}."
        events.report(Reason.UNREADABLE, text, cause=layer, remedy=_REMEDY, error=error)
        return None
    if refusal is not None:
        note(refusal.reason, kind, place, refusal.evidence, _REMEDY)
    return None


def _readable(place: str, kind: Kind, content: Callable[[], bytes], note: _Note) -> bytes | None:
    try:
        return content()
    except FileNotFoundError:
        return None
    except checks.UnusableEntry as unusable:
        refusal = Refusal(unusable.reason, f"it is {unusable.detail}")
        note(refusal.reason, kind, place, refusal.evidence, _REMEDY)
    except OSError as error:
        note(Reason.UNREADABLE, kind, place, f"{error.strerror}", _REMEDY, error)
    return None


def _put(path: str, root: str, kind: Kind, found: _Found) -> bool:
    # Its record first: other processes find that before they find the file. And as it is: its signer can be revoked.
    gate.expect(path, found.content)
    where, what = manifests.path_of(path, root, kind), f"the record of {kind.noun} {path}"
    if found.record is not None and not manifests.publish(where, found.record, root, what, kind):
        return False
    return copies.put(path, found.content, root, kind, found.mode | stat.S_IWUSR)
