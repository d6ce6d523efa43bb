"""torch.compiler: the file that an ahead-of-time compiled function is loaded from, for the message of a refusal.

Every program that imports torch imports its target: what the hook needs is imported when it is called.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["load_compiled_function"]


def load_compiled_function(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """load_compiled_function: AOTCompiledFunction.deserialize does the verifying."""

    from safecache.entries import artifacts

    def load(file: Any, **named: Any) -> Any:
        with artifacts.origin(str(getattr(file, "name", ""))):
            return wrapped(file, **named)

    return load(*args, **kwargs)
