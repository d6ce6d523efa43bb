"""Parcels: what the remote keeps under one name, the files of one bundle with their records, compressed and sealed.

    parcel  = payload | seal: of kind PARCEL, for its name
    payload = size of the header (4 bytes, little-endian) | header (JSON) | body (one Zstandard frame)
    header  = {"files": [[name, size, size of its record], …], "needs": [[kind, key], …], "size": of the body's content,
               "key": …, "at": where in the cache its files lay, if Triton's lie in Inductor's cache}
    body    = of each file in turn its content, and its record if it has one

The seal covers the compressed bytes and what the header says of their size: nothing is decompressed that no trusted key
has sealed, and no more than it says. Each file is verified once more by itself, as if it lay in a cache.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from safecache.places.refs import TRITON_FOLDERS, Ref
from safecache.ports import File
from safecache.reporting.kinds import Kind, Reason
from safecache.reporting.report import Refusal
from safecache.settings import config, units
from safecache.signing import keyring, provenance, seal, trust
from safecache.store import bundles

__all__ = [
    "MOST_NEEDED",
    "START",
    "Listing",
    "Parcel",
    "decode_object",
    "encode_object",
    "is_of_this_build",
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
_NAME = re.compile(rf"(?P<kind>[a-z_]+)/(~[0-9a-f]{{64}}|{_PLAIN.pattern})@[0-9A-Za-z]+")
# No plain key begins so.
_HASHED = "~"
# Bytes of a parcel's start that most headers fit into: see listing().
START = 4096
_LEVEL = 3
# What it takes to read bytes that encode_object() does not make.
_MALFORMED = (ValueError, TypeError, KeyError, RecursionError)


class Parcel(NamedTuple):
    """``needs``: the bundles that a program which uses this one asks for next, each by kind and cache key.

    ``key``: its own. ``at``: see Ref.triton_folder; both are "" if it does not say.
    """

    files: tuple[File, ...]
    needs: tuple[tuple[Kind, str], ...] = ()
    key: str = ""
    at: str = ""


class Listing(NamedTuple):
    """What the start of a parcel says, whoever wrote it: enough to leave it alone, and never to use it."""

    key: str
    at: str
    names: frozenset[str]


def remote_object_name(kind: Kind, key: str) -> str:
    """What the remote calls the bundle of this key, as it is built here: with another torch, it is another one."""
    readable = _PLAIN.fullmatch(key) is not None and len(key) <= _LONGEST_NAME
    stated = key if readable else f"{_HASHED}{hashlib.sha256(key.encode()).hexdigest()}"
    return f"{kind.value}/{stated}@{provenance.build_of(kind)}"


def kind_of(name: str) -> Kind | None:
    """The kind in such a name, of whatever build; None for any other name. What the key is, its parcel says."""
    found = _NAME.fullmatch(name)
    return {each.value: each for each in Kind if each.tiers.key}.get(found["kind"]) if found is not None else None


def is_of_this_build(name: str, kind: Kind) -> bool:
    """Whether the name of such a bundle says that it was built as it would be here."""
    return name.rpartition("@")[2] == provenance.build_of(kind)


def encode_object(parcel: Parcel, name: str) -> bytes | None:
    """The parcel's bytes, sealed for this name; None without a key to seal it. The same parcel has the same bytes."""
    import zstandard

    key = keyring.current().signing
    if key is None:
        return None
    content = b"".join(part for file in parcel.files for part in (file.content, file.record or b""))
    header = json.dumps(
        {
            "files": [[file.name, len(file.content), len(file.record or b"")] for file in parcel.files],
            "needs": [[kind.value, cache_key] for kind, cache_key in parcel.needs],
            "size": len(content),
            "key": parcel.key,
            "at": parcel.at,
        },
        sort_keys=True,
    ).encode()
    body = zstandard.ZstdCompressor(level=_LEVEL).compress(content)
    payload = b"".join((_SIZE.pack(len(header)), header, body))
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
    if isinstance(found, Refusal):
        return found
    try:
        return _unpacked(seal.payload_of(content), most)
    except _MALFORMED as error:
        return Refusal(Reason.UNKNOWN_FORMAT, f"it cannot be unpacked: {type(error).__name__}: {error}")


def listing(start: bytes) -> Listing | None:
    """What a parcel lists that begins so; None where that is no header, or a longer one."""
    try:
        header = _header(start)[0]
        return Listing(*_place_in(header), frozenset(str(name) for name, _, _ in header["files"]))
    except _MALFORMED:
        return None


def _header(payload: bytes) -> tuple[dict[str, Any], int]:
    """The header that it begins with, and where that ends. Raises one of _MALFORMED."""
    (size,) = _SIZE.unpack_from(payload) if len(payload) >= _SIZE.size else (_LARGEST_HEADER + 1,)
    if size > _LARGEST_HEADER:
        raise ValueError("its header is too large")
    end = _SIZE.size + size
    header = json.loads(payload[_SIZE.size : end])
    if not isinstance(header, dict):
        raise TypeError("its header is no object")
    return header, end


def _unpacked(payload: bytes, most: int) -> Parcel:
    """Raises one of _MALFORMED for what encode_object() does not make."""
    import zstandard

    header, end = _header(payload)
    body, stated = payload[end:], header["size"]
    if not 0 <= stated <= most:
        raise ValueError(f"it holds {units.write_size(stated)} once decompressed")
    try:
        if zstandard.get_frame_parameters(body).content_size != stated:
            raise ValueError("its header and its body state different sizes")
        content = zstandard.ZstdDecompressor().decompress(body, max_output_size=stated) if stated else b""
    except zstandard.ZstdError as error:
        raise ValueError(str(error)) from None
    kinds, files = {kind.value: kind for kind in Kind}, tuple(_cut(header["files"], content))
    if not files:
        raise ValueError("it is empty")
    # A kind of a later safecache's is none that is asked for here.
    needs = tuple((kinds[kind], str(key)) for kind, key in header["needs"] if kind in kinds)
    return Parcel(files, needs, *_place_in(header))


def _place_in(header: Mapping[str, Any]) -> tuple[str, str]:
    """The key that it states, and where its files lay."""
    at = str(header.get("at", ""))
    return str(header.get("key", "")), at if TRITON_FOLDERS.fullmatch(at) else ""


def _cut(listed: Iterable[tuple[str, int, int]], content: bytes) -> Iterator[File]:
    view, start = memoryview(content), 0
    for name, size, record in listed:
        if min(size, record) < 0 or start + size + record > len(view):
            raise ValueError("its files do not fit into it")
        end = start + size
        yield File(str(name), bytes(view[start:end]), bytes(view[end : end + record]) or None)
        start = end + record
