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
    "key_in_name",
    "kind_of",
    "listing",
    "remote_object_name",
    "unpacked",
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
    """``needs``: the bundles that a program which uses this one asks for next, each by kind and cache key.

    ``ref``: where it lies in its frame.
    """

    ref: Ref
    files: tuple[File, ...]
    needs: tuple[tuple[Kind, str], ...] = ()


def remote_object_name(kind: Kind, key: str) -> str:
    """What the remote calls the bundle of this key, as it is built here: with another torch, it is another one."""
    readable = _HASH.fullmatch(key) or (_PLAIN.fullmatch(key) and len(key) <= _LONGEST_NAME)
    stated = key if readable else f"{_HASHED}{hashlib.sha256(key.encode()).hexdigest()}"
    return f"{kind.value}/{stated}@{provenance.build_of(kind)}"


def kind_of(name: str) -> Kind | None:
    """The kind in such a name, of whatever build; None for any other name. What the key is, its parcel says."""
    found = _NAME.fullmatch(name)
    return {each.value: each for each in Kind if each.tiers.key}.get(found["kind"]) if found is not None else None


def key_in_name(name: str) -> str:
    """The key in the name of a bundle, or the hash that stands for it there."""
    return name.partition("/")[2].rpartition("@")[0]


def is_of_this_build(name: str, kind: Kind) -> bool:
    """Whether the name of such a bundle says that it was built as it would be here."""
    return name.rpartition("@")[2] == provenance.build_of(kind)


def encode_object(parcel: Parcel, name: str) -> bytes | None:
    """The parcel's bytes, sealed for this name; None without a key to seal it. The same parcel has the same bytes."""
    key = keyring.current().signing
    if key is None:
        return None
    frame, packed = wire.compress(parcel.ref, parcel.files, _LEVEL)
    needs = [[kind.value, cache_key] for kind, cache_key in parcel.needs]
    header = json.dumps({"row": packed.row, "needs": needs}, sort_keys=True).encode()
    payload = b"".join((_SIZE.pack(len(header)), header, frame))
    return seal.attach(payload, Kind.PARCEL, name, key, provenance.statement(Kind.PARCEL), config.current().namespace)


def decode_object(content: bytes, name: str, ref: Ref, most: int) -> Parcel | Refusal:
    """What a parcel holds that came under this name for ``ref``, verified; or why none of it is used.

    ``most``: bytes that it may hold once decompressed. Never raises for any content.
    """
    found = unpacked(content, name, most)
    return found if isinstance(found, Refusal) else bundles.bundle_refusal(found.files, ref) or found


def unpacked(content: bytes, name: str, most: int) -> Parcel | Refusal:
    """As decode_object(), before its files are verified: for who has to ask it which bundle it is."""
    found = trust.examine(content, Kind.PARCEL, name, None)
    # INVARIANT: nothing of a parcel is parsed that no trusted key has sealed for its name.
    if isinstance(found, Refusal):
        return found
    try:
        payload = seal.payload_of(content)
        header, end = _header(payload)
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


def listing(start: bytes) -> Packed | None:
    """Read what a parcel lists that begins so, whoever wrote it: enough to leave it alone, and never to use it.

    None where that is no header, or a longer one.
    """
    try:
        return wire.read_row(*_header(start)[0]["row"])
    except wire.MALFORMED:
        return None


def _header(payload: bytes) -> tuple[dict[str, Any], int]:
    """The header that it begins with, and where that ends. Raises one of MALFORMED."""
    (size,) = _SIZE.unpack_from(payload) if len(payload) >= _SIZE.size else (_LARGEST_HEADER + 1,)
    if size > _LARGEST_HEADER:
        raise ValueError("its header is too large")
    end = _SIZE.size + size
    header = json.loads(payload[_SIZE.size : end])
    if not isinstance(header, dict):
        raise TypeError("its header is no object")
    return header, end
