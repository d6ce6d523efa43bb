"""Single flight: leases on cache keys, and bounded waits for the process that holds one.

A feature: it may import the core, and no other feature. The first process that misses takes a lease on the key, and all
others wait. A lease is held only during the compile for which it was taken. A thread waits only for a finer kind of
item than any that it holds a lease on: so no two processes ever wait for each other. A rank that measures on its GPU
for long releases its leases, since it may be waiting for what another rank has to send. A wait ends when the holder
publishes, fails or dies. It also ends when the holder makes no progress, or the time is up, which depends on what the
key took before. Then the waiter compiles.

A lease is a locked file in the cache. The kernel releases the lock (flock(2)) when its holder dies, however it dies.
Nothing that is right depends on a lease: whoever can write to the cache can hold, break or forge any, and makes others
wait or compile by that, no more.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import math
import os
import re
import stat
import struct
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress

from safecache import compiles
from safecache.entries import searches
from safecache.fs import filesystem, folders, holders
from safecache.places import metadata
from safecache.places.refs import Ref
from safecache.ports import LeftToOthers, Waited, plugs, tell
from safecache.reporting import events, report, waits
from safecache.reporting.kinds import ENTRIES, Count, Kind, LeaseScope
from safecache.session import Part, inherit
from safecache.settings import config
from safecache.signing import seal
from safecache.signing.heartbeats import Beats, Listener, Renewals

__all__ = [
    "Flight",
    "Lease",
    "Postponed",
    "compile_scope",
    "forbid_waiting",
    "has_waiter",
    "is_compiled_elsewhere",
    "open_lease",
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
# What a holder leaves for those who wait for its file: it has ended, whether it has published anything or not.
_ENDED = b"ended"
# What a holder leaves that has no key to seal a beat; and what one of an earlier release has left.
_UNSEALED = b"held"
_OF_EARLIER = re.compile(rb"\d+\n[^\n]*\n[\d.]+")
_LARGEST = 4096
# struct flock of fcntl(2): type, whence, start, length and process.
_LOCK = struct.Struct("@hhqqi")


class Postponed(BaseException):
    """Ends a lookup in a block of not_waiting(): another process compiles what it is for.

    Not an Exception, which code on the way might report or take for a failure.
    """


class _Scope:
    def __init__(self, kind: Kind, most: float | None, *, trains: bool) -> None:
        self.kind, self.most, self.trains = kind, most, trains
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

    def mark_found(self) -> None:
        """Record that the entry exists, so that nothing is compiled; release the lease if this process holds it."""
        if self._lease is not None:
            with report.contain_errors(_FEATURE, "Other processes may compile what is there already."):
                self._scope.release(self._lease, Lease.release)
        if self.waited:
            waits.refund(self.waited)
            _state.now.has_been_left_one = True
            events.count(Count.LEFT_TO_OTHERS)
            tell(LeftToOthers(self._ref, self.waited, self.took))


@contextmanager
def compile_scope(kind: Kind, most: float | None, *, trains: bool = False) -> Iterator[None]:
    """A compile of this kind by this thread, for this block: lookups of the kind in it may take leases until its end.

    ``most``: the seconds that it may wait, besides what the setting says; None if neither is it to wait, nor anybody
    for it. ``trains``: what is compiled is saved with its backward. So it waits only for a holder on this host whose
    has_waiter() is True then, and a rank does not wait.
    """
    this = _Scope(kind, most, trains=trains)
    try:
        with compiles.override_scope(flights=(*compiles.current.flights, this)):
            yield
    finally:
        with report.contain_errors(_FEATURE, "Other processes may compile what is there already."):
            for lease in list(this.leases):
                this.release(lease, Lease.release)


def is_compiled_elsewhere() -> bool:
    """Whether what this thread has looked up here is compiled by another process, for which it has not waited."""
    return bool(compiles.current.flights) and compiles.current.flights[-1].is_compiled_elsewhere


def has_waiter() -> bool:
    """Tell whether another process on this host waits for what this thread compiles, and has marked that."""
    return any(lease.has_waiter() for each in compiles.current.flights[-1:] for lease in each.leases)


@contextmanager
def release_while_measuring() -> Iterator[None]:
    """Release this thread's leases if the block, in which the thread waits for its GPU, lasts over 2 s.

    The GPU may wait for another rank, and that rank for this compile. After the release a waiting process goes on with
    the compile, and this process compiles without a lease.
    """
    held = [(each, lease) for each in compiles.current.flights if each.most != math.inf for lease in each.leases]
    if not held:
        yield
        return

    def unlock_leases() -> None:
        for each, lease in held:
            each.release(lease, lambda lease: lease.close(unlock=True))

    timer = threading.Timer(_MEASURED, unlock_leases)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def forbid_waiting() -> Iterator[None]:
    """Make wait_or_lead() raise Postponed in this thread within the block, instead of waiting."""
    with compiles.override_scope(waits=False):
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
        return _wait_or_take(this, ref, before)
    return None


def _wait_or_take(this: _Scope, ref: Ref, before: Callable[[], float]) -> Flight | None:
    lease = open_lease(ref)
    try:
        _let_others_begin(lease, ref.kind)
        waited, took, abroad, is_held = 0.0, 0.0, 0.0, lease.try_to_hold()
        held = [each.kind for each in compiles.current.flights if each.leases]
        is_finest = all(_ORDER.index(kind) < _ORDER.index(ref.kind) for kind in held)
        if not is_held and is_finest and (not this.trains or (this.most == math.inf and lease.mark_waiter())):
            if not compiles.current.waits:
                raise Postponed
            began = time.monotonic()
            is_held, took = _wait_for_lease(lease, ref, _find_wait_limit(this, before))
            waited = time.monotonic() - began
            waits.charge(waited, in_vain=True)  # until it is found
            if not is_held:
                events.count(Count.WAITED_IN_VAIN, root=ref.root)
            tell(Waited(ref, waited))
        mine = is_held and not lease.has_ended()
        this.is_compiled_elsewhere = this.trains and not mine
        if mine:
            lease.sign(time.time())
            this.leases.append(lease)
            abroad = _wait_for_hosts(this, lease, ref, lambda: _find_wait_limit(this, before))
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
    """Give a process that has compile workers a head start of up to 2 s, if this one would have to start its own."""
    state = _state.now
    if kind in ENTRIES and state.has_been_left_one and not state.nobody_came and searches.has_postponed_workers():
        began = time.monotonic()
        while not lease.read_unverified() and not state.nobody_came:
            time.sleep(_PAUSES[1] / 2)
            state.nobody_came = time.monotonic() - began >= _HEAD_START
        waits.charge(time.monotonic() - began, in_vain=False)
        state.has_been_left_one = False


def _find_wait_limit(this: _Scope, before: Callable[[], float]) -> float:
    """How many seconds to wait at most: by what it took before, which anybody may have written, within the setting."""
    took = before()
    known = max(_AT_LEAST, _TIMES * took) if took > 0 else math.inf
    return min(this.most or 0.0, waits.get_remaining_seconds(config.current().single_flight_wait), known)


def _wait_for_hosts(this: _Scope, lease: Lease, ref: Ref, most: Callable[[], float]) -> float:
    """How long other hosts were waited for, with the lease among them taken if it can be had."""
    if ref.kind.tiers.lease is not LeaseScope.HOSTS or this.trains:
        return 0.0
    release, waited = plugs.acquire_lease(ref, most)
    if release is not None:
        lease.then.append(release)
    elif waited:
        events.count(Count.WAITED_IN_VAIN, root=ref.root)
    return waited


def _wait_for_lease(lease: Lease, ref: Ref, most: float) -> tuple[bool, float]:
    """Whether the lease could be locked in that time, not if its holder gets nowhere; and how long that had held it."""
    listener = Listener(lease.subject)

    def listen() -> bool:
        return listener.hear(lease.read_unverified()) and listener.is_proven

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


class _Open:
    """The leases of this process: at the end it lets go of them."""

    def __init__(self) -> None:
        self.open: weakref.WeakSet[Lease] = weakref.WeakSet()
        self.renewals = Renewals("safecache-leases", 0.5)

    def end(self) -> None:
        for lease in list(self.open):
            lease.close(unlock=True)

    def renew_in_child(self) -> _Open:
        # A child gets its parent's descriptors, and would hold its locks for as long as it lives.
        self.renewals.end_all()
        for lease in list(self.open):
            lease._lock = threading.Lock()
            lease.close()
        return _Open()


_open: Part[_Open] = Part(_Open, _Open.renew_in_child)


class Lease:
    """The lease on one key, open and not yet, or no longer, held."""

    def __init__(self, root: str, name: str, descriptor: int) -> None:
        self.root, self.name = root, name
        self._descriptor = descriptor
        self._beats: Beats | None = None
        self._lock = threading.Lock()
        # What is to be done once it is released.
        self.then: list[Callable[[], None]] = []
        _open.now.open.add(self)

    @property
    def status(self) -> os.stat_result:
        """Status of the locked file. Raises OSError."""
        return filesystem.fstat(self._descriptor)

    def is_genuine(self, *, shared: bool) -> bool:
        """Whether it may be written: a file of this name alone, and, unless ``shared``, of this user. Raises OSError.

        Another name of it, or what it holds, would tell of a file that somebody has put in the place of a lease. One
        that has no name any more was a lease: its holder has ended since it was opened.
        """
        status = self.status
        if not stat.S_ISREG(status.st_mode) or status.st_size > _LARGEST or status.st_nlink > 1:
            return False
        if status.st_uid != os.geteuid() and not shared:
            return False
        content = self.read_unverified()
        return (
            content in (b"", _ENDED, _UNSEALED)
            or seal.split_unverified(content) is not None
            or _OF_EARLIER.fullmatch(content) is not None
        )

    def try_to_hold(self) -> bool:
        """Lock it; False if somebody else has. What was written in it before stays there. Raises OSError."""
        return filesystem.try_lock(self._descriptor)

    def mark_waiter(self) -> bool:
        """Tell its holder that this process waits, until this is closed; False if the file system has no such locks."""
        with suppress(OSError):
            fcntl.fcntl(self._descriptor, fcntl.F_OFD_SETLK, _LOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, 0, 1, 0))
            return True
        return False

    def has_waiter(self) -> bool:
        """Tell whether another process has marked it so."""
        with suppress(OSError):
            asked = _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
            kind, *_ = _LOCK.unpack(fcntl.fcntl(self._descriptor, fcntl.F_OFD_GETLK, asked))
            return bool(kind != fcntl.F_UNLCK)
        return False

    def has_ended(self) -> bool:
        """Whether who held it has released it, or it was removed: a new one is what counts then. Raises OSError.

        Call it with the lock held: what its last holder could not remove is removed.
        """
        with suppress(FileNotFoundError), self._open_folder() as folder:
            if os.path.samestat(folder.get_status(self.name), self.status):
                if self.read_unverified() != _ENDED:
                    return False
                folder.unlink(self.name)
        return True

    def sign(self, began: float) -> None:
        """Write into it, once it is locked, a beat of this process, and go on: see heartbeats. Raises OSError.

        ``began``: in seconds since the epoch.
        """
        self._beats = Beats(self.subject, began)
        self._write_beat()
        _open.now.renewals.begin(self, self._renew)

    def _renew(self) -> None:
        with suppress(OSError):  # a full disk: whom no kernel tells of this process, then does not wait for it
            self._write_beat()

    def _write_beat(self) -> None:
        with self._lock:
            if self._descriptor >= 0 and self._beats is not None:
                self._write(self._beats.make_next() or _UNSEALED)

    @property
    def subject(self) -> str:
        """Subject that a beat for the lease states."""
        return f"lease {self.name}"

    def read_unverified(self) -> bytes:
        """Return the content of the lease, unverified; empty if it cannot be read."""
        try:
            return os.pread(self._descriptor, _LARGEST, 0)
        except OSError:
            return b""

    def release(self) -> None:
        """End it, for all who wait: they look again. It is unlocked in any case."""
        _open.now.renewals.end(self)
        with self._lock, suppress(OSError):
            self._beats = None
            self._write(_ENDED)
            with self._open_folder() as folder:
                folder.unlink(self.name)
        self.close(unlock=True)

    def close(self, *, unlock: bool = False) -> None:
        """Leave it as it is. ``unlock``: for children of this process too, that may hold its descriptor."""
        _open.now.renewals.end(self)
        with self._lock:
            descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            with suppress(OSError):
                if unlock:
                    filesystem.flock(descriptor, fcntl.LOCK_UN)
            with suppress(OSError):
                filesystem.close(descriptor)

    def _write(self, content: bytes) -> None:
        os.pwrite(self._descriptor, content, 0)
        os.ftruncate(self._descriptor, len(content))

    def _open_folder(self) -> AbstractContextManager[folders.Folder]:
        return folders.open_subdirectory(self.root, [metadata.FOLDER, metadata.LEASES])


def open_lease(ref: Ref) -> Lease:
    """The lease on this key, in its cache. Raises OSError, also for what is no lease of this user.

    Only with SAFECACHE_TRUST=shared are there leases which others can open, and so hold.
    """
    name = f"{ref.kind.word}-{hashlib.sha256(ref.key.encode()).hexdigest()[:32]}"
    shared = config.current().shared
    with folders.open_subdirectory(ref.root, [metadata.FOLDER], make=True) as above:
        with suppress(FileExistsError):
            filesystem.mkdir(metadata.LEASES, 0o777 if shared else 0o700, dir_fd=above.descriptor)
        with above.enter(metadata.LEASES) as folder:
            if not shared:
                status = filesystem.fstat(folder.descriptor)
                if status.st_uid != os.geteuid():
                    raise PermissionError(errno.EPERM, "another user's leases", folder.place)
                if status.st_mode & 0o077:
                    os.chmod(os.curdir, 0o700, dir_fd=folder.descriptor)
            descriptor = folder.open(name, os.O_RDWR | os.O_CREAT, 0o666 if shared else 0o600)
    lease = Lease(ref.root, name, descriptor)
    try:
        if filesystem.is_scarce(descriptor):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        if not lease.is_genuine(shared=shared):
            raise OSError(f"the lease {name} is no lease")
    except OSError:
        lease.close()
        raise
    return lease
