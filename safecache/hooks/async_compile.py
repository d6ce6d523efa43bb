"""torch._inductor.async_compile: its compile workers are not started for what is found in a cache."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from safecache import compiles
from safecache.entries import workers

__all__ = ["triton", "use_process_pool", "wakeup"]


def wakeup(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> None:
    """AsyncCompile.wakeup, at the beginning of a compile: later, unless the pool is there or nothing is looked up."""
    if _async_compile().process_pool.cache_info().currsize or not _are_looked_up():
        wrapped(*args, **kwargs)
    else:
        workers.postpone(lambda: wrapped(*args, **kwargs))


def use_process_pool(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> bool:
    """AsyncCompile.use_process_pool, which starts it: not for a kernel that was found."""
    if workers.are_postponed():
        if compiles.current.has_kernel:
            return False
        workers.start()
    is_ready: bool = wrapped(*args, **kwargs)
    return is_ready


def triton(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """AsyncCompile.triton: of a kernel, which came with the entry or is to be compiled."""

    def load(kernel_name: str, source_code: str, *rest: Any, **named: Any) -> Any:
        if not workers.are_postponed() or _kernels().get(source_code) is None:
            return wrapped(*args, **kwargs)
        with compiles.scope(has_kernel=True):
            return wrapped(*args, **kwargs)

    return load(*args, **kwargs)


def _are_looked_up() -> bool:
    is_package = sys.modules["torch._inductor.virtualized"].V.aot_compilation
    return not is_package and bool(sys.modules["torch._functorch.aot_autograd"].should_use_local_autograd_cache())


def _async_compile() -> Any:
    return sys.modules["torch._inductor.async_compile"].AsyncCompile


def _kernels() -> Any:
    return sys.modules["torch._inductor.async_compile"].CompiledTritonKernels
