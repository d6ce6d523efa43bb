"""Generated sources, attested by the text in memory or by a name that is its hash; and files found by name."""

from __future__ import annotations

import os
import re
from collections.abc import Callable

from safecache.built_code import exec_directory
from safecache.fs import opening, ownership, private_directory
from safecache.places.layout import CodeFile
from safecache.reporting import report
from safecache.reporting.kinds import Kind, Reason
from safecache.reporting.report import Refusal
from safecache.session import Part, inherit
from safecache.signing import trust
from safecache.store import attestations, entry_files, gate
from safecache.tiers import directory_faults
from safecache.tiers.directory_faults import Unsettled

__all__ = [
    "add_cache",
    "admit",
    "admit_side_file",
    "attest",
    "find_load_path",
    "is_private",
    "known_text",
    "quarantine_if_changed",
    "read_unverified_text",
    "replace_cache",
    "secure_cache",
    "settle_side_file",
]

_BY_HAND = (
    "What you have written or edited by hand: give PyCodeCache.load() its text, or turn safecache off (SAFECACHE=0)."
)
_COMMENTS = re.compile(rb"(\n+//[ -~]*)+")
# Texts, by path, of sources for compilers that this process has generated where others can write.
_texts: Part[dict[str, bytes]] = Part(dict, inherit)
# The caches from which loaders outside torch open code by themselves.
_caches: Part[set[str]] = Part(set, inherit)


def attest(path: str, text: bytes) -> None:
    """Attest this source at ``path``, within this process; its text is kept if others could replace it there."""
    attestations.attest_in_process(path, text)
    if not path.endswith(".py") and ownership.find_exposure(path) is not None:
        _texts.now[path] = text


def known_text(path: str) -> bytes | None:
    """The source that this process has attested at ``path``, whatever the file holds now; None if it is not kept."""
    return _texts.now.get(path)


def quarantine_if_changed(path: str, source: bytes, root: str) -> bool:
    """Tell whether the file at ``path`` holds the generated ``source``; if False, it has to be written.

    Any other content is quarantined. Raises EntryRefusedError in strict mode, and Unsettled if that is impossible.
    """
    directory_faults.check(root)
    try:
        return gate.accept_or_quarantine(CodeFile(path, root, Kind.SOURCE), lambda: _find_objection(path, source))
    except FileNotFoundError:
        return False
    except OSError as error:
        if isinstance(error, Unsettled):
            raise
        return True  # its reader fails as in stock torch; nothing attests its content


def _find_objection(path: str, source: bytes) -> Refusal | None:
    """Return why the file at ``path`` is not the source; None, with the file attested, if it is. Raises OSError."""
    try:
        found = entry_files.read_unverified_entry(path, entry_files.max_entry_size(Kind.SOURCE))
    except opening.UnusableEntry as unusable:
        return unusable.refusal
    if not _is_same(found, source, path):
        refusal = Refusal(Reason.DAMAGED, "it is not what was generated", found=found)
        if not trust.is_observed(refusal, Kind.SOURCE, path):
            return refusal
    attest(path, found)
    return None


def _is_same(found: bytes, source: bytes, path: str) -> bool:
    # Torch names a source by the hash of its stripped text, and adds the compiler's commands to those of CUTLASS.
    found, source = found.strip(), source.strip()
    if not found.startswith(source):
        return False
    added = found[len(source) :]
    return not added or (not path.endswith(".py") and _COMMENTS.fullmatch(added) is not None)


