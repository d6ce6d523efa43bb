"""Where torch keeps entries below TORCHINDUCTOR_CACHE_DIR, and how it names them.

Source: ``_get_tmp_dir_for_key`` of AOTAutogradCache and FxGraphCache, and ``sha256_hash`` in
torch/_inductor/codecache.py; the same in torch 2.11 to 2.15.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Iterator
from typing import NamedTuple

from safecache import store
from safecache.seal import Kind

__all__ = ["Location", "cache_root", "entry_name", "libraries", "locate", "walk"]

# <root>/aotautograd/<key>/<entry> and <root>/fxgraph/<two letters>/<key>/<entry>
_AOT_FOLDER = "aotautograd"
_FX_FOLDER = "fxgraph"


class Location(NamedTuple):
    """An entry file, and what its place says it is."""

    path: str
    kind: Kind
    cache_key: str


def entry_name(content: bytes) -> str:
    """The file name that torch gives an entry of this content."""
    return base64.b32encode(hashlib.sha256(content).digest())[:51].decode().lower()


def cache_root(path: str) -> str:
    """The cache directory that the entry at ``path`` lies in; its own directory if it lies in none."""
    directory = os.path.dirname(path)
    above = os.path.dirname(os.path.dirname(path))
    if os.path.basename(above) == _AOT_FOLDER:
        return os.path.dirname(above)
    above = os.path.dirname(above)
    return os.path.dirname(above) if os.path.basename(above) == _FX_FOLDER else directory


def locate(path: str) -> Location | None:
    """What the place of the file at ``path`` says it is; None if it does not lie where torch keeps entries."""
    path = os.path.abspath(path)
    directory, above = os.path.dirname(path), os.path.dirname(os.path.dirname(path))
    if os.path.basename(above) == _AOT_FOLDER:
        return Location(path, Kind.AOT_ENTRY, os.path.basename(directory))
    if os.path.basename(os.path.dirname(above)) == _FX_FOLDER:
        return Location(path, Kind.FX_ENTRY, os.path.basename(directory))
    return None


def walk(root: str) -> Iterator[Location]:
    """Every entry below the cache directory ``root``, whatever kind of file it is. Raises OSError."""
    for kind, parents in (
        (Kind.AOT_ENTRY, [os.path.join(root, _AOT_FOLDER)]),
        (Kind.FX_ENTRY, list(_subdirectories(os.path.join(root, _FX_FOLDER)))),
    ):
        for parent in parents:
            for directory in _subdirectories(parent):
                for name in store.list_entries(directory):
                    yield Location(os.path.join(directory, name), kind, os.path.basename(directory))


def libraries(root: str) -> Iterator[str]:
    """Every file of compiled code that Inductor has put below the cache directory ``root``. Raises OSError."""
    for directory in _subdirectories(root):
        for name in store.list_entries(directory):
            if name.endswith((".so", ".o")):
                yield os.path.join(directory, name)


def _subdirectories(directory: str) -> Iterator[str]:
    if not os.path.isdir(directory):
        return
    with os.scandir(directory) as found:
        for item in sorted(found, key=lambda item: item.name):
            if item.is_dir(follow_symlinks=False):
                yield item.path
