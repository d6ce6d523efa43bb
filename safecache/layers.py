"""The layers below a cache: directories like it that are read where it has nothing, and never written.

They are those that the user has named, and before them the cache directory that a private one stands in for.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from safecache import config, standin

__all__ = ["below", "exist"]


def exist(root: str) -> bool:
    """Whether the cache ``root`` has any."""
    return standin.original(root) is not None or bool(config.current().lower)


def below(path: str, root: str) -> Iterator[tuple[str, str]]:
    """Where that which would be at ``path`` in the cache ``root`` may lie instead, nearest first, and in which cache.

    Nothing is known of what lies there, if anything does.
    """
    if not exist(root):
        return
    relative, original, named = os.path.relpath(path, root), standin.original(root), config.current().lower
    for layer in named if original is None else (original, *named):
        if layer != root:
            yield os.path.join(layer, relative), layer
