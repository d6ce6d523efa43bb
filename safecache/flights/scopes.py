"""Who compiles a key, and who waits for it: the first that misses takes a lease on it, and all others wait.

A lease is held only for the time of the compile that it was taken in, and a wait is for something finer than all that
the thread holds: so no two processes ever wait for each other. A rank that measures on its GPU for long may wait for
what another one has to send, and lets go of what it holds. A wait ends when the holder publishes, fails or dies,
and at the latest when it makes no progress or the time is up, by what the key took before if that is known; the waiter
compiles then.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from safecache import compiles
from safecache.entries import workers
from safecache.files import holders
from safecache.flights.leases import Lease, open_lease
from safecache.places.refs import Ref
from safecache.ports import LeftToOthers, Waited, plugs, tell
from safecache.reporting import events, report, waits
from safecache.reporting.kinds import ENTRIES, Count, Kind, LeaseScope
from safecache.session import Part, inherit
from safecache.settings import config
from safecache.signing.heartbeats import Listener

__all__ = [
    "Flight",
    "Postponed",
    "compile_scope",
    "is_compiled_elsewhere",
    "not_waiting",
    "release_while_measuring",
    "wait_or_lead",
]

# From coarse to fine: while a process has a lease on one, it waits only for those after it.
_ORDER = tuple(kind for kind in Kind if kind.tiers.lease is not LeaseScope.NONE)
# Seconds between looks at a lease, at first and at most: nobody who waits is late by more.
_PAUSES = 0.005, 0.1
# What took long before may take longer by this much now, and anything may take these seconds, among many processes.
_TIMES, _AT_LEAST = 10.0, 30.0
# Seconds: more than any compile takes. Of a time that a lease says, nothing vouches.
_DAY = 86_400.0
# Seconds after which a rank that measures lets go: a measurement takes some 25 ms.
_MEASURED = 2.0
# Seconds for which who has compiled the last graph, and has compile workers, is let come first to the next: until
# nobody has come once.
_HEAD_START = 2.0
_FEATURE = "the wait for other processes' compiles"


class Postponed(BaseException):
    """Ends a lookup in a block of not_waiting(): another process compiles what it is for.

    Not an Exception, which code on the way might report or take for a failure.
    """


class _Scope:
    def __init__(self, kind: Kind, most: float | None, *, waits: bool) -> None:
        self.kind, self.most, self.waits = kind, most, waits
        self.leases: list[Lease] = []
        self.is_compiled_elsewhere = False

    def release(self, lease: Lease, how: Callable[[Lease], None]) -> None:
        """``how`` it is ended, unless it is no more: of a rank that measures, by another thread."""
        try:
            self.leases.remove(lease)
        except ValueError:
            return
        how(lease)
        for action in lease.then:
            action()


class _State:
    def __init__(self) -> None:
        # Whether the last graph was found after a wait, and none was asked for since; and whether nobody came to one
        # first.
        self.has_been_left_one = self.nobody_came = False


_state: Part[_State] = Part(_State, inherit)


class Flight:
    """The end of a wait, or a lease: in either case there may be something to be found now. ``waited``: in seconds.

    ``took``: how long it was held by whoever was waited for. ``elsewhere``: another host was waited for, so that the
    remote may have it now.
    """

    def __init__(
        self, scope: _Scope, ref: Ref, lease: Lease | None, waited: float, took: float, *, elsewhere: bool
    ) -> None:
        self._scope, self._ref, self._lease = scope, ref, lease
        self.waited, self.took, self.elsewhere = waited, took, elsewhere

    def found(self) -> None:
        """It has been found: nothing is compiled."""
        if self._lease is not None:
            with report.contain_errors(_FEATURE, "Other processes may compile what is there already."):
                self._scope.release(self._lease, Lease.release)
        if self.waited:
            waits.refund(self.waited)
            _state.now.has_been_left_one = True
            events.count(Count.LEFT_TO_OTHERS)
            tell(LeftToOthers(self._ref, self.waited, self.took))


@contextmanager
def compile_scope(kind: Kind, most: float | None, *, waits: bool = True) -> Iterator[None]:
    """A compile of this kind by this thread, for this block: lookups of the kind in it may take leases until its end.

    ``most``: the seconds that it may wait, besides what the setting says; None if neither is it to wait, nor anybody
    for it. ``waits``: else a lookup only finds out whether another process is compiling that, on this host.
    """
    this = _Scope(kind, most, waits=waits)
    try:
        with compiles.scope(flights=(*compiles.current.flights, this)):
            yield
    finally:
        with report.contain_errors(_FEATURE, "Other processes may compile what is there already."):
            for lease in list(this.leases):
                this.release(lease, Lease.release)


def is_compiled_elsewhere() -> bool:
    """Whether what this thread has looked up here is compiled by another process, for which it has not waited."""
    return bool(compiles.current.flights) and compiles.current.flights[-1].is_compiled_elsewhere


@contextmanager
def release_while_measuring() -> Iterator[None]:
    """In this block, this thread waits until its GPU has done all that it was given.

    That may be what another rank has to send which waits for this compile: after a time one of those who wait goes on
    with it, and this one compiles without a lease.
    """
    held = [(each, lease) for each in compiles.current.flights if each.most != math.inf for lease in each.leases]
    if not held:
        yield
        return
    timer = threading.Timer(_MEASURED, _let_go, [held])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _let_go(held: list[tuple[_Scope, Lease]]) -> None:
    for each, lease in held:
        each.release(lease, lambda lease: lease.close(unlock=True))


@contextmanager
def not_waiting() -> Iterator[None]:
    """In this block, wait_or_lead() raises Postponed in this thread where it would wait."""
    with compiles.scope(waits=False):
        yield


def wait_or_lead(ref: Ref, before: Callable[[], float] = float) -> Flight | None:
    """Wait for whoever compiles this already, or take the lease on it: this thread has missed.

    Returns None if there is no use in looking again, else whoever calls looks again.
    ``before``: tells, if it is called, how many seconds that took the last time, 0 where nobody knows. Raises Postponed
    in a block of not_waiting().
    """
    this = compiles.current.flights[-1] if compiles.current.flights else None
    if this is None or this.kind is not ref.kind or this.most is None or not config.current().single_flight:
        return None
    # A cache that cannot be written, or full, has no leases, and nothing is published in it.
    with report.contain_errors(_FEATURE, "Compiling it here."), suppress(OSError):
        return _enter(this, ref, before)
    return None


def _enter(this: _Scope, ref: Ref, before: Callable[[], float]) -> Flight | None:
    lease = open_lease(ref)
    try:
        _let_others_begin(lease, ref.kind)
        waited, took, abroad, is_held = 0.0, 0.0, 0.0, lease.try_to_hold()
        this.is_compiled_elsewhere = not is_held and not this.waits
        if not is_held and this.waits and _may_wait(ref.kind):
            if not compiles.current.waits:
                raise Postponed
            began = time.monotonic()
            is_held, took = _wait(lease, ref, _patience(this, before))
            waited = time.monotonic() - began
            waits.charge(waited, in_vain=True)  # until it is found
            if not is_held:
                _count(Count.WAITED_IN_VAIN, ref.root)
            tell(Waited(ref, waited))
        mine = is_held and not lease.has_ended()
        if mine:
            lease.sign(time.time())
            this.leases.append(lease)
            abroad = _among_hosts(this, lease, ref, lambda: _patience(this, before))
            waited += abroad
            took += abroad
            tell(Waited(ref, abroad))
    except BaseException:
        lease.close(unlock=True)
        raise
    if not mine:
        lease.close(unlock=is_held)
    return Flight(this, ref, lease if mine else None, waited, took, elsewhere=abroad > 0) if is_held else None


def _let_others_begin(lease: Lease, kind: Kind) -> None:
    """For some time, if this process would have to start its workers for what one that has them comes to as well."""
    state = _state.now
    if kind in ENTRIES and state.has_been_left_one and not state.nobody_came and workers.are_postponed():
        began = time.monotonic()
        while not lease.read() and not state.nobody_came:
            time.sleep(_PAUSES[1] / 2)
            state.nobody_came = time.monotonic() - began >= _HEAD_START
        waits.charge(time.monotonic() - began, in_vain=False)
        state.has_been_left_one = False


def _patience(this: _Scope, before: Callable[[], float]) -> float:
    """How many seconds to wait at most: by what it took before, which anybody may have written, within the setting."""
    took = before()
    known = max(_AT_LEAST, _TIMES * took) if took > 0 else math.inf
    return min(this.most or 0.0, waits.remaining(config.current().single_flight_wait), known)


def _among_hosts(this: _Scope, lease: Lease, ref: Ref, most: Callable[[], float]) -> float:
    """How long other hosts were waited for, with the lease among them taken if it can be had."""
    if ref.kind.tiers.lease is not LeaseScope.HOSTS or not this.waits:
        return 0.0
    release, waited = plugs.acquire_lease(ref, most)
    if release is not None:
        lease.then.append(release)
    elif waited:
        _count(Count.WAITED_IN_VAIN, lease.root)
    return waited


def _may_wait(kind: Kind) -> bool:
    held = [each.kind for each in compiles.current.flights if each.leases]
    return all(_ORDER.index(each) < _ORDER.index(kind) for each in held)


def _wait(lease: Lease, ref: Ref, most: float) -> tuple[bool, float]:
    """Whether the lease could be locked in that time, not if its holder gets nowhere; and how long that had held it."""
    listener = Listener(lease.subject)

    def listen() -> bool:
        return listener.hear(lease.read()) and listener.is_proven

    listen()
    watch = holders.Watch(lease.status, listen)

    def say() -> None:
        holders.tell_wait(holders.describe(watch.holder), ref.title, most)

    if watch.wait(lambda _: lease.try_to_hold() or None, most, say, _PAUSES):
        held = time.time() - listener.began if listener.began is not None else 0.0
        return True, held if watch.waited <= held <= _DAY else watch.waited
    if watch.waited:
        holders.tell_end(holders.describe(watch.holder), ref.title, watch.waited)
    return False, 0.0


def _count(what: Count, root: str) -> None:
    events.count(what, root=root)
