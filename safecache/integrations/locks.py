"""Torch's file locks, with an upper limit on the wait."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from safecache.built_code import lock_guards
from safecache.patching.hook import hook, verifier
from safecache.settings import config

__all__ = ["enter", "exit", "release", "try_acquire"]


@hook(
    "torch.utils._filelock:FileLock.__enter__(self)",
    why="Torch waits in silence for a build lock, up to 600 seconds, and then ends the compile with a Timeout.",
    issue="https://github.com/pytorch/pytorch/blob/v2.15.0/torch/_inductor/codecache.py#L4172",
)
def enter(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """FileLock.__enter__: no longer than SAFECACHE_WAIT says, and not in silence.

    Where torch waits without end it does so still: extensions can take hours to build.
    """
    most = instance.timeout
    if most >= 0:
        most = instance.timeout = min(most, config.current().lock_timeout)

    def attempt_lock(seconds: float) -> Any:
        instance.timeout = seconds
        try:
            return wrapped(*args, **kwargs)
        except OSError as error:
            if error.filename is not None:
                error.filename = instance.lock_file  # and not where links lead, which nobody knows for the cache's
            raise

    def acquire_lock() -> Any:
        try:
            return lock_guards.wait(instance.lock_file, most, attempt_lock)
        finally:
            instance.timeout = most

    def release_lock() -> None:
        instance.__exit__(None, None, None)

    return instance if lock_guards.guard(instance, instance.lock_file, acquire_lock, release_lock) else acquire_lock()


@hook(
    "torch.utils._filelock:FileLock.__exit__(self, exc_type, exc_value, traceback)",
    why="FileLock.__exit__ uses a counter that only __enter__ sets, so leaving a lock that was never taken raises.",
    issue="https://github.com/pytorch/pytorch/blob/v2.15.0/torch/utils/_filelock.py#L34",
)
def exit(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """FileLock.__exit__, even of a lock that was not taken."""
    return lock_guards.release(instance, partial(wrapped, *args, **kwargs))


@verifier(
    "torch.utils.file_baton:FileBaton.try_acquire(self)",
    why="FileBaton takes a lock file for held even if its owner was killed, so later builds wait forever.",
    issue="https://github.com/pytorch/pytorch/issues/189245",
)
def try_acquire(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """FileBaton.try_acquire: also True for a lock that is not needed and so not taken, which delays nobody else."""

    def acquire_lock() -> None:
        while not wrapped(*args, **kwargs):
            instance.wait()

    is_guarded = lock_guards.guard(instance, instance.lock_file_path, acquire_lock, instance.release)
    return True if is_guarded else wrapped(*args, **kwargs)


@verifier(
    "torch.utils.file_baton:FileBaton.release(self)",
    why="FileBaton.release removes the lock file even if this process never took it, or fails because there is none.",
    issue="https://github.com/pytorch/pytorch/blob/v2.15.0/torch/utils/file_baton.py#L63",
)
def release(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """FileBaton.release, even of a lock that was not taken."""
    return lock_guards.release(instance, partial(wrapped, *args, **kwargs))