def admit(path: str, key: str, name_of: Callable[[str], str]) -> str:
    """The path to read the Python source from that is about to be executed: ``path``, or a copy of the verified bytes.

    ``name_of``: how torch names a source. Raises EntryRefusedError, in every mode, if nothing attests it; OSError as
    stock torch does.
    """
    try:
        content = entry_files.read_unverified_entry(path, entry_files.max_entry_size(Kind.SOURCE))
    except opening.UnusableEntry as unusable:
        raise report.make_refusal_error(unusable.refusal, Kind.SOURCE, path) from unusable
    if not attestations.is_known(path, content) and name_of(content.decode(errors="replace").strip()) != key:
        evidence = "nobody in this process generated it, and its name is not the hash of its content"
        refusal = Refusal(Reason.UNSEALED, evidence, _BY_HAND)
        if not trust.is_observed(refusal, Kind.SOURCE, path):
            raise report.make_refusal_error(refusal, Kind.SOURCE, path)
    return gate.make_private_path(CodeFile(path, kind=Kind.SOURCE), content)


def settle_side_file(path: str, root: str, kind: Kind = Kind.NATIVE_CODE, name: str = "") -> bool:
    """Tell whether a file attested in the cache ``root`` is at ``path``; any other file is quarantined.

    ``name``: as in CodeFile. Raises EntryRefusedError in strict mode, and Immovable if the file cannot be quarantined.
    """
    if not os.path.lexists(path):
        return False
    file = CodeFile(path, root, kind, name)
    try:
        return gate.quarantine_unattested(file)
    except directory_faults.Unreadable as error:
        refusal = Refusal(Reason.UNREADABLE, error.evidence)
        return gate.accept_or_quarantine(file, lambda: refusal)


def admit_side_file(path: str, root: str, kind: Kind = Kind.NATIVE_CODE) -> str | None:
    """Return a path to read the attested file at ``path`` from, where nobody else can replace it; None if none.

    Raises as settle_side_file() does, and EntryRefusedError for a file that was replaced after it was verified.
    """
    return gate.verify_load_path(CodeFile(path, root, kind))[0] if settle_side_file(path, root, kind) else None


def secure_cache(directory: str) -> str:
    """Return ``directory``, or if others can write to it an empty one of this process alone.

    For objects that their loader opens by itself, at the path that it has given us. load_path() verifies them.
    """
    if ownership.find_exposure(_find_existing(directory)) is not None:
        return replace_cache(directory)
    add_cache(directory)
    return directory


def replace_cache(directory: str) -> str:
    """Return an empty directory of this process alone, to use in place of ``directory``; load_path() verifies it."""
    private = os.path.join(private_directory.get_process_directory(), os.path.basename(directory))
    add_cache(private)
    return private


def add_cache(path: str) -> None:
    """Register a directory, or one file: load_path() verifies it and files below it."""
    _caches.now.update(os.path.join(place, "") for place in (os.path.realpath(path), os.path.abspath(path)))


def find_load_path(path: str, *, is_built: bool) -> str:
    """Return where to load the code at ``path`` from: verified if below a directory of add_cache(), else ``path``.

    Installed code, and the user's own, is in no such directory. ``is_built``: by ninja, so that its record names the
    directory as well. Raises EntryRefusedError, in every mode, if nothing attests it. Raises OSError if the file or its
    record cannot be read.
    """
    real, caches = os.path.realpath(path), tuple(_caches.now)
    # A link in a cache may lead out of it.
    if not any(os.path.join(each, "").startswith(caches) for each in (real, os.path.abspath(path))):
        return path
    root = os.path.dirname(real)
    name = os.path.relpath(real, os.path.dirname(root)) if is_built else ""
    return exec_directory.find_load_path(CodeFile(real, root, name=name))


def read_unverified_text(path: str) -> str | None:
    """Return the unverified text of the source at ``path``; None if there is none that can be read."""
    try:
        return entry_files.read_unverified_entry(path, entry_files.max_entry_size(Kind.SOURCE)).decode()
    except (OSError, ValueError, opening.UnusableEntry):
        return None


def is_private(directory: str) -> bool:
    """Tell whether the user trusts files in ``directory`` because nobody else can write there; it may not exist yet."""
    return trust.is_private(_find_existing(directory))


def _find_existing(path: str) -> str:
    while not os.path.lexists(path) and os.path.dirname(path) != path:
        path = os.path.dirname(path)
    return path
