"""vLLM's own module of compiled models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from safecache.reporting import events

__all__ = ["load_model"]


def load_model(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """_try_load_aot_compiled_fn: what strict mode raises leaves it; vLLM would log it, and compile."""
    with events.reading():
        return wrapped(*args, **kwargs)
