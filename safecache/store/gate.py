"""What lets code through: a file that carries no seal runs only if this process made it or a sealed record attests it.

A record is the digest of the file, sealed under its name. A refused file is quarantined, and so recompiled, unless
another writer has replaced it meanwhile.
"""

from __future__ import annotations

import errno
import hashlib
import os
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any

from safecache.errors import EntryRefusedError
from safecache.files import filesystem, mounts, opening, ownership, private_directory
from safecache.places.layout import CodeFile
from safecache.ports import Admitted, tell
from safecache.reporting import events, policy, report
from safecache.reporting.kinds import Count, Kind, Reason
from safecache.reporting.report import Refusal
from safecache.session import Part, inherit
from safecache.settings import config
from safecache.signing import keyring, provenance, seal, trust
from safecache.store import entry_files, manifests
from safecache.store.quarantine import is_unchanged, obstacle
from safecache.tiers import directory_faults
from safecache.tiers.directory_faults import Immovable, Unreadable, Unsettled

__all__ = [
    "FRESH",
    "adopt",
    "attest_file",
    "attest_in_process",
    "contradiction",
    "copy_if_exposed",
    "discard",
    "export_known",
    "has_matching_record",
    "import_known",
    "is_attested",
    "is_content_attested",
    "is_expected",
    "is_known",
    "is_private",
    "judge_by_record",
    "judge_until_stable",
    "private_copy",
    "quarantine_unattested",
    "record_of",
    "refusal_error",
    "refusal_for_file",
    "refusal_for_path",
    "refusal_for_unreadable",
    "refused",
    "verified_load_path",
]

# How often to judge a file that is replaced each time.
_MOST_REPLACED = 3


def refusal_for_unreadable(unusable: opening.UnusableEntry) -> Refusal:
    """The refusal of a file that is not even read."""
    return Refusal(unusable.reason, f"it is {unusable.detail}", found=unusable.status)


def judge_until_stable(judged: Callable[[], Refusal | None], discarded: Callable[[Refusal], bool]) -> bool:
    """Judge the file, and discard it if it is refused. Return whether it was accepted.

    ``discarded`` returns False if another process has replaced the file in between: it is then judged again, up to
    three times.
    """
    for _ in range(_MOST_REPLACED):
        refusal = judged()
        if refusal is None or discarded(refusal):
            return refusal is None
    return False


def discard(refusal: Refusal, file: CodeFile) -> bool:
    """Quarantine a refused file and report it; False, with nothing done, if another file lies there by now.

    Raises EntryRefusedError in strict mode. Otherwise raises Immovable if it cannot be moved: the cache is unusable.
    """
    moved = entry_files.quarantine(file.path, file.root, refusal.reason, refusal.found)
    if moved is None and os.path.lexists(file.path):
        if not is_unchanged(file.path, refusal.found):
            return False
        raise _immovable(refusal, file)
    if policy.decide(refusal.reason, strict=False).quarantine:
        events.count(Count.QUARANTINED)
    where = f"Rebuilding; moved to {moved}." if moved else "Rebuilding; another process has moved it away."
    cache = file.root if file.kind is Kind.KERNEL or file.root == config.cache_directory() else ""
    report.refuse(refusal, file.kind, file.path, where, root=cache)
    return True


def _immovable(refusal: Refusal, file: CodeFile) -> Exception:
    in_the_way = obstacle(file.root)
    why = f", for {in_the_way} is no directory" if in_the_way else ""
    text = f"{file.kind.noun} there is refused, since {refusal.evidence}, and cannot be moved away{why}"
    if config.current().strict:
        return EntryRefusedError(f"safecache: {file.path}: {text}.")
    return Immovable(errno.EPERM, text, file.path)


# Seconds for which a verdict on a file holds while its stat is unchanged: from asking whether to build it until loading
# it. Later the file is read again, since what a disk returns may change without the kernel's doing.
FRESH = 10.0
_UNATTESTED = {
    Reason.UNSEALED: "there is no sealed record of it, as when stock torch built it",
    Reason.UNKNOWN_KEY: "its record is sealed by a key that this process does not trust",
}


