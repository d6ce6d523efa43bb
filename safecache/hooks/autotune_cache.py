"""torch._inductor.runtime.autotune_cache: autotuning results that arrive in bundles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from safecache import artifacts, loading
from safecache.seal import Kind

__all__ = ["load_cache"]


class _SafeNames:
    """The remote cache of bundles, without what torch would write outside of its cache directory."""

    def __init__(self, remote: Any) -> None:
        self._remote = remote

    def get(self, key: str) -> Any:
        bundle = self._remote.get(key)
        if not isinstance(bundle, dict):
            return bundle
        return {name: result for name, result in bundle.items() if _accept(name)}


def _accept(name: str) -> bool:
    safe = artifacts.is_autotuning_name(name)
    return artifacts.accept_name(Kind.AUTOTUNING, name, "in the remote cache", safe=safe)


def load_cache(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """_AutotuneCacheBundlerImpl._load_cache: names of results become paths there, absolute ones included."""
    remote = instance._cache
    instance._cache = _SafeNames(remote)
    try:
        with loading.reading():
            return wrapped(*args, **kwargs)
    finally:
        instance._cache = remote
