"""Exchange with the remote, as a person asks for it: all of a cache is sent there, or fetched from there.

Both are done again without harm: what is there already is left alone, as the start of each parcel tells, which is asked
for in batches. Nothing is sent that does not verify, and nothing written before it has been verified in memory.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from functools import partial
from typing import NamedTuple

from safecache.errors import SafecacheError
from safecache.files import folders, opening, parallel
from safecache.places.refs import Ref
from safecache.remote import exchange, parcels, sender, stores
from safecache.remote.client import Client, Unavailable
from safecache.reporting.kinds import ENTRIES, Kind, Reason
from safecache.reporting.report import Refusal
from safecache.settings import config
from safecache.signing import keyring
from safecache.store import bundles
from safecache.store.wire import INDUCTOR, TRITON, VLLM, Packed
from safecache.upkeep import catalogue, inventory

__all__ = ["Fate", "Step", "Summary", "Targets", "Tell", "pull", "push", "summarized"]

# Requests at once, each of which waits for the other side most of the time; and names that are asked for in one: their
# starts have to fit into what is received of one answer, however small SAFECACHE_REMOTE_MAX_BYTES is.
_THREADS = 8
_BATCH = 200


class Fate(Enum):
    """What became of a bundle."""

    DONE = "done"
    THERE = "already there"
    REFUSED = "refused"
    FAILED = "failed"


class Step(NamedTuple):
    """Of one bundle. ``size``: in bytes, of what was sent or fetched; ``detail``: why not."""

    name: str
    fate: Fate
    size: int = 0
    detail: str = ""


class Summary(NamedTuple):
    """``counts``: of bundles by their fate; ``size``: bytes sent or fetched; ``elsewhere``: names of other builds.

    ``problems``: what was refused, or has failed.
    """

    counts: Counter[Fate]
    size: int
    problems: list[Step]
    elsewhere: int = 0


class Targets(NamedTuple):
    """Where files go: Inductor's cache, Triton's own, vLLM's. ``only_triton``: all kernels go to Triton's."""

    inductor: str
    triton: str
    vllm: str = ""
    only_triton: bool = False

    def of(self, root: str) -> str:
        """The cache that corresponds to this one in a frame."""
        top, _, below = root.partition("/")
        place = {INDUCTOR: self.inductor, TRITON: self.triton, VLLM: self.vllm}[top]
        if self.only_triton and (top == TRITON or below):
            return self.triton
        return os.path.join(place, below) if below else place


# Called with the number of bundles when that is known, and with each that is done.
Tell = Callable[[int, Step | None], None]


def push(directories: Iterable[str], remote: Client, tell: Tell, *, again: bool = False) -> Summary:
    """Send what lies in these caches and the remote lacks, or ``again`` all of it, in place of what the remote has.

    Raises Unavailable and OSError before it has begun.
    """
    keyring.current()  # by one thread: the first use makes a key
    lying = (ref for each in directories for ref in inventory.bundles_in(each))
    found = {parcels.remote_object_name(ref.kind, ref.key): ref for ref in lying}
    there = {} if again else _listings(remote, found)
    tell(len(found), None)
    keys = {ref.key for ref in found.values()}
    return summarized(partial(_send, remote, there, keys, again), list(found.items()), tell)


def _listings(remote: Client, names: Iterable[str]) -> dict[str, Packed | None]:
    """What the remote lists of those that it has, None where its start does not tell. Raises Unavailable."""
    before, asked = stores.prefix(), list(names)
    found: dict[str, Packed | None] = {}
    for begin in range(0, len(asked), _BATCH):
        starts = remote.starts([before + name for name in asked[begin : begin + _BATCH]], parcels.START)
        found.update({name[len(before) :]: parcels.listing(start) for name, start in starts.items()})
    return found


def _send(
    remote: Client, there: Mapping[str, Packed | None], keys: set[str], again: bool, item: tuple[str, Ref]
) -> Step:
    name, ref = item
    listing, is_there = there.get(name), name in there
    names = (each for each in ref.names() if folders.is_there(ref.file(each).path))
    if listing is not None and listing.files.keys() >= set(names):
        return Step(name, Fate.THERE)
    # What is of more than one entry is joined with what the remote has; anything else takes its place.
    sent = sender.send(remote, ref, _needs(ref, keys), again=again or ref.kind not in ENTRIES)
    if sent.why_not:
        return Step(name, Fate.REFUSED, 0, sent.why_not)
    if sent.size:
        return Step(name, Fate.DONE, sent.size)
    return (
        Step(name, Fate.THERE) if is_there else Step(name, Fate.REFUSED, 0, "nothing of it verifies: safecache verify")
    )


def _needs(ref: Ref, keys: set[str]) -> tuple[tuple[Kind, str], ...]:
    """The graphs that an AOTAutograd entry names; what its user asks for after those is only known when it runs."""
    if ref.kind is not Kind.AOT_ENTRY:
        return ()
    named = catalogue.keys(ref.file(name).path for name in ref.names())
    return tuple((Kind.FX_ENTRY, key) for key in named if key in keys and Ref(Kind.FX_ENTRY, key).has_valid_key)


def pull(caches: Targets, remote: Client, tell: Tell) -> Summary:
    """Fetch what the remote has of this namespace and build, and these caches lack. Raises Unavailable."""
    keyring.current()
    config.name_cache(caches.inductor)
    config.name_cache(caches.triton)
    before = stores.prefix()
    names = [each.name[len(before) :] for each in remote.names(before) if each.name.startswith(before)]
    kinds = [(name, kind) for name in names if (kind := parcels.kind_of(name)) is None or kind.tiers.is_pulled]
    ours = {name: kind for name, kind in kinds if kind is not None and parcels.is_of_this_build(name, kind)}
    listings = _listings(remote, ours)
    tell(len(ours), None)
    summary = summarized(partial(_fetch, remote, caches, listings), list(ours.items()), tell)
    return summary._replace(elsewhere=len(kinds) - len(ours))


def _fetch(remote: Client, caches: Targets, listings: Mapping[str, Packed | None], item: tuple[str, Kind]) -> Step:
    name, _ = item
    listing = listings.get(name)
    if listing is not None and _is_here(name, listing, caches):
        return Step(name, Fate.THERE)
    full, most = stores.prefix() + name, config.current().remote_max_bytes
    content = remote.read([full]).get(full)
    if content is None:
        return Step(name, Fate.FAILED, 0, "the remote has lost it meanwhile")
    if not isinstance(content, bytes):
        return Step(name, Fate.REFUSED, 0, f"it is larger than SAFECACHE_REMOTE_MAX_BYTES, {most}")
    found = parcels.unpacked(content, name, most)
    if isinstance(found, Refusal):
        return Step(name, Fate.REFUSED, 0, found.evidence)
    ref = _placed(name, found.ref, caches)
    refusal = _UNPLACED if ref is None else bundles.bundle_refusal(found.files, ref)
    if ref is None or refusal is not None:
        return Step(name, Fate.REFUSED, 0, (refusal or _UNPLACED).evidence)
    if not bundles.publish(found.files, ref, exchange.ORIGIN):
        return Step(name, Fate.FAILED, 0, f"it cannot be written to {ref.directory}")
    return Step(name, Fate.DONE, len(content))


_UNPLACED = Refusal(Reason.UNSAFE_NAME, "it does not say, or not truly, where it belongs")


def _is_here(name: str, listing: Packed, caches: Targets) -> bool:
    ref = _placed(name, listing.ref, caches)
    if ref is None:
        return False
    try:
        return listing.files.keys() <= set(folders.names_in(ref.directory))
    except OSError:
        return False  # as good as empty


def _placed(name: str, ref: Ref, caches: Targets) -> Ref | None:
    """Where the bundle goes that came under this name, and says that it is of this ref; None if that is not so."""
    is_named = parcels.remote_object_name(ref.kind, ref.key) == name and not ref.root.startswith(VLLM)
    return ref._replace(root=caches.of(ref.root)) if is_named else None


def summarized(
    do: Callable[..., Step], items: Sequence[tuple[str, object]], tell: Tell, threads: int = _THREADS
) -> Summary:
    """Do it for every item, by so many threads."""
    counts, problems, size = Counter[Fate](), list[Step](), 0
    for step in parallel.map_in_threads(partial(_attempted, do), items, threads):
        tell(len(items), step)
        counts[step.fate] += 1
        size += step.size
        if step.detail:
            problems.append(step)
    return Summary(counts, size, problems)


def _attempted(do: Callable[..., Step], item: tuple[str, object]) -> Step:
    try:
        return do(item)
    except Unavailable:
        return Step(item[0], Fate.FAILED, 0, "the remote cannot be used now")
    except (OSError, opening.UnusableEntry, SafecacheError) as error:
        return Step(item[0], Fate.FAILED, 0, str(error))
