"""What is refused is moved away, to be made anew, but not what another writer has put in its place meanwhile."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

from safecache import checks, config, events, loading, policy, store
from safecache.directory_faults import Immovable
from safecache.errors import EntryRefusedError
from safecache.kinds import Kind
from safecache.quarantine import is_still, obstacle
from safecache.reasons import Count
from safecache.trust import Refusal

__all__ = ["discard", "of_unusable", "settled"]

# How often a file is judged that is another one each time.
_MOST_REPLACED = 3


def of_unusable(unusable: checks.UnusableEntry) -> Refusal:
    """What can be said against what is not even read."""
    return Refusal(unusable.reason, f"it is {unusable.detail}", found=unusable.status)


def settled(judged: Callable[[], Refusal | None], set_aside: Callable[[Refusal], bool]) -> bool:
    """Whether ``judged`` has nothing against what lies there; else that was ``set_aside``, or is replaced for ever.

    Both are called again where the latter says that something else lies there by now, as a good one of another writer.
    """
    for _ in range(_MOST_REPLACED):
        refusal = judged()
        if refusal is None or set_aside(refusal):
            return refusal is None
    return False


def discard(refusal: Refusal, kind: Kind, path: str, root: str) -> bool:
    """Move away what is refused, and report it; False, and nothing is done, if something else lies there by now.

    Raises EntryRefusedError in strict mode; else Immovable if it cannot be moved: the cache cannot be used then.
    """
    moved = store.quarantine(path, root, refusal.reason, refusal.found)
    if moved is None and os.path.lexists(path):
        if not is_still(path, refusal.found):
            return False
        raise _immovable(refusal, kind, path, root)
    if policy.decide(refusal.reason, strict=False).quarantine:
        events.count(Count.QUARANTINED)
    where = f"It was moved to {moved}." if moved else "Another process has moved it away."
    loading.note(refusal.reason, kind, path, refusal.evidence, f"{where} It is made anew.")
    return True


def _immovable(refusal: Refusal, kind: Kind, path: str, root: str) -> Exception:
    in_the_way = obstacle(root)
    why = f", for {in_the_way} is no directory" if in_the_way else ""
    text = f"{kind.noun} there is refused, since {refusal.evidence}, and cannot be moved away{why}"
    if config.current().strict:
        return EntryRefusedError(f"safecache: {path}: {text}.")
    return Immovable(errno.EPERM, text, path)
