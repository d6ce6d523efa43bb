"""triton.runtime.autotuner: the configurations that will be compiled, to compile them ahead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from safecache.isolation import asked
from safecache.settings import config as settings

__all__ = ["bench", "prune_configs"]


def prune_configs(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """Autotuner.prune_configs: the remaining ones will be compiled, unless a cache has the result of the tuning."""
    configs = wrapped(*args, **kwargs)
    if asked.is_isolated() and settings.current().prefetch:
        from safecache.isolation import tuning

        tuning.choose(instance, configs)
    return configs


def bench(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """Autotuner._bench, which a launch only calls while it tunes."""

    if not asked.is_isolated():
        return wrapped(*args, **kwargs)
    from safecache.isolation import tuning

    def benched(*arguments: Any, config: Any, **named: Any) -> Any:
        with tuning.benching(instance, config, arguments, named):
            return wrapped(*arguments, config=config, **named)

    return benched(*args, **kwargs)
