"""The keys that seal and verify entries in this process.

One key seals: that of SAFECACHE_KEY_FILE, or the user's own, a MAC key made on first use. It verifies too, and so do
all keys of the keyring directory. Whoever can read a secret can forge entries, so a file with one that others can read
is refused, like one that others can write.

Where there is no key to seal with, one of this process and those that it starts attests their builds. It lives in
memory and ends with the processes. A fork inherits it, and Inductor's compile workers get it with their jobs. Nobody
else can make a record with it, so what it has sealed in a cache is to everybody else as if unsealed.
"""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
import threading
import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from safecache.errors import KeyringError
from safecache.reporting import events
from safecache.reporting.kinds import Reason
from safecache.settings import config
from safecache.signing import key_directory, key_files, keys
from safecache.signing.key_directory import Shelf
from safecache.signing.keys import ANY_NAMESPACE, MAC_SIZE, Algorithm, Key

__all__ = ["Key", "Keyring", "current", "directory", "find", "hand_down", "key", "load", "reset", "sealing_key", "take"]

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


# Of the directory's times. A change within the same tick of the file system's clock cannot be told from the one before.
_SETTLED_NS = 1_000_000_000


class Keyring(NamedTuple):
    """``signing`` is None, and ``problem`` says why, where nothing can be sealed. ``fresh``: made by this process.

    ``trusted`` holds by id every key that is known, those that are revoked or expired included; ``refused`` says why,
    by id, a key file is not believed; ``problems`` are those texts and more about the keyring directory.
    """

    signing: Key | None
    fresh: bool = False
    problem: str = ""
    trusted: Mapping[bytes, Key] = MappingProxyType({})
    refused: Mapping[bytes, str] = MappingProxyType({})
    problems: tuple[str, ...] = ()

    def objection(self) -> str:
        """Why nothing at all can be verified with these keys; empty if something can."""
        now = time.time()
        held = [*self.trusted.values(), *([self.signing] if self.signing is not None else [])]
        if any(self.find(key.id) is not None and key.objection(now) is None for key in held):
            return ""
        return self.problem or "no key is trusted"

    @property
    def attesting(self) -> Key:
        """What attests the code that this process builds: the sealing key, or else one that ends with the process."""
        return self.signing or key()

    def find(self, key_id: bytes) -> Key | None:
        """The key of that id, if we hold it and have what it takes to use it."""
        key = self._held(key_id)
        return None if key is None or self._unusable(key) else key

    def why_not(self, key_id: bytes) -> str:
        """Why find() has no such key; empty if it was never heard of."""
        key = self._held(key_id)
        return self.refused.get(key_id, "") if key is None else self._unusable(key)

    def _held(self, key_id: bytes) -> Key | None:
        own = self.signing
        if own is not None and own.id == key_id:
            return own
        return self.trusted.get(key_id) or find(key_id)

    @staticmethod
    def _unusable(key: Key) -> str:
        needs_library = key.algorithm is Algorithm.ED25519 and key.revoked is None
        return (keys.problem() or "") if needs_library else ""


class _Own(NamedTuple):
    key: Key | None
    fresh: bool = False
    problem: str = ""


def directory() -> str | None:
    """The keyring directory of the settings of now, whether it exists or not; None for a user without a home."""
    settings = config.current()
    return settings.keyring or key_directory.default(settings.config_home)


def current(*, tell: bool = True) -> Keyring:
    """The keys of this process under the settings of now. Never raises: see Keyring.problem.

    A key file that is added to the keyring directory, removed or replaced counts from the next call on, or at the
    latest a second later; SAFECACHE_KEY_FILE is read once. ``tell``: warn, once, of key files that are refused.
    """
    settings = config.current()
    stamp = key_directory.stamp(directory())
    settled = stamp is None or time.time_ns() - max(stamp) > _SETTLED_NS
    ring = _load_once(settings.key_file, settings.config_home, settings.keyring, stamp, settled)
    if tell and ring.problems:
        _tell_once(ring.problems)
    return _for_now(ring, settings.namespace)


def reset() -> None:
    """Forget what was read, so that the next call reads it again."""
    for cached in (_load_once, _own_once, _tell_once):
        cached.cache_clear()


def sealing_key() -> Key:
    """The key to seal with. Raises KeyringError where there is none."""
    keys = current()
    if keys.signing is None:
        raise KeyringError(keys.problem)
    return keys.signing


@functools.lru_cache(maxsize=8)
def _tell_once(problems: tuple[str, ...]) -> None:
    for problem in problems:
        events.report(Reason.KEY_REFUSED, f"{problem}.", cause=problem, remedy="`safecache keys` shows all keys.")


