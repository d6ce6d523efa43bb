"""The file: a tar file of what lies in caches, compressed group by group, behind a manifest that is sealed.

    pack      = frame of the manifest | a frame for each group | frame of the end
    manifest  = manifest.json, an in-toto Statement; and manifest.seal, our seal of it
    group     = its files with their records, below inductor/, triton/ or vllm/ as in a cache
    end       = two blocks of zeros, as tar has them

The frames are Zstandard's (RFC 8878) and make, one after the other, one compressed tar file: `tar --zstd -xf` reads it.
The manifest states where each frame lies, its digest, its size once decompressed and the digests of the files in it:
nothing is decompressed, but for the manifest, that no trusted key has sealed. Positions are counted from the end of the
manifest's frame. The same groups, key and Zstandard library give the same bytes.

Each file is verified once more by its own seal or record, as if it lay in a cache.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import tarfile
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from safecache.errors import PackRefusedError
from safecache.files import opening
from safecache.places.refs import Ref
from safecache.ports import File
from safecache.reporting.kinds import PART, Kind, Reason
from safecache.reporting.report import Refusal
from safecache.settings import config, units
from safecache.signing import keyring, provenance, seal, trust
from safecache.store import manifests

__all__ = [
    "INDUCTOR",
    "TRITON",
    "VLLM",
    "Frame",
    "Pack",
    "Packed",
    "beginning",
    "end",
    "frame",
    "is_placed",
    "name_of",
    "opened",
    "refused",
]

INDUCTOR, TRITON, VLLM = "inductor", "triton", "vllm"
_STATEMENT = "https://in-toto.io/Statement/v1"
_PREDICATE = "urn:safecache:pack:1"
_MANIFEST, _SEAL = "manifest.json", "manifest.seal"
# Bytes of the manifest's frame, compressed or not; of what is read of it at once; and of what is decompressed at once,
# since a block of four bytes may stand for 128 KiB.
_LARGEST, _READ, _FED = 64 << 20, 256 << 10, 512
_LEVEL = 9
_BLOCK = tarfile.BLOCKSIZE
# The directories in a pack that have records, and what lies below vLLM's is named by.
_ROOT = re.compile(rf"{INDUCTOR}(/triton/\d{{1,4}})?|{TRITON}|{VLLM}(/{PART})*")
_KINDS = {kind.value: kind for kind in Kind if kind.tiers.key}
# What it takes to read bytes that beginning() and frame() do not make.
_MALFORMED = (
    *(ValueError, TypeError, AttributeError, KeyError, IndexError, ArithmeticError),
    *(RecursionError, MemoryError, EOFError, tarfile.TarError),
)
# Of a tar header: where it states the size, POSIX.1-1988.
_SIZE_FIELD = slice(124, 136)
_SIZE = re.compile(rb"[0-7]{11}\0")


class Packed(NamedTuple):
    """A group in a pack: the root of its ``ref`` is a directory in the pack. Sizes and the position are in bytes.

    ``stored``, ``digest``: the size and the SHA-256 of its frame; ``size``: once decompressed; ``files``: the size and
    the SHA-256 of each by its name.
    """

    ref: Ref
    at: int
    stored: int
    size: int
    digest: str
    files: Mapping[str, tuple[int, str]]

    @property
    def name(self) -> str:
        """What it is called to a person, and in a list of what is in the pack: no two have the same."""
        return name_of(self.ref)


class Frame(NamedTuple):
    """A group that is compressed, and what the manifest says of it, but for where it lies."""

    content: bytes
    packed: Packed


def name_of(ref: Ref) -> str:
    """See Packed.name."""
    return f"{ref.root}:{ref.kind.value}/{ref.key}"


def is_placed(ref: Ref) -> bool:
    """Whether a pack may hold it: the key is one of its kind's, and the root a directory of packs."""
    return ref.has_valid_key and _ROOT.fullmatch(ref.root) is not None


def frame(ref: Ref, files: Iterable[File]) -> Frame:
    """The group, compressed."""
    import zstandard

    kept = sorted(files)
    content = b"".join(_member(name, data) for name, data in _members(ref, kept).items())
    compressed = zstandard.ZstdCompressor(level=_LEVEL).compress(content)
    digests = {file.name: (len(file.content), hashlib.sha256(file.content).hexdigest()) for file in kept}
    digest = hashlib.sha256(compressed).hexdigest()
    return Frame(compressed, Packed(ref, 0, len(compressed), len(content), digest, digests))


def _members(ref: Ref, files: Iterable[File]) -> dict[str, bytes]:
    members = {}
    for file in files:
        placed = ref.file(file.name)
        members[placed.path] = file.content
        if file.record is not None:
            members[manifests.record_path(placed)] = file.record
    return members


