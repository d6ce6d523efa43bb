"""torch._inductor.runtime.benchmarking: while a rank measures on its GPU, none waits for its compile for long."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from safecache.flights import scopes

__all__ = ["measure"]


def measure(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """benchmark_gpu of each kind, and benchmark_gpu_with_cuda_graph: each begins by waiting for the GPU."""
    with scopes.measuring():
        return wrapped(*args, **kwargs)
