"""Keys that seal and verify entries, limited by an expiry and by namespaces; and their signatures."""

from __future__ import annotations

import fnmatch
import hashlib
import hmac
import importlib.util
from enum import Enum
from typing import NamedTuple

from safecache.errors import KeyringError
from safecache.reporting.kinds import Reason

__all__ = [
    "ALGORITHMS",
    "ANY_NAMESPACE",
    "ID_SIZE",
    "MAC_SIZE",
    "SIZE",
    "Algorithm",
    "Key",
    "derive_public",
    "find_problem",
    "generate",
    "is_installed",
    "read_pem",
    "sign",
    "verify",
    "write_pem",
]

ID_SIZE = 8
MAC_SIZE = 32
ANY_NAMESPACE = ("*",)


class Algorithm(Enum):
    """Algorithm by which entries are sealed. The value is its name in key files."""

    HMAC_SHA256 = "hmac-sha256"
    ED25519 = "ed25519"

    @property
    def number(self) -> int:
        """Number of the algorithm in the footer of a seal."""
        return 1 if self is Algorithm.HMAC_SHA256 else 2

    @property
    def tag_size(self) -> int:
        """Size of a tag in bytes."""
        return 32 if self is Algorithm.HMAC_SHA256 else 64


ALGORITHMS = {algorithm.number: algorithm for algorithm in Algorithm}


class Key(NamedTuple):
    """Key of entries. ``secret``: the MAC secret or private part, empty if unknown here; ``public``: of an Ed25519 key.

    ``namespaces``: fnmatch patterns of those it may seal for. Times are seconds since the epoch. A revoked key may lack
    its material, since it is not used.
    """

    id: bytes
    secret: bytes
    algorithm: Algorithm = Algorithm.HMAC_SHA256
    public: bytes = b""
    name: str = ""
    created: float | None = None
    expires: float | None = None
    revoked: float | None = None
    why_revoked: str = ""
    namespaces: tuple[str, ...] = ANY_NAMESPACE

    @classmethod
    def derive(cls, material: bytes) -> Key:
        """Return the MAC key derived from the content of a file with a raw secret."""
        return cls.make_mac(hashlib.sha256(b"safecache key 1\0" + material).digest())

    @classmethod
    def make_mac(cls, secret: bytes) -> Key:
        """Return the MAC key with this secret."""
        return cls(hashlib.sha256(b"safecache key id 1\0" + secret).digest()[:ID_SIZE], secret)

    @classmethod
    def make_ed25519(cls, public: bytes, private: bytes = b"") -> Key:
        """Return the Ed25519 key with these parts."""
        key_id = hashlib.sha256(b"safecache ed25519 key id 1\0" + public).digest()[:ID_SIZE]
        return cls(key_id, private, Algorithm.ED25519, public)

    @property
    def can_seal(self) -> bool:
        """Tell whether this process holds the part that seals."""
        return bool(self.secret)

    def extract_public(self) -> Key:
        """Return the same key, only able to verify. Raises KeyringError for a MAC key, which has no public part."""
        if self.algorithm is not Algorithm.ED25519:
            raise KeyringError(f"key {self.id.hex()} is a MAC key: it has no public part")
        return self._replace(secret=b"")

    def find_objection(self, now: float) -> Reason | None:
        """Return why entries sealed by this key are refused at ``now`` (seconds since the epoch); None if not."""
        if self.revoked is not None:
            return Reason.REVOKED_KEY
        if self.expires is not None and now >= self.expires:
            return Reason.EXPIRED_KEY
        return None

    def can_supply(self, namespace: str) -> bool:
        """Tell whether this key may supply entries of ``namespace``."""
        return any(fnmatch.fnmatchcase(namespace, pattern) for pattern in self.namespaces)

    def make_tag(self, message: bytes) -> bytes:
        """Return the tag of ``message``. Raises KeyringError for a key that cannot seal."""
        if not self.secret:
            raise KeyringError(f"key {self.id.hex()} holds no secret to seal with")
        if self.algorithm is Algorithm.ED25519:
            return sign(self.secret, message)
        return hmac.digest(self.secret, message, "sha256")

    def is_tag_valid(self, tag: bytes, message: bytes) -> bool:
        """Tell whether ``tag`` was made for ``message`` with this key."""
        if self.algorithm is Algorithm.ED25519:
            return verify(self.public, tag, message)
        # With an empty secret, everybody could compute the MAC.
        return bool(self.secret) and hmac.compare_digest(tag, self.make_tag(message))

    def __repr__(self) -> str:
        return f"Key({self.id.hex()})"


SIZE = 32  # bytes, of a public or a private key
_REMEDY = "pip install 'safecache[sign]'"


def is_installed() -> bool:
    """Tell whether the cryptography library is installed, without importing it."""
    return importlib.util.find_spec("cryptography") is not None


def find_problem() -> str | None:
    """Return why Ed25519 cannot be used here, with the remedy; None if it can. Imports the cryptography library."""
    try:
        # A build of the library may come without Ed25519, as in FIPS mode.
        derive_public(bytes(SIZE))
    except Exception as error:
        return f"Ed25519 needs the cryptography library: {_REMEDY} ({type(error).__name__}: {error})"
    return None


def generate() -> bytes:
    """Return a new Ed25519 private key of SIZE bytes."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.generate().private_bytes_raw()


def derive_public(private: bytes) -> bytes:
    """Return the public part of a private key. Raises ValueError if ``private`` is not a private key."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def sign(private: bytes, message: bytes) -> bytes:
    """Return the signature: 64 bytes, deterministic (RFC 8032)."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.from_private_bytes(private).sign(message)


def verify(public: bytes, signature: bytes, message: bytes) -> bool:
    """Tell whether the holder of the private part signed ``message``. False also if ``public`` is not a public key."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def read_pem(content: bytes) -> tuple[bytes, bytes]:
    """Return the public and the private part of the key in a PEM file; the latter is empty for a public key.

    Raises KeyringError for any other kind of key, for an encrypted one, and if the library is missing.
    """
    missing = find_problem()
    if missing is not None:
        raise KeyringError(f"cannot be used: {missing}")
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ed25519

    try:
        if b"PRIVATE KEY-----" in content:
            private = serialization.load_pem_private_key(content, password=None)
            if isinstance(private, ed25519.Ed25519PrivateKey):
                return private.public_key().public_bytes_raw(), private.private_bytes_raw()
        else:
            public = serialization.load_pem_public_key(content)
            if isinstance(public, ed25519.Ed25519PublicKey):
                return public.public_bytes_raw(), b""
    # The library's messages are about ASN.1, and are left out.
    except Exception as error:
        raise KeyringError(f"is no PEM file of an Ed25519 key without a password ({type(error).__name__})") from None
    raise KeyringError("is a PEM file of another kind of key: safecache takes Ed25519 alone")


def write_pem(public: bytes) -> str:
    """Return a public key (SIZE bytes) as the text of a PEM file (RFC 8410), which openssl and cosign read."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return Ed25519PublicKey.from_public_bytes(public).public_bytes(serialization.Encoding.PEM, form).decode()
