"""The seal: a trailer that says what the bytes before it are, under a key.

    entry   = payload | body | tag | footer
    footer  = payload digest (32) | key id (8) | payload size (8) | body size (4) | algorithm | format | magic (8)
    body    = JSON: the entry's kind, its cache key and the provenance of the build that wrote it
    tag     = HMAC-SHA256 over the domain, the footer and the body

A trailer, because stock torch unpickles the entry as it is and a pickle ends at its STOP opcode. The tag covers the
payload through its digest, so that verifying reads the payload once. Nothing but the fixed-size footer is interpreted
before the tag is verified. The same payload, kind, cache key and key always give the same bytes.

This module deals in bytes only: it never unpickles and never touches a file.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import struct
from collections.abc import Callable, Mapping
from enum import Enum
from typing import NamedTuple

from safecache.keyring import Key
from safecache.reasons import Reason

__all__ = ["FORMAT", "Footer", "Kind", "Verdict", "attach", "payload_of", "split", "verify"]

FORMAT = 1
_MAGIC = b"\x93SAFECA\n"
_DOMAIN = b"safecache seal 1\0"
_FOOTER = struct.Struct("<32s8sQIBB8s")
_HMAC_SHA256 = 1
_TAG_SIZE = 32


class Kind(Enum):
    """What an entry is. Sealed with it, so that an entry of one cache is refused in another."""

    AOT_ENTRY = "aot_autograd"
    FX_ENTRY = "fx_graph"
    SOURCE = "source"
    NATIVE_CODE = "native_code"
    KERNEL = "kernel"

    @property
    def noun(self) -> str:
        """What to call it to a person."""
        return _NOUNS[self]


_NOUNS = {
    Kind.AOT_ENTRY: "AOTAutograd entry",
    Kind.FX_ENTRY: "FX graph entry",
    Kind.SOURCE: "generated source",
    Kind.NATIVE_CODE: "compiled code",
    Kind.KERNEL: "kernel file",
}


class Footer(NamedTuple):
    """The fixed-size end of a sealed entry: what can be said of it before its key is known."""

    digest: bytes
    key_id: bytes
    payload_size: int
    body_size: int
    algorithm: int
    format: int
    magic: bytes


class Verdict(NamedTuple):
    """``reason`` is None for an entry whose seal holds; ``key_id`` and ``provenance`` are None where not known."""

    reason: Reason | None
    key_id: bytes | None = None
    provenance: Mapping[str, str] | None = None


def attach(payload: bytes, kind: Kind, cache_key: str, key: Key, provenance: Mapping[str, str]) -> bytes:
    """``payload`` with its seal."""
    statement = {"kind": kind.value, "key": cache_key, "provenance": dict(provenance)}
    body = json.dumps(statement, sort_keys=True, separators=(",", ":")).encode()
    digest = hashlib.sha256(payload).digest()
    footer = _FOOTER.pack(digest, key.id, len(payload), len(body), _HMAC_SHA256, FORMAT, _MAGIC)
    return b"".join((payload, body, _tag(key, footer, body), footer))


def split(content: bytes) -> Footer | None:
    """The footer of ``content``; None if it carries no seal. Says nothing about whether the seal holds."""
    if len(content) < _FOOTER.size or not content.endswith(_MAGIC):
        return None
    return Footer._make(_FOOTER.unpack_from(content, len(content) - _FOOTER.size))


def payload_of(content: bytes) -> bytes:
    """``content`` without its seal, if it carries one whose sizes fit; it is not verified here."""
    footer = split(content)
    if footer is None or footer.payload_size + footer.body_size + _TAG_SIZE + _FOOTER.size != len(content):
        return content
    return content[: footer.payload_size]


def verify(content: bytes, kind: Kind, cache_key: str, find_key: Callable[[bytes], Key | None]) -> Verdict:
    """Check that ``content`` was sealed as this ``kind`` under this ``cache_key`` by a key that ``find_key`` has.

    Never raises for any content.
    """
    footer = split(content)
    if footer is None:
        return Verdict(Reason.UNSEALED)
    if footer.format != FORMAT or footer.algorithm != _HMAC_SHA256:
        return Verdict(Reason.UNKNOWN_FORMAT)
    if footer.payload_size + footer.body_size + _TAG_SIZE + _FOOTER.size != len(content):
        return Verdict(Reason.DAMAGED, footer.key_id)
    key = find_key(footer.key_id)
    if key is None:
        return Verdict(Reason.UNKNOWN_KEY, footer.key_id)
    body_end = footer.payload_size + footer.body_size
    body = content[footer.payload_size : body_end]
    tag = content[body_end : body_end + _TAG_SIZE]
    if not hmac.compare_digest(tag, _tag(key, content[-_FOOTER.size :], body)):
        return Verdict(Reason.BAD_SEAL, footer.key_id)
    if hashlib.sha256(memoryview(content)[: footer.payload_size]).digest() != footer.digest:
        return Verdict(Reason.DAMAGED, footer.key_id)
    return _compare(body, kind, cache_key, footer.key_id)


def _compare(body: bytes, kind: Kind, cache_key: str, key_id: bytes) -> Verdict:
    """Whether the statement under a good tag is about this kind and cache key."""
    try:
        statement = json.loads(body)
        stated = statement["kind"], statement["key"], statement["provenance"]
    except (ValueError, TypeError, KeyError):
        return Verdict(Reason.UNKNOWN_FORMAT, key_id)
    if stated[0] != kind.value:
        return Verdict(Reason.OTHER_KIND, key_id, stated[2])
    if stated[1] != cache_key:
        return Verdict(Reason.OTHER_CACHE_KEY, key_id, stated[2])
    return Verdict(None, key_id, stated[2])


def _tag(key: Key, footer: bytes, body: bytes) -> bytes:
    return hmac.digest(key.secret, _DOMAIN + footer + body, "sha256")
