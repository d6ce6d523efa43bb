"""torch._inductor.select_algorithm: of templates that are compiled to be measured, each process begins with others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from safecache.flights import tuning

__all__ = ["make_precompile_fn"]


def make_precompile_fn(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """AlgorithmSelectorCache.make_precompile_fn: the order is no part of the result."""

    def make(choices: Any, *rest: Any, **named: Any) -> Any:
        return wrapped(tuning.in_own_order(choices, lambda choice: str(choice.kernel_hash_key())), *rest, **named)

    return make(*args, **kwargs)
