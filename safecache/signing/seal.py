"""Seal of an entry: a trailer, authenticated with a key, that states what the bytes before it are.

    entry:   payload | body | tag | footer.
    footer:  payload digest (32) | key id (8) | payload size (8) | body size (4) | algorithm | format | magic (8).
    body:    JSON of the entry's kind, its cache key, its namespace and the provenance of the build that wrote it.
    tag:     HMAC-SHA256 (algorithm 1, 32 bytes) or Ed25519 (2, 64 bytes) over the domain, the footer and the body.

Stock torch unpickles the entry as it is, and a pickle ends at its STOP opcode: so the seal is a trailer. The tag covers
the payload through its digest, so that verifying reads the payload once. verify() and inspect() interpret nothing but
the fixed-size footer before they have verified the tag; claims() and functions such as stated_key() never verify it.
The algorithm in the footer only says how long the tag is: the tag is verified with the key's own algorithm, and a
footer that names another is refused. The same payload, statement and key always give the same bytes.

This module handles only bytes: it never unpickles and never touches a file.
"""

from __future__ import annotations

import hashlib
import json
import struct
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from safecache.reporting.kinds import Kind, Reason
from safecache.settings.settings import DEFAULT_NAMESPACE
from safecache.signing.keys import ALGORITHMS, Key

__all__ = [
    "FORMAT",
    "Footer",
    "Verdict",
    "attach",
    "compare_unverified",
    "inspect",
    "inspect_size",
    "make_trailer",
    "split_unverified",
    "stated_key",
    "stated_namespace",
    "stated_provenance",
    "strip_unverified",
    "verify",
]

FORMAT = 2
_MAGIC = b"\x93SAFECA\n"
_DOMAIN = b"safecache seal 2\0"
_FOOTER = struct.Struct("<32s8sQIBB8s")


class Footer(NamedTuple):
    """Fixed-size end of a sealed entry, which can be read before its key is known; sizes in bytes."""

    digest: bytes
    key_id: bytes
    payload_size: int
    body_size: int
    algorithm: int
    format: int
    magic: bytes


class Verdict(NamedTuple):
    """Verdict on a seal. ``reason``: why it is refused, or None; ``key_id`` and ``provenance``: None if unknown."""

    reason: Reason | None
    key_id: bytes | None = None
    provenance: Mapping[str, str] | None = None


def attach(
    payload: bytes,
    kind: Kind,
    cache_key: str,
    key: Key,
    provenance: Mapping[str, str],
    namespace: str = DEFAULT_NAMESPACE,
) -> bytes:
    """Return ``payload`` with its seal. Raises KeyringError for a key that cannot seal."""
    digest = hashlib.sha256(payload).digest()
    return payload + make_trailer(digest, len(payload), kind, cache_key, key, provenance, namespace)


def make_trailer(
    digest: bytes,
    size: int,
    kind: Kind,
    cache_key: str,
    key: Key,
    provenance: Mapping[str, str],
    namespace: str = DEFAULT_NAMESPACE,
) -> bytes:
    """Return the seal alone, for a payload with this SHA-256 ``digest`` and ``size`` in bytes. Raises as attach()."""
    statement = {"kind": kind.value, "key": cache_key, "namespace": namespace, "provenance": dict(provenance)}
    body = json.dumps(statement, sort_keys=True, separators=(",", ":")).encode()
    footer = _FOOTER.pack(digest, key.id, size, len(body), key.algorithm.number, FORMAT, _MAGIC)
    return b"".join((body, key.make_tag(_DOMAIN + footer + body), footer))


def split_unverified(content: bytes) -> Footer | None:
    """Return the footer of ``content``; None if it carries no seal. The seal is not verified."""
    if len(content) < _FOOTER.size or not content.endswith(_MAGIC):
        return None
    return Footer._make(_FOOTER.unpack_from(content, len(content) - _FOOTER.size))


