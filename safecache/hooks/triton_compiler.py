"""triton.compiler.compiler: what is about to be compiled."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from safecache import compiles
from safecache.code import triton_files
from safecache.ports import KernelRequest, plugs
from safecache.reporting.kinds import Kind

__all__ = ["compile", "get_cache_key"]


def compile(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """triton.compile, which can pass through several of these, one for each module."""

    def compiled(src: Any, target: Any = None, options: Any = None, _env_vars: Any = None) -> Any:
        if compiles.current.makes_kernel:
            return wrapped(*args, **kwargs)
        flight = plugs.single_flight.compile_scope(Kind.KERNEL, math.inf)
        with compiles.scope(makes_kernel=True, is_told=False), triton_files.compiling(), flight:
            return plugs.compiler.compile(src, (target, options, _env_vars), lambda: wrapped(*args, **kwargs))

    return compiled(*args, **kwargs)


def get_cache_key(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> str:
    """get_cache_key, as triton.compile() calls it: notes what it is of."""

    def computed(src: Any, backend: Any, backend_options: Any, env_vars: Any) -> str:
        plugs.compiler.begin()
        key: str = wrapped(src, backend, backend_options, env_vars)
        request = KernelRequest(src, backend, backend_options, key, env_vars)
        plugs.compiler.request(request)  # which may raise: then this thread does not look it up
        compiles.current.kernel = request
        return key

    return computed(*args, **kwargs)
