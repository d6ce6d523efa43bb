"""First runs: where torch and Triton hand out what was loaded, to be run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from safecache.trials import first_runs

__all__ = ["watch_graph", "watch_kernel"]


def watch_graph(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> None:
    """CompiledFxGraph.post_compile, which wraps its callable for the last time: a loaded one is on trial once more."""
    wrapped(*args, **kwargs)
    first_runs.watch_graph(instance)


def watch_kernel(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """JITFunction._do_compile, before a kernel's first launch: one that was found in a cache is on trial until then."""
    kernel = wrapped(*args, **kwargs)
    first_runs.watch_kernel(kernel)
    return kernel
