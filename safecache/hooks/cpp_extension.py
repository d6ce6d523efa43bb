"""torch.utils.cpp_extension: extensions that are compiled when they are used."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from safecache import build_failure, exec_directory, load_failure

__all__ = ["import_module_from_library", "run_ninja_build"]


def import_module_from_library(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """_import_module_from_library: says what to do where the build directory is mounted noexec."""

    def load(module_name: str, path: str, *rest: Any, **named: Any) -> Any:
        extension = sys.modules["torch.utils.cpp_extension"].LIB_EXT
        placed = exec_directory.place(os.path.join(path, f"{module_name}{extension}"))
        arguments = (module_name, os.path.dirname(placed), *rest)
        return load_failure.explain(wrapped, arguments, named, "TORCH_EXTENSIONS_DIR")

    return load(*args, **kwargs)


def run_ninja_build(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """_run_ninja_build: says what to install where there is no compiler, or no Python.h."""
    return build_failure.explain(wrapped, args, kwargs, "the extension is compiled with it", language="C++")
