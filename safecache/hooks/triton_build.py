"""triton.runtime.build: the driver's helper and the launchers that Triton compiles from C."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from safecache.code import exec_directory
from safecache.loads import failures

__all__ = ["build", "load_module_from_path"]


def build(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """_build: says what to install where there is no compiler, or no Python.h."""
    language = "C++" if kwargs.get("language") == "c++" or args[7:] == ("c++",) else "C"
    purpose = "Triton compiles its driver helper and the launchers of its kernels with it"
    return failures.explain_build(wrapped, args, kwargs, purpose, language=language)


def load_module_from_path(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """_load_module_from_path: says what to do where the cache is mounted noexec."""

    def load(name: str, path: str) -> Any:
        return failures.explain_load(wrapped, (name, exec_directory.place(path)), {}, "TRITON_CACHE_DIR")

    return load(*args, **kwargs)
