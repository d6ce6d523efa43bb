"""Pack file: a tar file of groups from caches, compressed group by group, behind a sealed manifest.

    pack      = frame of the manifest | a frame for each group, see store.wire | frame of the end;
    manifest  = manifest.json, an in-toto Statement, with the row of each group; and manifest.seal, our seal of it;
    end       = two blocks of zeros, as tar has them.

The frames make, one after the other, one compressed tar file: `tar --zstd -xf` reads it. Nothing is decompressed, but
for the manifest, that no trusted key has sealed. Positions are counted from the end of the manifest's frame. The same
groups, key and Zstandard library give the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import re
import tarfile
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from safecache.errors import PackRefusedError
from safecache.fs import opening
from safecache.ports import File
from safecache.reporting.kinds import Kind, Reason
from safecache.reporting.report import Refusal
from safecache.settings import config, units
from safecache.signing import keyring, provenance, seal, trust
from safecache.store import wire
from safecache.store.wire import MALFORMED, Packed

__all__ = [
    "LEVEL",
    "Pack",
    "make_error",
    "make_first_frame",
    "make_last_frame",
    "open_pack",
]

_STATEMENT = "https://in-toto.io/Statement/v1"
_PREDICATE = "urn:safecache:pack:1"
_MANIFEST, _SEAL = "manifest.json", "manifest.seal"
# Bytes of the manifest's frame, compressed or not; of what is read of it at once; and of what is decompressed at once,
# since a block of four bytes may stand for 128 KiB.
_LARGEST, _READ, _FED = 64 << 20, 256 << 10, 512
# Of compression: a pack is made once, and fetched often.
LEVEL = 9
_BLOCK = tarfile.BLOCKSIZE
# Of a tar header: where it states the size, POSIX.1-1988.
_SIZE_FIELD = slice(124, 136)
_SIZE = re.compile(rb"[0-7]{11}\0")


def make_first_frame(groups: Iterable[Packed], said: Mapping[str, Any]) -> bytes:
    """Return the frame of the sealed manifest of ``groups``, whose frames follow it in this order.

    ``said``: further fields of the manifest. Raises KeyringError without a key to seal it, PackRefusedError for too
    many groups.
    """
    import zstandard

    listed, subjects, position = [], [], 0
    for each in groups:
        listed.append(each._replace(at=position).row)
        subjects.append({"name": each.name, "digest": {"sha256": each.digest}})
        position += each.stored
    predicate = {
        **said,
        "namespace": config.current().namespace,
        "body": position + len(make_last_frame()),
        "groups": listed,
    }
    statement = {"_type": _STATEMENT, "subject": subjects, "predicateType": _PREDICATE, "predicate": predicate}
    manifest = json.dumps(statement, sort_keys=True, indent=1).encode()
    stated = provenance.make_statement(Kind.PACK)
    sealed = seal.attach(manifest, Kind.PACK, _MANIFEST, keyring.sealing_key(), stated, config.current().namespace)
    content = wire.tar_member(_MANIFEST, manifest) + wire.tar_member(_SEAL, sealed[len(manifest) :])
    if len(content) > _LARGEST:
        raise PackRefusedError(f"a pack of {len(listed)} groups has too long a manifest; make several packs")
    return zstandard.ZstdCompressor(level=LEVEL).compress(content)


def make_last_frame() -> bytes:
    """Return the last frame of a pack, which ends its tar file."""
    import zstandard

    return zstandard.ZstdCompressor(level=LEVEL).compress(b"\0" * 2 * _BLOCK)


class Pack:
    """A pack whose manifest is verified, in a file that stays open.

    ``digest``: the SHA-256 of its manifest, which names all that is in it.
    """

    def __init__(self, path: str, file: opening.OpenFile, digest: str, manifest: Mapping[str, Any], begin: int) -> None:
        self.path, self.digest, self.manifest = path, digest, manifest
        self._file, self._begin = file, begin
        self.groups = tuple(wire.read_row(*row) for row in manifest["groups"])
        self.by_key = defaultdict[tuple[Kind, str], list[Packed]](list)
        for group in self.groups:
            self.by_key[group.ref.kind, group.ref.key].append(group)

    def read(self, packed: Packed) -> tuple[File, ...]:
        """Return the files of one of its groups, as the manifest names them, each not yet verified by itself.

        Raises PackRefusedError for what the manifest does not state, and OSError.
        """
        try:
            return wire.decompress(self._read_frame(packed), packed)
        except MALFORMED as error:
            raise make_error(self.path, f"{packed.name} in it cannot be read ({type(error).__name__})") from error

    def check(self, packed: Packed) -> None:
        """Raise PackRefusedError if the frame of this group is not what the manifest states. Raises OSError."""
        self._read_frame(packed)

    def _read_frame(self, packed: Packed) -> bytes:
        content = self._file.read(self._begin + packed.at, packed.stored)
        if hashlib.sha256(content).hexdigest() != packed.digest:
            raise make_error(self.path, f"{packed.name} in it is not what was packed")
        return content


def make_error(path: str, why: str, reason: Reason = Reason.DAMAGED, remedy: str = "") -> PackRefusedError:
    """Return the error for a pack that is not used."""
    error = PackRefusedError(f"cannot use pack {path}: {why}.{f' {remedy}' if remedy else ''}")
    error.reason, error.why, error.remedy, error.pack = reason.value, why, remedy, path
    return error


def open_pack(path: str) -> Pack:
    """Open the pack at ``path`` and verify its manifest. Raises PackRefusedError and OSError.

    PackRefusedError: no trusted key has sealed it as a pack, or it is shorter or longer than it was made. Its groups
    are verified when they are read.
    """
    try:
        file = opening.OpenFile(path, opening.check_regular)
        content, begin = _read_unverified_frame(file)
        sealed = _untar_unverified(content)
    except opening.UnusableEntry as error:
        raise make_error(path, str(error), error.reason) from error
    except MALFORMED as error:
        raise make_error(path, f"it does not begin as a pack ({error})", Reason.UNKNOWN_FORMAT) from error
    verdict = trust.examine(sealed, Kind.PACK, _MANIFEST, None)
    if isinstance(verdict, Refusal):
        raise make_error(path, verdict.evidence, verdict.reason, verdict.remedy)
    try:
        manifest = seal.strip_unverified(sealed)
        statement = json.loads(manifest)
        if (statement["_type"], statement["predicateType"]) != (_STATEMENT, _PREDICATE):
            raise ValueError("it is a statement about something else")
        predicate: Mapping[str, Any] = statement["predicate"]
        is_whole = begin + predicate["body"] == file.size
        pack = Pack(path, file, hashlib.sha256(manifest).hexdigest(), predicate, begin)
    except MALFORMED as error:
        # A later safecache's, perhaps.
        raise make_error(path, f"its manifest cannot be read ({error})", Reason.UNKNOWN_FORMAT) from error
    if not is_whole:
        raise make_error(
            path, f"it has {units.write_size(file.size)}, which is not as much as was packed: fetch it again"
        )
    return pack


def _read_unverified_frame(file: opening.OpenFile) -> tuple[bytes, int]:
    """Return what the first frame holds, as much as it states, and its end. Raises one of MALFORMED, or OSError."""
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


def _untar_unverified(content: bytes) -> bytes:
    """Return the manifest with its seal, unverified: two files with the headers that wire.tar_member() makes.

    Nothing vouches for these bytes yet. A tar file may contain many things before its first file, such as a sparse file
    of any size or headers of headers. Raises ValueError.
    """
    found, at = b"", 0
    for name in (_MANIFEST, _SEAL):
        begin = at + _BLOCK
        header = content[at:begin]
        size = int(header[_SIZE_FIELD][:-1], 8) if _SIZE.fullmatch(header[_SIZE_FIELD]) else -1
        if not 0 <= size <= len(content) - begin or header != wire.tar_header(name, size):
            raise ValueError(f"{name} is not where it belongs, or longer than what is there")
        found += content[begin : begin + size]
        at = begin + size + -size % _BLOCK
    if at != len(content):
        raise ValueError(f"there is something behind {_SEAL}")
    return found
