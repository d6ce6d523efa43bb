"""Ed25519, through the ``cryptography`` library, which is imported by the first signature and not before."""

from __future__ import annotations

import importlib.util

from safecache.errors import KeyringError

__all__ = ["SIZE", "generate", "installed", "problem", "public_of", "read_pem", "sign", "verify"]

SIZE = 32  # bytes, of a public key and of a private one
_REMEDY = "pip install 'safecache[sign]'"


def installed() -> bool:
    """Whether the library is there, found without importing it."""
    return importlib.util.find_spec("cryptography") is not None


def problem() -> str | None:
    """Why nothing can be signed or verified here, with the remedy; None if it can. Imports the library."""
    try:
        # A build of the library may come without Ed25519, as in FIPS mode.
        public_of(bytes(SIZE))
    except Exception as error:
        return f"Ed25519 needs the cryptography library: {_REMEDY} ({type(error).__name__}: {error})"
    return None


def generate() -> bytes:
    """A new private key."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.generate().private_bytes_raw()


def public_of(private: bytes) -> bytes:
    """The public part of a private key. Raises ValueError for bytes that are none."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def sign(private: bytes, message: bytes) -> bytes:
    """The signature: 64 bytes, the same each time (RFC 8032)."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.from_private_bytes(private).sign(message)


def verify(public: bytes, signature: bytes, message: bytes) -> bool:
    """Whether the holder of the private part signed ``message``. False, too, for bytes that are no public key."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def read_pem(content: bytes) -> tuple[bytes, bytes]:
    """The public and the private part of a PEM file; the latter empty in one of a public key.

    Raises KeyringError for any other kind of key, an encrypted one, and where the library is missing.
    """
    missing = problem()
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
    # Their texts tell of ASN.1, and are left out.
    except Exception as error:
        raise KeyringError(f"is no PEM file of an Ed25519 key without a password ({type(error).__name__})") from None
    raise KeyringError("is a PEM file of another kind of key: safecache takes Ed25519 alone")
