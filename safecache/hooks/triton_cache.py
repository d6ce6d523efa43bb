"""triton.runtime.cache: each file that Triton puts into its cache is vouched for, and verified when asked for."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

from safecache import mounts, vouching
from safecache.seal import Kind

__all__ = ["get_file", "get_group", "materialize", "put", "put_group"]


class _Thread(threading.local):
    """Whether this thread puts into the cache what came from a remote one, for which nobody here vouches."""

    remote = False


_thread = _Thread()


def put(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> str:
    """FileCacheManager.put: whoever put a file there reads it again, from where nobody else can replace it."""

    def put_file(data: str | bytes, filename: str, *rest: Any, **named: Any) -> str:
        ours = _is_cache(instance) and not _thread.remote
        content = data if isinstance(data, bytes) else str(data).encode()
        if ours:
            vouching.keep(os.path.join(instance.cache_dir, filename), _root(instance), Kind.KERNEL, content)
        path: str = wrapped(data, filename, *rest, **named)
        return path if not ours or mounts.forbids_execution(path) else vouching.out_of_reach(path, content)

    return put_file(*args, **kwargs)


def put_group(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> str:
    """FileCacheManager.put_group: for other processes the files are in the cache."""

    def put(filename: str, group: dict[str, str]) -> str:
        named = {name: os.path.join(instance.cache_dir, name) for name in group} if _is_cache(instance) else group
        path: str = wrapped(filename, named)
        return path

    return put(*args, **kwargs)


def get_file(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> str | None:
    """FileCacheManager.get_file: a file that nobody vouches for is not there."""
    path: str | None = wrapped(*args, **kwargs)
    return _admit(path, instance) if path is not None and _is_cache(instance) else path


def get_group(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> dict[str, str] | None:
    """FileCacheManager.get_group: nor is a group of which one file is not vouched for, its list included, or missing.

    Triton up to 3.7 takes a group without its missing files, and dies of a missing cubin at the launch.
    """

    def get(filename: str) -> dict[str, str] | None:
        if not _is_cache(instance):
            group: dict[str, str] | None = wrapped(filename)
            return group
        listed = _admit(os.path.join(instance.cache_dir, f"__grp__{filename}"), instance)
        if listed is None or not wrapped(filename):
            return None
        with open(listed) as file:
            names = json.load(file)["child_paths"]
        admitted = {name: _admit(os.path.join(instance.cache_dir, name), instance) for name in names}
        return {name: path for name, path in admitted.items() if path} if all(admitted.values()) else None

    return get(*args, **kwargs)


def materialize(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> str:
    """RemoteCacheManager._materialize."""
    _thread.remote = True
    try:
        path: str = wrapped(*args, **kwargs)
        return path
    finally:
        _thread.remote = False


def _admit(path: str, manager: Any) -> str | None:
    vouching.admit_build(path, _root(manager), Kind.KERNEL)
    return vouching.admit_code(path, _root(manager), Kind.KERNEL)[0] if os.path.lexists(path) else None


def _root(manager: Any) -> str:
    directory: str = manager.cache_dir
    return os.path.dirname(directory)


def _is_cache(manager: Any) -> bool:
    """Not a directory for overriding kernels or dumping them, which people fill and read by hand."""
    knobs = sys.modules["triton.knobs"].cache
    return _root(manager) not in (knobs.override_dir, knobs.dump_dir)
