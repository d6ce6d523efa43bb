"""A key of this process and those that it starts: what attests their builds where there is no key to seal with.

It lives in memory and ends with the processes. A fork inherits it, and Inductor's compile workers get it with their
jobs. Nobody else can make a record with it, so what it has sealed in a cache is to everybody else as if unsealed.
"""

from __future__ import annotations

import os
import threading

from safecache.signing.keys import MAC_SIZE, Key

__all__ = ["find", "hand_down", "key", "take"]

_lock = threading.Lock()
_made: Key | None = None


def key() -> Key:
    """The key, made by the first call."""
    global _made
    with _lock:
        if _made is None:
            _made = Key.mac(os.urandom(MAC_SIZE))
        return _made


def find(key_id: bytes) -> Key | None:
    """The key, if that is its id."""
    return _made if _made is not None and _made.id == key_id else None


def hand_down() -> bytes:
    """The secret for a process that this one has started; to be sent through a pipe of ours, and never written."""
    return key().secret


def take(secret: bytes) -> None:
    """Use the key of the process that has started this one."""
    global _made
    with _lock:
        if _made is None or _made.secret != secret:
            _made = Key.mac(secret)


def _renew_lock() -> None:
    # A thread of the parent may hold the lock at the moment of the fork; the child has no such thread.
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)
