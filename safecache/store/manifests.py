"""Sealed records: what is said of a file that carries no seal of its own, under its name, in the same cache.

Each is bound to the path of its file below the cache: so a cache that is copied as a whole keeps them, and a file that
is put in the place of another one has none. Inductor and Triton name a library after the hash of its source and of the
command that builds it, so that its path is bound to both.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Mapping
from typing import Any

from safecache.files import opening
from safecache.places import ours
from safecache.reporting import events
from safecache.reporting.kinds import Count, Kind, Reason
from safecache.settings import config
from safecache.signing import keyring, seal
from safecache.signing.keys import Key
from safecache.store import entry_files, quarantine
from safecache.tiers import directory_faults, fallback

__all__ = [
    "copy",
    "exists",
    "hashed_name",
    "name_of",
    "path_of",
    "publish",
    "read",
    "report_obstacle",
    "sealed",
    "stored",
    "unverified",
    "verify",
    "write",
]

# The last: a link that was put there since.
_NONE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})


def write(
    path: str,
    root: str,
    kind: Kind,
    stated: Mapping[str, Any],
    key: Key,
    provenance: Mapping[str, str],
    *,
    name: str = "",
) -> bool:
    """Seal what is ``stated`` of the file; False, and reported, if that cannot be written. ``name``: see name_of()."""
    record = sealed(path, kind, stated, key, provenance, root, name=name)
    place = path_of(path, root, kind, name=name)
    written = publish(place, record, root, f"the record of {kind.noun} {path}", kind)
    if written:
        events.count(Count.CODE_SEALED)
    return written


def sealed(
    path: str,
    kind: Kind,
    stated: Mapping[str, Any],
    key: Key,
    provenance: Mapping[str, str],
    root: str = "",
    *,
    name: str = "",
) -> bytes:
    """The record of what is ``stated`` of the file."""
    own = name or name_of(path, kind, root)
    return seal.attach(json.dumps(stated).encode(), kind, own, key, provenance, config.current().namespace)


def publish(path: str, content: bytes, root: str, what: str, kind: Kind) -> bool:
    """Have ``content`` at ``path`` of the cache ``root``; False, and reported as ``what``, if it cannot be written."""
    try:
        entry_files.publish(path, content, root)
    except OSError as error:
        in_the_way = quarantine.obstacle(root)
        lasts = in_the_way is not None or directory_faults.is_of_file_system(error)
        if kind is not Kind.KERNEL and lasts and fallback.replaced(error):
            return False  # which has been said
        if in_the_way is not None:
            report_obstacle(root, f"{what} was not written: {in_the_way} is no directory", error)
            return False
        text = f"{what} was not written: {error.strerror}."
        variable = "TRITON_CACHE_DIR" if kind is Kind.KERNEL else "TORCHINDUCTOR_CACHE_DIR"
        remedy = f"It will be made anew. Make room there, or let {variable} name a directory that can be written."
        events.report(Reason.UNWRITABLE, text, cause=f"{error.errno} {root}", remedy=remedy, error=error)
        return False
    return True


def report_obstacle(root: str, text: str, error: OSError) -> None:
    """Say once that something is in the way of all that safecache keeps, or moves away, in the cache ``root``."""
    remedy = "It is made anew by each process; remove what is in the way."
    events.report(Reason.UNWRITABLE, f"{text}.", cause=f"obstacle {root}", remedy=remedy, error=error)


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


def stored(path: str, root: str, kind: Kind, *, name: str = "") -> bytes | None:
    """The file's record in the cache ``root``, not verified; None if it has none.

    Raises directory_faults.Unreadable where there may be one and it cannot be read, however often it is tried.
    """
    place = path_of(path, root, kind, name=name)
    try:
        return entry_files.read_entry(place, entry_files.RECORD)
    except opening.UnusableEntry:
        return None  # as good as none: the file is then unsealed
    except OSError as error:
        if error.errno not in _NONE:
            raise directory_faults.Unreadable(error.errno, error.strerror, place) from error
        return None


def path_of(path: str, root: str, kind: Kind, *, name: str = "") -> str:
    """Where in the cache ``root`` the record of the file is, if it has one."""
    return ours.record(root, hashed_name(name or name_of(path, kind, root)))


def exists(path: str, root: str, kind: Kind) -> bool:
    """Whether somebody has kept a file of that name; says nothing about what is in it."""
    return os.path.exists(path_of(path, root, kind))


def name_of(path: str, kind: Kind, root: str = "") -> str:
    """What a file is called in its record: compiled code by its path below the cache ``root``, as others by their name.

    Without a root that is its directory and name, as where Inductor and Triton keep theirs. Code of another layout gets
    its name from the one who builds it.
    """
    directory, name = os.path.split(path)
    if kind in (Kind.NATIVE_CODE, Kind.TABLE) and root:
        return os.path.relpath(path, root)
    return f"{os.path.basename(directory)}/{name}" if kind in (Kind.KERNEL, Kind.NATIVE_CODE) else name


def hashed_name(name: str) -> str:
    """What the record of a file is called that name_of() calls so."""
    return hashlib.sha256(os.fsencode(name)).hexdigest()


def read(path: str, root: str, kind: Kind) -> tuple[seal.Verdict, dict[str, Any]]:
    """What the seal of the file's record says, and if it holds, what is stated there of the file. Raises Unreadable."""
    return verify(stored(path, root, kind), path, kind, root)


def verify(
    record: bytes | None, path: str, kind: Kind, root: str = "", *, name: str = ""
) -> tuple[seal.Verdict, dict[str, Any]]:
    """As read(), of this record; None, for there is none, is that of an unsealed file."""
    record, own = record or b"", name or name_of(path, kind, root)
    verdict = seal.verify(record, kind, own, keyring.current().find, config.current().namespace)
    if verdict.reason is not None:
        return verdict, {}
    stated = _statement(record)
    return (verdict, stated) if stated else (verdict._replace(reason=Reason.UNKNOWN_FORMAT), {})


def unverified(record: bytes | None) -> dict[str, Any]:
    """What a record says, whoever wrote it: enough to object to something, and never to use it."""
    return _statement(record or b"")


def _statement(record: bytes) -> dict[str, Any]:
    """What a record says whose seal holds; empty for what this version does not write, whoever sealed it."""
    try:
        stated = json.loads(seal.payload_of(record))
    except (ValueError, RecursionError):
        return {}
    return stated if isinstance(stated, dict) and isinstance(stated.get("sha256"), str) else {}
