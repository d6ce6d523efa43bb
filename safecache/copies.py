"""Copies in a cache of what one below it has, which serves as well where they cannot be written."""

from __future__ import annotations

from safecache import events, store
from safecache.kinds import Kind
from safecache.reasons import Reason

__all__ = ["put"]


def put(path: str, content: bytes, root: str, kind: Kind, mode: int = 0o666) -> bool:
    """Have ``content`` at ``path`` of the cache ``root``; False, and reported, if it cannot be written."""
    try:
        store.publish(path, content, root, mode)
    except OSError as error:
        text = f"{kind.noun} {path} was not copied from a lower layer: {error.strerror}."
        events.report(Reason.UNWRITABLE, text, cause=f"{error.errno} {root}", remedy="Make room there.", error=error)
        return False
    return True
