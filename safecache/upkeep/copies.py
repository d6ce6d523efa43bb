"""Copies between caches, packs and the remote: what the destination lacks of what the sources have.

Nothing is written before it has been verified in memory. Done again, a copy that was cut short goes on. Also what lies
in the remote, by kind, and what of it goes so that it keeps within limits: only what is below the names of this
namespace is looked at.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from enum import Enum
from functools import partial
from typing import NamedTuple, Protocol

from safecache.built_code import vllm_files
from safecache.errors import SafecacheError
from safecache.fs import folders, opening, parallel
from safecache.places import layout
from safecache.places.refs import Ref
from safecache.ports import Bundle
from safecache.remote import client, parcels, sender, stores
from safecache.remote.client import Client, Unavailable
from safecache.remote.exchange import ORIGIN
from safecache.remote.stores import Stored
from safecache.reporting.kinds import ENTRIES, Kind, Reason
from safecache.reporting.report import Refusal
from safecache.settings import config
from safecache.signing import keyring
from safecache.store import bundles, wire
from safecache.store.wire import INDUCTOR, TRITON, VLLM, Packed
from safecache.tiers import levels
from safecache.upkeep import catalogue, inventory

__all__ = [
    "Caches",
    "Destination",
    "Directory",
    "Fate",
    "Held",
    "Listing",
    "Remote",
    "Source",
    "Step",
    "Summary",
    "Tell",
    "choose_oldest",
    "copy",
    "list_remote",
    "read_verified",
    "remove_held",
    "sum_sizes",
]

# Requests at once, each of which waits for the other side most of the time.
_THREADS = 8

# Requests at once; and names that are asked for in one: their starts have to fit into what is received of one answer,
# however small max_bytes is.
_REQUESTS = 8
_BATCH = 200


class Listing(NamedTuple):
    """A bundle that a place has. ``ref``: as in a frame, see store.wire; ``names``: of its files.

    None of that is verified. ``names`` is None where only reading it tells.
    """

    ref: Ref
    names: Collection[str] | None


class Fate(Enum):
    """Outcome of copying one bundle."""

    DONE = "done"
    THERE = "already there"
    REFUSED = "refused"
    FAILED = "failed"


class Step(NamedTuple):
    """Outcome for the bundle ``name``. ``size``: bytes written; ``detail``: why it was refused or failed, else ""."""

    name: str
    fate: Fate
    size: int = 0
    detail: str = ""


class Summary(NamedTuple):
    """Result of copy(). ``counts``: bundles by fate; ``size``: bytes written; ``problems``: refused or failed ones."""

    counts: Counter[Fate]
    size: int
    problems: list[Step]


class Source(Protocol):
    """Source of bundles to copy. Both methods may raise OSError, SafecacheError and Unavailable."""

    def list_bundles(self) -> Iterator[Listing]:
        """Yield what it has."""

    def read(self, listing: Listing) -> Bundle:
        """Read what it lists. The bundle states why it is refused, or else has been verified."""


class Destination(Protocol):
    """Takes bundles that are copied to it. Both methods may raise OSError, SafecacheError and Unavailable."""

    def find_complete(self, listings: Collection[Listing]) -> Collection[Ref]:
        """Find those of which it lacks nothing. Called once, before anything is written."""

    def write(self, bundle: Bundle, *, again: bool) -> Step:
        """Have it hold a verified bundle; ``again``: in place of what it has of that."""


# Called with the number of bundles when that is known, and with each that is done.
Tell = Callable[[int, Step | None], None]


def copy(
    sources: Sequence[Source], destination: Destination, tell: Tell, *, again: bool = False, threads: int = _THREADS
) -> Summary:
    """Copy each bundle that ``destination`` lacks from the first of ``sources`` where it verifies.

    Entries of one key are merged from all sources. ``again``: copy bundles that are there already, too. ``tell`` gets
    the number of bundles, then each Step. A failed bundle is in Summary.problems. Raises what listings() and
    find_complete() raise, before anything is written.
    """
    keyring.current()  # by one thread: the first use makes a key
    named: dict[str, list[tuple[Source, Listing]]] = {}
    for source in sources:
        for listing in source.list_bundles():
            named.setdefault(wire.name_bundle(listing.ref), []).append((source, listing))
    complete = destination.find_complete([_join_listings(having) for having in named.values()])
    tell(len(named), None)
    counts, problems, size = Counter[Fate](), list[Step](), 0
    step = partial(_copy_bundle, destination, () if again else complete, again)
    for done in parallel.map_in_threads(step, sorted(named.items()), threads):
        tell(len(named), done)
        counts[done.fate] += 1
        size += done.size
        if done.detail:
            problems.append(done)
    return Summary(counts, size, problems)


def _join_listings(having: list[tuple[Source, Listing]]) -> Listing:
    names = [listing.names for _, listing in having]
    known = [each for each in names if each is not None]
    return having[0][1]._replace(names=set().union(*known) if len(known) == len(names) else None)


def _copy_bundle(
    destination: Destination, complete: Collection[Ref], again: bool, item: tuple[str, list[tuple[Source, Listing]]]
) -> Step:
    name, having = item
    if having[0][1].ref in complete:
        return Step(name, Fate.THERE)
    try:
        bundle = read_verified(having)
        if bundle.refusal is not None:
            return Step(name, Fate.REFUSED, 0, bundle.refusal.evidence)
        return destination.write(bundle, again=again)._replace(name=name)
    except Unavailable:
        return Step(name, Fate.FAILED, 0, "the remote cannot be used now")
    except (OSError, opening.UnusableEntry, SafecacheError) as error:
        return Step(name, Fate.FAILED, 0, str(error))


def read_verified(having: list[tuple[Source, Listing]]) -> Bundle:
    """Read a bundle from the first place where it verifies, entries from all; with the last refusal if none does."""
    found: Bundle | None = None
    for place, listing in having:
        bundle = place.read(listing)
        if bundle.refusal is not None:
            refused = bundle
        elif found is None:
            found = bundle
        else:
            names = {file.name for file in found.files}
            found = found._replace(files=(*found.files, *(f for f in bundle.files if f.name not in names)))
        if found is not None and found.ref.kind not in ENTRIES:
            break
    return found or refused


class Directory:
    """A cache directory as a source: Inductor's, Triton's, or vLLM's with the caches in it."""

    def __init__(self, path: str) -> None:
        self._path = os.path.realpath(path)
        self._refs: dict[Ref, Ref] = {}

    def find_caches(self) -> Iterator[tuple[str, str]]:
        """Yield the caches that it is, or has if it is vLLM's, each below what a frame calls it. Raises OSError."""
        below = os.path.join(self._path, layout.VLLM_FOLDER)
        top = below if os.path.isdir(below) else self._path
        nested = list(layout.find_vllm_caches(top))
        if nested or os.path.basename(top) == layout.VLLM_FOLDER:
            yield VLLM, top
            yield from ((f"{VLLM}/{os.path.relpath(cache, top)}", cache) for cache in nested)
        elif os.path.basename(self._path) != layout.HEADERS_FOLDER:
            yield (TRITON if _is_tritons(self._path) else INDUCTOR), self._path

    def list_bundles(self) -> Iterator[Listing]:
        """Yield what lies there, see Source."""
        for root, directory in self.find_caches():
            config.name_cache(directory)
            lying = vllm_files.find_bundles(directory) if root == VLLM else inventory.list_bundles(directory)
            for ref in lying:
                below = os.path.relpath(ref.root, directory)
                placed = ref._replace(root=root if below == os.curdir else f"{root}/{below}")
                if wire.is_placed(placed):
                    self._refs[placed] = ref
                    names = ref.list_names()
                    yield Listing(placed, {name for name in names if folders.is_there(ref.name_file(name).path)})

    def read(self, listing: Listing) -> Bundle:
        """Read what of it verifies, see Source."""
        files = bundles.read_verified_files(self._refs[listing.ref])
        refusal = None if files else Refusal(Reason.EMPTY, "nothing of it verifies: safecache verify")
        return Bundle(listing.ref, files, self._path, refusal=refusal)


