"""The layers below a cache: directories like it that are read where it has nothing, and never written."""

from __future__ import annotations

import os
from collections.abc import Iterator

from safecache import config

__all__ = ["below"]


def below(path: str, root: str) -> Iterator[tuple[str, str]]:
    """Where that which would be at ``path`` in the cache ``root`` may lie instead, nearest first, and in which cache.

    Nothing is known of what lies there, if anything does.
    """
    relative = os.path.relpath(path, root)
    for layer in config.current().lower:
        yield os.path.join(layer, relative), layer
