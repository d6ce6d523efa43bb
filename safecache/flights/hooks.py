"""What is tuned: in which order, by which process, and who waits for it while it is measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from safecache.flights import scopes, tuning

__all__ = ["make_precompile_fn", "measure", "precompile_config", "precompile_worker"]


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


def precompile_worker(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> None:
    """CachingAutotuner._precompile_worker: compiles each configuration, unless they came compiled."""
    with tuning.share_configurations(instance, () if instance.compile_results else instance.configs or ()):
        wrapped(*args, **kwargs)


def precompile_config(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """CachingAutotuner._precompile_config: of one configuration; not again if it was compiled before its turn."""

    def compile(cfg: Any, **named: Any) -> Any:
        return wrapped(cfg, **named) if named else tuning.compiled(instance, cfg, wrapped)

    return compile(*args, **kwargs)
