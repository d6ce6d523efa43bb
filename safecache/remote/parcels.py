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
import os
import re
import struct
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from safecache.files import folders, opening
from safecache.places import layout
from safecache.reporting.kinds import ENTRIES, Kind, Reason
from safecache.settings import config, units
from safecache.signing import keyring, provenance, seal, trust
from safecache.signing.trust import Refusal
from safecache.store import entry_files, manifests

__all__ = [
    "MOST_NEEDED",
    "START",
    "Bundle",
    "File",
    "Listing",
    "Parcel",
    "collected",
    "is_of_this_build",
    "kind_of",
    "listing",
    "name_of",
    "objection",
    "opened",
    "packed",
    "unpacked",
]

_SIZE = struct.Struct("<I")
_LARGEST_HEADER = 1 << 20
# Of what is needed next, as many as may be fetched ahead.
MOST_NEEDED = 512
_PLAIN = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*")
_LONGEST_NAME = 200
# No plain key begins so.
_HASHED = "~"
# Kinds whose files carry no seal of their own, but have a record each.
_RECORDED = (Kind.KERNEL, Kind.NATIVE_CODE, Kind.AUTOTUNING, Kind.TABLE)
# Kinds whose files have a seal that does not say which they are: their parcel's does.
_UNNAMED = (Kind.AOT_FUNCTION,)
# Bytes of a parcel's start that most headers fit into: see listing().
START = 4096
# Where Triton's cache may lie in Inductor's: torch has one for each device.
_AT = re.compile(r"triton/\d{1,4}|")
_LEVEL = 3
# What it takes to read bytes that packed() does not make.
_MALFORMED = (ValueError, TypeError, KeyError, RecursionError)


class File(NamedTuple):
    """``name``: below the directory of its bundle. ``record``: None if it has none."""

    name: str
    content: bytes
    record: bytes | None


class Parcel(NamedTuple):
    """``needs``: the bundles that a program which uses this one asks for next, each by kind and cache key.

    ``key``: its own. ``at``: see Bundle.at; both are "" if it does not say.
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


class Bundle(NamedTuple):
    """What is sent and received as one: the files in ``directory``, or ``only`` that one, with its marker.

    ``root``: the cache that keeps their records.
    """

    kind: Kind
    key: str
    directory: str
    root: str
    only: str = ""

    def path(self, name: str) -> str:
        """The path of the bundle's file of this name."""
        return os.path.join(self.directory, name)

    @property
    def at(self) -> str:
        """Of a kernel: which of Triton's caches in Inductor's it lies in, such as triton/0; "" if it lies in none."""
        within = config.within_cache(self.root)[1] if self.kind is Kind.KERNEL else ""
        return within if _AT.fullmatch(within) else ""

    def owns(self, name: str) -> bool:
        """Whether a file of this name may belong to it."""
        if self.only:
            return name in (self.only, self.only + layout.LOADED)
        if self.kind is Kind.TABLE:
            return name == layout.VLLM_TABLE or layout.VLLM_ARTIFACT.fullmatch(name) is not None
        is_plain = os.path.basename(name) == name and not name.startswith(".") and "\0" not in name
        return bool(name) and is_plain and not layout.is_temporary(name)

    def names(self) -> list[str]:
        """The names of its files, a list of them, or a table, last. Raises OSError."""
        files = [self.only, self.only + layout.LOADED] if self.only else folders.names_in(self.directory)
        return sorted(filter(self.owns, files), key=lambda name: (name.startswith(manifests.LIST), name))


def name_of(kind: Kind, key: str) -> str:
    """What the remote calls the bundle of this key, as it is built here: with another torch, it is another one."""
    readable = _PLAIN.fullmatch(key) is not None and len(key) <= _LONGEST_NAME
    stated = key if readable else f"{_HASHED}{hashlib.sha256(key.encode()).hexdigest()}"
    return f"{kind.value}/{stated}@{provenance.build_of(kind)}"


def kind_of(name: str) -> Kind | None:
    """The kind in such a name, of whatever build; None for any other name. What the key is, its parcel says."""
    kind, _, rest = name.partition("/")
    key, _, build = rest.rpartition("@")
    return {each.value: each for each in Kind}.get(kind) if key and build else None


def is_of_this_build(name: str, kind: Kind) -> bool:
    """Whether the name of such a bundle says that it was built as it would be here."""
    return name.rpartition("@")[2] == provenance.build_of(kind)


def collected(bundle: Bundle) -> tuple[File, ...]:
    """The bundle's files as they lie in the cache, with their records: those alone that verify. Raises OSError.

    None of what there is only a part of: a list of files that are all there is what readers of a kernel begin with, and
    vLLM ends if an artifact of its table does not load.
    """
    files = []
    for name in bundle.names():
        path = bundle.path(name)
        try:
            content = entry_files.read(path, entry_files.largest(bundle.kind))
            record = manifests.stored(path, bundle.root, bundle.kind) if bundle.kind in _RECORDED else None
        except (FileNotFoundError, opening.UnusableEntry):
            continue
        files.append(File(name, content, record))
    found = {file.name: file for file, refusal in _judged(files, bundle) if refusal is None}
    kept = tuple(file for file in found.values() if _has_all(file, found.keys(), bundle))
    is_part = bundle.kind is Kind.KERNEL and not any(_is_list(file) or file.name.endswith(".so") for file in kept)
    return () if is_part or _lacking_in(kept, bundle) else kept


def _is_list(file: File) -> bool:
    return file.name.startswith(manifests.LIST)


