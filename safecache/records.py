"""Sealed records: what is said of a file that carries no seal of its own, under its name, in the same cache.

They lie in ``<cache>/.safecache/records``. No torch and no Triton looks there, and a cache that is copied keeps them.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Mapping
from typing import Any

from safecache import config, directory_faults, events, keyring, rescue, seal, store
from safecache.keys import Key
from safecache.reasons import Count, Reason
from safecache.seal import Kind

__all__ = ["copy", "exists", "hashed_name", "path_of", "publish", "read", "sealed", "stored", "verify", "write"]

# The last: a link that was put there since.
_NONE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})
_RECORDS = os.path.join(".safecache", "records")


def write(path: str, root: str, kind: Kind, stated: Mapping[str, Any], key: Key, provenance: Mapping[str, str]) -> bool:
    """Seal what is ``stated`` of the file; False, and reported, if that cannot be written."""
    record = sealed(path, kind, stated, key, provenance)
    written = publish(path_of(path, root, kind), record, root, f"the record of {kind.noun} {path}", kind)
    if written:
        events.count(Count.CODE_SEALED)
    return written


def sealed(path: str, kind: Kind, stated: Mapping[str, Any], key: Key, provenance: Mapping[str, str]) -> bytes:
    """The record of what is ``stated`` of the file."""
    return seal.attach(
        json.dumps(stated).encode(), kind, _name(path, kind), key, provenance, config.current().namespace
    )


def publish(path: str, content: bytes, root: str, what: str, kind: Kind) -> bool:
    """Have ``content`` at ``path`` of the cache ``root``; False, and reported as ``what``, if it cannot be written."""
    try:
        store.publish(path, content, root)
    except OSError as error:
        if kind is not Kind.KERNEL and directory_faults.is_of_file_system(error) and rescue.replaced(error):
            return False  # which has been said
        text = f"{what} was not written: {error.strerror}."
        variable = "TRITON_CACHE_DIR" if kind is Kind.KERNEL else "TORCHINDUCTOR_CACHE_DIR"
        remedy = f"It will be made anew. Make room there, or let {variable} name a directory that can be written."
        events.report(Reason.UNWRITABLE, text, cause=f"{error.errno} {root}", remedy=remedy, error=error)
        return False
    return True


def copy(path: str, root: str, kind: Kind, destination: str) -> bool:
    """Have the file's record in another cache too, as it is: its signer can be revoked there. False if it has none.

    False also if it cannot be read, and, reported, if it cannot be written.
    """
    try:
        record = stored(path, root, kind)
    except directory_faults.Unreadable:
        return False
    if record is None:
        return False
    what = f"the record of {kind.noun} {path}"
    return publish(path_of(path, destination, kind), record, destination, what, kind)


def stored(path: str, root: str, kind: Kind) -> bytes | None:
    """The file's record in the cache ``root``, not verified; None if it has none.

    Raises directory_faults.Unreadable where there may be one and it cannot be read, however often it is tried.
    """
    place = path_of(path, root, kind)
    try:
        return store.read_entry(place)
    except store.UnusableEntry:
        return None  # as good as none: the file is then unsealed
    except OSError as error:
        if error.errno not in _NONE:
            raise directory_faults.Unreadable(error.errno, error.strerror, place) from error
        return None


def path_of(path: str, root: str, kind: Kind) -> str:
    """Where in the cache ``root`` the record of the file is, if it has one."""
    hashed = hashed_name(_name(path, kind))
    return os.path.join(root, _RECORDS, hashed[:2], hashed)


def exists(path: str, root: str, kind: Kind) -> bool:
    """Whether somebody has kept a file of that name; says nothing about what is in it."""
    return os.path.exists(path_of(path, root, kind))


def _name(path: str, kind: Kind) -> str:
    """What a file is called in its record. Triton calls the files of all its kernels alike, in a directory for each."""
    directory, name = os.path.split(path)
    return f"{os.path.basename(directory)}/{name}" if kind is Kind.KERNEL else name


def hashed_name(name: str) -> str:
    """What the record of a file of this name is called: of its directory and itself, for Triton's files."""
    return hashlib.sha256(name.encode()).hexdigest()


def read(path: str, root: str, kind: Kind) -> tuple[seal.Verdict, dict[str, Any]]:
    """What the seal of the file's record says, and if it holds, what is stated there of the file. Raises Unreadable."""
    return verify(stored(path, root, kind), path, kind)


def verify(record: bytes | None, path: str, kind: Kind) -> tuple[seal.Verdict, dict[str, Any]]:
    """As read(), of this record; None, for there is none, is that of an unsealed file."""
    record = record or b""
    verdict = seal.verify(record, kind, _name(path, kind), keyring.current().find, config.current().namespace)
    if verdict.reason is not None:
        return verdict, {}
    stated = _statement(record)
    return (verdict, stated) if stated else (verdict._replace(reason=Reason.UNKNOWN_FORMAT), {})


def _statement(record: bytes) -> dict[str, Any]:
    """What a record says whose seal holds; empty for what this version does not write, whoever sealed it."""
    try:
        stated = json.loads(seal.payload_of(record))
    except (ValueError, RecursionError):
        return {}
    return stated if isinstance(stated, dict) and isinstance(stated.get("sha256"), str) else {}
