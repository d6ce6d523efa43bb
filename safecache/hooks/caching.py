"""torch._inductor.runtime.caching.implementations: results memoized on disk, where that is turned on."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from safecache.entries import loading, saving
from safecache.reporting.kinds import Kind

__all__ = ["get", "insert"]


def get(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """_OnDiskCacheImpl.get: a value that is refused is a miss."""

    def find(key: str) -> Any:
        path, root = str(instance._fpath_from_key(key)), str(instance._base_dir)
        hit = wrapped(key) if loading.may_be_read(Kind.MEMO, path) else None
        if hit is None:
            return None
        # Torch's own header is before it in the file.
        admitted = loading.admit(Kind.MEMO, _cache_key(instance, key), hit.value, origin=path, root=root, whole=False)
        return hit if admitted else None

    return find(*args, **kwargs)


def insert(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> bool:
    """_OnDiskCacheImpl.insert: makes room for itself, where what is there is none of ours."""

    def put(key: str, value: bytes) -> bool:
        if not saving.can_seal(Kind.MEMO):
            return False
        content = saving.sealed(value, Kind.MEMO, _cache_key(instance, key))
        inserted: bool = wrapped(key, content)
        if inserted:
            return True
        if instance.get(key) is not None:
            return False
        instance._fpath_from_key(key).unlink(missing_ok=True)
        inserted = wrapped(key, content)
        return inserted

    return put(*args, **kwargs)


def _cache_key(cache: Any, key: str) -> str:
    # With its folder: the same arguments have the same key for every function that is memoized.
    path: str = os.path.relpath(cache._fpath_from_key(key), cache._base_dir)
    return path
