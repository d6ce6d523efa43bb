"""What is fetched from the remote and sent there.

What is fetched is verified in memory, and published in the cache by the way of all files: its reader verifies it again,
as if it had always been there. A parcel names the bundles that its user asks for next, which are fetched ahead.
"""

from __future__ import annotations

import itertools
import time

from safecache.places.refs import Ref
from safecache.remote import client, parcels, sender, stores
from safecache.remote.client import Client, Unavailable
from safecache.remote.parcels import Parcel
from safecache.reporting import events, report
from safecache.reporting.kinds import ENTRIES, Count, Kind, Reason
from safecache.reporting.report import Refusal
from safecache.session import ForkLock
from safecache.settings import config
from safecache.store import bundles

__all__ = ["ORIGIN", "asked", "fill", "forget_miss", "has_given", "reset", "send"]

# Bytes that are kept in memory until they are asked for, if they are.
_MOST_AHEAD = 64 << 20
# Where it comes from, to a person.
ORIGIN = "the remote cache"
_REMEDY = "It is recompiled, and what the remote has is replaced."

_lock = ForkLock()
_numbers = itertools.count(1)
# What was asked for, with the number of the last time: what an entry needs is what was asked for since it was.
_asked: dict[Ref, int] = {}
# By name in the remote: what was fetched ahead, and published; what it has as far as is known, and lacks; and what is
# bad there.
_ahead: dict[str, bytes] = {}
_given: set[str] = set()
_there: set[str] = set()
_absent: set[str] = set()
_bad: set[str] = set()


def asked(ref: Ref) -> None:
    """Note that it is looked up by this process."""
    with _lock:
        _asked[ref] = next(_numbers)


def send(ref: Ref, *, again: bool = False) -> None:
    """Have it sent, with what an entry needs; ``again``: something was added to it."""
    needed: list[Ref] = []
    if ref.kind in (*ENTRIES, Kind.AOT_FUNCTION):
        with _lock:
            begun = _asked.get(ref, 0)
            needed = [other for other, number in _asked.items() if number > begun and other != ref]
    if ref.kind is Kind.AOT_FUNCTION:
        # It has the entries of its graphs in it.
        needed = [other for other in needed if other.kind not in (*ENTRIES, Kind.TABLE)]
    needed = needed[-parcels.MOST_NEEDED :]
    for other in (*needed, ref):
        name = parcels.name_of(other.kind, other.key)
        # Entries of a key are added to those that it has.
        if name in _there and other is not ref:
            continue
        with _lock:
            _there.add(name)
            _absent.discard(name)
        needs = tuple((need.kind, need.key) for need in needed) if other is ref else ()
        sender.offer(other, needs, again=name in _bad or (again and other is ref))


def fill(ref: Ref) -> bool:
    """Publish it in the cache, if the remote has it; False if not. Raises, in strict mode, the error for a refusal."""
    remote, name = client.current(), parcels.name_of(ref.kind, ref.key)
    content = _ahead.pop(name, None)
    # The entries of a key are all there after the first time; other files may have been removed since.
    is_here, began = ref.kind in ENTRIES and name in _there, time.monotonic()
    if content is None and not is_here and name not in _absent and remote is not None and remote.may_read():
        content = _fetched(remote, name)
    if content is None:
        return False
    found = parcels.opened(content, name, ref, config.current().remote_max_bytes)
    if not isinstance(found, parcels.Parcel):
        if remote is not None:
            remote.waste(time.monotonic() - began)
        _refuse(found, ref, name)
        return False
    if not all(bundles.publish(file, ref, ORIGIN) for file in found.files):
        return False
    client.count(Count.REMOTE_HIT)
    _there.add(name)
    _given.add(name)
    if remote is not None:
        _fetch_ahead(found, remote)
    return True


def forget_miss(ref: Ref) -> None:
    """Ask the remote for it again: another host has sent it since, perhaps."""
    _absent.discard(parcels.name_of(ref.kind, ref.key))


def has_given() -> bool:
    """Whether anything that the remote had was published by this process."""
    return bool(_given)


def _fetched(remote: Client, name: str) -> bytes | None:
    full = stores.prefix() + name
    try:
        content = remote.read([full]).get(full)
    except Unavailable:
        return None
    if isinstance(content, bytes):
        return content
    # A miss is remembered, so that nobody waits for the same one twice.
    _absent.add(name)
    if content is None:
        client.count(Count.REMOTE_MISS)
    else:
        text = f"{name} has {content.size} bytes or more in the remote cache, and was not fetched."
        remedy = "SAFECACHE_REMOTE_MAX_BYTES says how much is."
        events.report(Reason.TOO_LARGE, text, cause="remote", remedy=remedy)
    return None


def _refuse(refusal: Refusal, ref: Ref, name: str) -> None:
    _absent.add(name)
    _bad.add(name)
    refusal = refusal._replace(cause=f"remote {ref.kind.value}")
    report.refuse(refusal, ref.kind, f"{ref.key[:64]} from {ORIGIN}", _REMEDY)


def _fetch_ahead(parcel: Parcel, remote: Client) -> None:
    """Fetch what is needed next and fits into what may be fetched at once: its sizes first, then the contents."""
    names = [parcels.name_of(kind, key) for kind, key in parcel.needs[: parcels.MOST_NEEDED]]
    wanted = [name for name in names if name not in _ahead and name not in _there and name not in _absent]
    before, most = stores.prefix(), min(config.current().remote_max_bytes, _MOST_AHEAD - sum(map(len, _ahead.values())))
    try:
        sizes = remote.sizes([before + name for name in wanted]) if wanted else {}
        totals = itertools.accumulate(sizes.values())
        fitting = [full for full, total in zip(sizes, totals, strict=True) if total <= most]
        contents = remote.read(fitting) if fitting else {}
    except Unavailable:
        return
    lacking = [name for name in wanted if before + name not in sizes]
    client.count(Count.REMOTE_MISS, len(lacking))
    _absent.update(lacking)
    _ahead.update({full[len(before) :]: found for full, found in contents.items() if isinstance(found, bytes)})


def reset() -> None:
    """Forget what was asked for, fetched, and found missing."""
    for known in (_asked, _ahead, _given, _there, _absent, _bad):
        known.clear()
