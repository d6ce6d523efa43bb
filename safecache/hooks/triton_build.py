"""triton.runtime.build: the driver's helper and the launchers that Triton compiles from C."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from safecache import load_failure

__all__ = ["load_module_from_path"]


def load_module_from_path(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """_load_module_from_path: says what to do where the cache is mounted noexec."""
    return load_failure.explain(wrapped, args, kwargs, "TRITON_CACHE_DIR")
