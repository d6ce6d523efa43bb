"""Changes to the keyring directory: keys are generated, trusted and revoked."""

from __future__ import annotations

import secrets
import time

from safecache.errors import KeyringError
from safecache.signing import key_directory, key_files, keyring, keys
from safecache.signing.keys import MAC_SIZE, Key

__all__ = ["find", "find_place", "generate", "read_candidate", "revoke", "trust"]

_FORBIDDEN_TO_OTHERS = 0o037  # mode bits of a file with a secret, as in the keyring directory


def generate(*, ed25519: bool) -> Key:
    """Return a new Ed25519 or else MAC key, without storing it. Raises KeyringError if Ed25519 is unavailable."""
    if not ed25519:
        return Key.make_mac(secrets.token_bytes(MAC_SIZE))._replace(created=time.time())
    missing = keys.find_problem()
    if missing is not None:
        raise KeyringError(missing)
    private = keys.generate()
    return Key.make_ed25519(keys.derive_public(private), private)._replace(created=time.time())


def find_place() -> str:
    """Return the path of the keyring directory. Raises KeyringError for a user without one."""
    directory = keyring.find_directory()
    if directory is None:
        raise KeyringError("this user has no home directory for a keyring: name one in SAFECACHE_KEYRING")
    return directory


def read_candidate(path: str | None, content: bytes = b"") -> Key:
    """Return the key in the file at ``path``, or in ``content`` if None; of an Ed25519 key, only the public part.

    A MAC key keeps its secret. Raises KeyringError if it is not a key, or is a secret in a file that others can read;
    OSError.
    """
    if path is not None:
        key = key_files.read(path, forbidden=_FORBIDDEN_TO_OTHERS)
    else:
        try:
            key = key_files.recognise(content, any_secret=False)
        except KeyringError as error:
            raise KeyringError(f"what came in {error}") from None
    # A host that only verifies must not be able to forge.
    return key.extract_public() if key.public else key


def trust(key: Key) -> str:
    """Put ``key`` into the keyring directory; return the path of its file. Raises KeyringError or OSError."""
    path = key_directory.add(find_place(), key)
    keyring.renew()
    return path


def find(prefix: str) -> Key:
    """Return the known key whose hex id begins with ``prefix``.

    Raises KeyringError for none, several, or a refused one.
    """
    ring = keyring.current(tell=False)
    wanted = prefix.lower()
    found = [key_id for key_id in {*ring.trusted, *ring.refused} if key_id.hex().startswith(wanted)]
    if not found or not wanted:
        known = f" ({ring.problems[0]})" if ring.problems else ""
        raise KeyringError(f"no key has an id that begins with {prefix!r}{known}: see safecache keys")
    if len(found) > 1:
        raise KeyringError(f"{prefix!r} begins several ids: {', '.join(sorted(each.hex() for each in found))}")
    if found[0] in ring.refused:
        raise KeyringError(ring.refused[found[0]])
    return ring.trusted[found[0]]


def revoke(key: Key, why: str) -> str:
    """Revoke ``key`` and with it all its entries; return the path of its file. ``why``: the reason, for messages.

    An earlier revocation stands. The secret of a signing key stored elsewhere is not copied: its file here holds only
    the id. Raises as trust().
    """
    return trust(key._replace(secret=b"", revoked=time.time(), why_revoked=why))
