"""Cache directories that others can write to, and that nobody has said to be shared."""

from __future__ import annotations

import os

from safecache.files import ownership
from safecache.reporting import events
from safecache.reporting.reasons import Reason
from safecache.settings import config

__all__ = ["check", "leave_to_parent", "note_private"]

_REMEDY = (
    "What is sealed is used, and what is not is never; but others can remove it, and see what you compile. Take their "
    "right to write (chmod go-w), name another directory, or set SAFECACHE_SHARED=1 if it is shared on purpose."
)

# The directories that need no further look in this process.
_settled: set[str] = set()
_parent_tells = False


def check(root: str) -> None:
    """Say once if others than this user and root can write to the cache directory ``root``, or replace it.

    Raises EntryRefusedError for it in strict mode, each time. A directory that is not there yet is looked at later.
    """
    if root in _settled or config.current().shared or not os.path.lexists(root):
        return
    objection = ownership.why_not_private(root)
    if objection is not None:
        # Only now: it may have to be asked of a server.
        objection = ownership.why_not_private(root, group=ownership.own_group())
    if objection is not None and not (_parent_tells and not config.current().strict):
        message = f"others can write to the cache directory {root}, or replace it: {objection}."
        events.report(Reason.EXPOSED_DIRECTORY, message, cause=objection, remedy=_REMEDY)
    _settled.add(root)


def note_private(root: str) -> None:
    """Nobody else can write to ``root``: that was found just now, and need not be looked at again."""
    _settled.add(root)


def leave_to_parent() -> None:
    """Warn of nothing in this process: it is a worker, one of many, and what it makes its parent reads."""
    global _parent_tells
    _parent_tells = True
