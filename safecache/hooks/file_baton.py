"""torch.utils.file_baton: the lock of a directory that an extension is built in, up to torch 2.13.

A file that is there is held by somebody, or was left behind by somebody who was killed: torch waits for its end, and
then loads what lies there. With a guard it takes the lock itself then, and so finds out whether that is to be used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from safecache.code import lock_guards

__all__ = ["release", "try_acquire"]

_LOCK = "_safecache_lock"


def try_acquire(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """FileBaton.try_acquire: True also for a lock that is not needed, which nobody else has to wait for then."""

    def take() -> None:
        while not wrapped(*args, **kwargs):
            instance.wait()

    lock = lock_guards.ask(instance.lock_file_path, take, instance.release)
    if lock is None:
        return wrapped(*args, **kwargs)
    setattr(instance, _LOCK, lock)
    return True


def release(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """FileBaton.release."""
    lock = vars(instance).pop(_LOCK, None)
    return wrapped(*args, **kwargs) if lock is None or lock.held else None
