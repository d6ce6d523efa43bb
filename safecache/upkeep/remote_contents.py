"""What lies in the remote, by kind, and what of it goes so that it keeps within limits: the oldest first.

Only what is below the names of this namespace is looked at, whatever build it is of.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from safecache.files import parallel
from safecache.remote import parcels, stores
from safecache.remote.client import Client, Unavailable
from safecache.remote.stores import Stored
from safecache.reporting.kinds import Kind

__all__ = ["Held", "Removal", "chosen", "listed", "remove", "sizes"]

_THREADS = 8


class Held(NamedTuple):
    """A name with what it says: its kind, None if it is none of ours; and whether it is of this build."""

    stored: Stored
    kind: Kind | None
    is_of_this_build: bool


class Removal(NamedTuple):
    """What was removed, and what could not be."""

    removed: list[Held]
    failed: list[Held]


def listed(remote: Client) -> list[Held]:
    """All of it, as the engine lists it. Raises Unavailable."""
    before = stores.prefix()
    return [_held(stored, stored.name[len(before) :]) for stored in remote.names(before)]


def _held(stored: Stored, name: str) -> Held:
    kind = parcels.kind_of(name)
    return Held(stored, kind, kind is not None and parcels.is_of_this_build(name, kind))


def sizes(held: Iterable[Held]) -> int:
    """Bytes of all of them together."""
    return sum(each.stored.size for each in held)


def chosen(held: Iterable[Held], now: float, max_bytes: int | None, max_age: int | None) -> list[Held]:
    """What goes, by when it was written: no name but ours, and none of which the engine does not tell that."""
    dated = sorted((each for each in held if each.kind is not None and each.stored.modified is not None), key=_written)
    left, going = sizes(dated), []
    for each in dated:
        is_old = max_age is not None and now - _written(each) > max_age
        if not is_old and (max_bytes is None or left <= max_bytes):
            break
        going.append(each)
        left -= each.stored.size
    return going


def _written(held: Held) -> float:
    return held.stored.modified or 0.0


def remove(remote: Client, going: Iterable[Held]) -> Removal:
    """Have the remote forget them, several at once."""
    items = list(going)
    done = list(parallel.map_in_threads(lambda held: _is_removed(remote, held), items, _THREADS))
    pairs = list(zip(items, done, strict=True))
    return Removal([held for held, is_done in pairs if is_done], [held for held, is_done in pairs if not is_done])


def _is_removed(remote: Client, held: Held) -> bool:
    try:
        remote.remove(held.stored.name)
    except Unavailable:
        return False
    return True
