"""torch._inductor.runtime.cache_dir_utils: the cache's place for a user without a name (torch before 2.13)."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from typing import Any

__all__ = ["default_cache_dir"]


def default_cache_dir(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> str:
    """default_cache_dir: for a uid without a passwd entry the directory that torch 2.13 takes, ``uid_<n>``.

    OpenShift and ``docker --user`` give such uids; getpass.getuser raises for them what is caught here.
    """
    try:
        name: str = wrapped(*args, **kwargs)
        return name
    except (KeyError, ModuleNotFoundError, OSError):
        return os.path.join(tempfile.gettempdir(), f"torchinductor_uid_{os.getuid()}")
