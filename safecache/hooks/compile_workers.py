"""Inductor's compile workers: how they are started, and what they receive and return."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.machinery import PathFinder
from typing import Any

from torch._inductor.compile_worker.subproc_pool import SubprocPickler

from safecache.patching import activation
from safecache.settings import config
from safecache.signing import keyring
from safecache.tiers import directory_faults, fallback

__all__ = ["WorkerPickler", "init_pool"]


def init_pool(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> None:
    """SubprocPool.__init__: uses our pickler, unless the caller passes one or the side process cannot import us."""

    def initialise(nprocs: int, pickler: Any = None, *rest: Any, **named: Any) -> None:
        if pickler is None and _importable_there():
            pickler = WorkerPickler()
        wrapped(nprocs, pickler, *rest, **named)

    initialise(*args, **kwargs)


def _importable_there() -> bool:
    # A side process that fails to import its pickler dies, and torch <= 2.13 then waits for it forever. Torch passes
    # it our sys.path (python_subprocess_env), unless this variable replaces that.
    return (
        "TORCH_CUSTOM_PYTHONPATH" not in config.child_environment()
        and getattr(PathFinder.find_spec("safecache", sys.path), "origin", None) is not None
    )


class WorkerPickler(SubprocPickler):  # type: ignore[misc]
    """Pickles jobs as torch's does, with a secret by which a worker attests its builds if there is no signing key."""

    def dumps(self, obj: object) -> bytes:
        """The bytes of a job or, in a worker, of its result."""
        is_job = not config.is_one() and keyring.current().signing is None
        pickled: bytes = super().dumps(_Job(obj, keyring.hand_down()) if is_job else obj)
        return pickled


class _Job:
    """A job and the secret; it unpickles to the job alone."""

    def __init__(self, job: object, secret: bytes) -> None:
        self._parts = secret, job

    def __reduce__(self) -> tuple[object, ...]:
        return _received, self._parts


def _received(secret: bytes, job: object) -> object:
    keyring.take(secret)
    return job


# Not in the process that makes the pool, which imports this module too.
if config.is_one():
    # Where torch's source is patched, a hook there may have loaded the package before, which activates nothing.
    if config.current().enabled:
        activation.activate()
    directory_faults.leave_to_parent()
    fallback.leave_to_parent()
