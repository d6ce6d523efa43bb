"""torch._inductor.runtime.cache_dir_utils: where the cache lies, also for a user without a name (torch before 2.13)."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from typing import Any

from safecache.tiers import fallback

__all__ = ["cache_dir", "default_cache_dir", "settle"]


def cache_dir(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> str:
    """cache_dir: one that can be used, also where torch asks while it is imported; strict mode raises in a compile."""
    _settle(strictly=False)
    return fallback.attempt(lambda: str(wrapped(*args, **kwargs)))


def settle() -> None:
    """At the start of a compile: torch keeps copies of cache_dir that were made before it was patched."""
    _settle(strictly=True)


def _settle(*, strictly: bool) -> None:
    fallback.settle(_default, strictly=strictly)


def _default() -> str:
    directory: str = sys.modules["torch._inductor.runtime.cache_dir_utils"].default_cache_dir()
    return directory


def default_cache_dir(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> str:
    """default_cache_dir: for a uid without a passwd entry the directory that torch 2.13 takes, ``uid_<n>``.

    OpenShift and ``docker --user`` give such uids; getpass.getuser raises for them what is caught here.
    """
    try:
        name: str = wrapped(*args, **kwargs)
        return name
    except (KeyError, ModuleNotFoundError, OSError):
        return os.path.join(tempfile.gettempdir(), f"torchinductor_uid_{os.getuid()}")