def _member(name: str, content: bytes) -> bytes:
    return _header(name, len(content)) + content + b"\0" * (-len(content) % _BLOCK)


def _header(name: str, size: int) -> bytes:
    """It states no time, no owner and no mode but the usual: they would tell the same groups apart."""
    about = tarfile.TarInfo(name)
    about.size = size
    return about.tobuf(tarfile.PAX_FORMAT)


def beginning(groups: Iterable[Packed], said: Mapping[str, Any]) -> bytes:
    """The frame of the manifest of these groups, which follow it in this order, with what else is ``said`` in it.

    Raises KeyringError without a key to seal it, PackRefusedError where there are too many.
    """
    import zstandard

    listed, subjects, position = [], [], 0
    for each in groups:
        files = [[name, *about] for name, about in sorted(each.files.items())]
        listed.append(
            [each.ref.kind.value, each.ref.key, each.ref.root, position, each.stored, each.size, each.digest, files]
        )
        subjects.append({"name": each.name, "digest": {"sha256": each.digest}})
        position += each.stored
    predicate = {**said, "namespace": config.current().namespace, "body": position + len(end()), "groups": listed}
    statement = {"_type": _STATEMENT, "subject": subjects, "predicateType": _PREDICATE, "predicate": predicate}
    manifest = json.dumps(statement, sort_keys=True, indent=1).encode()
    stated = provenance.statement(Kind.PACK)
    sealed = seal.attach(manifest, Kind.PACK, _MANIFEST, keyring.sealing_key(), stated, config.current().namespace)
    content = _member(_MANIFEST, manifest) + _member(_SEAL, sealed[len(manifest) :])
    if len(content) > _LARGEST:
        raise PackRefusedError(f"a pack of {len(listed)} groups has too long a manifest; make several packs")
    return zstandard.ZstdCompressor(level=_LEVEL).compress(content)


def end() -> bytes:
    """The last frame."""
    import zstandard

    return zstandard.ZstdCompressor(level=_LEVEL).compress(b"\0" * 2 * _BLOCK)


class Pack:
    """A pack whose manifest is verified, in a file that stays open.

    ``digest``: the SHA-256 of its manifest, which names all that is in it.
    """

    def __init__(self, path: str, file: opening.OpenFile, digest: str, manifest: Mapping[str, Any], begin: int) -> None:
        self.path, self.digest, self.manifest = path, digest, manifest
        self._file, self._begin = file, begin
        self.groups = tuple(_packed(*row) for row in manifest["groups"])

    def read(self, packed: Packed) -> tuple[File, ...]:
        """The files of one of its groups, as the manifest names them, each not yet verified by itself.

        Raises PackRefusedError for what the manifest does not state, and OSError.
        """
        try:
            return _files(_decompressed(self._frame(packed), packed.size), packed)
        except _MALFORMED as error:
            raise refused(self.path, f"{packed.name} in it cannot be read ({type(error).__name__})") from error

    def check(self, packed: Packed) -> None:
        """Raises PackRefusedError if the frame of this group is not what the manifest states, and OSError."""
        self._frame(packed)

    def _frame(self, packed: Packed) -> bytes:
        content = self._file.read(self._begin + packed.at, packed.stored)
        if hashlib.sha256(content).hexdigest() != packed.digest:
            raise refused(self.path, f"{packed.name} in it is not what was packed")
        return content


def refused(path: str, why: str, reason: Reason = Reason.DAMAGED, remedy: str = "") -> PackRefusedError:
    """The error for a pack."""
    error = PackRefusedError(f"the pack {path} is not used: {why}.{f' {remedy}' if remedy else ''}")
    error.reason = reason.value
    return error


def opened(path: str) -> Pack:
    """The pack at ``path``. Raises PackRefusedError for what no trusted key has sealed as a pack, and OSError.

    Also for one that is cut short, or longer than what was made. What is in its groups is verified as they are read.
    """
    try:
        file = opening.OpenFile(path, opening.check_regular)
        content, begin = _first_frame(file)
        sealed = _untar_manifest(content)
    except opening.UnusableEntry as error:
        raise refused(path, str(error), error.reason) from error
    except _MALFORMED as error:
        raise refused(path, f"it does not begin as a pack ({error})", Reason.UNKNOWN_FORMAT) from error
    verdict = trust.examine(sealed, Kind.PACK, _MANIFEST, None)
    if isinstance(verdict, Refusal):
        raise refused(path, verdict.evidence, verdict.reason, verdict.remedy)
    try:
        manifest = seal.payload_of(sealed)
        predicate = _predicate(manifest)
        is_whole = begin + predicate["body"] == file.size
        pack = Pack(path, file, hashlib.sha256(manifest).hexdigest(), predicate, begin)
    except _MALFORMED as error:
        # A later safecache's, perhaps.
        raise refused(path, f"its manifest cannot be read ({error})", Reason.UNKNOWN_FORMAT) from error
    if not is_whole:
        raise refused(path, f"it has {units.write_size(file.size)}, which is not as much as was packed: fetch it again")
    return pack


