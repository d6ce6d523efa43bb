"""Files of code that carry no seal of their own, and what vouches for them before they run.

That is the process that made them, or a record: the digest of the file, sealed under its name.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from safecache import (
    binding,
    config,
    disposal,
    events,
    exposure,
    files,
    filesystem,
    keyring,
    mounts,
    ownership,
    records,
    sealed_copy,
    store,
    trust,
)
from safecache.directory_faults import Unreadable
from safecache.errors import EntryRefusedError
from safecache.reasons import Count, Reason
from safecache.seal import Kind
from safecache.trust import Refusal

__all__ = [
    "admit_build",
    "admit_code",
    "admit_fresh",
    "adopt",
    "expect",
    "is_expected",
    "is_known",
    "is_known_digest",
    "is_private",
    "judge",
    "keep",
    "not_loaded",
    "objection",
    "out_of_reach",
    "record_of",
    "states",
    "states_record",
]

# From here on a file that nobody else can write to is not read again, if the kernel says that it is the one that was
# sealed, and not written since. (Others could write in the very tick of the clock in which it was sealed.)
# Inductor's libraries can have 2 MB with their debug information: 24 ms of each warm start of a small transformer.
_LARGE = 1 << 20
_UNVOUCHED = {
    Reason.UNSEALED: "there is no sealed record of it, as when stock torch built it",
    Reason.UNKNOWN_KEY: "its record is sealed by a key that this process does not trust",
}

# What this process has generated, built or verified: digests by path.
_known: dict[str, set[bytes]] = {}
# And what the kernel said of the files that were verified: they are loaded more than once.
_judged: dict[str, list[int]] = {}


def expect(path: str, content: bytes) -> None:
    """Vouch for this content at ``path``, in this process."""
    _known.setdefault(path, set()).add(hashlib.sha256(content).digest())


def is_known(path: str, content: bytes) -> bool:
    """Whether this process has vouched for this content there."""
    return is_known_digest(path, hashlib.sha256(content).digest())


def is_known_digest(path: str, digest: bytes) -> bool:
    """As is_known(), of content with this SHA-256."""
    return digest in _known.get(path, ())


def is_expected(path: str) -> bool:
    """Whether this process has vouched for any content there."""
    return path in _known


def is_private(path: str) -> bool:
    """Whether it is enough here that nobody else could have written the file, and nobody could."""
    # Without a key nothing can be sealed: not even what a compile worker of ours has just built.
    enough = config.current().trust == "private" or keyring.current().signing is None
    return enough and ownership.why_not_private(path) is None


def out_of_reach(path: str, content: bytes) -> str:
    """``path`` if nobody else can replace what lies there between a check and its use; else the name of a copy."""
    return path if ownership.why_not_private(path) is None else sealed_copy.make(os.path.basename(path), content)


def keep(
    path: str,
    root: str,
    kind: Kind = Kind.NATIVE_CODE,
    content: bytes | None = None,
    also: Mapping[str, Any] = MappingProxyType({}),
) -> bool:
    """Vouch for the file that this process has just made at ``path``, and for it in the cache ``root`` from now on.

    ``content``: what it is about to write there. Other processes find the record then before they find the file.
    ``also``: what else to state of it. False, and reported, if its record cannot be written.
    """
    exposure.check(root)
    stamp: list[int] | None = None
    if content is None:
        stamp = filesystem.identity(os.lstat(path))
        digest = _digest(path)
    else:
        digest = hashlib.sha256(content).digest()
    _known.setdefault(path, set()).add(digest)
    key = keyring.current().signing
    if key is None:
        return True
    stated = {"sha256": digest.hex(), "stamp": stamp, **also}
    return records.write(path, root, kind, stated, key, binding.statement(kind))


def record_of(path: str, content: bytes, kind: Kind, also: Mapping[str, Any]) -> bytes | None:
    """The record that keep() would write of ``content``, for another cache; None without a key to seal it."""
    key = keyring.current().signing
    if key is None:
        return None
    stated = {"sha256": hashlib.sha256(content).hexdigest(), "stamp": None, **also}
    return records.sealed(path, kind, stated, key, binding.statement(kind))


def states(path: str, root: str, kind: Kind, content: bytes) -> bool:
    """Whether this process or a sealed record says that this is the content of ``path``, or nobody else wrote there.

    Raises Unreadable if its record cannot be read.
    """
    if is_known(path, content):
        return True
    try:
        record = records.stored(path, root, kind)
    except Unreadable:
        if is_private(path):
            return True
        raise
    return states_record(record, path, kind, content)


def states_record(record: bytes | None, path: str, kind: Kind, content: bytes) -> bool:
    """As states(), of this record of the file."""
    verdict, stated = records.verify(record, path, kind)
    if verdict.reason is None and trust.foreign(verdict, kind) is None:
        return bool(stated["sha256"] == hashlib.sha256(content).hexdigest())
    return is_private(path)


def adopt(path: str, root: str, kind: Kind) -> bool:
    """Vouch, on the user's word, for compiled code that nobody else could have written; False if it is done already.

    Raises EntryRefusedError, OSError and UnusableEntry.
    """
    if judge(path, root, kind) is None:
        return False
    objection = ownership.why_not_private(path)
    if objection is not None:
        raise EntryRefusedError(f"not private: {objection}")
    keep(path, root, kind)
    return True


def admit_build(path: str, root: str, kind: Kind = Kind.NATIVE_CODE) -> bool:
    """See to it that what lies at ``path``, if anything, is vouched for: moved away otherwise, to be made anew.

    Returns whether anything lies there then.

    Raises EntryRefusedError in strict mode, and in every mode where it cannot be moved away. Raises Unreadable where
    its record cannot be read, and then it stays.
    """
    try:
        disposal.settled(
            lambda: objection(path, root, kind), lambda refusal: disposal.discard(refusal, kind, path, root)
        )
        return os.path.lexists(path)  # also what is replaced each time it is judged
    except OSError as error:
        if isinstance(error, Unreadable):
            raise
        return not isinstance(error, FileNotFoundError)  # whoever must read it fails as in stock


def admit_code(path: str, root: str, kind: Kind = Kind.NATIVE_CODE) -> tuple[str, bytes | None]:
    """Where to load the code at ``path`` from, and its bytes if that is a copy, out of the reach of others.

    Raises EntryRefusedError if nothing vouches for it; OSError if it cannot be read, and others could change that, or
    if its record cannot.
    """
    try:
        refusal = objection(path, root, kind)
    except OSError as error:
        if isinstance(error, Unreadable) or ownership.why_not_private(os.path.dirname(path)) is not None:
            raise
        return path, None  # fails as in stock
    if refusal is not None:
        raise not_loaded(refusal, kind, path)
    # A copy in memory would get round a noexec mount.
    if ownership.why_not_private(path) is None or mounts.forbids_execution(path):
        return path, None
    content = files.read_regular(path, store.check_regular, flags=os.O_NOFOLLOW)
    if not is_known(path, content):
        raise not_loaded(Refusal(Reason.DAMAGED, "it was replaced since it was verified"), kind, path)
    return out_of_reach(path, content), content


def not_loaded(refusal: Refusal, kind: Kind, path: str) -> EntryRefusedError:
    """Counted, but not reported: the error says it, in every mode."""
    events.count(refusal.reason)
    return EntryRefusedError(f"safecache: {kind.noun} {path} is not loaded: {refusal.evidence}.")


def admit_fresh(path: str, root: str, kind: Kind) -> str:
    """Where to load from what a worker of this process has just made: nobody else could write there, or a record is.

    Raises EntryRefusedError.
    """
    return path if ownership.why_not_private(path) is None else admit_code(path, root, kind)[0]


def objection(path: str, root: str, kind: Kind = Kind.NATIVE_CODE) -> Refusal | None:
    """None if what lies at ``path`` is a file, and something vouches for it. Raises OSError."""
    try:
        return judge(path, root, kind)
    except store.UnusableEntry as unusable:
        return disposal.of_unusable(unusable)


def judge(path: str, root: str, kind: Kind = Kind.NATIVE_CODE, *, whole: bool = False) -> Refusal | None:
    """None if something vouches for the file. Raises OSError and UnusableEntry.

    ``whole``: a large one too is read, whatever the kernel says of it: a disk may have damaged it since.
    """
    status = filesystem.retried(lambda: filesystem.lstat(path), filesystem.READING)
    exposure.check(root)
    store.check_regular(status)
    if _judged.get(path) == filesystem.identity(status):
        return None
    # What this process knows needs no record; a large file may not even have to be read.
    known = status.st_size < _LARGE and path in _known and _digest(path) in _known[path]
    refusal = None if known else _judge_by_record(path, root, kind, status, whole=whole)
    if refusal is not None:
        return refusal._replace(found=status)
    _judged[path] = filesystem.identity(status)
    return None


def _judge_by_record(path: str, root: str, kind: Kind, status: os.stat_result, *, whole: bool) -> Refusal | None:
    try:
        verdict, stated = records.read(path, root, kind)
    except Unreadable:
        if _digest(path) in _known.get(path, ()) or is_private(path):
            return None
        raise
    foreign = trust.foreign(verdict, kind) if verdict.reason is None else None
    is_known = not whole and status.st_size >= _LARGE and stated.get("stamp") == filesystem.identity(status)
    if is_known and ownership.why_not_private(path) is None:
        return foreign
    digest = _digest(path)
    if digest in _known.get(path, ()):
        return None
    if verdict.reason is None and digest.hex() == stated["sha256"]:
        refusal = foreign
    elif is_private(path):
        refusal = None
    elif verdict.reason is None:
        refusal = Refusal(Reason.DAMAGED, "its digest is not the one that was sealed")
    else:
        refusal = Refusal(verdict.reason, _UNVOUCHED.get(verdict.reason) or trust.evidence(verdict))
    if refusal is None:
        events.count(Count.CODE_VERIFIED)
        _known.setdefault(path, set()).add(digest)
    return refusal


def _digest(path: str) -> bytes:
    return files.digest_regular(path, store.check_regular, flags=os.O_NOFOLLOW)