def _is_tritons(directory: str) -> bool:
    """Whether it is Triton's own cache: Inductor's has no keys of Triton's at its top, or other folders too."""
    names = folders.list_directory(directory)
    is_inductors = any(name in _INDUCTORS or layout.CODE_FOLDER.fullmatch(name) for name in names)
    return not is_inductors and any(layout.TRITON_KEY.fullmatch(name) for name in names)


_INDUCTORS = {layout.TRITON_FOLDER, *(kind.tiers.place.partition("/")[0] for kind in Kind)}


class Caches(NamedTuple):
    """Caches of an environment as the destination of copies: Inductor's, Triton's own, vLLM's.

    ``only_triton``: all kernels go to Triton's own cache.
    """

    inductor: str
    triton: str
    vllm: str
    only_triton: bool = False

    @classmethod
    def locate(cls, directory: str | None) -> Caches:
        """Locate those that this environment uses, or a program whose cache is this directory. Raises OSError."""
        environ = config.copy_environment()
        triton = os.path.realpath(layout.triton_cache_dir(environ))
        if directory is None:
            only_triton = bool(environ.get("TRITON_CACHE_DIR"))
            return cls(levels.find_node_cache(environ), triton, layout.vllm_cache_dir(environ), only_triton)
        own = os.path.realpath(directory)
        return cls(own, own, os.path.join(own, layout.VLLM_FOLDER), own == triton)

    def find_complete(self, listings: Collection[Listing]) -> list[Ref]:
        """Find those of which something is there and verifies, of entries all, see Destination."""
        # These alone: on the way from there to a cache in them no link is followed.
        for cache in self[:3]:
            config.name_cache(cache)
        return list(filter(None, parallel.map_in_threads(self._find_if_complete, list(listings))))

    def _find_if_complete(self, listing: Listing) -> Ref | None:
        ref, names = listing
        here = self._find_names(ref)
        is_complete = here and (ref.kind not in ENTRIES or (names is not None and here.issuperset(names)))
        return ref if is_complete else None

    def write(self, bundle: Bundle, *, again: bool) -> Step:
        """Publish what is lacking, see Destination."""
        ref, here = self._place_ref(bundle.ref), set[str]() if again else self._find_names(bundle.ref)
        lacking = [file for file in bundle.files if file.name not in here]
        if not bundles.publish(lacking, ref, bundle.origin):
            return Step("", Fate.FAILED, 0, f"it cannot be written to {ref.directory}")
        return Step("", Fate.DONE, sum(len(file.content) for file in lacking))

    def _find_names(self, ref: Ref) -> set[str]:
        try:
            return {file.name for file in bundles.read_verified_files(self._place_ref(ref))}
        except OSError:
            return set()  # writing it says what is wrong with that

    def _place_ref(self, ref: Ref) -> Ref:
        """Return ``ref``, whose root is as in a frame, with the root of the cache that it stands for."""
        top, _, below = ref.root.partition("/")
        place = {INDUCTOR: self.inductor, TRITON: self.triton, VLLM: self.vllm}[top]
        if self.only_triton and (top == TRITON or below):
            return ref._replace(root=self.triton)
        return ref._replace(root=os.path.join(place, below) if below else place)


