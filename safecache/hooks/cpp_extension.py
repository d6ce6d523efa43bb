"""torch.utils.cpp_extension: extensions that are compiled when they are used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from safecache import load_failure

__all__ = ["import_module_from_library"]


def import_module_from_library(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """_import_module_from_library: says what to do where the build directory is mounted noexec."""
    return load_failure.explain(wrapped, args, kwargs, "TORCH_EXTENSIONS_DIR")