@functools.lru_cache(maxsize=8)
def _load_once(
    key_file: str | None, config_home: str | None, keyring: str | None, _stamp: tuple[int, int] | None, _settled: bool
) -> Keyring:
    return _join(_own_once(key_file, config_home), _shelf(config_home, keyring))


@functools.lru_cache(maxsize=8)
def _own_once(key_file: str | None, config_home: str | None) -> _Own:
    try:
        return _own(key_file, config_home)
    except (KeyringError, OSError) as error:
        return _Own(None, problem=str(error))


def load(key_file: str | None, config_home: str | None, keyring: str | None = None) -> Keyring:
    """The key in ``key_file`` if given, else the user's own, made now if there is none; and the keyring directory.

    Raises KeyringError or OSError where neither key can be had.
    """
    return _for_now(_join(_own(key_file, config_home), _shelf(config_home, keyring)), None)


def _shelf(config_home: str | None, keyring: str | None) -> Shelf:
    if keyring is not None:
        return key_directory.read(keyring, must_exist=True)
    own = key_directory.default(config_home)
    return Shelf() if own is None else key_directory.read(own, must_exist=False)


def _join(own: _Own, shelf: Shelf) -> Keyring:
    if shelf.broken:
        # It could revoke any key, so none is used until it can be read.
        return Keyring(None, problem=shelf.broken, problems=(shelf.broken,))
    trusted, problem = dict(shelf.keys), own.problem
    key = own.key
    if key is not None and key.id in shelf.refused:
        problem, key = shelf.refused[key.id], None
    if key is not None:
        key = _with_listed(key, trusted.get(key.id))
        trusted[key.id] = key
        if not key.can_seal:
            problem, key = f"SAFECACHE_KEY_FILE holds only the public part of key {key.id.hex()}", None
    return Keyring(key, own.fresh, problem, MappingProxyType(trusted), shelf.refused, shelf.problems)


def _with_listed(key: Key, listed: Key | None) -> Key:
    """The sealing key, with every restriction that the keyring's file of the same key puts on it."""
    if listed is None:
        return key
    ends = [end for end in (key.expires, listed.expires) if end is not None]
    if ANY_NAMESPACE in (key.namespaces, listed.namespaces):
        namespaces = listed.namespaces if key.namespaces == ANY_NAMESPACE else key.namespaces
    else:
        namespaces = tuple(pattern for pattern in key.namespaces if pattern in listed.namespaces)
    return key._replace(
        name=key.name or listed.name,
        created=key.created if key.created is not None else listed.created,
        expires=min(ends, default=None),
        revoked=key.revoked if key.revoked is not None else listed.revoked,
        why_revoked=key.why_revoked or listed.why_revoked,
        namespaces=namespaces,
    )


def _for_now(ring: Keyring, namespace: str | None) -> Keyring:
    """``ring``, without its sealing key if what that seals would be refused at this moment."""
    key = ring.signing
    if key is None:
        return ring
    objection = key.objection(time.time())
    if objection is Reason.REVOKED_KEY:
        why = f"the sealing key {key.id.hex()} is revoked"
    elif objection is not None:
        why = f"the sealing key {key.id.hex()} has expired"
    elif namespace is not None and not key.allows(namespace):
        why = f"the sealing key {key.id.hex()} is not allowed for SAFECACHE_NAMESPACE={namespace}"
    else:
        return ring
    return ring._replace(signing=None, problem=why)


def _own(key_file: str | None, config_home: str | None) -> _Own:
    if key_file is not None:
        return _Own(key_files.read(key_file, forbidden=0o027, any_secret=True))
    if config_home is None:
        raise KeyringError("this user has no home directory to keep a key in")
    place = os.path.join(config_home, "safecache")
    path = os.path.join(place, "sealing.key")
    fresh = not os.path.exists(path) and _make_key(place, path)
    key_files.check_owner(os.stat(place), place, forbidden=0o022)
    return _Own(key_files.read(path, forbidden=0o077, any_secret=True), fresh)


def _make_key(place: str, path: str) -> bool:
    """Publish a new key at ``path`` unless another process was first; say whether it is ours."""
    os.makedirs(os.path.dirname(place), exist_ok=True)
    # Another process may have made it; its owner and mode are checked when the key is read.
    with contextlib.suppress(FileExistsError):
        os.mkdir(place, 0o700)
    return key_files.write_new(path, secrets.token_hex(32).encode() + b"\n", 0o600)
