"""Exchange with the remote, as a person asks for it: all of a cache is sent there, or fetched from there.

Both are done again without harm: what is there already is left alone, as the start of each parcel tells, which is asked
for in batches. Nothing is sent that does not verify, and nothing written before it has been verified in memory.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from functools import partial
from typing import NamedTuple

from safecache.errors import SafecacheError
from safecache.files import folders, opening, parallel
from safecache.places import layout
from safecache.remote import exchange, parcels, sender, stores
from safecache.remote.client import Client, Unavailable
from safecache.remote.parcels import Bundle, Listing
from safecache.reporting.kinds import ENTRIES, Kind, Reason
from safecache.settings import config
from safecache.signing import keyring, seal
from safecache.signing.trust import Refusal
from safecache.store import entry_files, manifests
from safecache.store.groups import Group
from safecache.upkeep import catalogue, inventory

__all__ = ["Caches", "Fate", "Step", "Summary", "pull", "push"]

# Requests at once, each of which waits for the other side most of the time; and names that are asked for in one: their
# starts have to fit into what is received of one answer, however small SAFECACHE_REMOTE_MAX_BYTES is.
_THREADS = 8
_BATCH = 200
_LIBRARIES = (".so", ".o")
_PLAIN = "[A-Za-z0-9_-][A-Za-z0-9._-]*"
# What the keys of a kind look like, and so the paths that are made of them.
_KEYS = {
    Kind.AOT_ENTRY: inventory.AOT_KEY,
    Kind.FX_ENTRY: inventory.FX_KEY,
    Kind.KERNEL: layout.TRITON_KEY,
    Kind.NATIVE_CODE: re.compile(f"{layout.CODE_FOLDER.pattern}/{_PLAIN}"),
    Kind.AUTOTUNING: re.compile(rf"{layout.CODE_FOLDER.pattern}/{_PLAIN}\.best_config"),
    Kind.DYNAMO_PACKAGE: re.compile(_PLAIN),
    Kind.PGO_STATE: re.compile(r"[^\x00-\x1f]+"),
}


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


class Caches(NamedTuple):
    """Where fetched files go: Inductor's cache, and Triton's own; ``only_triton``: all kernels go to that."""

    inductor: str
    triton: str
    only_triton: bool = False


# Called with the number of bundles when that is known, and with each that is done.
Tell = Callable[[int, Step | None], None]


def push(directories: Iterable[str], remote: Client, tell: Tell, *, again: bool = False) -> Summary:
    """Send what lies in these caches and the remote lacks, or ``again`` all of it, in place of what the remote has.

    Raises Unavailable and OSError before it has begun.
    """
    keyring.current()  # by one thread: the first use makes a key
    bundles = {parcels.name_of(bundle.kind, bundle.key): bundle for each in directories for bundle in _lying_in(each)}
    there = {} if again else _listings(remote, bundles)
    tell(len(bundles), None)
    keys = {bundle.key for bundle in bundles.values()}
    return _summary(partial(_send, remote, there, keys, again), list(bundles.items()), tell)


def _lying_in(directory: str) -> Iterator[Bundle]:
    found = inventory.take(directory)
    for group in found.groups:
        yield from _of_group(group)
    for file in found.other:
        bundle = _of_dynamo(directory, file.path)
        if bundle is not None:
            yield bundle


def _of_group(group: Group) -> Iterator[Bundle]:
    if group.kind in (*ENTRIES, Kind.KERNEL):
        if group.files:
            directory = group.paths[0]
            root = os.path.dirname(directory) if group.kind is Kind.KERNEL else group.root
            yield Bundle(group.kind, group.name, directory, root)
    elif group.kind in (Kind.NATIVE_CODE, Kind.AUTOTUNING):
        for path in group.paths:
            # Sources are written by who has the entry, and a probe's marker goes with the probe.
            is_code = path.endswith(_LIBRARIES) or manifests.exists(path, group.root, Kind.NATIVE_CODE)
            if group.kind is Kind.AUTOTUNING or (is_code and not path.endswith(layout.LOADED)):
                key = os.path.relpath(path, group.root)
                yield Bundle(group.kind, key, os.path.dirname(path), group.root, os.path.basename(path))


def _of_dynamo(root: str, path: str) -> Bundle | None:
    """A profile or a precompiled function: the key of a profile is in its seal alone."""
    directory, name = os.path.split(path)
    above = os.path.join(root, layout.DYNAMO_FOLDER)
    if os.path.dirname(directory) == above and name == layout.PACKAGE_FILE:
        return Bundle(Kind.DYNAMO_PACKAGE, os.path.basename(directory), directory, root, name)
    if directory != above:
        return None
    with suppress(OSError, opening.UnusableEntry):
        key = seal.stated_key(entry_files.read(path, entry_files.largest(Kind.PGO_STATE)))
        if key is not None and layout.profile(key, root) == path:
            return Bundle(Kind.PGO_STATE, key, directory, root, name)
    return None


def _listings(remote: Client, names: Iterable[str]) -> dict[str, Listing | None]:
    """What the remote lists of those that it has, None where its start does not tell. Raises Unavailable."""
    before, asked = stores.prefix(), list(names)
    found: dict[str, Listing | None] = {}
    for begin in range(0, len(asked), _BATCH):
        starts = remote.starts([before + name for name in asked[begin : begin + _BATCH]], parcels.START)
        found.update({name[len(before) :]: parcels.listing(start) for name, start in starts.items()})
    return found


def _send(
    remote: Client, there: Mapping[str, Listing | None], keys: set[str], again: bool, item: tuple[str, Bundle]
) -> Step:
    name, bundle = item
    listing, is_there = there.get(name), name in there
    names = (each for each in bundle.names() if folders.is_there(bundle.path(each)))
    if listing is not None and listing.names.issuperset(names):
        return Step(name, Fate.THERE)
    # What is of more than one entry is joined with what the remote has; anything else takes its place.
    sent = sender.send(remote, bundle, _needs(bundle, keys), again=again or bundle.kind not in ENTRIES)
    if sent.why_not:
        return Step(name, Fate.REFUSED, 0, sent.why_not)
    if sent.size:
        return Step(name, Fate.DONE, sent.size)
    return (
        Step(name, Fate.THERE) if is_there else Step(name, Fate.REFUSED, 0, "nothing of it verifies: safecache verify")
    )


def _needs(bundle: Bundle, keys: set[str]) -> tuple[tuple[Kind, str], ...]:
    """The graphs that an AOTAutograd entry names; what its user asks for after those is only known when it runs."""
    if bundle.kind is not Kind.AOT_ENTRY:
        return ()
    named = catalogue.keys(bundle.path(name) for name in bundle.names())
    return tuple((Kind.FX_ENTRY, key) for key in named if key in keys and _KEYS[Kind.FX_ENTRY].fullmatch(key))


def pull(caches: Caches, remote: Client, tell: Tell) -> Summary:
    """Fetch what the remote has of this namespace and build, and these caches lack. Raises Unavailable."""
    keyring.current()
    config.name_cache(caches.inductor)
    config.name_cache(caches.triton)
    before = stores.prefix()
    names = [each.name[len(before) :] for each in remote.names(before) if each.name.startswith(before)]
    kinds = [(name, parcels.kind_of(name)) for name in names]
    ours = {name: kind for name, kind in kinds if kind in _KEYS and parcels.is_of_this_build(name, kind)}
    listings = _listings(remote, ours)
    tell(len(ours), None)
    summary = _summary(partial(_fetch, remote, caches, listings), list(ours.items()), tell)
    # What vLLM keeps beside its caches is fetched by vLLM alone.
    others = [name for name, kind in kinds if name not in ours and (kind is None or kind in _KEYS)]
    return summary._replace(elsewhere=len(others))


def _fetch(remote: Client, caches: Caches, listings: Mapping[str, Listing | None], item: tuple[str, Kind]) -> Step:
    name, kind = item
    listing = listings.get(name)
    if listing is not None and _is_here(name, kind, listing, caches):
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
    bundle = _placed(name, kind, found.key, found.at, caches)
    refusal = _UNPLACED if bundle is None else parcels.objection(found, bundle)
    if bundle is None or refusal is not None:
        return Step(name, Fate.REFUSED, 0, (refusal or _UNPLACED).evidence)
    if not all(exchange.publish(file, bundle) for file in found.files):
        return Step(name, Fate.FAILED, 0, f"it cannot be written to {bundle.directory}")
    return Step(name, Fate.DONE, len(content))


_UNPLACED = Refusal(Reason.UNSAFE_NAME, "it does not say, or not truly, where it belongs")


def _is_here(name: str, kind: Kind, listing: Listing, caches: Caches) -> bool:
    bundle = _placed(name, kind, listing.key, listing.at, caches)
    if bundle is None or not listing.names:
        return False
    try:
        return listing.names.issubset(folders.names_in(bundle.directory))
    except OSError:
        return False  # as good as empty


def _placed(name: str, kind: Kind, key: str, at: str, caches: Caches) -> Bundle | None:
    """Where the bundle goes that came under this name, and says that it has this key; None if that is not so."""
    if parcels.name_of(kind, key) != name or not _KEYS[kind].fullmatch(key):
        return None
    root = caches.inductor
    if kind is Kind.KERNEL:
        root = caches.triton if caches.only_triton or not at else os.path.join(root, at)
    if kind in (*ENTRIES, Kind.KERNEL):
        return Bundle(kind, key, layout.directory_of(kind, key, root), root)
    if kind is Kind.PGO_STATE:
        path = layout.profile(key, root)
    elif kind is Kind.DYNAMO_PACKAGE:
        path = os.path.join(root, layout.DYNAMO_FOLDER, key, layout.PACKAGE_FILE)
    else:
        path = os.path.join(root, key)
    return Bundle(kind, key, os.path.dirname(path), root, os.path.basename(path))


def _summary(do: Callable[..., Step], items: Sequence[tuple[str, object]], tell: Tell) -> Summary:
    """Do it for every item, several at once."""
    counts, problems, size = Counter[Fate](), list[Step](), 0
    for step in parallel.each(partial(_attempted, do), items, _THREADS):
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
