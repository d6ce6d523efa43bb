"""torch._inductor.output_code and torch._export: libraries that AOTInductor made, loaded in C++ from where they lie."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

__all__ = ["aot_load", "load_compiled"]

# What is of safecache is imported in the functions: torch imports one of the targets when it is imported itself.


def aot_load(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """aot_load: the library is verified; and what to do where the cache is mounted noexec."""

    def load(so_path: str, device: str) -> Any:
        return _explained(wrapped, (_admitted(so_path), device))

    return load(*args, **kwargs)


def load_compiled(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """CompiledAOTI.__post_init__: likewise, for the one that it names, if it is going to load one."""
    files = instance.filename
    if not getattr(sys.modules["torch._inductor.config"], "enable_autograd_for_aot", False):
        return wrapped(*args, **kwargs)  # which loads nothing
    named = [files] if isinstance(files, str) else files if isinstance(files, list) else []
    verified = [_admitted(file) if isinstance(file, str) and file.endswith(".so") else file for file in named]
    if verified == named:
        return _explained(wrapped, args)
    instance.filename = verified
    try:
        return _explained(wrapped, args)
    finally:
        instance.filename = files


def _admitted(path: str) -> str:
    from safecache.code import gate, generated

    return gate.admit_code(path, generated.root_of(path))[0]


def _explained(wrapped: Callable[..., Any], args: Any) -> Any:
    from safecache.loads import failures

    return failures.explain_load(wrapped, args, {}, "TORCHINDUCTOR_CACHE_DIR")
