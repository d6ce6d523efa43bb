"""Sealed records: what is said of a file that carries no seal of its own, under its name, in the same cache.

Each is bound to the path of its file below the cache: so a cache that is copied as a whole keeps them, and a file that
is put in the place of another one has none. Inductor and Triton name a library after the hash of its source and of the
command that builds it, so that its path is bound to both.

A kernel's files need no record each: that of the list of their group states the digests of all.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

from safecache.files import opening
from safecache.places import ours
from safecache.places.layout import CodeFile
from safecache.reporting import events, report
from safecache.reporting.kinds import Count, Kind, Reason, SealedName
from safecache.settings import config
from safecache.signing import keyring, provenance, seal
from safecache.signing.keys import Key
from safecache.store import entry_files, quarantine
from safecache.tiers import directory_faults, fallback

__all__ = [
    "LIST",
    "exists",
    "hashed_name",
    "list_of",
    "named_in",
    "publish",
    "read",
    "read_record_bytes",
    "read_unverified",
    "record_name",
    "record_of",
    "record_path",
    "records",
    "report_obstacle",
    "seal_record",
    "verify",
    "write",
]

# What the name of the list of a kernel's files begins with, in Triton's cache; the rest is that of its metadata.
LIST = "__grp__"

# The last: a link that was put there since.
_NONE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})


def write(
    file: CodeFile,
    stated: Mapping[str, Any],
    key: Key,
    origin: Mapping[str, str] | None = None,
) -> bool:
    """Seal what is ``stated`` of the file; False, and reported, if that cannot be written. ``origin``: if not here."""
    record = seal_record(file, stated, key, provenance.statement(file.kind) if origin is None else origin)
    place = record_path(file)
    written = publish(place, record, file.root, f"the record of {file.kind.noun} {file.path}", file.kind)
    if written:
        events.count(Count.CODE_SEALED)
    return written


def seal_record(
    file: CodeFile,
    stated: Mapping[str, Any],
    key: Key,
    origin: Mapping[str, str],
) -> bytes:
    """The record of what is ``stated`` of the file."""
    own = record_name(file)
    return seal.attach(json.dumps(stated).encode(), file.kind, own, key, origin, config.current().namespace)


def record_of(file: CodeFile, content: bytes, also: Mapping[str, Any]) -> bytes | None:
    """The record that gate.attest_file() would write of ``content``, for another cache; None without a signing key."""
    key = keyring.current().signing
    stated = {"sha256": hashlib.sha256(content).hexdigest(), **also}
    return None if key is None else seal_record(file, stated, key, provenance.statement(file.kind))


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
        variable = "TRITON_CACHE_DIR" if kind is Kind.KERNEL else "TORCHINDUCTOR_CACHE_DIR"
        report.fail_write(f"write {what}", error, "Other processes will rebuild it.", root, variable)
        return False
    return True


def report_obstacle(root: str, text: str, error: OSError) -> None:
    """Say once that something is in the way of all that safecache keeps, or moves away, in the cache ``root``."""
    remedy = "It is made anew by each process; remove what is in the way."
    events.report(Reason.UNWRITABLE, f"{text}.", cause=f"obstacle {root}", remedy=remedy, error=error)


def read_record_bytes(file: CodeFile) -> bytes | None:
    """The file's record, not verified; None if it has none.

    Raises directory_faults.Unreadable where there may be one and it cannot be read, however often it is tried.
    """
    place = record_path(file)
    try:
        return entry_files.read_entry(place, entry_files.RECORD)
    except opening.UnusableEntry:
        return None  # as good as none: the file is then unsealed
    except OSError as error:
        if error.errno not in _NONE:
            raise directory_faults.Unreadable(error.errno, error.strerror, place) from error
        return None


def record_path(file: CodeFile) -> str:
    """Where in its cache the record of the file is, if it has one."""
    return ours.record(file.root, hashed_name(record_name(file)))


def exists(file: CodeFile) -> bool:
    """Whether somebody has kept a file of that name; says nothing about what is in it."""
    return os.path.exists(record_path(file))


def record_name(file: CodeFile) -> str:
    """What a file is called in its record: compiled code by its path below its cache, as others by their name.

    Without a root that is its directory and name, as where Inductor and Triton keep theirs. Code of another layout gets
    its name from the one who builds it.
    """
    if file.name:
        return file.name
    directory, name = os.path.split(file.path)
    if file.kind.proof.name is SealedName.PATH and file.root:
        return os.path.relpath(file.path, file.root)
    has_folder = file.kind.proof.name in (SealedName.PATH, SealedName.FOLDER)
    return f"{os.path.basename(directory)}/{name}" if has_folder else name


def list_of(file: CodeFile) -> str | None:
    """The path, or the name as in record_name(), of the list of the group that a kernel's file is in, if it is in one.

    None for a list itself, and for what Triton keeps by itself.
    """
    directory, name = os.path.split(file.path)
    stem, _, ending = name.rpartition(".")
    if file.kind is not Kind.KERNEL or not stem or ending == "so" or name.startswith(LIST):
        return None
    return os.path.join(directory, f"{LIST}{stem}.json")


def hashed_name(name: str) -> str:
    """What the record of a file is called that record_name() calls so."""
    return hashlib.sha256(os.fsencode(name)).hexdigest()


def records(file: CodeFile) -> Iterator[bytes | None]:
    """Those in its cache that may attest the file: its group's if there is one, then its own; not verified.

    None: it has none of its own. Raises as read_record_bytes().
    """
    listed = list_of(CodeFile(file.path, kind=file.kind))
    of_group = read_record_bytes(CodeFile(listed, file.root, file.kind)) if listed is not None else None
    if of_group is not None:
        yield of_group
    yield read_record_bytes(file)


def read(file: CodeFile) -> tuple[seal.Verdict, dict[str, Any]]:
    """What the seal of the file's record says, and if it holds, what is stated there of the file. Raises Unreadable.

    That is the record of its group, unless that does not attest it, whatever it holds.
    """
    for record in records(file):
        verdict, stated = verify(record, file)
        if verdict.reason is None:
            break
    return verdict, stated


def verify(record: bytes | None, file: CodeFile) -> tuple[seal.Verdict, dict[str, Any]]:
    """As read(), of this record; None, for there is none, is that of an unsealed file."""
    record, own = record or b"", record_name(file)
    named = named_in(record, own, file.kind)
    verdict = seal.verify(record, file.kind, named, keyring.current().find, config.current().namespace)
    if verdict.reason is not None:
        return verdict, {}
    stated = read_unverified(record, own, file.kind)
    if not stated:
        return verdict._replace(reason=Reason.UNKNOWN_FORMAT if named == own else Reason.UNSEALED), {}
    return verdict, stated


def named_in(record: bytes, name: str, kind: Kind) -> str:
    """What the record of a file of this record_name() is to be sealed for: that file, or the list of its group."""
    listed = list_of(CodeFile(name, kind=kind))
    return listed if listed is not None and seal.stated_key(record) == listed else name


def read_unverified(record: bytes | None, name: str = "", kind: Kind = Kind.KERNEL) -> dict[str, Any]:
    """What a record says, whoever wrote it: enough to object to something, and never to use it.

    ``name``: of which file of this kind, as record_name() calls it, where the record may be that of its group.
    """
    stated = _statement(record or b"")
    if named_in(record or b"", name, kind) == name:
        return stated
    files = stated.get("files")
    digest = files.get(os.path.basename(name)) if isinstance(files, dict) else None
    return {"sha256": digest} if isinstance(digest, str) else {}


def _statement(record: bytes) -> dict[str, Any]:
    """What a record says whose seal holds; empty for what this version does not write, whoever sealed it."""
    try:
        stated = json.loads(seal.payload_of(record))
    except (ValueError, RecursionError):
        return {}
    return stated if isinstance(stated, dict) and isinstance(stated.get("sha256"), str) else {}