def _first_frame(file: opening.OpenFile) -> tuple[bytes, int]:
    """What the first frame holds, no more than it states, and where it ends. Raises one of _MALFORMED, or OSError."""
    import zstandard

    at, left, found = 0, memoryview(file.read(0, _READ)), bytearray()
    try:
        stated: int = zstandard.get_frame_parameters(left).content_size
        if not 0 < stated <= _LARGEST:
            raise ValueError("its manifest states no size, or too large a one")
        decompressor = zstandard.ZstdDecompressor(max_window_size=_LARGEST).decompressobj()
        while not decompressor.eof:
            if not left and at < _LARGEST:
                left = memoryview(file.read(at, _READ))
            if not left:
                raise EOFError("it is cut short")
            found += decompressor.decompress(left[:_FED])
            at, left = at + len(left[:_FED]), left[_FED:]
            if len(found) > stated:
                raise ValueError("its manifest is longer than it states")
    except zstandard.ZstdError as error:
        raise ValueError(str(error)) from None
    if len(found) != stated:
        raise ValueError("its manifest is shorter than it states")
    return bytes(found), at - len(decompressor.unused_data)


def _untar_manifest(content: bytes) -> bytes:
    """The manifest with its seal, unverified: of two files with the very headers that _member() makes.

    Nothing vouches for these bytes yet, and a tar file may say many things (a sparse file of any size, headers of
    headers) before its first file. Raises ValueError.
    """
    found, at = b"", 0
    for name in (_MANIFEST, _SEAL):
        begin = at + _BLOCK
        header = content[at:begin]
        size = int(header[_SIZE_FIELD][:-1], 8) if _SIZE.fullmatch(header[_SIZE_FIELD]) else -1
        if not 0 <= size <= len(content) - begin or header != _header(name, size):
            raise ValueError(f"{name} is not where it belongs, or longer than what is there")
        found += content[begin : begin + size]
        at = begin + size + -size % _BLOCK
    if at != len(content):
        raise ValueError(f"there is something behind {_SEAL}")
    return found


def _predicate(manifest: bytes) -> Mapping[str, Any]:
    statement = json.loads(manifest)
    if (statement["_type"], statement["predicateType"]) != (_STATEMENT, _PREDICATE):
        raise ValueError("it is a statement about something else")
    predicate: Mapping[str, Any] = statement["predicate"]
    return predicate


def _packed(kind: str, key: str, root: str, at: int, stored: int, size: int, digest: str, files: Any) -> Packed:
    """Raises ValueError for what frame() does not make: a later safecache's manifest, or one of another program."""
    found = _KINDS.get(kind)
    if found is None or not is_placed(Ref(found, key, root)):
        raise ValueError(f"{kind} {key} has no place in it")
    if min(at, stored, size) < 0:
        raise ValueError(f"{kind} {key} lies nowhere in it")
    named = {str(name): (int(length), str(each)) for name, length, each in files}
    return Packed(Ref(found, key, root), at, stored, size, digest, named)


def _decompressed(compressed: bytes, size: int) -> bytes:
    import zstandard

    try:
        if zstandard.get_frame_parameters(compressed).content_size != size:
            raise ValueError("its frame states another size")
        return zstandard.ZstdDecompressor().decompress(compressed, max_output_size=size)
    except zstandard.ZstdError as error:
        raise ValueError(str(error)) from None


def _untarred(content: bytes) -> dict[str, bytes]:
    """The members, which are files, and of which no two have the same name. Raises one of _MALFORMED."""
    found: dict[str, bytes] = {}
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as archive:
        for member in archive:
            reader = archive.extractfile(member) if member.isreg() else None
            if reader is None or member.name in found:
                raise ValueError(f"{member.name[:64]!r} is no file, or there twice")
            found[member.name] = reader.read()
    return found


def _files(content: bytes, packed: Packed) -> tuple[File, ...]:
    """Raises one of _MALFORMED unless the members are those that the manifest lists, and their records."""
    members, ref = _untarred(content), packed.ref
    files = []
    for name, (_, digest) in packed.files.items():
        file = ref.file(name)
        data = members.pop(file.path)
        if not ref.owns(name) or hashlib.sha256(data).hexdigest() != digest:
            raise ValueError(f"{name[:64]!r} is not what was packed")
        files.append(File(name, data, members.pop(manifests.record_path(file), None)))
    if members:
        raise ValueError(f"{min(members)[:64]!r} belongs to another group")
    return tuple(files)
