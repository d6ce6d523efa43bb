"""Which entries may be taken, said once more: after the docstring of safecache.signing.seal, and sharing no code with it."""

from __future__ import annotations

import fnmatch
import hashlib
import hmac
import json

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from fuzz.world import GOOD, Question
from safecache.reporting.kinds import Kind
from safecache.signing.keys import Algorithm, Key

MAGIC = b"\x93SAFECA\n"


def payload_if_genuine(content: bytes, question: Question) -> bytes | None:
    """The payload that a key whose word counts has sealed for this kind, cache key and namespace; None otherwise."""
    footer, rest = content[-62:], content[:-62]
    if len(footer) != 62 or footer[54:] != MAGIC or footer[53] != 2:
        return None
    key = next((key for key in GOOD if key.id == footer[32:40]), None)
    signed = footer[52] == 2
    if key is None or footer[52] not in (1, 2) or signed != (key.algorithm is Algorithm.ED25519):
        return None
    tag_size = 64 if signed else 32
    payload_size, body_size = int.from_bytes(footer[40:48], "little"), int.from_bytes(footer[48:52], "little")
    if len(rest) != payload_size + body_size + tag_size:
        return None
    payload, body, tag = rest[:payload_size], rest[payload_size:-tag_size], rest[-tag_size:]
    if not _is_tag(key, tag, b"safecache seal 2\0" + footer + body):
        return None
    if hashlib.sha256(payload).digest() != footer[:32] or not _says(body, question):
        return None
    return payload if any(fnmatch.fnmatchcase(question[2], each) for each in key.namespaces) else None


def _is_tag(key: Key, tag: bytes, message: bytes) -> bool:
    if key.algorithm is Algorithm.HMAC_SHA256:
        return hmac.new(key.secret, message, hashlib.sha256).digest() == tag
    try:
        Ed25519PublicKey.from_public_bytes(key.public).verify(tag, message)
    except InvalidSignature:
        return False
    return True


def statement(body: bytes) -> dict | None:
    """What a body says; None for one that no version of safecache writes."""
    try:
        said = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(said, dict) or not isinstance(said.get("provenance"), dict):
        return None
    return said if all(isinstance(value, str) for value in said["provenance"].values()) else None


def _says(body: bytes, question: Question) -> bool:
    kind, cache_key, namespace = question
    said = statement(body)
    return said is not None and (said.get("kind"), said.get("key"), said.get("namespace")) == (
        kind.value,
        cache_key,
        namespace,
    )


# What a process is, for what it would load.
HERE = {"machine": "x86_64", "torch": "2.15.0", "triton": "3.9.0", "gpu": "sm_90"}
CPU = "x86_64 avx2"


def runs_here(kind: Kind, provenance: dict) -> bool:
    """Whether what was built where ``provenance`` says may run in such a process: a library, or an entry."""
    is_library = kind is Kind.NATIVE_CODE
    same = ("machine", "torch") if is_library else ("machine", "torch", "triton")
    if any(provenance.get(name, "") not in ("", HERE[name]) for name in same):
        return False
    if is_library:
        return set(provenance.get("cpu", "").split()) <= set(CPU.split())
    return not provenance.get("gpu") or HERE["gpu"] in provenance["gpu"].split(",")
