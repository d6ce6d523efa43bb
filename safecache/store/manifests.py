"""Sealed records: statements about files that carry no seal of their own, stored in the same cache.

Each record is bound to the path of its file below the cache. A cache that is copied as a whole keeps its records, and a
file that replaces another has none. Inductor and Triton name a library after the hash of its source and of the command
that builds it, so that its path is bound to both.

A kernel's files need no record each: that of the list of their group states the digests of all.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

from safecache.fs import opening
from safecache.places import metadata
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
    "find_list",
    "find_sealed_name",
    "has_record_file",
    "hash_name",
    "make_record",
    "publish",
    "read",
    "read_unverified",
    "read_unverified_record",
    "read_unverified_records",
    "record_name",
    "record_path",
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
    """Seal what is ``stated`` of the file as its record. Return False, and report it, if that cannot be written.

    ``origin``: the provenance to seal, by default that of this process.
    """
    record = seal_record(file, stated, key, provenance.make_statement(file.kind) if origin is None else origin)
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
    """Return a record of what is ``stated`` of the file, sealed with ``key``."""
    own = record_name(file)
    return seal.attach(json.dumps(stated).encode(), file.kind, own, key, origin, config.current().namespace)


def make_record(file: CodeFile, content: bytes, also: Mapping[str, Any]) -> bytes | None:
    """Return the record that gate.attest_file() would write of ``content``, or None without a signing key."""
    key = keyring.current().signing
    stated = {"sha256": hashlib.sha256(content).hexdigest(), **also}
    return None if key is None else seal_record(file, stated, key, provenance.make_statement(file.kind))


def publish(path: str, content: bytes, root: str, what: str, kind: Kind) -> bool:
    """Write ``content`` to ``path`` in the cache ``root``. Return False, and report ``what``, if that fails."""
    try:
        entry_files.publish(path, content, root)
    except OSError as error:
        in_the_way = quarantine.find_obstacle(root)
        lasts = in_the_way is not None or directory_faults.is_of_file_system(error)
        if kind is not Kind.KERNEL and lasts and fallback.replace_if_failed(error):
            return False  # which has been said
        if in_the_way is not None:
            report_obstacle(root, what, f"{in_the_way} is no directory", error)
            return False
        variable = "TRITON_CACHE_DIR" if kind is Kind.KERNEL else "TORCHINDUCTOR_CACHE_DIR"
        report.fail_write(f"write {what}", error, "Other processes will rebuild it.", root, variable)
        return False
    return True


def report_obstacle(root: str, what: str, why: str, error: OSError) -> None:
    """Report once that something in the cache ``root`` prevents safecache from keeping ``what``, and ``why``."""
    remedy = "Each process rebuilds it. Help: remove the file in its place"
    cause = f"obstacle {root}"
    events.report(Reason.UNWRITABLE, f"cannot keep {what}", why=why, cause=cause, remedy=remedy, error=error)


def read_unverified_record(file: CodeFile) -> bytes | None:
    """Return the file's record, unverified; None if it has none.

    Raises directory_faults.Unreadable where there may be one and it cannot be read, even after retries.
    """
    place = record_path(file)
    try:
        return entry_files.read_unverified_entry(place, entry_files.RECORD)
    except opening.UnusableEntry:
        return None  # as good as none: the file is then unsealed
    except OSError as error:
        if error.errno not in _NONE:
            raise directory_faults.Unreadable(error.errno, error.strerror, place) from error
        return None


def record_path(file: CodeFile) -> str:
    """Return the path of the file's record in its cache, whether or not there is one."""
    return metadata.make_record_path(file.root, hash_name(record_name(file)))


def has_record_file(file: CodeFile) -> bool:
    """Tell whether a file exists at record_path(), whatever is in it."""
    return os.path.exists(record_path(file))