def strip_unverified(content: bytes) -> bytes:
    """Return ``content`` without its seal, if it carries one whose sizes fit. The seal is not verified."""
    footer = split_unverified(content)
    return content if footer is None or not _has_valid_sizes(footer, len(content)) else content[: footer.payload_size]


def stated_key(content: bytes) -> str | None:
    """Return the cache key that the seal of ``content`` states, unverified; None if no seal can be read."""
    stated = _read_unverified(content, len(content)).get("key")
    return stated if isinstance(stated, str) else None


def stated_namespace(end: bytes, size: int) -> str | None:
    """Return the namespace that the seal states, unverified; None if no seal can be read.

    ``end``: the last bytes of content of ``size`` bytes.
    """
    stated = _read_unverified(end, size).get("namespace")
    return stated if isinstance(stated, str) else None


def stated_provenance(content: bytes) -> Mapping[str, str]:
    """Return the provenance that the seal of ``content`` states, unverified; empty if no seal can be read."""
    stated = _read_unverified(content, len(content)).get("provenance")
    return stated if isinstance(stated, dict) else {}


def _read_unverified(end: bytes, size: int) -> Mapping[str, object]:
    footer = split_unverified(end)
    parts = None if footer is None else _split_body(footer, end, size)
    try:
        stated = json.loads(parts[0]) if parts is not None else None
    except (ValueError, RecursionError):
        return {}
    return stated if isinstance(stated, dict) else {}


def _has_valid_sizes(footer: Footer, size: int) -> bool:
    algorithm = ALGORITHMS.get(footer.algorithm)
    if algorithm is None:
        return False
    return footer.payload_size + footer.body_size + algorithm.tag_size + _FOOTER.size == size


def _split_body(footer: Footer, end: bytes, size: int) -> tuple[bytes, bytes] | None:
    """Return the body and the tag; None if ``end``, of content of ``size`` bytes, is shorter than the seal."""
    start = footer.payload_size - (size - len(end))
    body_end = start + footer.body_size
    return None if start < 0 else (end[start:body_end], end[body_end : -_FOOTER.size])


def verify(
    content: bytes,
    kind: Kind,
    cache_key: str,
    find_key: Callable[[bytes], Key | None],
    namespace: str = DEFAULT_NAMESPACE,
) -> Verdict:
    """Verify that ``content`` was sealed as this ``kind`` under this ``cache_key``, for this ``namespace``.

    Return the verdict: see Verdict. The key must be one that ``find_key`` returns, be allowed for that namespace, and
    be neither revoked nor expired now. The time of sealing does not count, since the holder of the key can state any
    time. Never raises for any content.
    """
    opened = _open_seal(content, len(content), find_key)
    if isinstance(opened, Verdict):
        return opened
    footer, body, key = opened
    # INVARIANT: a seal is of one content.
    if hashlib.sha256(memoryview(content)[: footer.payload_size]).digest() != footer.digest:
        return Verdict(Reason.DAMAGED, footer.key_id)
    return _check_allowed(_compare_body(body, kind, cache_key, namespace, key.id), namespace, key)


def compare_unverified(
    end: bytes,
    size: int,
    digest_of: Callable[[int], bytes],
    kind: Kind,
    cache_key: str,
    namespace: str = DEFAULT_NAMESPACE,
) -> Verdict:
    """Compare what a seal states with ``kind``, ``cache_key``, ``namespace`` and content; its tag is not verified.

    Enough to refuse content, never to use it. ``end``: the last bytes of content of ``size`` bytes. ``digest_of(n)``:
    the SHA-256 of the first n bytes of the content.
    """
    footer = split_unverified(end)
    if footer is None:
        return Verdict(Reason.UNSEALED)
    if not _has_valid_sizes(footer, size) or digest_of(footer.payload_size) != footer.digest:
        return Verdict(Reason.DAMAGED, footer.key_id)
    parts = _split_body(footer, end, size)
    if parts is None:
        return Verdict(Reason.UNKNOWN_FORMAT, footer.key_id)
    return _compare_body(parts[0], kind, cache_key, namespace, footer.key_id)


