"""torch.utils._triton: where torch itself explains why Triton's driver helper does not load."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from safecache.loads import failures

__all__ = ["raise_triton_cache_load_error"]


def raise_triton_cache_load_error(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> None:
    """_raise_triton_cache_load_error: one explanation, not torch's guess on top of what is known."""

    def explain(exc: BaseException) -> None:
        if failures.is_explained(exc):
            raise exc
        wrapped(exc)

    explain(*args, **kwargs)
