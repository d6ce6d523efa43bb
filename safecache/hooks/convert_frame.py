"""torch._dynamo.convert_frame: the compile of a frame, as a whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from safecache.reporting import events

__all__ = ["convert"]


def convert(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """ConvertFrame.__call__: what nobody may swallow leaves it; with suppress_errors it would run the frame eagerly.

    SGLang sets that for FlashInfer's attention. Without it, such an error leaves the frame within torch's own.
    """
    from torch._dynamo import config

    def compile_it(frame: Any, cache_entry: Any, hooks: Any, frame_state: Any, skip: int = 0) -> Any:
        # So many of the innermost frames torch leaves out of the stack in its trace log; these two are others.
        return wrapped(frame, cache_entry, hooks, frame_state, skip + 2)

    if not config.suppress_errors:
        return compile_it(*args, **kwargs)
    with events.propagate_strict():
        return compile_it(*args, **kwargs)