class _State:
    def __init__(self) -> None:
        # Digests, by path, of what this process has generated, built or verified.
        self.known: dict[str, set[bytes]] = {}
        # The stat of each verified file, and when it was verified, on the monotonic clock: see FRESH.
        self.judged: dict[str, tuple[list[int], float]] = {}


_state: Part[_State] = Part(_State, inherit)


def attest_in_process(path: str, content: bytes = b"", *, digest: bytes | None = None) -> None:
    """Attest this content at ``path``, or content with this SHA-256 ``digest``, within this process only."""
    _state.now.known.setdefault(path, set()).add(digest or hashlib.sha256(content).digest())


def is_known(path: str, content: bytes = b"", *, digest: bytes | None = None) -> bool:
    """Tell whether this process has attested this content there, or content with this SHA-256 ``digest``."""
    return (digest or hashlib.sha256(content).digest()) in _state.now.known.get(path, ())


def is_expected(path: str) -> bool:
    """Whether this process has attested any content there."""
    return path in _state.now.known


def export_known(paths: Iterable[str]) -> dict[str, frozenset[bytes]]:
    """The SHA-256 digests that this process has attested at these paths, for import_known() of another."""
    known = _state.now.known
    return {path: frozenset(known[path]) for path in paths if path in known}


def import_known(digests: Mapping[str, frozenset[bytes]]) -> None:
    """Attest here what the parent process has attested and sent through its own pipe."""
    for path, known in digests.items():
        _state.now.known.setdefault(path, set()).update(known)


def is_private(path: str) -> bool:
    """Whether ``SAFECACHE_TRUST=private`` lets the file pass, since nobody else could have written it."""
    return config.current().trust == "private" and ownership.why_not_private(path) is None


def copy_if_exposed(path: str, content: bytes) -> str:
    """``path``, or a private copy's if others could replace the file between its check and its use. Raises OSError."""
    if ownership.why_not_private(path) is None:
        return path
    copy = private_directory.make(os.path.basename(path), content)
    attest_in_process(copy, content)
    return copy


def private_copy(name: str, content: bytes, kind: Kind) -> str:
    """Write content that this process has made or verified, but cannot keep in its cache, to a private file.

    Returns its path, which ends in this name. Raises OSError.
    """
    path = private_directory.write(name, content)
    attest_in_process(path, content)
    if config.is_compile_worker():  # a worker's results are for its parent
        attest_file(CodeFile(path, os.path.dirname(os.path.dirname(path)), kind), content)
    return path


def attest_file(
    file: CodeFile,
    content: bytes | None = None,
    also: Mapping[str, Any] = MappingProxyType({}),
    *,
    digest: bytes | None = None,
    made_at: str = "",
) -> bool:
    """Attest the file that this process has just made, here and by a record in its cache.

    ``content``: what is about to be written there, or its SHA-256 ``digest``, or ``made_at``: where it lies so far.
    Other processes then find the record before the file. ``also``: what else to state. False, and reported, if the
    record cannot be written. Raises OSError if the file cannot be read.
    """
    if digest is None:
        digest = _digest(made_at or file.path) if content is None else hashlib.sha256(content).digest()
    directory_faults.check(file.root)
    attest_in_process(file.path, digest=digest)
    ring = keyring.current()
    if ring.signing is None and has_matching_record(file, digest, also):
        return True  # by a record that outlives this process
    stated = {"sha256": digest.hex(), **also}
    return manifests.write(file, stated, ring.attesting, provenance.statement(file.kind))


def has_matching_record(file: CodeFile, digest: bytes, also: Mapping[str, Any] = MappingProxyType({})) -> bool:
    """Tell whether a record in the file's cache attests content with this SHA-256, so that none is needed.

    ``also``: what else it has to state.
    """
    with suppress(Unreadable):
        for record in manifests.records(file):
            if _judge_alone(record, file, digest) is None:
                return not also or manifests.read_unverified(record).items() >= also.items()
    return False


