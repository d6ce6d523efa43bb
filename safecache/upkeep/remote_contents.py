"""What lies in the remote, by kind: what of it is copied, and what goes so that it keeps within limits.

The oldest goes first. Only what is below the names of this namespace is looked at.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from safecache.files import parallel
from safecache.places.refs import Ref
from safecache.ports import Bundle
from safecache.remote import client, parcels, sender, stores
from safecache.remote.client import Client, Unavailable
from safecache.remote.exchange import ORIGIN
from safecache.remote.stores import Stored
from safecache.reporting.kinds import ENTRIES, Kind, Reason
from safecache.reporting.report import Refusal
from safecache.settings import config
from safecache.store import bundles, wire
from safecache.store.wire import Packed
from safecache.upkeep import catalogue
from safecache.upkeep.copies import Fate, Listing, Step

__all__ = ["Held", "Remote", "Removal", "chosen", "listed", "remove", "sizes"]

# Requests at once; and names that are asked for in one: their starts have to fit into what is received of one answer,
# however small max_bytes is.
_THREADS = 8
_BATCH = 200


class Remote:
    """The remote as a source, or a destination, of copies. ``elsewhere``: how many names it lists of other builds."""

    def __init__(self, remote: Client) -> None:
        self._remote = remote
        self.elsewhere = 0
        self._graphs = set[str]()

    @classmethod
    def locate(cls, url: str) -> Remote:
        """The one at this URL. Raises ConfigError for what it needs and is not installed."""
        found = client.background_client(url)
        assert found is not None, "it is that of the URL"
        return cls(found)

    def listings(self) -> Iterator[Listing]:
        before = stores.prefix()
        pulled = [held for held in listed(self._remote) if held.kind is None or held.kind.tiers.is_pulled]
        ours = {held.stored.name[len(before) :]: held.kind for held in pulled if held.is_of_this_build}
        self.elsewhere = len(pulled) - len(ours)
        stated = self._read_rows(ours)
        for name, kind in ours.items():
            row = stated.get(name)
            if row is not None and _is_placed(row.ref, name):
                yield Listing(row.ref, row.files.keys())
            elif kind is not None:
                yield Listing(Ref(kind, parcels.key_in_name(name), wire.INDUCTOR), None)

    def _read_rows(self, names: Iterable[str]) -> dict[str, Packed | None]:
        """Read, unverified, the rows of those that it has; None where a start does not tell. Raises Unavailable."""
        before, found = stores.prefix(), dict[str, Packed | None]()
        asked = [before + name for name in names]
        for begin in range(0, len(asked), _BATCH):
            starts = self._remote.starts(asked[begin : begin + _BATCH], parcels.START)
            found.update({name[len(before) :]: parcels.listing(start) for name, start in starts.items()})
        return found

    def read(self, listing: Listing) -> Bundle:
        name, most = parcels.remote_object_name(listing.ref.kind, listing.ref.key), config.current().remote_max_bytes
        content = self._remote.read([full := stores.prefix() + name]).get(full)
        if isinstance(content, bytes):
            found = parcels.unpacked(content, name, most)
        elif content is None:
            found = Refusal(Reason.EMPTY, "the remote has lost it meanwhile")
        else:
            found = Refusal(Reason.TOO_LARGE, f"it is larger than max_bytes of the remote, {most}")
        if isinstance(found, Refusal):
            return Bundle(listing.ref, (), ORIGIN, refusal=found)
        unplaced = Refusal(Reason.UNSAFE_NAME, "it does not say, or not truly, where it belongs")
        refusal = bundles.bundle_refusal(found.files, found.ref) if _is_placed(found.ref, name) else unplaced
        return Bundle(found.ref, found.files, ORIGIN, refusal=refusal)

    def find_complete(self, listings: Collection[Listing]) -> list[Ref]:
        self._graphs = {listing.ref.key for listing in listings if listing.ref.kind is Kind.FX_ENTRY}
        # Two caches may have the same: they share a name there.
        named = [(parcels.remote_object_name(each.ref.kind, each.ref.key), each) for each in listings]
        rows = self._read_rows(dict.fromkeys(name for name, _ in named))
        stated = {name: set(row.files) for name, row in rows.items() if row is not None}
        return [each.ref for name, each in named if each.names and stated.get(name, set()).issuperset(each.names)]

    def write(self, bundle: Bundle, *, again: bool) -> Step:
        ref = _place_alone(bundle.ref)
        # The graphs that an AOTAutograd entry names; what its user asks for after those is known when it runs.
        named = catalogue.find_keys(file.content for file in bundle.files) if ref.kind is Kind.AOT_ENTRY else ()
        needs = tuple((Kind.FX_ENTRY, key) for key in named if key in self._graphs)
        # What is of more than one entry is joined with what the remote has; anything else takes its place.
        sent = sender.send(self._remote, ref, needs, files=bundle.files, again=again or ref.kind not in ENTRIES)
        fate = Fate.DONE if sent.size else Fate.REFUSED if sent.why_not else Fate.THERE
        return Step("", fate, sent.size, sent.why_not)


def _place_alone(ref: Ref) -> Ref:
    """Return its ref in a frame of a cache by itself, as which the remote has one in vLLM's."""
    if not ref.root.startswith(f"{wire.VLLM}/"):
        return ref
    device = _DEVICE_FOLDER.fullmatch(ref.root)
    tritons = f"{wire.INDUCTOR}/{device[1]}" if device else wire.TRITON
    return ref._replace(root=tritons if ref.kind is Kind.KERNEL else wire.INDUCTOR)


# Of Triton's cache in Inductor's.
_DEVICE_FOLDER = re.compile(r".*/(triton/\d{1,4})")


def _is_placed(ref: Ref, name: str) -> bool:
    """Whether a bundle that came under this name belongs to it, and to a cache that a copy fills."""
    return parcels.remote_object_name(ref.kind, ref.key) == name and not ref.root.startswith(wire.VLLM)


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
    before, found = stores.prefix(), list[Held]()
    for stored in remote.names(before):
        name = stored.name[len(before) :]
        kind = parcels.kind_of(name)
        found.append(Held(stored, kind, kind is not None and parcels.is_of_this_build(name, kind)))
    return found


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

    def is_removed(held: Held) -> bool:
        try:
            remote.remove(held.stored.name)
        except Unavailable:
            return False
        return True

    items = list(going)
    done = list(zip(items, parallel.map_in_threads(is_removed, items, _THREADS), strict=True))
    return Removal([held for held, is_done in done if is_done], [held for held, is_done in done if not is_done])
