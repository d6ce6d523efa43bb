"""One sealed entry, for the tests of seals."""

from __future__ import annotations

import itertools
import pickle

from safecache.reporting.kinds import Kind
from safecache.signing import seal
from safecache.signing.keyring import Key

KEY = Key.derive(b"k" * 32)
PAYLOAD = pickle.dumps({"graph": list(range(100))})
PROVENANCE = {"python": "3.11.7", "gpu": "sm_90"}
ENTRY = seal.attach(PAYLOAD, Kind.AOT_ENTRY, "the key", KEY, PROVENANCE)
# What comes after is never sealed.
KINDS = [*itertools.takewhile(lambda kind: kind is not Kind.OTHER, Kind)]
# The layout in the docstring of seal, as distances from the end.
FOOTER, TAG = 62, 32


def verify(content, kind=Kind.AOT_ENTRY, cache_key="the key", keys=(KEY,), namespace="default"):
    return seal.verify(content, kind, cache_key, {key.id: key for key in keys}.get, namespace)


def flipped(content: bytes, bit: int) -> bytes:
    """``content`` with one bit the other way."""
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)
