"""torch._inductor.standalone_compile: a refused artifact says so, where torch would only fail an assertion."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from safecache import loading
from safecache.errors import EntryRefusedError

__all__ = ["load"]


def load(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """CompiledArtifact.load and CacheCompiledArtifact.load: there is no graph to recompile, so a refusal raises.

    Raises EntryRefusedError, in default mode too, where the artifact holds an entry that was refused.
    """
    with loading.reading():
        try:
            return wrapped(*args, **kwargs)
        except Exception as error:
            refused = loading.refusals()
            if not refused or not _is_miss(error):
                raise
            path = kwargs.get("path", "")
            raise EntryRefusedError(f"safecache: the artifact {path} cannot be loaded: {refused[0]}") from error


def _is_miss(error: Exception) -> bool:
    # By name: the module that defines it is imported by the load itself.
    return isinstance(error, AssertionError) or type(error).__name__ == "FXGraphCacheMiss"
