"""Generated sources: vouched for by whoever generated them, who has the text, or by a name that is the text's hash."""

from __future__ import annotations

import re
from collections.abc import Callable

from safecache.code import gate
from safecache.files import checks, ownership
from safecache.reporting.kinds import Kind
from safecache.reporting.reasons import Reason
from safecache.signing.trust import Refusal
from safecache.store import entry_files
from safecache.tiers import permissions
from safecache.tiers.directory_faults import Unsettled

__all__ = ["admit", "known_text", "settle", "vouch"]

_COMMENTS = re.compile(rb"(\n+//[ -~]*)+")
# What this process has generated where others can write, and compilers are to read: text by path.
_texts: dict[str, bytes] = {}


def vouch(path: str, text: bytes) -> None:
    """Vouch for this source at ``path``, in this process; it is remembered if others could replace it there."""
    gate.expect(path, text)
    if not path.endswith(".py") and ownership.why_not_private(path) is not None:
        _texts[path] = text


def known_text(path: str) -> bytes | None:
    """The source that this process has vouched for at ``path``, whatever lies there now; None if it is not kept."""
    return _texts.get(path)


def settle(path: str, source: bytes, root: str) -> bool:
    """Whether the file at ``path`` holds the generated ``source``; if not, it was moved away, for it to be written.

    Raises EntryRefusedError in strict mode, and Unsettled where the file cannot be moved away.
    """
    permissions.check(root)
    try:
        return gate.settled(
            lambda: _objection(path, source), lambda refusal: gate.discard(refusal, Kind.SOURCE, path, root)
        )
    except FileNotFoundError:
        return False
    except OSError as error:
        if isinstance(error, Unsettled):
            raise
        return True  # whoever must read it fails as in stock; nobody vouches for what is in it


def _objection(path: str, source: bytes) -> Refusal | None:
    """None, and it is vouched for, if the file holds the source. Raises OSError."""
    try:
        found = entry_files.read_entry(path, entry_files.largest(Kind.SOURCE))
    except checks.UnusableEntry as unusable:
        return gate.of_unusable(unusable)
    if not _is_same(found, source, path):
        return Refusal(Reason.DAMAGED, "it is not what was generated", found=found)
    vouch(path, found)
    return None


def _is_same(found: bytes, source: bytes, path: str) -> bool:
    # Torch names a source by the hash of its stripped text, and adds the compiler's commands to those of CUTLASS.
    found, source = found.strip(), source.strip()
    if not found.startswith(source):
        return False
    added = found[len(source) :]
    return not added or (not path.endswith(".py") and _COMMENTS.fullmatch(added) is not None)


def admit(path: str, key: str, name_of: Callable[[str], str]) -> str:
    """Where to read the Python source from that is about to be executed: ``path``, or the bytes that were verified.

    ``name_of`` is how torch names a source. Raises EntryRefusedError if nothing vouches for it, OSError as in stock.
    """
    try:
        content = entry_files.read_entry(path, entry_files.largest(Kind.SOURCE))
    except checks.UnusableEntry as unusable:
        raise gate.not_loaded(gate.of_unusable(unusable), Kind.SOURCE, path) from unusable
    if not gate.is_known(path, content) and name_of(content.decode(errors="replace").strip()) != key:
        evidence = "nobody in this process generated it, and its name is not the hash of its content"
        raise gate.not_loaded(Refusal(Reason.UNSEALED, evidence), Kind.SOURCE, path)
    return gate.out_of_reach(path, content)
