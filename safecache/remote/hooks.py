"""torch's and Triton's own remote caches in Redis: asked with time limits.

Nothing else of them is changed: their names, their values, and what they are asked for.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from safecache.remote import theirs

__all__ = ["init_torch_redis", "init_triton_redis"]


def init_torch_redis(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> None:
    """torch's RedisRemoteCacheBackend.__init__: its client is one of ours, to the same server."""
    wrapped(*args, **kwargs)
    instance._redis = theirs.bounded_redis_client(instance._redis)


def init_triton_redis(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> None:
    """Triton's RedisRemoteCacheBackend.__init__, which fails in 3.6 to 3.9: its knobs are elsewhere."""

    def connect(key: str) -> None:
        known = sys.modules["triton"].knobs
        knobs = getattr(known.cache, "redis", known.redis)
        instance._key, instance._key_fmt = key, knobs.key_format
        instance._redis = theirs.redis_client_at(knobs.host, knobs.port)

    connect(*args, **kwargs)
