"""torch._inductor.select_algorithm and runtime.benchmarking: what is measured, in which order, and who waits for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from safecache.flights import scopes, tuning

__all__ = ["make_precompile_fn", "measure"]


def make_precompile_fn(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """AlgorithmSelectorCache.make_precompile_fn: each process begins with others; the result has no order."""

    def make(choices: Any, *rest: Any, **named: Any) -> Any:
        return wrapped(tuning.order_for_process(choices, lambda choice: str(choice.kernel_hash_key())), *rest, **named)

    return make(*args, **kwargs)


def measure(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """benchmark_gpu of each kind, and benchmark_gpu_with_cuda_graph: none waits long for a rank that measures.

    Each begins by waiting for the GPU.
    """
    with scopes.release_while_measuring():
        return wrapped(*args, **kwargs)
