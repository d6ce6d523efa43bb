"""A bundle in transit, in a pack or in the remote: one frame, and a row that says what is in it.

    frame = a tar file of the bundle's files with their records, below inductor/, triton/ or vllm/ as in a cache;
            compressed by Zstandard (RFC 8878).
    row   = [kind, key, root, position, size of the frame, size once decompressed, digest of the frame, [[name of a
            file, size, digest], …]].

Whoever seals the row vouches for all of the frame: nothing is decompressed that does not have its digest, and no more
than it says. The same files and Zstandard library give the same bytes. Each file is verified once more by its own seal
or record, as if it were stored in a cache.
"""

from __future__ import annotations

import hashlib
import io
import re
import tarfile
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from safecache.places.refs import Ref
from safecache.ports import File
from safecache.reporting.kinds import PART, Kind
from safecache.store import manifests

__all__ = [
    "INDUCTOR",
    "MALFORMED",
    "TRITON",
    "VLLM",
    "Packed",
    "compress",
    "decompress",
    "is_placed",
    "name_bundle",
    "place_in_frame",
    "read_row",
    "tar_header",
    "tar_member",
]

INDUCTOR, TRITON, VLLM = "inductor", "triton", "vllm"
_BLOCK = tarfile.BLOCKSIZE
# The directories in a frame that have records, and what lies below vLLM's is named by.
_ROOT = re.compile(rf"{INDUCTOR}(/triton/\d{{1,4}})?|{TRITON}|{VLLM}(/{PART})*")
_KINDS = {kind.value: kind for kind in Kind if kind.tiers.key}
# What it takes to read bytes that compress() does not make.
MALFORMED = (
    *(ValueError, TypeError, AttributeError, KeyError, IndexError, ArithmeticError),
    *(RecursionError, MemoryError, EOFError, tarfile.TarError),
)


class Packed(NamedTuple):
    """Row of a bundle: ``ref`` has a directory in the frame as its root. Sizes and ``at``, the position, are in bytes.

    ``stored``, ``digest``: size and SHA-256 of the frame. ``size``: once decompressed. ``files``: the size and the
    SHA-256 of each file, by its name.
    """

    ref: Ref
    at: int
    stored: int
    size: int
    digest: str
    files: Mapping[str, tuple[int, str]]

    @property
    def name(self) -> str:
        """Name of the bundle: see name_bundle()."""
        return name_bundle(self.ref)

    @property
    def row(self) -> list[Any]:
        """Row as a list of read_row()'s arguments."""
        ref, files = self.ref, [[name, *about] for name, about in self.files.items()]
        return [ref.kind.value, ref.key, ref.root, self.at, self.stored, self.size, self.digest, files]


def name_bundle(ref: Ref) -> str:
    """Return the name of a bundle in messages and in a pack's manifest, unique within a pack."""
    return f"{ref.root}:{ref.kind.value}/{ref.key}"


def is_placed(ref: Ref) -> bool:
    """Tell whether a frame may hold ``ref``: its key is valid for its kind, and its root a directory of frames."""
    return ref.has_valid_key and _ROOT.fullmatch(ref.root) is not None


def place_in_frame(ref: Ref) -> Ref:
    """Return the ref in a frame for ``ref``, that of a bundle in a cache."""
    root = INDUCTOR if ref.kind.tiers.is_pulled else VLLM
    if ref.kind is Kind.KERNEL:
        root = f"{INDUCTOR}/{ref.triton_folder}" if ref.triton_folder else TRITON
    return ref._replace(root=root)


def compress(ref: Ref, files: Iterable[File], level: int) -> tuple[bytes, Packed]:
    """Return the frame of a bundle, at this Zstandard ``level``, and its row. ``ref``: must be is_placed()."""
    import zstandard

    # A list is published after the files that it names.
    kept = sorted(files, key=lambda file: (file.name.startswith(manifests.LIST), file.name))
    content = b"".join(tar_member(name, data) for name, data in _list_members(ref, kept).items())
    compressed = zstandard.ZstdCompressor(level=level).compress(content)
    digests = {file.name: (len(file.content), hashlib.sha256(file.content).hexdigest()) for file in kept}
    digest = hashlib.sha256(compressed).hexdigest()
    return compressed, Packed(ref, 0, len(compressed), len(content), digest, digests)


def _list_members(ref: Ref, files: Iterable[File]) -> dict[str, bytes]:
    members = {}
    for file in files:
        placed = ref.name_file(file.name)
        members[placed.path] = file.content
        if file.record is not None:
            members[manifests.record_path(placed)] = file.record
    return members


def tar_member(name: str, content: bytes) -> bytes:
    """Return a file as in a tar file: header, content and padding."""
    return tar_header(name, len(content)) + content + b"\0" * (-len(content) % _BLOCK)


def tar_header(name: str, size: int) -> bytes:
    """Return a tar header without times, owners and modes, so that the same files give the same bytes."""
    about = tarfile.TarInfo(name)
    about.size = size
    return about.tobuf(tarfile.PAX_FORMAT)


def read_row(kind: str, key: str, root: str, at: int, stored: int, size: int, digest: str, files: Any) -> Packed:
    """Parse the fields of a row. Raises one of MALFORMED for anything else, such as a later safecache's row."""
    found = _KINDS[kind]
    # INVARIANT: no path that is made of a row leads out of a cache.
    if not is_placed(Ref(found, key, root)):
        raise ValueError(f"{kind} {key} has no place in it")
    if min(at, stored, size) < 0:
        raise ValueError(f"{kind} {key} lies nowhere in it")
    named = {str(name): (int(length), str(each)) for name, length, each in files}
    return Packed(Ref(found, key, root), at, stored, size, digest, named)


def _decompress_frame(compressed: bytes, size: int) -> bytes:
    import zstandard

    try:
        if zstandard.get_frame_parameters(compressed).content_size != size:
            raise ValueError("its frame states another size")
        return zstandard.ZstdDecompressor().decompress(compressed, max_output_size=size)
    except zstandard.ZstdError as error:
        raise ValueError(str(error)) from None


def _untar_members(content: bytes) -> dict[str, bytes]:
    """Return the members by name: only files, and none twice. Raises one of MALFORMED."""
    found: dict[str, bytes] = {}
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as archive:
        for member in archive:
            reader = archive.extractfile(member) if member.isreg() else None
            if reader is None or member.name in found:
                raise ValueError(f"{member.name[:64]!r} is no file, or there twice")
            found[member.name] = reader.read()
    return found


def decompress(compressed: bytes, packed: Packed) -> tuple[File, ...]:
    """Return the files of a frame that match its row, not verified by their own seals. Else raises one of MALFORMED."""
    # INVARIANT: nothing is decompressed but what was sealed.
    if hashlib.sha256(compressed).hexdigest() != packed.digest:
        raise ValueError("it is not what was packed")
    members, ref = _untar_members(_decompress_frame(compressed, packed.size)), packed.ref
    files = []
    for name, (_, digest) in packed.files.items():
        file = ref.name_file(name)
        data = members.pop(file.path)
        if not ref.can_own(name) or hashlib.sha256(data).hexdigest() != digest:
            raise ValueError(f"{name[:64]!r} is not what was packed")
        files.append(File(name, data, members.pop(manifests.record_path(file), None)))
    if members:
        raise ValueError(f"{min(members)[:64]!r} belongs to another group")
    return tuple(files)
