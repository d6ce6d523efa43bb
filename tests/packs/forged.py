"""Packs as an attacker, or a signer who errs, would make them: frame by frame."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile

import zstandard

from safecache.packs import archive
from safecache.reporting.kinds import Kind
from safecache.signing import keyring, provenance, seal


def frames(content: bytes) -> list[bytes]:
    """The frames that a pack is made of."""
    found = []
    while content:
        found.append(first_frame(content))
        content = content[len(found[-1]) :]
    return found


def first_frame(content: bytes) -> bytes:
    """That of the manifest."""
    decompressor = zstandard.ZstdDecompressor().decompressobj()
    decompressor.decompress(content)
    return content[: len(content) - len(decompressor.unused_data)]


def compress(content: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(content)


def tar(*members: tuple[object, bytes]) -> bytes:
    """A tar file without its end: each member is a name or a TarInfo, and its content."""
    parts = []
    for member, content in members:
        about = member if isinstance(member, tarfile.TarInfo) else tarfile.TarInfo(member)
        about.size = len(content)
        parts.append(about.tobuf(tarfile.PAX_FORMAT) + content + b"\0" * (-len(content) % 512))
    return b"".join(parts)


def members(frame: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(zstandard.ZstdDecompressor().decompress(frame, 1 << 24))) as found:
        return {member.name: found.extractfile(member).read() for member in found}


def statement(content: bytes) -> dict:
    return json.loads(members(frames(content)[0])["manifest.json"])


def manifest(stated: dict, *, key=None, kind=Kind.PACK, name="manifest.json", namespace="default", cut=0) -> bytes:
    """The frame of such a manifest; ``cut``: so many of its bytes are moved to the seal's file."""
    text = json.dumps(stated, sort_keys=True, indent=1).encode()
    key = key or keyring.current().signing
    sealed = seal.attach(text, kind, name, key, provenance.make_statement(Kind.PACK), namespace)
    end = len(text) - cut
    return compress(tar(("manifest.json", sealed[:end]), ("manifest.seal", sealed[end:])))


def with_groups(groups: list[tuple[str, str, str, bytes, dict[str, bytes]]], **changes) -> bytes:
    """A pack with a good seal, of groups: kind, key, root, tar content, and the files that the manifest names."""
    rows, body = [], b""
    for kind, key, root, content, files in groups:
        frame = compress(content)
        named = [[name, len(data), hashlib.sha256(data).hexdigest()] for name, data in files.items()]
        rows.append([kind, key, root, len(body), len(frame), len(content), hashlib.sha256(frame).hexdigest(), named])
        body += frame
    predicate = {"groups": rows, "body": len(body) + len(archive.make_last_frame()), "namespace": "default"} | changes
    stated = {"_type": archive._STATEMENT, "predicateType": archive._PREDICATE, "subject": [], "predicate": predicate}
    return manifest(stated) + body + archive.make_last_frame()
