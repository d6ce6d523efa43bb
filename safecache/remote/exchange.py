"""Exchange with the remote: fetching, sending, and leases among hosts.

What is fetched is verified in memory, and published in the cache like all files: its reader verifies it again, as if it
had always been there. A parcel names the bundles that its user asks for next, which are fetched ahead.

A lease is a name in the remote that only one process can take, and that lapses unless it is renewed. Its heartbeats
prove that the holder lives, since the remote's owner may forge, replay or hide any lease.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator

from safecache.fs import holders
from safecache.places.refs import Ref
from safecache.ports import Bundle
from safecache.remote import client, parcels, sender, stores
from safecache.remote.client import Client, Unavailable
from safecache.remote.parcels import Parcel
from safecache.reporting import events, waits
from safecache.reporting.kinds import ENTRIES, Count, Kind, Reason
from safecache.reporting.report import Refusal
from safecache.session import Part, inherit
from safecache.settings import config
from safecache.signing.heartbeats import Beats, Listener, Renewals

__all__ = ["ORIGIN", "Claim", "acquire", "find_candidates", "forget_miss", "record_lookup", "send"]

# Bytes that are kept in memory until they are asked for, if they are.
_MOST_AHEAD = 64 << 20
# Where it comes from, to a person.
ORIGIN = "the remote cache"

# Seconds between looks at a lease.
_PAUSES = 0.1, 1.0
_ENDED = b"ended"
_OTHER_HOST = "another host"


class _State:
    def __init__(self) -> None:
        # What was asked for, with the number of the last time: an entry needs what was asked for since it was.
        self.asked: dict[Ref, int] = {}
        # By name in the remote: what was fetched ahead, and published; what it has as far as is known, and lacks; and
        # what is bad there.
        self.ahead: dict[str, bytes] = {}
        self.numbers = itertools.count(1)
        self.there: set[str] = set()
        self.absent: set[str] = set()
        self.bad: set[str] = set()


_state: Part[_State] = Part(_State, inherit)


def record_lookup(ref: Ref) -> None:
    """Record that this process looks up ``ref``."""
    with _state.lock:
        _state.now.asked[ref] = next(_state.now.numbers)


def send(ref: Ref, *, again: bool = False) -> None:
    """Queue the bundle of ``ref`` with those that an entry needs. ``again``: something was added to the bundle."""
    state = _state.now
    needed: list[Ref] = []
    if ref.kind in (*ENTRIES, Kind.AOT_FUNCTION):
        with _state.lock:
            begun = state.asked.get(ref, 0)
            needed = [other for other, number in state.asked.items() if number > begun and other != ref]
    if ref.kind is Kind.AOT_FUNCTION:
        # It has the entries of its graphs in it.
        needed = [other for other in needed if other.kind not in (*ENTRIES, Kind.TABLE)]
    needed = needed[-parcels.MOST_NEEDED :]
    for other in (*needed, ref):
        name = parcels.name_object(other.kind, other.key)
        # Entries of a key are added to those that it has.
        if name in state.there and other is not ref:
            continue
        with _state.lock:
            state.there.add(name)
            state.absent.discard(name)
        needs = tuple((need.kind, need.key) for need in needed) if other is ref else ()
        sender.enqueue(other, needs, again=name in state.bad or (again and other is ref))


def find_candidates(ref: Ref) -> Iterator[Bundle]:
    """Yield what the remote has: see Tier.candidates()."""
    state = _state.now
    remote, name = client.current(), parcels.name_object(ref.kind, ref.key)
    content = state.ahead.pop(name, None)
    # The entries of a key are all there after the first time; other files may have been removed since.
    is_here, began = ref.kind in ENTRIES and name in state.there, time.monotonic()
    if content is None and not is_here and name not in state.absent and remote is not None and remote.can_read():
        content = _fetch_unverified(remote, name)
    if content is None:
        return
    found = parcels.unpack_unverified(content, name, config.current().remote_max_bytes)
    parcel, refusal = (Parcel(ref, ()), found) if isinstance(found, Refusal) else (found, None)

    def note_verdict(refusal: Refusal | None) -> None:
        if refusal is not None:
            state.absent.add(name)
            state.bad.add(name)
            if remote is not None:
                remote.waste(time.monotonic() - began)
            return
        client.count(Count.REMOTE_HIT)
        state.there.add(name)
        if remote is not None:
            _fetch_ahead(parcel, remote)

    yield Bundle(ref._replace(root=""), parcel.files, ORIGIN, "remote", note_verdict, refusal)


def forget_miss(ref: Ref) -> None:
    """Have the remote asked for ``ref`` again, since another host may have sent it."""
    _state.now.absent.discard(parcels.name_object(ref.kind, ref.key))


def _fetch_unverified(remote: Client, name: str) -> bytes | None:
    full = stores.make_prefix() + name
    try:
        content = remote.read_unverified([full]).get(full)
    except Unavailable:
        return None
    if isinstance(content, bytes):
        return content
    # A miss is remembered, so that nobody waits for the same one twice.
    _state.now.absent.add(name)
    if content is None:
        client.count(Count.REMOTE_MISS)
    else:
        text, why = f"did not fetch {name} from the remote cache", f"it has {content.size} bytes or more"
        remedy = "Recompiling it. Help: raise max_bytes in the remote's URL"
        events.report(Reason.TOO_LARGE, text, why=why, cause="remote", remedy=remedy)
    return None


def _fetch_ahead(parcel: Parcel, remote: Client) -> None:
    """Fetch what is needed next and fits into what may be fetched at once: its sizes first, then the contents."""
    state = _state.now
    names = [parcels.name_object(kind, key) for kind, key in parcel.needs[: parcels.MOST_NEEDED]]
    known = state.ahead.keys() | state.there | state.absent
    wanted = [name for name in names if name not in known]
    left = _MOST_AHEAD - sum(map(len, state.ahead.values()))
    before, most = stores.make_prefix(), min(config.current().remote_max_bytes, left)
    try:
        sizes = remote.find_sizes([before + name for name in wanted]) if wanted else {}
        totals = itertools.accumulate(sizes.values())
        fitting = [full for full, total in zip(sizes, totals, strict=True) if total <= most]
        contents = remote.read_unverified(fitting) if fitting else {}
    except Unavailable:
        return
    lacking = [name for name in wanted if before + name not in sizes]
    client.count(Count.REMOTE_MISS, len(lacking))
    state.absent.update(lacking)
    state.ahead.update({full[len(before) :]: found for full, found in contents.items() if isinstance(found, bytes)})


class _Claims:
    def __init__(self) -> None:
        self.renewals = Renewals("safecache-remote-leases", 1.0)

    def end(self) -> None:
        self.renewals.end_all()


# What is held lapses then.
_claims: Part[_Claims] = Part(_Claims)


class Claim:
    """Lease of this process, among all hosts, on the key that it compiles."""

    def __init__(self, name: str) -> None:
        self._name, self._beats = name, Beats(_make_subject(name), time.time())
        self._content = b""
        self._lock = threading.Lock()

    def take(self, remote: Client, known: bytes | None) -> bool:
        """Take the lease, if the remote still has ``known`` under its name; return whether. Raises Unavailable."""
        content = self._beats.make_next()
        if content is None or not remote.replace(self._name, content, known):
            return False
        self._content = content
        _claims.now.renewals.begin(self, self._renew)
        return True

    def _renew(self) -> None:
        remote = client.get_background()
        if remote is None:
            return
        with self._lock:
            content = self._beats.make_next()
            try:
                if content is not None and remote.replace(self._name, content, self._content):
                    self._content = content
                else:
                    _claims.now.renewals.end(self)  # another host has it, as this one was too late
            except Unavailable:
                return  # it goes on, once that can be used again, if nobody has taken it

    def release(self) -> None:
        """Release the lease once all that this process has compiled so far is sent, so that waiters find it.

        If that cannot be queued, the lease is renewed no more.
        """
        if not sender.run_after_queue(self._end):
            _claims.now.renewals.end(self)

    def _end(self, remote: Client) -> None:
        _claims.now.renewals.end(self)
        with self._lock:
            if remote.replace(self._name, _ENDED, self._content):
                remote.remove(self._name)


def acquire(ref: Ref, most: float) -> tuple[Claim | None, float]:
    """Take the lease on this key among the hosts, after waiting at most ``most`` seconds for another host.

    Return the lease, or None if it cannot be had, and the seconds waited. After a wait the remote is asked again for
    what it lacked.
    """
    remote, name = client.current(), _name_lease(ref)
    if remote is None:
        return None, 0.0
    this, began = Claim(name), time.monotonic()
    try:
        if this.take(remote, None):
            return this, 0.0
        ended = _await_end(remote, name, most, ref)
        taken = ended is not None and this.take(remote, *ended)
    except Unavailable:
        taken = False
    waited = time.monotonic() - began
    waits.charge(waited, in_vain=True)  # until it is found
    forget_miss(ref)
    return this if taken else None, waited


def _await_end(remote: Client, name: str, most: float, ref: Ref) -> tuple[bytes | None] | None:
    """Wait until no living process holds the lease, and return what is there then; None if one still does.

    Raises Unavailable.
    """
    listener = Listener(_make_subject(name))

    def look(_: float) -> tuple[bytes | None] | None:
        found = remote.read_unverified([name]).get(name)
        content = found if isinstance(found, bytes) else None
        is_held = content is not None and content != _ENDED and listener.hear(content)
        return None if is_held else (content,)

    def say() -> None:
        holders.tell_wait(_OTHER_HOST, ref.title, most)

    ended, _ = waits.wait(look, most, say=say, pauses=_PAUSES)
    if ended is None and most > 0:
        holders.tell_end(_OTHER_HOST, ref.title, most)
    return ended


def _name_lease(ref: Ref) -> str:
    # Not below the prefix of parcels, where commands look.
    return f"safecache/leases/{stores.make_prefix()}{parcels.name_object(ref.kind, ref.key)}"


def _make_subject(name: str) -> str:
    return f"lease {name}"
