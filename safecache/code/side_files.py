"""Files that torch looks for by name, and makes where there are none: vouched for, or moved away."""

from __future__ import annotations

import os

from safecache.code import gate
from safecache.files import ownership, private_directory
from safecache.reporting.kinds import Kind
from safecache.reporting.reasons import Reason
from safecache.signing.trust import Refusal
from safecache.tiers import directory_faults

__all__ = ["admit", "is_private", "reachable", "settle"]


def settle(path: str, root: str, kind: Kind = Kind.NATIVE_CODE) -> bool:
    """Whether a file lies at ``path`` that is vouched for in the cache ``root``; any other was moved away.

    Raises EntryRefusedError in strict mode, and in every mode where it cannot be moved away.
    """
    if not os.path.lexists(path):
        return False
    try:
        return gate.admit_build(path, root, kind)
    except directory_faults.Unreadable as error:
        gate.discard(Refusal(Reason.UNREADABLE, error.evidence), kind, path, root)
        return False


def admit(path: str, root: str, kind: Kind = Kind.NATIVE_CODE) -> str | None:
    """Where to read what lies at ``path`` from, where nobody can replace it any more; None if there is nothing to read.

    Raises as settle() does, and EntryRefusedError for a file that was replaced since.
    """
    return gate.admit_code(path, root, kind)[0] if settle(path, root, kind) else None


def reachable(directory: str) -> str:
    """``directory``, or where others can write to it, one of this process alone, which is empty at first.

    For objects that their loader opens by itself, at the path that it has told us.
    """
    if ownership.why_not_private(_existing(directory)) is None:
        return directory
    return os.path.join(private_directory.of_process(), os.path.basename(directory))


def is_private(directory: str) -> bool:
    """Whether the user trusts what lies in ``directory``, or will, for nobody else being able to write there."""
    return gate.is_private(_existing(directory))


def _existing(path: str) -> str:
    while not os.path.lexists(path) and os.path.dirname(path) != path:
        path = os.path.dirname(path)
    return path
