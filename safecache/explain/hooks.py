"""torch._functorch._aot_autograd.autograd_cache: the parts of a cache key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from safecache.explain import torch_keys

__all__ = ["get_hash"]


def get_hash(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> str:
    """AOTAutogradCachePickler.get_hash: collects the parts of the cache key, which explain a miss."""
    torch_keys.collect(instance, args, kwargs)
    key: str = wrapped(*args, **kwargs)
    return key
