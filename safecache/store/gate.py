"""Gate for code that carries no seal: a file runs only if this process made it or a sealed record attests it.

A record is the digest of the file, sealed under its name. A refused file is quarantined, and so recompiled, unless
another writer has replaced it meanwhile.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any

from safecache.errors import EntryRefusedError
from safecache.fs import filesystem, mounts, opening, ownership, private_directory
from safecache.places.layout import CodeFile
from safecache.ports import Admitted, tell
from safecache.reporting import events, report
from safecache.reporting.kinds import Count, Kind, Reason
from safecache.reporting.report import Refusal
from safecache.settings import config
from safecache.signing import keyring, trust
from safecache.store import attestations, entry_files, manifests
from safecache.store.quarantine import find_obstacle, is_unchanged
from safecache.tiers import directory_faults
from safecache.tiers.directory_faults import Immovable, Unreadable, Unsettled

__all__ = [
    "accept_or_quarantine",
    "attest_file",
    "digest_file",
    "is_attested",
    "judge_content",
    "judge_file",
    "make_private_path",
    "quarantine_unattested",
    "verify_load_path",
]

# How often to judge a file that is replaced each time.
_MOST_REPLACED = 3
_UNATTESTED = {
    Reason.UNSEALED: "there is no sealed record of it, as when stock torch built it",
    Reason.UNKNOWN_KEY: "its record is sealed by a key that this process does not trust",
}


def attest_file(
    file: CodeFile,
    content: bytes | None = None,
    also: Mapping[str, Any] = MappingProxyType({}),
    *,
    digest: bytes | None = None,
    made_at: str = "",
) -> bool:
    """Attest the file that this process has just made: for itself, and for others by a record in its cache.

    ``content``: what is about to be written there; or give its SHA-256 ``digest``, or ``made_at``, the path where it is
    so far. Other processes then find the record before the file. ``also``: what else to state. Return False, and report
    it, if the record cannot be written. Raises OSError if the file cannot be read.
    """

    def find_lack(stated: Mapping[str, Any]) -> Refusal | None:
        return None if stated.items() >= also.items() else Refusal(Reason.OUTDATED, "its record states less")

    if digest is None:
        digest = digest_file(made_at or file.path) if content is None else hashlib.sha256(content).digest()
    directory_faults.check(file.root)
    attestations.attest_in_process(file.path, digest=digest)
    ring = keyring.current()
    if keyring.has_stopped():
        return True  # without a record, as stock torch's: the next process that observes takes it too
    if ring.signing is None:
        with suppress(Unreadable):
            if (
                _judge_records(
                    manifests.read_unverified_records(file), file, digest, is_private=False, objection=find_lack
                )
                is None
            ):
                return True  # by a record that outlives this process
    return manifests.write(file, {"sha256": digest.hex(), **also}, ring.attesting)


_Objection = Callable[[Mapping[str, Any]], Refusal | None]


def judge_content(
    file: CodeFile,
    digest: bytes,
    records: Iterable[bytes | None] | None = None,
    *,
    is_private: bool | None = None,
    objection: _Objection = lambda _: None,
) -> Refusal | None:
    """Judge code by its SHA-256 ``digest``: return None if it may be used as the file, else why not.

    A record by a trusted signing key decides, within what it is bound to. ``records``: those to judge by; by default
    those in the file's cache, unless this process knows the content. ``is_private``: whether the user trusts the file
    as private, by default as its owner, modes and the settings say. It counts only if no trusted record exists and no
    other contradicts. ``objection``: returns why what a record states is refused. Raises Unreadable if a record in the
    cache cannot be read.
    """
    if records is None and attestations.is_known(file.path, digest=digest):
        return None
    if records is not None:
        return _judge_records(records, file, digest, is_private=is_private, objection=objection)
    refusal = _judge_records(
        manifests.read_unverified_records(file), file, digest, is_private=is_private, objection=objection
    )
    return None if refusal is None or _observe(refusal, file, digest) else refusal


def _observe(refusal: Refusal, file: CodeFile, digest: bytes) -> bool:
    """Tell what trust.is_observed() does; then take that content there as if this process had made it."""
    is_observed = trust.is_observed(refusal, file.kind, file.path)
    if is_observed:
        attestations.attest_in_process(file.path, digest=digest)
    return is_observed


def _judge_records(
    records: Iterable[bytes | None],
    file: CodeFile,
    digest: bytes,
    *,
    is_private: bool | None = None,
    objection: _Objection = lambda _: None,
) -> Refusal | None:
    found: list[tuple[Refusal, bytes | None]] = []
    for record in records:
        refusal = _judge_record(record, file, digest, objection)
        if refusal is None:
            return None
        found.append((refusal, record))
    decided = next((refusal for refusal, _ in found if refusal.reason not in trust.UNATTESTED), None)
    if decided is not None:
        return decided
    # INVARIANT: ownership counts where nothing else speaks, and for what lies there alone.
    if not (trust.is_private(file.path) if is_private is None else is_private):
        return found[0][0]
    return next(filter(None, (_find_contradiction(record, file, digest, objection) for _, record in found)), None)


def _judge_record(record: bytes | None, file: CodeFile, digest: bytes, objection: _Objection) -> Refusal | None:
    verdict, stated = manifests.verify(record, file)
    # INVARIANT: a record counts that a trusted key has sealed for this file.
    if verdict.reason is not None:
        return Refusal(verdict.reason, _UNATTESTED.get(verdict.reason) or trust.explain_verdict(verdict))
    # INVARIANT: it counts for the content that it states.
    if digest.hex() != stated["sha256"]:
        return Refusal(Reason.DAMAGED, "its digest is not the one that was sealed")
    return trust.find_mismatch(verdict, file.kind) or objection(stated)


def _find_contradiction(record: bytes | None, file: CodeFile, digest: bytes, objection: _Objection) -> Refusal | None:
    """Return why a record, whoever sealed it, speaks against the file; None if it does not."""
    name = manifests.record_name(file)
    stated = manifests.read_unverified(record, name, file.kind)
    refusal = objection(stated) if stated else None
    if refusal is None and stated and stated["sha256"] != digest.hex():
        return Refusal(Reason.DAMAGED, "its digest is not the one in its record")
    return refusal or trust.find_contradiction(
        record or b"", file.kind, manifests.find_sealed_name(record or b"", name, file.kind)
    )


def judge_file(file: CodeFile, *, is_lower: bool = False) -> Refusal | None:
    """Judge the file: return None if it is regular and attested, else why it is refused. Raises OSError.

    ``is_lower``: stock torch does not read the file's tier, so that SAFECACHE=observe changes nothing.
    """
    try:
        status = filesystem.retry(lambda: filesystem.lstat(file.path), filesystem.READING)
        directory_faults.check(file.root)
        opening.check_up_to(entry_files.max_entry_size(file.kind))(status)
        if attestations.verified_digest(file.path, status) is None:
            digest = digest_file(file.path)
            # Content that this process knows needs no record.
            if not attestations.is_known(file.path, digest=digest):
                refusal = _judge_records(manifests.read_unverified_records(file), file, digest)
                if refusal is None:
                    events.count(Count.CODE_VERIFIED)
                elif is_lower or not _observe(refusal, file, digest):
                    return refusal._replace(found=status)
            attestations.add_verified(file.path, status, digest)
    except opening.UnusableEntry as unusable:
        return unusable.refusal
    tell(Admitted(file.path))
    return None


def digest_file(path: str) -> bytes:
    """Return the SHA-256 of a regular file of any size; no link is followed. Raises OSError and UnusableEntry."""
    return opening.digest_regular(path, opening.check_regular, flags=os.O_NOFOLLOW)


def is_attested(file: CodeFile, *, is_lower: bool = False) -> bool:
    """Tell whether refusal_for_file() accepts the file; False on OSError. Reports no refusal, moves nothing."""
    try:
        return judge_file(file, is_lower=is_lower) is None
    except OSError:
        return False


def accept_or_quarantine(file: CodeFile, judge: Callable[[], Refusal | None] | None = None) -> bool:
    """Judge the file, and quarantine and report it if it is refused. Return whether it was accepted.

    ``judge``: replaces refusal_for_file(). The file is judged up to three times if another process replaces it in
    between. Strict mode raises EntryRefusedError for a refused file. Otherwise raises Immovable if it cannot be moved:
    its cache is unusable. Raises OSError.
    """
    for _ in range(_MOST_REPLACED):
        refusal = judge_file(file) if judge is None else judge()
        if refusal is None or trust.is_observed(refusal, file.kind, file.path):
            return True
        if _discard_refused(refusal, file):
            return False
    return False


def _discard_refused(refusal: Refusal, file: CodeFile) -> bool:
    """Quarantine a refused file and report it; do nothing, and return False, if another file is there by now."""
    moved = entry_files.quarantine(file.path, file.root, refusal.reason, refusal.found)
    if moved is None and os.path.lexists(file.path):
        if not is_unchanged(file.path, refusal.found):
            return False
        in_the_way = find_obstacle(file.root)
        why = f", for {in_the_way} is no directory" if in_the_way else ""
        text = f"{file.kind.noun} there is refused, since {refusal.evidence}, and cannot be moved away{why}"
        if config.current().strict:
            raise EntryRefusedError(f"safecache: {file.path}: {text}.")
        raise Immovable(errno.EPERM, text, file.path, refusal)
    if events.decide_action(refusal.reason, strict=False).quarantine:
        events.count(Count.QUARANTINED)
    where = f"Rebuilding; moved to {moved}." if moved else "Rebuilding; another process has moved it away."
    cache = file.root if file.kind is Kind.KERNEL or file.root == config.cache_directory() else ""
    report.refuse(refusal, file.kind, file.path, where, root=cache)
    return True


def quarantine_unattested(file: CodeFile) -> bool:
    """Quarantine the file if nothing attests it, so that it is rebuilt. Return whether a file is still there.

    Strict mode raises EntryRefusedError for a refused file. Raises Unsettled, and leaves the file, if it cannot be
    quarantined or its record cannot be read.
    """
    try:
        accept_or_quarantine(file)
        return os.path.lexists(file.path)  # also a file that is replaced each time it is judged
    except OSError as error:
        if isinstance(error, Unsettled):
            raise
        return not isinstance(error, FileNotFoundError)  # its reader fails as in stock torch


def verify_load_path(file: CodeFile) -> tuple[str, bytes | None]:
    """Return the path to load the code from, and its bytes if that is the path of a private copy, else None.

    Raises EntryRefusedError, in every mode, if nothing attests the file; OSError if it or its record cannot be read.
    """
    try:
        refusal = judge_file(file)
    except FileNotFoundError:
        if ownership.find_exposure(os.path.dirname(file.path)) is not None:
            raise
        return file.path, None  # nothing is there, and nobody else can change that: fails as in stock torch
    if refusal is not None:
        raise report.make_refusal_error(refusal, file.kind, file.path)
    # A copy in memory would circumvent a noexec mount.
    if ownership.find_exposure(file.path) is None or mounts.is_noexec(file.path):
        return file.path, None
    content = entry_files.read_unverified(file.path, entry_files.max_entry_size(file.kind))
    if not attestations.is_known(file.path, content):
        replaced = Refusal(Reason.DAMAGED, "it was replaced since it was verified")
        raise report.make_refusal_error(replaced, file.kind, file.path)
    return make_private_path(file, content), content


def make_private_path(file: CodeFile, content: bytes, *, is_kept: bool = True) -> str:
    """Return a path of ``content`` where nobody else can replace it: the file's own, or that of a private copy.

    ``content``: made or verified by this process. ``is_kept``: whether it is stored at the file's path. A copy's path
    ends in the file's name. Raises OSError.
    """
    if not is_kept:
        copy = private_directory.write(os.path.basename(file.path), content)
        if config.is_compile_worker():  # a worker's results are for its parent
            attest_file(CodeFile(copy, os.path.dirname(os.path.dirname(copy)), file.kind), content)
    # A library's copy would be in memory, and so circumvent a noexec mount.
    elif ownership.find_exposure(file.path) is None or (file.path.endswith(".so") and mounts.is_noexec(file.path)):
        return file.path
    else:
        copy = private_directory.make_copy(os.path.basename(file.path), content)
    attestations.attest_in_process(copy, content)
    return copy
