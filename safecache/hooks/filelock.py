"""torch.utils._filelock: how long Inductor waits for a lock of another process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from safecache import config

__all__ = ["enter"]


def enter(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """FileLock.__enter__: no longer than ``SAFECACHE_LOCK_TIMEOUT``, where torch does not wait for ever anyway."""
    instance.timeout = min(instance.timeout, config.current().lock_timeout)
    return wrapped(*args, **kwargs)