def record_name(file: CodeFile) -> str:
    """Return the name of a file in its record: for compiled code its path below its cache, else its own name.

    Without a root the name is the file's directory and name, as Inductor and Triton store their code. Code of another
    layout has the name that its builder gave it.
    """
    if file.name:
        return file.name
    directory, name = os.path.split(file.path)
    if file.kind.proof.name is SealedName.PATH and file.root:
        return os.path.relpath(file.path, file.root)
    has_folder = file.kind.proof.name in (SealedName.PATH, SealedName.FOLDER)
    return f"{os.path.basename(directory)}/{name}" if has_folder else name


def find_list(file: CodeFile) -> str | None:
    """Return the path of the list for the group of a kernel's file; for a name as in record_name(), the list's name.

    None for a file of another kind, for a list itself, and for a library, which Triton stores by itself. The list need
    not exist.
    """
    directory, name = os.path.split(file.path)
    stem, _, ending = name.rpartition(".")
    if file.kind is not Kind.KERNEL or not stem or ending == "so" or name.startswith(LIST):
        return None
    return os.path.join(directory, f"{LIST}{stem}.json")


def hash_name(name: str) -> str:
    """Return the file name of the record for ``name``, as record_name() gives it: the SHA-256."""
    return hashlib.sha256(os.fsencode(name)).hexdigest()


def read_unverified_records(file: CodeFile) -> Iterator[bytes | None]:
    """Yield the unverified records that may attest the file: its group's, if there is one, then its own.

    The last is None if the file has no record of its own. Raises as read_record_bytes() does.
    """
    listed = find_list(CodeFile(file.path, kind=file.kind))
    of_group = read_unverified_record(CodeFile(listed, file.root, file.kind)) if listed is not None else None
    if of_group is not None:
        yield of_group
    yield read_unverified_record(file)


def read(file: CodeFile) -> tuple[seal.Verdict, dict[str, Any]]:
    """Verify the file's record. Return the verdict on its seal and, if that holds, what it states. Raises Unreadable.

    The record of the file's group comes first; if that does not attest the file, its own decides.
    """
    for record in read_unverified_records(file):
        verdict, stated = verify(record, file)
        if verdict.reason is None:
            break
    return verdict, stated


def verify(record: bytes | None, file: CodeFile) -> tuple[seal.Verdict, dict[str, Any]]:
    """Verify this ``record`` of the file; otherwise like read(). None counts as a record without a seal."""
    record, own = record or b"", record_name(file)
    named = find_sealed_name(record, own, file.kind)
    verdict = seal.verify(record, file.kind, named, keyring.current().find, config.current().namespace)
    if verdict.reason is not None:
        return verdict, {}
    stated = read_unverified(record, own, file.kind)
    if not stated:
        return verdict._replace(reason=Reason.UNKNOWN_FORMAT if named == own else Reason.UNSEALED), {}
    return verdict, stated


def find_sealed_name(record: bytes, name: str, kind: Kind) -> str:
    """Return the name that a record of ``name`` must be sealed for: that file, or the list of its group."""
    listed = find_list(CodeFile(name, kind=kind))
    return listed if listed is not None and seal.stated_key(record) == listed else name


def read_unverified(record: bytes | None, name: str = "", kind: Kind = Kind.KERNEL) -> dict[str, Any]:
    """Return what a record states, whoever wrote it. Use it to object to a file, never to accept one.

    ``name``, ``kind``: the file, as record_name() calls it, where the record may be that of its group.
    """
    stated = _parse_unverified(record or b"")
    if find_sealed_name(record or b"", name, kind) == name:
        return stated
    files = stated.get("files")
    digest = files.get(os.path.basename(name)) if isinstance(files, dict) else None
    return {"sha256": digest} if isinstance(digest, str) else {}


def _parse_unverified(record: bytes) -> dict[str, Any]:
    """Return what a record states, unverified; empty for a format that this version does not write."""
    try:
        stated = json.loads(seal.strip_unverified(record))
    except (ValueError, RecursionError):
        return {}
    return stated if isinstance(stated, dict) and isinstance(stated.get("sha256"), str) else {}
