"""torch._inductor.output_code and torch._export: libraries that AOTInductor made, loaded in C++ from where they lie."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["load_compiled"]


def load_compiled(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """CompiledAOTI.__post_init__ and aot_load: say what to do where the cache is mounted noexec."""
    from safecache import load_failure  # not before: torch imports one of the targets when it is imported itself

    return load_failure.explain(wrapped, args, kwargs, "TORCHINDUCTOR_CACHE_DIR")
