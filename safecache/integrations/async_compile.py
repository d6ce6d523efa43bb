"""Inductor's compile workers: how they are started, and that they are not for what is found in a cache."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.machinery import PathFinder
from typing import Any

from safecache import compiles
from safecache.entries import searches
from safecache.patching.hook import hook
from safecache.settings import config

__all__ = ["init_pool", "triton", "use_process_pool", "wakeup"]


@hook(
    "torch._inductor.async_compile:AsyncCompile.wakeup(cls)",
    why="Torch wakes its compile workers before any cache lookup, so processes that hit pay seconds of CPU time for "
    "nothing.",
    issue="https://github.com/pytorch/pytorch/blob/v2.15.0/torch/_inductor/compile_fx.py#L3187",
)
def wakeup(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> None:
    """AsyncCompile.wakeup, at the beginning of a compile: later, unless the pool is there or nothing is looked up."""
    pool = sys.modules["torch._inductor.async_compile"].AsyncCompile.process_pool
    if pool.cache_info().currsize or not _has_lookups():
        wrapped(*args, **kwargs)
    else:
        searches.postpone_workers(lambda: wrapped(*args, **kwargs))


@hook(
    "torch._inductor.async_compile:AsyncCompile.use_process_pool(cls)",
    why="Merely asking whether the process pool is ready starts it, even for kernels that need no compile.",
    issue="https://github.com/pytorch/pytorch/blob/v2.15.0/torch/_inductor/async_compile.py#L448",
)
def use_process_pool(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> bool:
    """AsyncCompile.use_process_pool, which starts it: not for a kernel that was found."""
    if searches.has_postponed_workers():
        if compiles.current.has_kernel:
            return False
        searches.start_workers()
    is_ready: bool = wrapped(*args, **kwargs)
    return is_ready


@hook(
    "torch._inductor.async_compile:AsyncCompile.triton(self, kernel_name, source_code, device_str=)",
    why="Torch asks for the process pool, and so starts it, before it looks whether the kernel came with the entry.",
    issue="https://github.com/pytorch/pytorch/blob/v2.15.0/torch/_inductor/async_compile.py#L538",
)
def triton(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """AsyncCompile.triton: of a kernel, which came with the entry or is to be compiled."""

    def load(kernel_name: str, source_code: str, *rest: Any, **named: Any) -> Any:
        kernels = sys.modules["torch._inductor.async_compile"].CompiledTritonKernels
        if not searches.has_postponed_workers() or kernels.get(source_code) is None:
            return wrapped(*args, **kwargs)
        with compiles.override_scope(has_kernel=True):
            return wrapped(*args, **kwargs)

    return load(*args, **kwargs)


@hook(
    "torch._inductor.compile_worker.subproc_pool:SubprocPool.__init__(self, nprocs, pickler=, kind=, quiesce=)",
    why="Torch starts compile workers from a fresh interpreter that inherits no patch, secret or state of its parent.",
    issue="https://github.com/pytorch/pytorch/blob/v2.15.0/torch/_inductor/compile_worker/subproc_pool.py#L191",
)
def init_pool(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> None:
    """SubprocPool.__init__: uses our pickler, unless the caller passes one or the side process cannot import us."""

    def initialise(nprocs: int, pickler: Any = None, *rest: Any, **named: Any) -> None:
        if pickler is None and _can_worker_import():
            from safecache.integrations.compile_workers import WorkerPickler

            pickler = WorkerPickler()
        wrapped(nprocs, pickler, *rest, **named)

    initialise(*args, **kwargs)


def _can_worker_import() -> bool:
    # A side process that fails to import its pickler dies, and torch <= 2.13 then waits for it forever. Torch passes
    # it our sys.path (python_subprocess_env), unless this variable replaces that.
    return (
        "TORCH_CUSTOM_PYTHONPATH" not in config.copy_environment()
        and getattr(PathFinder.find_spec("safecache", sys.path), "origin", None) is not None
    )


def _has_lookups() -> bool:
    is_package = sys.modules["torch._inductor.virtualized"].V.aot_compilation
    return not is_package and bool(sys.modules["torch._functorch.aot_autograd"].should_use_local_autograd_cache())
