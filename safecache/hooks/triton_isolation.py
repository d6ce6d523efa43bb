"""triton.compiler.compiler: what is about to be compiled, for the service to do it if the cache has it not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from safecache.code import triton_files
from safecache.isolation import asked

__all__ = ["compile", "get_cache_key"]


def compile(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """triton.compile: compiles a file of IR, which it would parse first of all, beforehand if the cache lacks it."""

    def compiled(src: Any, target: Any = None, options: Any = None, _env_vars: Any = None) -> Any:
        with triton_files.compiling():
            return asked.compiled(src, (target, options, _env_vars), lambda: wrapped(*args, **kwargs))

    return compiled(*args, **kwargs)


def get_cache_key(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> str:
    """get_cache_key, as triton.compile() calls it: notes what it asks for. Raises tuning.Asked in a tuning query."""

    def computed(src: Any, backend: Any, backend_options: Any, env_vars: Any) -> str:
        asked.begin()
        key: str = wrapped(src, backend, backend_options, env_vars)
        asked.record_pending_compile(src, backend, backend_options, env_vars, key)
        return key

    return computed(*args, **kwargs)