class Remote:
    """Remote cache as source or destination of copies. ``elsewhere``: number of listed bundles of other builds."""

    def __init__(self, remote: Client) -> None:
        self._remote = remote
        self.elsewhere = 0
        self._graphs = set[str]()

    @classmethod
    def locate(cls, url: str) -> Remote:
        """The one at this URL. Raises ConfigError for what it needs and is not installed."""
        found = client.get_background(url)
        assert found is not None, "it is that of the URL"
        return cls(found)

    def list_bundles(self) -> Iterator[Listing]:
        before = stores.make_prefix()
        pulled = [held for held in list_remote(self._remote) if held.kind is None or held.kind.tiers.is_pulled]
        ours = {held.stored.name[len(before) :]: held.kind for held in pulled if held.is_of_this_build}
        self.elsewhere = len(pulled) - len(ours)
        stated = self._read_unverified_rows(ours)
        for name, kind in ours.items():
            row = stated.get(name)
            if row is not None and _is_placed(row.ref, name):
                yield Listing(row.ref, row.files.keys())
            elif kind is not None:
                yield Listing(Ref(kind, parcels.parse_key(name), wire.INDUCTOR), None)

    def _read_unverified_rows(self, names: Iterable[str]) -> dict[str, Packed | None]:
        """Read, unverified, the rows of those that it has; None where a start does not tell. Raises Unavailable."""
        before, found = stores.make_prefix(), dict[str, Packed | None]()
        asked = [before + name for name in names]
        for begin in range(0, len(asked), _BATCH):
            starts = self._remote.read_unverified_starts(asked[begin : begin + _BATCH], parcels.START)
            found.update({name[len(before) :]: parcels.parse_unverified_row(start) for name, start in starts.items()})
        return found

    def read(self, listing: Listing) -> Bundle:
        name, most = parcels.name_object(listing.ref.kind, listing.ref.key), self._remote.terms.most
        content = self._remote.read_unverified([full := stores.make_prefix() + name]).get(full)
        if isinstance(content, bytes):
            found = parcels.unpack_unverified(content, name, most)
        elif content is None:
            found = Refusal(Reason.EMPTY, "the remote has lost it meanwhile")
        else:
            found = Refusal(Reason.TOO_LARGE, f"it is larger than max_bytes of the remote, {most}")
        if isinstance(found, Refusal):
            return Bundle(listing.ref, (), ORIGIN, refusal=found)
        unplaced = Refusal(Reason.UNSAFE_NAME, "it does not say, or not truly, where it belongs")
        refusal = bundles.judge_bundle(found.files, found.ref) if _is_placed(found.ref, name) else unplaced
        return Bundle(found.ref, found.files, ORIGIN, refusal=refusal)

    def find_complete(self, listings: Collection[Listing]) -> list[Ref]:
        self._graphs = {listing.ref.key for listing in listings if listing.ref.kind is Kind.FX_ENTRY}
        # Two caches may have the same: they share a name there.
        named = [(parcels.name_object(each.ref.kind, each.ref.key), each) for each in listings]
        rows = self._read_unverified_rows(dict.fromkeys(name for name, _ in named))
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
    return parcels.name_object(ref.kind, ref.key) == name and not ref.root.startswith(wire.VLLM)