def record_of(file: CodeFile, content: bytes, also: Mapping[str, Any]) -> bytes | None:
    """The record that attest_file() would write of ``content``, for another cache; None without a signing key."""
    key = keyring.current().signing
    if key is None:
        return None
    stated = {"sha256": hashlib.sha256(content).hexdigest(), **also}
    return manifests.seal_record(file, stated, key, provenance.statement(file.kind))


def is_content_attested(file: CodeFile, digest: bytes) -> bool:
    """Tell whether this process or a sealed record attests content with this SHA-256: see judge_by_record().

    Raises Unreadable if the record cannot be read.
    """
    return is_known(file.path, digest=digest) or _judge_by_records(manifests.records(file), file, digest) is None


def judge_by_record(record: bytes | None, file: CodeFile, digest: bytes, *, lies_there: bool = True) -> Refusal | None:
    """None if the file with this SHA-256 may be used: the one gate for code that this process has not made.

    A record by a trusted signing key decides, within what it is bound to. The user's trust in private files counts
    only if there is no such record, no other record contradicts, and the file ``lies_there``.
    """
    return _judge_by_records((record,), file, digest, lies_there=lies_there)


def _judge_by_records(
    records: Iterable[bytes | None], file: CodeFile, digest: bytes, *, lies_there: bool = True
) -> Refusal | None:
    """As judge_by_record(), of a file that any of these may attest. Raises as ``records`` do."""
    found: list[tuple[Refusal, bytes | None]] = []
    for record in records:
        refusal = _judge_alone(record, file, digest)
        if refusal is None:
            return None
        found.append((refusal, record))
    decided = next((refusal for refusal, _ in found if refusal.reason not in trust.UNATTESTED), None)
    # INVARIANT: ownership counts where nothing else speaks, and for what lies there alone.
    if decided is not None or not lies_there or not is_private(file.path):
        return decided or found[0][0]
    return _contradiction((record for _, record in found), file, digest)


def _contradiction(records: Iterable[bytes | None], file: CodeFile, digest: bytes) -> Refusal | None:
    name = manifests.record_name(file)
    return next(filter(None, (contradiction(record, file.kind, name, digest) for record in records)), None)


def contradiction(record: bytes | None, kind: Kind, name: str, digest: bytes) -> Refusal | None:
    """What the record, whoever sealed it, says against the file of this name and SHA-256; None if nothing."""
    stated = manifests.read_unverified(record, name, kind)
    if stated and stated["sha256"] != digest.hex():
        return Refusal(Reason.DAMAGED, "its digest is not the one in its record")
    return trust.contradiction(record or b"", kind, manifests.named_in(record or b"", name, kind))


def _judge_alone(record: bytes | None, file: CodeFile, digest: bytes) -> Refusal | None:
    verdict, stated = manifests.verify(record, file)
    # INVARIANT: a record counts that a trusted key has sealed for this file.
    if verdict.reason is not None:
        return refused(verdict, verdict.reason)
    # INVARIANT: it counts for the content that it states.
    if digest.hex() != stated["sha256"]:
        return Refusal(Reason.DAMAGED, "its digest is not the one that was sealed")
    return trust.foreign(verdict, file.kind)


def adopt(file: CodeFile) -> bool:
    """Attest, on the user's word, compiled code that nobody else could have written; False if it is attested already.

    Raises EntryRefusedError if others could have written it or a record contradicts, UnusableEntry, and OSError.
    """
    refusal = refusal_for_file(file)
    if refusal is None:
        return False
    digest = opening.digest_regular(file.path, opening.check_private(file.path), flags=os.O_NOFOLLOW)
    if refusal.reason in trust.UNATTESTED:
        refusal = _contradiction(manifests.records(file), file, digest)
    if refusal is not None:
        raise EntryRefusedError(f"{refusal.reason.value}: {refusal.evidence}")
    attest_file(file, digest=digest)
    return True


