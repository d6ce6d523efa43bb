"""torch._inductor.compile_worker.subproc_pool: compile workers are hardened too.

The pool's side process is a fresh interpreter, which imports the class of the pool's pickler by name before it forks
its workers. Ours lies in a module of safecache.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.machinery import PathFinder
from typing import Any

from safecache.settings import config

__all__ = ["init"]


def init(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> None:
    """SubprocPool.__init__: names our pickler, unless the caller has one of its own or the side process lacks us."""

    def initialise(nprocs: int, pickler: Any = None, *rest: Any, **named: Any) -> None:
        if pickler is None and _importable_there():
            from safecache.hooks.worker_pickler import WorkerPickler

            pickler = WorkerPickler()
        wrapped(nprocs, pickler, *rest, **named)

    initialise(*args, **kwargs)


def _importable_there() -> bool:
    # A side process that fails to import its pickler dies, and torch <= 2.13 then waits for it for ever. Torch hands
    # it our sys.path (python_subprocess_env), unless this variable replaces that.
    return (
        "TORCH_CUSTOM_PYTHONPATH" not in config.child_environment()
        and getattr(PathFinder.find_spec("safecache", sys.path), "origin", None) is not None
    )
