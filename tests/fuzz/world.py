"""The keys that the fuzzers forge with, those among them that are trusted, and the question that entries are asked."""

from __future__ import annotations

from helpers.key_cases import MAC, PRIVATE, PUBLIC

from safecache.reporting.kinds import Kind
from safecache.signing import keys, seal
from safecache.signing.keys import Key

REVOKED = Key.derive(b"a key that was revoked. . . . . .")._replace(revoked=1.0)
EXPIRED = Key.derive(b"a key that has expired . . . . . ")._replace(expires=1.0)
LIMITED = Key.make_ed25519(keys.derive_public(b"l" * 32), b"l" * 32)._replace(namespaces=("prod/*",))
STRANGER = Key.derive(b"a key that nobody knows . . . . .")
SIGNING_STRANGER = Key.make_ed25519(keys.derive_public(b"s" * 32), b"s" * 32)

# All of them seal for the one who forges.
KEYS = (MAC, PRIVATE, LIMITED, REVOKED, EXPIRED, STRANGER, SIGNING_STRANGER)
TRUSTED = {key.id: key for key in (MAC, PUBLIC, LIMITED.extract_public(), REVOKED, EXPIRED)}
# Those whose word counts, and for which namespaces.
GOOD = (MAC, PRIVATE, LIMITED)

Question = tuple[Kind, str, str]
ASKED: Question = (Kind.FX_ENTRY, "the key", "default")
OTHERS: tuple[Question, ...] = (
    (Kind.AOT_ENTRY, "the key", "default"),
    (Kind.FX_ENTRY, "", "default"),
    (Kind.FX_ENTRY, "the key", "prod/llm"),
)
PAYLOAD = b"\x80\x04}\x94\x8c\x05graph\x94]\x94(K\x01K\x02K\x03es."
PROVENANCE = {"torch": "2.15.0", "cpu": "x86_64"}


def sealed(key: Key = MAC, question: Question = ASKED, payload: bytes = PAYLOAD) -> bytes:
    """What safecache itself makes of ``payload``."""
    kind, cache_key, namespace = question
    return seal.attach(payload, kind, cache_key, key, PROVENANCE, namespace)
