"""The objects of CuTe DSL's kernels: Inductor's cache of them, and that of the QuACK which torch brings along.

An object that nothing attests is moved away before it is looked for, and compiled anew. Its loader opens it by
itself, so that where others can write, both caches are this process's own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safecache.code import gate, sources
from safecache.files import filesystem, ownership, private_directory
from safecache.settings import config

__all__ = ["cutedsl_dir", "cutedsl_get", "cutedsl_set", "flydsl_dir", "quack_dir", "quack_lock", "quack_unlock"]


def cutedsl_dir(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Path:
    """cutedsl_cache._cache_dir."""
    return _reachable(wrapped(*args, **kwargs))


def cutedsl_get(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """disk_cache_get: of this process's memory, or an object that is loaded."""

    def get(
        mem_cache: Any,
        module_path: str,
        config_key: Any,
        runtime_key: Any,
        device_index: int = 0,
        device_capability: Any = None,
    ) -> Any:
        if (runtime_key, device_index) not in mem_cache:
            path = _cutedsl_path(module_path, config_key, runtime_key, device_index, device_capability)
            sources.settle_side_file(path, os.path.dirname(path))
        return wrapped(mem_cache, module_path, config_key, runtime_key, device_index, device_capability)

    return get(*args, **kwargs)


def cutedsl_set(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> None:
    """disk_cache_set: attests the object, if one was written: not every kernel can be."""

    def put(
        mem_cache: Any,
        module_path: str,
        config_key: Any,
        runtime_key: Any,
        compiled_fn: Any,
        device_index: int = 0,
        device_capability: Any = None,
    ) -> None:
        path = _cutedsl_path(module_path, config_key, runtime_key, device_index, device_capability)
        before = _identity(path)
        wrapped(mem_cache, module_path, config_key, runtime_key, compiled_fn, device_index, device_capability)
        _keep_if_new(path, before)

    put(*args, **kwargs)


def _cutedsl_path(*key: Any) -> str:
    module = sys.modules["torch._inductor.runtime.cutedsl_cache"]
    return os.path.join(module._cache_dir(), f"{module._make_disk_key(*key)}.o")


def flydsl_dir(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> str:
    """configure_flydsl_cache_dir: FlyDSL itself reads there, in a format of its own, so that it is a place to trust.

    Its compile workers inherit the environment, and with it the place of the process that has started them.
    """
    wanted, ours = config.flydsl_directory()
    if sources.is_private(wanted or str(sys.modules["torch._inductor.runtime.flydsl_cache"]._cache_dir())):
        return str(wrapped())
    if not ours or ownership.why_not_private(os.path.dirname(wanted)) is not None:
        wanted = os.path.join(private_directory.of_process(), "flydsl_compile_cache")
        config.set_flydsl_directory(wanted)
    return wanted


def quack_dir(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Path:
    """quack.cache.jit.get_cache_path, which makes it."""
    directory = _reachable(wrapped(*args, **kwargs))
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def quack_lock(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """FileLock.__enter__ of quack.cache.jit: under the lock of an object it is looked for, or compiled."""
    entered = wrapped(*args, **kwargs)
    path = _object_of(instance)
    sources.settle_side_file(path, os.path.dirname(path))
    instance._safecache_before = _identity(path)
    return entered


def quack_unlock(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> None:
    """FileLock.__exit__ of quack.cache.jit."""
    try:
        if instance.exclusive:
            _keep_if_new(_object_of(instance), instance._safecache_before)
    finally:
        wrapped(*args, **kwargs)


def _object_of(lock: Any) -> str:
    return str(Path(lock.lock_path).with_suffix(".o"))


def _reachable(directory: Any) -> Path:
    return Path(sources.reachable(str(directory)))


def _identity(path: str) -> list[int] | None:
    return filesystem.identity(os.lstat(path)) if os.path.lexists(path) else None


def _keep_if_new(path: str, before: list[int] | None) -> None:
    after = _identity(path)
    if after is not None and after != before:
        gate.keep(path, os.path.dirname(path))
