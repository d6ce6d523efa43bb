"""Client of the remote: a store that never delays a compile for long, and rests after a failure.

Each request has a thread of its own and a deadline, since no library bounds all that can take long, such as asking for
the host's address. A failure, or too much time spent on what was not there, opens the breaker for 30 s.
"""

from __future__ import annotations

import functools
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NoReturn, TypeVar

from safecache.errors import make_printable
from safecache.fs import parallel
from safecache.remote import extras, stores
from safecache.remote.stores import Oversized, Store, Stored, Terms
from safecache.reporting import events, waits
from safecache.reporting.kinds import Count, Reason
from safecache.session import Part
from safecache.settings import config, settings

__all__ = [
    "Client",
    "Unavailable",
    "count",
    "current",
    "format_error_line",
    "get_background",
    "get_client",
]

_Result = TypeVar("_Result")
_Connect = Callable[[Terms], Store]

# Seconds for which a remote is left alone after a failure.
PATIENCE = 30.0
# How much longer a request in the background may take than one that a compile waits for.
_LEISURE = 10.0
_LONGEST_ERROR = 400
# In one listing: a server could go on for ever.
_MOST_NAMES = 5_000_000
_REMEDY = "Compiling locally; retrying in 30 s. Help: safecache doctor"
_SLOW_REMEDY = "Not read for 30 s; uploads continue."
_WRITE_REMEDY = (
    "Not written for 30 s. Help: safecache doctor, then safecache copy here URL; read_only=1 in its URL if that "
    "is meant"
)


class Unavailable(Exception):
    """Error: the remote cannot be used now, which has been reported."""


# With its URL, what the breaker calls a remote: one that cannot be written, for want of space or of rights, is read all
# the same, and one that is too slow to be waited for is asked in the background.
_READING, _WRITING, _WAITING = "reading", "writing", "waiting"


def _give_up(url: str) -> None:
    """Have nobody ask it any more in this process."""
    for what in (_READING, _WRITING):
        waits.breaker.now.leave_alone((url, what), math.inf)


def format_error_line(error: BaseException, url: str) -> str:
    """Return the first line, without the password in ``url``, of an engine's error; more may be its inner state."""
    return make_printable(str(error).partition("\n")[0][:_LONGEST_ERROR]).replace(url, settings.hide_password(url))


