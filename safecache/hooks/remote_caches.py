"""Triton's own remote cache: asked for the records of files that have no seal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from safecache.code import triton_remote

__all__ = ["init_triton_manager"]


def init_triton_manager(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> None:
    """Triton's RemoteCacheManager.__init__: what its backend keeps travels with records."""
    wrapped(*args, **kwargs)
    instance._backend = triton_remote.Backend(instance._backend, instance._file_cache_manager.cache_dir)
