"""The hashes of torch and Triton that enter every cache key, computed once per installation, not in each process.

Torch hashes its sources for that, 0.13 s, and Triton a library of 500 MB, 0.4 s. A sealed record in the cache keeps the
result, and the stat of each of those files, which any upgrade, edit or replacement changes.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from safecache.fs import opening
from safecache.places.layout import CodeFile
from safecache.reporting.kinds import Kind
from safecache.session import Part, inherit
from safecache.settings import config
from safecache.signing import keyring, provenance, seal
from safecache.store import entry_files, manifests

__all__ = ["Installation", "find_key"]

# Seconds. A file that changed more recently than this could change again within the same tick of its clock; and a file
# server's clock may differ from ours.
_SETTLED = 60.0

_keys: Part[dict[str, str]] = Part(dict, inherit)


class Installation(NamedTuple):
    """Files and version that a build key is a hash of.

    ``top``: the directory whose files count. ``also``: what else counts, such as a version. ``packages``: directly
    below ``top``, skip directories that are not packages (torch has 9,000 headers in those).
    """

    top: str
    also: str
    packages: bool


def find_key(name: str, installation: Installation, root: Callable[[], str], compute: Callable[[], str]) -> str:
    """Return the build key ``name``: what ``compute`` returns, or returned in another process with the same files.

    ``root``: returns the cache that keeps the key in a sealed record. Raises what ``root`` and ``compute`` raise.
    """
    if name not in _keys.now:
        _keys.now[name] = _find_key(name, installation, root, compute)
    return _keys.now[name]


def _find_key(name: str, installation: Installation, root: Callable[[], str], compute: Callable[[], str]) -> str:
    try:
        stamp, changed = _compute_stamp(installation)
    except OSError:  # as for files in an archive
        return compute()
    cache = root()
    # One per installation, or two that share a cache would replace each other's.
    own = f"{name} {hashlib.sha256(installation.top.encode()).hexdigest()}"
    found = _read_record(cache, own, stamp)
    if found is not None:
        return found
    value = compute()
    # A file that changes meanwhile gets another change time, so its stamp will never be this one again.
    if abs(time.time() - changed) > _SETTLED:
        with contextlib.suppress(OSError):  # the next process computes it too, as every process does in stock torch
            _write_record(cache, own, stamp, value)
    return value


def _compute_stamp(installation: Installation) -> tuple[str, float]:
    """A digest of each file's stat, and when the last of them changed, in seconds since the epoch. Raises OSError."""
    found = sorted(_iter_files(installation))
    changed = max((status[-1] for _, *status in found), default=0)
    stated = [installation.also, sys.implementation.cache_tag, found]
    return hashlib.sha256(json.dumps(stated).encode()).hexdigest(), changed / 1e9


def _iter_files(installation: Installation) -> Iterator[tuple[str, int, int, int, int, int]]:
    """Each file and its stat, also below symbolic links, which make up a development installation."""
    left, seen = [installation.top], set()
    while left:
        directory = left.pop()
        status = os.stat(directory)
        if (status.st_dev, status.st_ino) in seen:  # a cycle of links
            continue
        seen.add((status.st_dev, status.st_ino))
        packages = installation.packages and directory == installation.top
        with os.scandir(directory) as entries:
            for entry in entries:
                if not entry.is_dir():
                    status = entry.stat()
                    stamp = status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
                    yield entry.path.removeprefix(installation.top), *stamp
                elif entry.name != "__pycache__" and not (
                    packages and not os.path.exists(os.path.join(entry.path, "__init__.py"))
                ):
                    left.append(entry.path)


def _read_record(root: str, own: str, stamp: str) -> str | None:
    """The key recorded for files with this stamp; None without a record that a trusted signing key has sealed."""
    try:
        record = entry_files.read_unverified_entry(
            manifests.record_path(CodeFile(own, root, Kind.MEMO)), entry_files.RECORD
        )
    except (OSError, opening.UnusableEntry):
        return None
    if seal.verify(record, Kind.MEMO, own, keyring.current().find, config.current().namespace).reason is not None:
        return None  # its replacement is sealed with this process's signing key
    with contextlib.suppress(ValueError, RecursionError):  # a record of another version of safecache
        stated = json.loads(seal.strip_unverified(record))
        if isinstance(stated, dict) and stated.get("stamp") == stamp and isinstance(stated.get("key"), str):
            return str(stated["key"])
    return None


def _write_record(root: str, own: str, stamp: str, value: str) -> None:
    signing = keyring.current().signing
    if signing is None:
        return
    content = json.dumps({"stamp": stamp, "key": value}).encode()
    sealed = seal.attach(
        content, Kind.MEMO, own, signing, provenance.make_statement(Kind.MEMO), config.current().namespace
    )
    entry_files.publish(manifests.record_path(CodeFile(own, root, Kind.MEMO)), sealed, root)
