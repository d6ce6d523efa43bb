"""Leases among hosts, in the remote cache: a name that only one can take, and that lapses unless it is renewed.

No clock is compared: whoever waits sees whether what is there has changed since. As with a lease in a cache, nothing
that is right depends on it, and the remote may lie about it.
"""

from __future__ import annotations

import os
import secrets
import threading
import time

from safecache.remote import client, exchange, parcels, sender, stores
from safecache.remote.client import Client, Unavailable
from safecache.reporting.kinds import Kind

__all__ = ["Claim", "reset", "take"]

# Seconds: how often a claim is renewed, after how long without that it has lapsed, and how often whoever waits looks.
_RENEWAL = 2.0
LAPSE = 8.0
_SHORTEST, _LONGEST = 0.1, 1.0
_ENDED = b"ended"


class Claim:
    """What this process is compiling, for all hosts."""

    def __init__(self, name: str) -> None:
        self._name, self._token, self._number = name, secrets.token_hex(16), 0
        self._lock = threading.Lock()

    @property
    def _content(self) -> bytes:
        return f"{self._token} {self._number}".encode()

    def take(self, remote: Client, known: bytes | None) -> bool:
        """Whether nobody else has taken it since it was ``known``. Raises Unavailable."""
        return remote.replace(self._name, self._content, known)

    def renew(self, remote: Client) -> None:
        """Say that it is still held. Raises Unavailable."""
        with self._lock:
            known = self._content
            self._number += 1
            if not remote.replace(self._name, self._content, known):
                _renewed.pop(self._name, None)  # another host has it, as this one was too late

    def release(self) -> None:
        """Once all that this process has compiled so far is sent: whoever waits finds it then."""
        sender.afterwards(self._end)

    def _end(self, remote: Client) -> None:
        _renewed.pop(self._name, None)
        with self._lock:
            if remote.replace(self._name, _ENDED, self._content):
                remote.remove(self._name)


# By name; a thread renews them.
_renewed: dict[str, Claim] = {}
_lock = threading.Lock()
_thread: threading.Thread | None = None


def take(kind: Kind, key: str, most: float) -> tuple[Claim | None, float]:
    """The lease on this key among the hosts, and for how many seconds another host was waited for: at most ``most``.

    None, if it cannot be had. After a wait the remote is asked again for what it lacked.
    """
    remote, name = client.current(), _name(kind, key)
    if remote is None:
        return None, 0.0
    this, waited = Claim(name), 0.0
    try:
        taken = this.take(remote, None)
        if not taken:
            began = time.monotonic()
            taken = _waited(this, remote, name, most)
            waited = time.monotonic() - began
            exchange.forget_miss(kind, key)
    except Unavailable:
        taken = False
    if taken:
        _renew(this)
    return this if taken else None, waited


def _waited(this: Claim, remote: Client, name: str, most: float) -> bool:
    """Whether it could be taken once its holder had ended, or lapsed."""
    last: bytes | None = b""
    pause, began = _SHORTEST, time.monotonic()
    changed = began
    while time.monotonic() - began < most:
        found = remote.read([name]).get(name)
        known = found if isinstance(found, bytes) else None
        if known in (None, _ENDED) or (known == last and time.monotonic() - changed > LAPSE):
            return this.take(remote, known)
        if known != last:
            last, changed = known, time.monotonic()
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST)
    return False


def _name(kind: Kind, key: str) -> str:
    # Not below the prefix of parcels, where commands look.
    return f"safecache/leases/{stores.prefix()}{parcels.name_of(kind, key)}"


def _renew(this: Claim) -> None:
    global _thread
    with _lock:
        _renewed[this._name] = this
        if _thread is None:
            _thread = threading.Thread(target=_work, name="safecache-leases", daemon=True)
            _thread.start()


def _work() -> None:
    while True:
        time.sleep(_RENEWAL)
        remote = client.for_sending()
        for each in list(_renewed.values()):
            try:
                if remote is not None:
                    each.renew(remote)
            except Unavailable:
                break


def reset() -> None:
    """Forget what is held: it lapses."""
    global _thread, _lock
    _renewed.clear()
    _thread, _lock = None, threading.Lock()


os.register_at_fork(after_in_child=reset)