class Held(NamedTuple):
    """Object in the remote. ``kind``: by its name, None if it is not safecache's."""

    stored: Stored
    kind: Kind | None
    is_of_this_build: bool


def list_remote(remote: Client) -> list[Held]:
    """List all objects of this namespace in the remote, also any that are not safecache's. Raises Unavailable."""
    before, found = stores.make_prefix(), list[Held]()
    for stored in remote.list_names(before):
        name = stored.name[len(before) :]
        kind = parcels.parse_kind(name)
        found.append(Held(stored, kind, kind is not None and parcels.is_of_this_build(name, kind)))
    return found


def sum_sizes(held: Iterable[Held]) -> int:
    """Return the size in bytes of all objects of ``held`` together."""
    return sum(each.stored.size for each in held)


def choose_oldest(held: Iterable[Held], now: float, max_bytes: int | None, max_age: int | None) -> list[Held]:
    """Choose objects to remove, the oldest first, until the rest is within ``max_bytes`` and ``max_age`` (seconds).

    ``now``: seconds since the epoch. Objects that are not safecache's, or of unknown age, are neither counted nor
    chosen.
    """
    dated = sorted(
        (each for each in held if each.kind is not None and each.stored.modified is not None), key=_find_write_time
    )
    left, going = sum_sizes(dated), []
    for each in dated:
        is_old = max_age is not None and now - _find_write_time(each) > max_age
        if not is_old and (max_bytes is None or left <= max_bytes):
            break
        going.append(each)
        left -= each.stored.size
    return going


def _find_write_time(held: Held) -> float:
    return held.stored.modified or 0.0


def remove_held(remote: Client, going: Iterable[Held]) -> list[Held]:
    """Remove the objects ``going`` from the remote, several at once. Return those that could not be removed."""

    def remove(held: Held) -> Held | None:
        try:
            remote.remove(held.stored.name)
        except Unavailable:
            return held
        return None

    return list(filter(None, parallel.map_in_threads(remove, list(going), _REQUESTS)))