def inspect(
    end: bytes,
    size: int,
    kind: Kind,
    cache_key: str,
    find_key: Callable[[bytes], Key | None],
    namespace: str = DEFAULT_NAMESPACE,
) -> Verdict:
    """Verify, as verify() does, who sealed content, as what, and what built it; but do not read the payload.

    ``end``: the last bytes of content of ``size`` bytes. The payload is not compared with its digest, so this verdict
    alone is not enough to use anything.
    """
    opened = _open_seal(end, size, find_key)
    if isinstance(opened, Verdict):
        return opened
    _, body, key = opened
    return _check_allowed(_compare_body(body, kind, cache_key, namespace, key.id), namespace, key)


def inspect_size(end: bytes, size: int, find_key: Callable[[bytes], Key | None]) -> Verdict:
    """Verify that a known key sealed content of ``size`` bytes with this ``end``, as any kind: if not, read no more."""
    opened = _open_seal(end, size, find_key)
    return opened if isinstance(opened, Verdict) else Verdict(None, opened[2].id)


def _open_seal(end: bytes, size: int, find_key: Callable[[bytes], Key | None]) -> Verdict | tuple[Footer, bytes, Key]:
    """Return the footer, the body and the key of a seal with a valid tag, or else the verdict against it."""
    footer = split_unverified(end)
    if footer is None:
        return Verdict(Reason.UNSEALED)
    if footer.format != FORMAT or footer.algorithm not in ALGORITHMS:
        return Verdict(Reason.UNKNOWN_FORMAT)
    if not _has_valid_sizes(footer, size):
        return Verdict(Reason.DAMAGED, footer.key_id)
    key = find_key(footer.key_id)
    if key is None:
        return Verdict(Reason.UNKNOWN_KEY, footer.key_id)
    objection = key.find_objection(time.time())
    if objection is not None:
        return Verdict(objection, footer.key_id)
    parts = _split_body(footer, end, size)
    if parts is None:
        return Verdict(Reason.UNKNOWN_FORMAT, footer.key_id)
    body, tag = parts
    message = _DOMAIN + end[-_FOOTER.size :] + body
    # INVARIANT: nothing that a seal states is parsed before its tag is verified, by the key that it names.
    if footer.algorithm != key.algorithm.number or not key.is_tag_valid(tag, message):
        return Verdict(Reason.BAD_SEAL, footer.key_id)
    return footer, body, key


def _check_allowed(verdict: Verdict, namespace: str, key: Key) -> Verdict:
    """Return the verdict, or KEY_NOT_ALLOWED if the key may not seal for ``namespace``."""
    # INVARIANT: a key seals for the namespaces that it is trusted for.
    if verdict.reason is None and not key.can_supply(namespace):
        return verdict._replace(reason=Reason.KEY_NOT_ALLOWED)
    return verdict


def _compare_body(body: bytes, kind: Kind, cache_key: str, namespace: str, key_id: bytes) -> Verdict:
    """Return the verdict on whether the statement matches this kind, cache key and namespace."""
    try:
        statement = json.loads(body)
        stated = statement["kind"], statement["key"], statement["namespace"]
        provenance = dict(statement["provenance"].items())
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return Verdict(Reason.UNKNOWN_FORMAT, key_id)
    if not all(isinstance(said, str) for said in provenance.values()):
        return Verdict(Reason.UNKNOWN_FORMAT, key_id)
    reason = None
    # INVARIANT: a seal is for one kind, one cache key and one namespace.
    if stated[0] != kind.value:
        reason = Reason.OTHER_KIND
    elif stated[1] != cache_key:
        reason = Reason.OTHER_CACHE_KEY
    elif stated[2] != namespace:
        reason = Reason.OTHER_NAMESPACE
    return Verdict(reason, key_id, provenance)
