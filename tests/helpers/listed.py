"""Entries and kernels as they lie in a cache, for the tests of the commands that tell what is there."""

from __future__ import annotations

import json
from pathlib import Path

from helpers.caches import HOUR, key
from safecache.places import layout
from safecache.reporting.kinds import Kind, Reason
from safecache.signing import keyring, provenance, seal
from safecache.store import entry_files

BUILD = {**provenance.make_statement(Kind.AOT_ENTRY), "gpu": "sm_90"}
GRAPH = b"kernel = 'triton_poi_fused_add_0'; other = 'triton_red_fused_sum_1'"


def entry(cache, name, kind=Kind.AOT_ENTRY, payload=b"payload", by=None, build=BUILD, age=2 * HOUR):
    """A sealed entry, as a save leaves it."""
    own = key("a" if kind is Kind.AOT_ENTRY else "f", name)
    content = seal.attach(payload, kind, own, by or keyring.current().signing, build)
    folder = cache.root / "aotautograd" if kind is Kind.AOT_ENTRY else cache.root / "fxgraph" / own[1:3]
    path = cache.file(folder / own / layout.name_entry(content), age, content)
    cache.use(path.parent, age)
    return path


def kernel(cache, name, metadata, age=2 * HOUR):
    """What Triton writes for a kernel; ``metadata`` may be anything."""
    files = cache.kernel(name, age)
    folder = files[0].parent
    text = metadata if isinstance(metadata, bytes) else json.dumps(metadata).encode()
    cache.file(folder / "k.json", age, text)
    return folder


def aside(path, root, reason=Reason.OTHER_BUILD):
    moved = entry_files.quarantine(str(path), str(root), reason)
    assert moved is not None
    return Path(moved)


def place(cache):
    return cache.root / ".safecache" / "quarantine"
