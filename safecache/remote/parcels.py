"""Parcels: what the remote keeps under one name, a bundle and what its user asks for next, sealed.

    parcel  = payload | seal: of kind PARCEL, for its name
    payload = size of the header (4 bytes, little-endian) | header (JSON) | frame, see store.wire
    header  = {"row": that of the frame, "needs": [[kind, key], …]}

The seal covers all of it: nothing is decompressed that no trusted key has sealed.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
from typing import Any, NamedTuple

from safecache.places.refs import Ref
from safecache.ports import File
from safecache.reporting.kinds import Kind, Reason
from safecache.reporting.report import Refusal
from safecache.settings import config, units
from safecache.signing import keyring, provenance, seal, trust
from safecache.store import bundles, wire
from safecache.store.wire import Packed

__all__ = [
    "MOST_NEEDED",
    "START",
    "Parcel",
    "decode_object",
    "encode_object",
    "is_of_this_build",
    "name_object",
    "parse_key",
    "parse_kind",
    "parse_unverified_row",
    "unpack_unverified",
]

_SIZE = struct.Struct("<I")
_LARGEST_HEADER = 1 << 20
# Of what is needed next, as many as may be fetched ahead.
MOST_NEEDED = 512
_PLAIN = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*")
_LONGEST_NAME = 200
# What stands for a key that is not plain: no plain one begins so.
_HASHED = "~"
_HASH = re.compile(rf"{_HASHED}[0-9a-f]{{64}}")
_NAME = re.compile(rf"(?P<kind>[a-z_]+)/(?P<key>{_HASH.pattern}|{_PLAIN.pattern})@[0-9A-Za-z]+")
# Bytes of a parcel's start that most headers fit into: see listing().
START = 4096
# Of compression: a process that has just compiled makes it.
_LEVEL = 3


class Parcel(NamedTuple):
    """Bundle with those that a program asks for next: its ``needs``, each by kind and cache key.

    ``ref``: with a directory in the frame as its root.
    """

    ref: Ref
    files: tuple[File, ...]
    needs: tuple[tuple[Kind, str], ...] = ()


def name_object(kind: Kind, key: str) -> str:
    """Return the remote's name for the bundle of this key; it differs by build, as with another torch."""
    readable = _HASH.fullmatch(key) or (_PLAIN.fullmatch(key) and len(key) <= _LONGEST_NAME)
    stated = key if readable else f"{_HASHED}{hashlib.sha256(key.encode()).hexdigest()}"
    return f"{kind.value}/{stated}@{provenance.digest_build(kind)}"


def parse_kind(name: str) -> Kind | None:
    """Return the kind in a remote object's name, of any build; None for another name. Its parcel has the key."""
    found = _NAME.fullmatch(name)
    return {each.value: each for each in Kind if each.tiers.key}.get(found["kind"]) if found is not None else None


def parse_key(name: str) -> str:
    """Return the key in a remote object's name, or the hash that replaces a key there."""
    return name.partition("/")[2].rpartition("@")[0]


def is_of_this_build(name: str, kind: Kind) -> bool:
    """Tell whether a remote object's name states the build that this process would give to its ``kind``."""
    return name.rpartition("@")[2] == provenance.digest_build(kind)


def encode_object(parcel: Parcel, name: str) -> bytes | None:
    """Return the parcel, sealed for this name; the same one gives the same bytes. None without a signing key."""
    key = keyring.current().signing
    if key is None:
        return None
    frame, packed = wire.compress(parcel.ref, parcel.files, _LEVEL)
    needs = [[kind.value, cache_key] for kind, cache_key in parcel.needs]
    header = json.dumps({"row": packed.row, "needs": needs}, sort_keys=True).encode()
    payload = b"".join((_SIZE.pack(len(header)), header, frame))
    return seal.attach(
        payload, Kind.PARCEL, name, key, provenance.make_statement(Kind.PARCEL), config.current().namespace
    )


def decode_object(content: bytes, name: str, ref: Ref, most: int) -> Parcel | Refusal:
    """Unpack and verify what the remote has under this name for ``ref``. Return its parcel, or a refusal.

    ``most``: bytes that it may hold once decompressed. Never raises for any content.
    """
    found = unpack_unverified(content, name, most)
    return found if isinstance(found, Refusal) else bundles.judge_bundle(found.files, ref) or found


def unpack_unverified(content: bytes, name: str, most: int) -> Parcel | Refusal:
    """Unpack a remote object without verifying its files, for callers that need its ref. See decode_object()."""
    found = trust.examine(content, Kind.PARCEL, name, None)
    # INVARIANT: nothing of a parcel is parsed that no trusted key has sealed for its name.
    if isinstance(found, Refusal):
        return found
    try:
        payload = seal.strip_unverified(content)
        header, end = _parse_header(payload)
        if "row" not in header:
            raise ValueError("it has the format of an earlier safecache")
        packed = wire.read_row(*header["row"])
        if packed.size > most:
            raise ValueError(f"it holds {units.write_size(packed.size)} once decompressed")
        kinds = {kind.value: kind for kind in Kind}
        # A kind of a later safecache's is none that is asked for here.
        needs = tuple((kinds[kind], str(key)) for kind, key in header["needs"] if kind in kinds)
        return Parcel(packed.ref, wire.decompress(payload[end:], packed), needs)
    except wire.MALFORMED as error:
        return Refusal(Reason.UNKNOWN_FORMAT, f"it cannot be unpacked: {type(error).__name__}: {error}")


def parse_unverified_row(start: bytes) -> Packed | None:
    """Parse the row in the ``start`` of a remote object, unverified: enough to skip the object, never to use it.

    None where that is no header, or a longer one.
    """
    try:
        return wire.read_row(*_parse_header(start)[0]["row"])
    except wire.MALFORMED:
        return None


def _parse_header(payload: bytes) -> tuple[dict[str, Any], int]:
    """Return the header that ``payload`` begins with, and where it ends. Raises one of MALFORMED."""
    (size,) = _SIZE.unpack_from(payload) if len(payload) >= _SIZE.size else (_LARGEST_HEADER + 1,)
    if size > _LARGEST_HEADER:
        raise ValueError("its header is too large")
    end = _SIZE.size + size
    header = json.loads(payload[_SIZE.size : end])
    if not isinstance(header, dict):
        raise TypeError("its header is no object")
    return header, end
