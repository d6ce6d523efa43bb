"""torch.compiler._cache: what arrives in a mega-cache artifact is verified before it is written.

Every program that imports torch imports it: what the hook needs is imported when it is called.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from safecache.reporting import events

__all__ = ["deserialize", "populate_caches"]


def deserialize(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """CacheArtifactManager.deserialize: one that claims to hold what it does not is None, as one that is damaged."""
    from safecache.entries import mega_caches

    def parse(serialized_artifacts: bytes) -> Any:
        with events.reading():
            return wrapped(serialized_artifacts) if mega_caches.accept(serialized_artifacts) else None

    return parse(*args, **kwargs)


def populate_caches(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """CacheArtifactManager.populate_caches: what fails verification is left out, and is not in the result."""
    from safecache.entries import mega_caches

    def populate(artifacts: dict[str, list[Any]]) -> Any:
        with events.reading():
            return wrapped(mega_caches.admitted(artifacts))

    return populate(*args, **kwargs)