def quarantine_unattested(file: CodeFile) -> bool:
    """Quarantine the file if nothing attests it, so that it is built again; returns whether any file is left there.

    Raises EntryRefusedError for it in strict mode. Raises Unsettled, and leaves the file, if it cannot be quarantined
    or its record cannot be read.
    """
    try:
        judge_until_stable(lambda: refusal_for_path(file), lambda refusal: discard(refusal, file))
        return os.path.lexists(file.path)  # also a file that is replaced each time it is judged
    except OSError as error:
        if isinstance(error, Unsettled):
            raise
        return not isinstance(error, FileNotFoundError)  # its reader fails as in stock torch


def verified_load_path(file: CodeFile) -> tuple[str, bytes | None]:
    """Find where to load the code from, and its bytes if that is a copy out of others' reach, else None.

    Raises EntryRefusedError, in every mode, if nothing attests it; OSError if it or its record cannot be read.
    """
    try:
        refusal = refusal_for_path(file)
    except FileNotFoundError:
        if ownership.why_not_private(os.path.dirname(file.path)) is not None:
            raise
        return file.path, None  # nothing is there, and nobody else can change that: fails as in stock torch
    if refusal is not None:
        raise refusal_error(refusal, file)
    # A copy in memory would circumvent a noexec mount.
    if ownership.why_not_private(file.path) is None or mounts.forbids_execution(file.path):
        return file.path, None
    content = entry_files.read(file.path, entry_files.max_entry_size(file.kind))
    if not is_known(file.path, content):
        raise refusal_error(Refusal(Reason.DAMAGED, "it was replaced since it was verified"), file)
    return copy_if_exposed(file.path, content), content


def refusal_error(refusal: Refusal, file: CodeFile) -> EntryRefusedError:
    """The error for a refusal, which is counted, but not reported: the error says it, in every mode."""
    events.count(refusal.reason)
    return EntryRefusedError(
        f"safecache: {file.kind.noun} {file.path} is not loaded: {refusal.evidence}. {refusal.remedy}".rstrip()
    )


def refusal_for_path(file: CodeFile) -> Refusal | None:
    """Judge the file: None if a regular one lies there and something attests it. Raises OSError."""
    try:
        refusal = refusal_for_file(file)
        if refusal is None:
            tell(Admitted(file.path))
        return refusal
    except opening.UnusableEntry as unusable:
        return refusal_for_unreadable(unusable)


def is_attested(file: CodeFile) -> bool:
    """Tell whether a regular file lies there and something attests it. Reports nothing, and leaves the file."""
    try:
        return refusal_for_path(file) is None
    except OSError:
        return False


def refusal_for_file(file: CodeFile) -> Refusal | None:
    """None if something attests the file. Raises OSError, and UnusableEntry for one that is not even read."""
    status = filesystem.retry(lambda: filesystem.lstat(file.path), filesystem.READING)
    directory_faults.check(file.root)
    opening.check_up_to(entry_files.max_entry_size(file.kind))(status)
    identity, now = filesystem.identity(status), time.monotonic()
    state = _state.now
    judged = state.judged.get(file.path)
    if judged is not None and judged[0] == identity and now - judged[1] < FRESH:
        return None
    digest = _digest(file.path)
    if digest not in state.known.get(file.path, ()):
        # Content that this process knows needs no record.
        refusal = _judge_by_records(manifests.records(file), file, digest)
        if refusal is not None:
            return refusal._replace(found=status)
        events.count(Count.CODE_VERIFIED)
        state.known.setdefault(file.path, set()).add(digest)
    state.judged[file.path] = identity, now
    return None


def refused(verdict: seal.Verdict, reason: Reason) -> Refusal:
    """The refusal of a file whose record fails with this verdict."""
    return Refusal(reason, _UNATTESTED.get(reason) or trust.evidence(verdict))


def _digest(path: str) -> bytes:
    return opening.digest_regular(path, opening.check_regular, flags=os.O_NOFOLLOW)
