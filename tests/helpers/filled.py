"""A cache with a bundle of each kind that travels, sealed or recorded as what made it would."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from pathlib import Path

from helpers.caches import key
from safecache.places import layout
from safecache.places.layout import CodeFile
from safecache.places.refs import Ref
from safecache.reporting.kinds import Kind
from safecache.signing import keyring, provenance, seal
from safecache.store import manifests

GRAPH = key("f", "graph")
JOB = "job:train/7"
KERNEL = base64.b32encode(hashlib.sha256(b"kernel").digest()).decode().rstrip("=")
LIBRARY = key("c", "library")
FUNCTION = hashlib.sha256(b"function").hexdigest()
# Of an AOTAutograd entry and an FX entry, a library, a kernel, a result of autotuning, a profile and a package.
BUNDLES = 7


def fill(root: Path) -> Path:
    """Put one of each there; returns ``root``."""
    root = Path(os.path.realpath(root))
    # As pickle writes the key of a graph.
    entry(root, Kind.AOT_ENTRY, key("a", "graph"), b"\x8c\x34" + GRAPH.encode())
    entry(root, Kind.FX_ENTRY, GRAPH, b"a graph")
    recorded(root, root / LIBRARY[1:3] / f"{LIBRARY}.so", Kind.NATIVE_CODE, b"a library")
    kernel(root / "triton" / "1")
    result = b'{"num_warps": 4}'
    recorded(root, root / "ab" / f"{key('c', 'tuned')}.best_config", Kind.AUTOTUNING, result)
    sealed(Path(Ref(Kind.PGO_STATE, JOB, str(root)).path), Kind.PGO_STATE, JOB, b"a profile")
    sealed(root / "dynamo" / FUNCTION / "entry", Kind.DYNAMO_PACKAGE, FUNCTION, b"a package")
    return root


def write(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def sealed(path: Path, kind: Kind, cache_key: str, payload: bytes) -> Path:
    signing = keyring.current().signing
    return write(path, seal.attach(payload, kind, cache_key, signing, provenance.make_statement(kind)))


def entry(root: Path, kind: Kind, cache_key: str, payload: bytes) -> Path:
    content = seal.attach(payload, kind, cache_key, keyring.current().signing, provenance.make_statement(kind))
    return write(Path(Ref(kind, cache_key, str(root)).path, layout.name_entry(content)), content)


def recorded(root: Path, path: Path, kind: Kind, content: bytes, **stated: object) -> Path:
    said = {"sha256": hashlib.sha256(content).hexdigest(), **stated}
    signing = keyring.current().signing
    assert manifests.write(CodeFile(str(path), str(root), kind), said, signing, provenance.make_statement(kind))
    return write(path, content)


def kernel(cache: Path, name: str = KERNEL, code: bytes = b"a cubin") -> Path:
    """A group in Triton's cache ``cache``; the record of its list states what is in the others."""
    files = {"k.json": b"{}", "k.cubin": code}
    for file, content in files.items():
        recorded(cache, cache / name / file, Kind.KERNEL, content)
    digests = {file: hashlib.sha256(content).hexdigest() for file, content in files.items()}
    listing = json.dumps({"child_paths": {file: str(cache / name / file) for file in files}}).encode()
    recorded(cache, cache / name / "__grp__k.json", Kind.KERNEL, listing, files=digests)
    return cache / name


def contents(root: Path) -> dict[str, bytes]:
    """All files there by their paths, without what is safecache's own but records."""
    found = {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}
    return {name: content for name, content in found.items() if ".safecache" not in name or "/records/" in name}
