"""torch.utils._filelock: whether torch waits for a lock of another process, and how long."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from safecache.code import lock_guards
from safecache.settings import config

__all__ = ["bounded", "enter", "exit"]

_LOCK = "_safecache_lock"


class _Thread(threading.local):
    bounded = False


_thread = _Thread()


@contextmanager
def bounded() -> Iterator[None]:
    """Have this thread wait no longer than that also for locks that torch would wait for without end, in this block."""
    outer, _thread.bounded = _thread.bounded, True
    try:
        yield
    finally:
        _thread.bounded = outer


def enter(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """FileLock.__enter__: no longer than ``SAFECACHE_LOCK_TIMEOUT``.

    Where torch waits without end it does so still, unless bounded(): extensions can take hours to build.
    """
    most = config.current().lock_timeout
    if instance.timeout >= 0:
        instance.timeout = min(instance.timeout, most)
    elif _thread.bounded:
        instance.timeout = most

    def release() -> None:
        instance.__exit__(None, None, None)

    lock = lock_guards.ask(instance.lock_file, lambda: wrapped(*args, **kwargs), release)
    if lock is None:
        return wrapped(*args, **kwargs)
    setattr(instance, _LOCK, lock)
    return instance


def exit(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """FileLock.__exit__, also of one that was not taken."""
    lock = vars(instance).pop(_LOCK, None)
    return wrapped(*args, **kwargs) if lock is None or lock.held else None