class Client:
    """Client of a store at ``url``, which is connected on first use. Several threads may use it.

    ``in_background``: the calling thread makes its requests itself, without a deadline, since nobody waits for them.
    ``connect``: how to reach the store in another way than by its URL.
    """

    def __init__(
        self,
        url: str,
        terms: Terms,
        *,
        in_background: bool = False,
        connect: _Connect | None = None,
    ) -> None:
        self.shown = settings.hide_password(url)
        self._connect = connect or functools.partial(stores.make_store, url)
        self.terms, self._url, self._in_background = terms, url, in_background
        self._store: Store | None = None
        self._lock = threading.Lock()
        self._wasted = 0.0

    def can_read(self) -> bool:
        """Tell whether a read would be sent to the store now."""
        if self._is_left_alone(_READING):
            return False
        limit = config.current().single_flight_wait  # 0 has nobody wait for a compile
        may_wait = not limit or waits.get_remaining_seconds(limit) > 0
        return self._in_background or (may_wait and not self._is_left_alone(_WAITING))

    def _is_left_alone(self, what: str) -> bool:
        return waits.breaker.now.get_seconds_left((self._url, what)) > 0

    def read_unverified(self, names: Iterable[str]) -> Mapping[str, bytes | Oversized]:
        """Return the contents under these names: see Store.read(). Raises Unavailable."""
        asked = list(names)
        begun = time.monotonic()
        found = self._ask(lambda store: store.read_unverified(asked))
        count(Count.REMOTE_RECEIVED, sum(len(content) for content in found.values() if isinstance(content, bytes)))
        if not found:
            self.waste(time.monotonic() - begun)
        return found

    def find_sizes(self, names: Iterable[str]) -> Mapping[str, int]:
        """Return the size in bytes of each of ``names`` that exists. Raises Unavailable."""
        asked = list(names)
        return self._ask(lambda store: store.find_sizes(asked))

    def write(self, name: str, content: bytes) -> None:
        """Write ``content`` under ``name``, whole or not at all. Raises Unavailable."""
        self._ask(lambda store: store.write(name, content), writing=True)
        count(Count.REMOTE_GIVEN, len(content))

    def replace(self, name: str, content: bytes, known: bytes | None) -> bool:
        """Write ``content`` if the store still has ``known``: see Store.replace(). Raises Unavailable."""
        replaced = self._ask(lambda store: store.replace(name, content, known), writing=True)
        count(Count.REMOTE_GIVEN, len(content))
        return replaced

    def remove(self, name: str) -> None:
        """Remove ``name`` from the store, if it exists. Raises Unavailable."""
        self._ask(lambda store: store.remove(name), writing=True)

    def read_unverified_starts(self, names: Iterable[str], size: int) -> Mapping[str, bytes]:
        """Return the first bytes, at most ``size``, of each of ``names`` that exists. Raises Unavailable."""
        asked = list(names)
        found = self._ask(lambda store: store.read_unverified_starts(asked, size))
        count(Count.REMOTE_RECEIVED, sum(map(len, found.values())))
        return found

    def list_names(self, below: str) -> Iterator[Stored]:
        """Yield all names that begin with ``below``, for a command that has the time. Raises Unavailable."""
        try:
            for number, stored in enumerate(self._get_store().list_names(below)):
                if number >= _MOST_NAMES:
                    raise ValueError(f"it lists more than {_MOST_NAMES} names")
                yield stored
        except Exception as error:
            self._fail(f"{type(error).__name__}: {format_error_line(error, self._url)}", error)

    def _ask(self, request: Callable[[Store], _Result], *, writing: bool = False) -> _Result:
        may = not self._is_left_alone(_WRITING) if writing else self.can_read()
        if not may:
            raise Unavailable
        begun, seconds = time.monotonic(), self.terms.timeout

        def work() -> _Result:
            return request(self._get_store())

        try:
            return work() if self._in_background else parallel.call_with_timeout(seconds, work, "safecache-remote")
        except BaseException as error:
            if not self._in_background:
                waits.charge(time.monotonic() - begun, in_vain=True)
            is_late = isinstance(error, TimeoutError) and time.monotonic() - begun >= seconds
            how = f"{type(error).__name__}: {format_error_line(error, self._url)}"
            if is_late and not self._in_background:
                how = f"no answer within {seconds:g} s (timeout in its URL)"
            self._fail(how, error, writing=writing)
        finally:
            if not self._in_background:
                count(Count.REMOTE_ASKED)
                count(Count.REMOTE_WAITED, round(1e6 * (time.monotonic() - begun)))

    def _get_store(self) -> Store:
        with self._lock:
            if self._store is None:
                self._store = self._connect(self.terms)
            return self._store

    def waste(self, seconds: float) -> None:
        """Count time that was waited for nothing. A slow remote is not to cost more than it may save.

        What this process compiles is sent there all the same, in the background: others are to find it.
        """
        if self._in_background:
            return
        waits.charge(seconds, in_vain=True)
        self._wasted += seconds
        if self._wasted > self.terms.timeout:
            how = f"{self._wasted:.1f} s spent on lookups that found nothing"
            self._wasted = 0.0
            waits.breaker.now.leave_alone((self._url, _WAITING), PATIENCE)
            self._report_left("is too slow", how, writing=False, remedy=_SLOW_REMEDY)

    def _fail(self, how: str, error: BaseException | None, *, writing: bool = False) -> NoReturn:
        self._wasted = 0.0
        store, self._store, self._lock = self._store, None, threading.Lock()
        if store is not None and not self._in_background:
            # Ends the request that was given up, which may hold a lock of the library's.
            threading.Thread(target=store.close, name="safecache-remote", daemon=True).start()
        waits.breaker.now.leave_alone((self._url, _WRITING if writing else _READING), PATIENCE)
        state = "cannot be written" if writing else "is unavailable"
        self._report_left(state, how, writing=writing, remedy=_WRITE_REMEDY if writing else _REMEDY, error=error)
        raise Unavailable from error

    def _report_left(
        self, state: str, how: str, *, writing: bool, remedy: str, error: BaseException | None = None
    ) -> None:
        """Report that it is not used for some time."""
        count(Count.REMOTE_LEFT)
        message, cause = f"remote cache {self.shown} {state}", f"{writing} {self.shown}"
        events.report(Reason.REMOTE_UNAVAILABLE, message, why=how, cause=cause, remedy=remedy, error=error)

    def close(self) -> None:
        """Close the connections; the client is not used afterwards."""
        store, self._store = self._store, None
        if store is not None:
            store.close()

    def renew_in_child(self) -> None:
        """Go on in a process that was forked: with no connection of its parent's, or without the remote."""
        if self._store is not None and not self._store.survives_fork:
            _give_up(self._url)
        self._store, self._lock = None, threading.Lock()


class _State:
    def __init__(self) -> None:
        self.clients: dict[tuple[object, ...], Client] = {}

    def end(self) -> None:
        for client in list(self.clients.values()):
            client.close()

    def renew_in_child(self) -> _State:
        for client in list(self.clients.values()):
            client.renew_in_child()
        return self


_state: Part[_State] = Part(_State, _State.renew_in_child)


def current() -> Client | None:
    """Return the client of the remote for a compile that waits for it; None without a remote."""
    remote = config.current().remote
    return None if remote is None else _keep_client(remote, config.current())


def get_background(url: str | None = None) -> Client | None:
    """Return a client with ten times the time limits, for a background thread or a command.

    ``url``: the remote, by default that of the settings; its parameters replace those of the settings. None without
    one. Raises ValueError for a bad parameter.
    """
    chosen = config.Config(**vars(config.current()) | settings.parse_remote(url)) if url else config.current()
    return None if chosen.remote is None else _keep_client(chosen.remote, chosen, in_background=True)


def get_client(url: str, who: object, connect: _Connect) -> Client:
    """Return the client of a remote that is not in the settings, on the same terms; one for each ``who``."""
    return _keep_client(url, config.current(), who, connect=connect)


def _keep_client(
    url: str, chosen: config.Config, who: object = None, *, in_background: bool = False, connect: _Connect | None = None
) -> Client:
    terms = stores.make_terms(chosen, _LEISURE if in_background else 1)
    clients, key = _state.now.clients, (url, terms, who, in_background)
    if key not in clients:
        if connect is None and extras.report(url):
            _give_up(url)
        # Two threads that come at once keep the same.
        clients.setdefault(key, Client(url, terms, in_background=in_background, connect=connect))
    return clients[key]


def count(what: Count, number: int = 1) -> None:
    """Add ``number`` to a counter of what the remote gave and cost."""
    if number:
        events.count(what, number)
