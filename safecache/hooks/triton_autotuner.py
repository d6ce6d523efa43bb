"""triton.runtime.autotuner: what a tuning is still to compile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from safecache.hooks import triton_isolation
from safecache.settings import config as settings

__all__ = ["bench", "prune_configs"]


def prune_configs(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """Autotuner.prune_configs: what is left by it will be compiled, if no cache has the result of the tuning."""
    configs = wrapped(*args, **kwargs)
    if triton_isolation.is_isolated() and settings.current().prefetch:
        from safecache.isolation import tuning

        tuning.choose(instance, configs)
    return configs


def bench(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """Autotuner._bench, which a launch comes to only while it tunes."""

    if not triton_isolation.is_isolated():
        return wrapped(*args, **kwargs)
    from safecache.isolation import tuning

    def benched(*arguments: Any, config: Any, **named: Any) -> Any:
        with tuning.benching(instance, config, arguments, named):
            return wrapped(*arguments, config=config, **named)

    return benched(*args, **kwargs)
