"""QuACK, the kernels in CuTe DSL that torch brings along, with a cache of its own."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safecache.code import sources
from safecache.integrations import cute_dsl
from safecache.patching.hook import verifier

__all__ = ["quack_dir", "quack_lock", "quack_unlock"]


@verifier(
    "torch._vendor.quack.cache.jit:get_cache_path()",
    why="Quack keeps loadable objects under a predictable name in the temporary directory, which another user can "
    "create first.",
    issue="https://github.com/pytorch/pytorch/blob/v2.15.0/torch/_vendor/quack/cache/jit.py#L52",
    since=(2, 13),
    needs="cutlass",
)
def quack_dir(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Path:
    """quack.cache.jit.get_cache_path, which makes it; a directory of this process if others can write there."""
    directory = cute_dsl.reachable_path(wrapped(*args, **kwargs))
    directory.mkdir(parents=True, exist_ok=True)
    return directory


@verifier(
    "torch._vendor.quack.cache.jit:FileLock.__enter__(self)",
    why="Quack loads whatever object file it finds after taking the lock, and notices only objects that fail to load.",
    issue="https://github.com/pytorch/pytorch/blob/v2.15.0/torch/_vendor/quack/cache/jit.py#L189",
    since=(2, 13),
    needs="cutlass",
)
def quack_lock(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """FileLock.__enter__ of quack.cache.jit, which precedes the search for an object: quarantines an unattested one."""
    entered = wrapped(*args, **kwargs)
    path = _object_of(instance)
    sources.settle_side_file(path, os.path.dirname(path))
    instance._safecache_before = cute_dsl.identity(path)
    return entered


@verifier(
    "torch._vendor.quack.cache.jit:FileLock.__exit__(self, exc)",
    why="Quack publishes a compiled object without a digest, so no later process can verify it.",
    issue="https://github.com/pytorch/pytorch/blob/v2.15.0/torch/_vendor/quack/cache/jit.py#L327",
    since=(2, 13),
    needs="cutlass",
)
def quack_unlock(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> None:
    """FileLock.__exit__ of quack.cache.jit: attests the object if it was compiled under the lock."""
    try:
        if instance.exclusive:
            cute_dsl.attest_if_new(_object_of(instance), instance._safecache_before)
    finally:
        wrapped(*args, **kwargs)


def _object_of(lock: Any) -> str:
    return str(Path(lock.lock_path).with_suffix(".o"))