def _has_all(file: File, names: Collection[str], bundle: Bundle) -> bool:
    """Whether all are there that a list's verified record states; True of a file that is no list."""
    if bundle.kind is not Kind.KERNEL or not _is_list(file):
        return True
    return set(names).issuperset(_stated_by(file, bundle))


def _stated_by(file: File, bundle: Bundle) -> Mapping[str, object]:
    """The digests, by name, that a list's record states; none if it states none."""
    listed = manifests.verify(file.record, bundle.path(file.name), bundle.kind, bundle.root)[1].get("files")
    return listed if isinstance(listed, dict) else {}


def packed(parcel: Parcel, name: str) -> bytes | None:
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


def opened(content: bytes, name: str, bundle: Bundle, most: int) -> Parcel | Refusal:
    """What a parcel holds that came under this name for the bundle, verified; or why none of it is used.

    ``most``: bytes that it may hold once decompressed. Never raises for any content.
    """
    found = unpacked(content, name, most)
    return found if isinstance(found, Refusal) else objection(found, bundle) or found


def unpacked(content: bytes, name: str, most: int) -> Parcel | Refusal:
    """As opened(), before its files are verified: for who has to ask it which bundle it is."""
    found = trust.examine(content, Kind.PARCEL, name, None)
    if isinstance(found, Refusal):
        return found
    try:
        return _unpacked(seal.payload_of(content), most)
    except _MALFORMED as error:
        return Refusal(Reason.UNKNOWN_FORMAT, f"it cannot be unpacked: {type(error).__name__}: {error}")


def objection(parcel: Parcel, bundle: Bundle) -> Refusal | None:
    """Why what unpacked() returned is not used as this bundle; None if every file of it verifies."""
    for file, refusal in _judged(parcel.files, bundle):
        if refusal is not None:
            return refusal._replace(evidence=f"of {file.name[:64]!r} in it: {refusal.evidence}")
    lacking = _stated(parcel.files, bundle).keys() - {file.name for file in parcel.files}
    lacking |= _lacking_in(parcel.files, bundle)
    # Its reader would ask for it again and again, and who compiles it would find the name taken.
    return Refusal(Reason.DAMAGED, f"it lacks {min(lacking)[:64]!r}, which its list names") if lacking else None


def _lacking_in(files: Iterable[File], bundle: Bundle) -> set[str]:
    """The names of artifacts, or of the table of them, that belong to this bundle and are not among its files."""
    if bundle.kind is not Kind.TABLE:
        return set()
    found = {file.name: file.content for file in files}
    listed = layout.VLLM_ARTIFACT.findall(found.get(layout.VLLM_TABLE, b"").decode(errors="replace"))
    return {layout.VLLM_TABLE, *listed} - found.keys()


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
    """Raises one of _MALFORMED for what packed() does not make."""
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
    return str(header.get("key", "")), at if _AT.fullmatch(at) else ""


def _cut(listed: Iterable[tuple[str, int, int]], content: bytes) -> Iterator[File]:
    view, start = memoryview(content), 0
    for name, size, record in listed:
        if min(size, record) < 0 or start + size + record > len(view):
            raise ValueError("its files do not fit into it")
        end = start + size
        yield File(str(name), bytes(view[start:end]), bytes(view[end : end + record]) or None)
        start = end + record


def _judged(files: Iterable[File], bundle: Bundle) -> Iterator[tuple[File, Refusal | None]]:
    """Each file with what is against using it as the bundle's."""
    files = list(files)
    stated = _stated(files, bundle)
    for file in files:
        if not bundle.owns(file.name) or (file.record is not None and bundle.kind not in _RECORDED):
            yield file, Refusal(Reason.UNSAFE_NAME, "it is no file of this bundle, or has a record that it should not")
        elif bundle.kind in _RECORDED:
            yield file, _objection(file, bundle, stated)
        else:
            key = "" if bundle.kind in _UNNAMED else bundle.key
            found = trust.examine(file.content, bundle.kind, key, None)
            is_named = bundle.kind not in ENTRIES or file.name == layout.entry_name(file.content)
            objection = None if is_named else Refusal(Reason.DAMAGED, "its name is not the hash of its content")
            yield file, found if isinstance(found, Refusal) else objection


def _stated(files: Iterable[File], bundle: Bundle) -> Mapping[str, object]:
    """The digests, by name, that the verified records of lists state of a bundle's other files."""
    found: dict[str, object] = {}
    for file in files:
        if bundle.kind is Kind.KERNEL and _is_list(file) and _objection(file, bundle, {}) is None:
            found |= _stated_by(file, bundle)
    return found


def _objection(file: File, bundle: Bundle, listed: Mapping[str, object]) -> Refusal | None:
    digest = hashlib.sha256(_attested(file.content, bundle.kind)).hexdigest()
    if file.record is None and listed.get(file.name) == digest:
        return None
    verdict, stated = manifests.verify(file.record, bundle.path(file.name), bundle.kind, bundle.root)
    if verdict.reason in trust.UNATTESTED:
        return trust.unattested(verdict, keyring.current(), "")
    if verdict.reason is not None:
        return Refusal(verdict.reason, trust.evidence(verdict))
    if stated["sha256"] != digest:
        return Refusal(Reason.DAMAGED, "its digest is not the one that was sealed")
    return trust.foreign(verdict, bundle.kind)


def _attested(content: bytes, kind: Kind) -> bytes:
    """What the record of such a file is of: autotuning results in one spelling, whoever wrote them."""
    if kind is not Kind.AUTOTUNING:
        return content
    try:
        return json.dumps(json.loads(content), sort_keys=True).encode()
    except (ValueError, RecursionError):
        return content
