"""Compiled code of a lower layer: copied into the cache once the layer's own record of it has been verified."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable

from safecache import copies, events, files, layers, loading, records, store, vouching
from safecache.reasons import Count, Reason
from safecache.seal import Kind
from safecache.trust import Refusal

__all__ = ["take"]

_REMEDY = "It is made anew; what lies there stays, or is replaced by that if it is in a shared level."


def take(path: str, root: str, kind: Kind = Kind.NATIVE_CODE) -> str | None:
    """Put the nearest copy of ``path`` in a lower layer there, if it is vouched for; returns where that lies.

    None if there is none. Raises EntryRefusedError in strict mode for one that is refused.
    """
    for place, layer in layers.below(path, root):
        if os.path.lexists(place):
            found = _read(place, layer, kind)
            if found is not None and _put(path, root, place, layer, kind, *found):
                return place
    return None


def _read(place: str, layer: str, kind: Kind) -> tuple[bytes, int] | None:
    """What lies at ``place``, and its mode, if it is vouched for."""
    modes = []

    def check(status: os.stat_result) -> None:
        store.check_regular(status)
        modes.append(stat.S_IMODE(status.st_mode))

    def content() -> bytes:
        check(os.lstat(place))
        return files.read_regular(place, check, flags=os.O_NOFOLLOW)

    found = _readable(place, kind, content)
    if found is None:
        return None
    if vouching.states(place, layer, kind, found):
        events.count(Count.CODE_VERIFIED)
        return found, modes[-1]
    refusal = vouching.judge(place, layer, kind)
    if refusal is not None:
        loading.note(refusal.reason, kind, place, refusal.evidence, _REMEDY)
    return None


def _readable(place: str, kind: Kind, content: Callable[[], bytes]) -> bytes | None:
    try:
        return content()
    except store.UnusableEntry as unusable:
        refusal = Refusal(unusable.reason, f"it is {unusable.detail}")
        loading.note(refusal.reason, kind, place, refusal.evidence, _REMEDY)
    except OSError as error:
        loading.note(Reason.UNREADABLE, kind, place, f"{error.strerror}", _REMEDY, error)
    return None


def _put(path: str, root: str, place: str, layer: str, kind: Kind, content: bytes, mode: int) -> bool:
    # Its record first: other processes find that before they find the file. Without one it was trusted as private.
    vouching.expect(path, content)
    if records.exists(place, layer, kind) and not records.copy(place, layer, kind, root):
        return False
    return copies.put(path, content, root, kind, mode | stat.S_IWUSR)
