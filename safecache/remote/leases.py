"""Leases among hosts, in the remote cache: a name that only one can take, and that lapses unless it is renewed.

What proves that a holder lives are its heartbeats: who owns the remote may forge, replay or hide any lease.
"""

from __future__ import annotations

import threading
import time

from safecache.files import holders
from safecache.places.refs import Ref
from safecache.remote import client, exchange, parcels, sender, stores
from safecache.remote.client import Client, Unavailable
from safecache.reporting import waits
from safecache.session import Part
from safecache.signing.heartbeats import Beats, Listener, Renewals

__all__ = ["Claim", "acquire"]

# Seconds between looks at a lease.
_PAUSES = 0.1, 1.0
_ENDED = b"ended"
_OTHER_HOST = "another host"


class _State:
    def __init__(self) -> None:
        self.renewals = Renewals("safecache-remote-leases", 1.0)

    def end(self) -> None:
        self.renewals.end_all()


# What is held lapses then.
_state: Part[_State] = Part(_State)


class Claim:
    """What this process is compiling, for all hosts."""

    def __init__(self, name: str) -> None:
        self._name, self._beats = name, Beats(_subject(name), time.time())
        self._content = b""
        self._lock = threading.Lock()

    def take(self, remote: Client, known: bytes | None) -> bool:
        """Whether nobody else has taken it since it was ``known``. Raises Unavailable."""
        content = self._beats.make_next()
        if content is None or not remote.replace(self._name, content, known):
            return False
        self._content = content
        _state.now.renewals.begin(self, self._renew)
        return True

    def _renew(self) -> None:
        remote = client.background_client()
        if remote is None:
            return
        with self._lock:
            content = self._beats.make_next()
            try:
                if content is not None and remote.replace(self._name, content, self._content):
                    self._content = content
                else:
                    _state.now.renewals.end(self)  # another host has it, as this one was too late
            except Unavailable:
                return  # it goes on, once that can be used again, if nobody has taken it

    def release(self) -> None:
        """Once all that this process has compiled so far is sent: whoever waits finds it then.

        Where that cannot be queued, it is renewed no more.
        """
        if not sender.run_after_queue(self._end):
            _state.now.renewals.end(self)

    def _end(self, remote: Client) -> None:
        _state.now.renewals.end(self)
        with self._lock:
            if remote.replace(self._name, _ENDED, self._content):
                remote.remove(self._name)


def acquire(ref: Ref, most: float) -> tuple[Claim | None, float]:
    """The lease on this key among the hosts, and for how many seconds another host was waited for: at most ``most``.

    None, if it cannot be had. After a wait the remote is asked again for what it lacked.
    """
    remote, name = client.current(), _name(ref)
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
    exchange.forget_miss(ref)
    return this if taken else None, waited


def _await_end(remote: Client, name: str, most: float, ref: Ref) -> tuple[bytes | None] | None:
    """Wait until no living process holds it, and return what is there then; None if one still does.

    Raises Unavailable.
    """
    listener = Listener(_subject(name))

    def look(_: float) -> tuple[bytes | None] | None:
        found = remote.read([name]).get(name)
        content = found if isinstance(found, bytes) else None
        is_held = content is not None and content != _ENDED and listener.hear(content)
        return None if is_held else (content,)

    def say() -> None:
        holders.tell_wait(_OTHER_HOST, ref.title, most)

    ended, _ = waits.wait(look, most, say=say, pauses=_PAUSES)
    if ended is None and most > 0:
        holders.tell_end(_OTHER_HOST, ref.title, most)
    return ended


def _name(ref: Ref) -> str:
    # Not below the prefix of parcels, where commands look.
    return f"safecache/leases/{stores.prefix()}{parcels.remote_object_name(ref.kind, ref.key)}"


def _subject(name: str) -> str:
    return f"lease {name}"
