"""Entries under keys of both algorithms, taken apart and judged."""

from __future__ import annotations

from helpers.sealed import FOOTER, PAYLOAD, PROVENANCE
from safecache.reporting.kinds import Count, Kind
from safecache.signing import keys, seal, trust
from safecache.signing.keys import Algorithm, Key

DOMAIN = b"safecache seal 2\0"
STRANGERS = {
    Algorithm.HMAC_SHA256: Key.derive(b"s" * 32),
    Algorithm.ED25519: Key.make_ed25519(keys.derive_public(b"s" * 32), b"s" * 32),
}


def sealed(key, kind=Kind.AOT_ENTRY, cache_key="the key", namespace="default", payload=PAYLOAD):
    return seal.attach(payload, kind, cache_key, key, PROVENANCE, namespace)


def judged(content):
    """The reason of the whole path that a load goes, by the keys in the keyring directory."""
    found = trust.examine(content, Kind.AOT_ENTRY, "the key", None)
    return None if found is Count.VERIFIED else found.reason


def parts(content, key):
    """payload, body, tag, footer"""
    body_end = len(content) - FOOTER - key.algorithm.tag_size
    return content[: len(PAYLOAD)], content[len(PAYLOAD) : body_end], content[body_end:-FOOTER], content[-FOOTER:]
