"""torch._inductor.codecache.HalideCodeCache: libraries that Halide makes, in directories of their own.

There, an empty file ``done`` says that they are built. What a process makes it attests before it says so; where
there is no record of what is there, ``done`` goes, and all is made anew.
"""

from __future__ import annotations

import errno
import functools
import glob
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from safecache.code import gate, generated, sources
from safecache.files import ownership
from safecache.reporting.kinds import Reason
from safecache.store import entry_files
from safecache.tiers import directory_faults, fallback

__all__ = ["build_runtime", "generate", "touch", "work"]

_DONE = "done"
_RUNTIME = "libStandaloneHalideRuntime.so"
_KERNEL = ("halide_kernel.a", "halide_kernel.h")


def generate(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """generate_halide_async: a library for each source, linked into the module that calls it."""

    def start(meta: Any, source_code: str, *rest: Any, **named: Any) -> Any:
        codecache = sys.modules["torch._inductor.codecache"]
        key = codecache.code_hash(source_code, extra=repr((instance.config_hash(), meta)))
        directory = codecache.get_path(key, "halide")[2]
        _keep_to_ourselves(generated.root_of(directory))
        _settle(directory, _KERNEL)
        return wrapped(meta, source_code, *rest, **named)

    return fallback.attempt(lambda: start(*args, **kwargs))


def build_runtime(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """build_standalone_runtime: what all are linked with: in the cache, or in the default one if that is gone."""
    codecache = sys.modules["torch._inductor.codecache"]
    base = codecache.default_cache_dir() if instance._standalone_runtime_path else codecache.cache_dir()
    for directory in glob.glob(os.path.join(glob.escape(base), "halide-runtime-*")):
        _settle(directory, (_RUNTIME,))
    return wrapped(*args, **kwargs)


def work(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> None:
    """_worker_task_halide: what the first of the jobs, another process, has made is attested before it is linked."""

    def do(lockfile: str, jobs: Sequence[Any]) -> None:
        wrapped(lockfile, [*jobs[:1], functools.partial(_keep, os.path.dirname(lockfile), _KERNEL), *jobs[1:]])

    do(*args, **kwargs)


def touch(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> None:
    """touch: whoever has built the runtime says so by this."""

    def make(filename: str) -> None:
        _keep(os.path.dirname(filename), (_RUNTIME,))
        wrapped(filename)

    make(*args, **kwargs)


def _keep(directory: str, names: Sequence[str]) -> None:
    for path in (os.path.join(directory, name) for name in names):
        if os.path.lexists(path):
            gate.keep(path, _root(directory))


def _settle(directory: str, names: Sequence[str]) -> None:
    """Have the files of these names made anew, unless each of them is there and attested."""
    done, root = os.path.join(directory, _DONE), _root(directory)
    if os.path.lexists(done) and not all(
        sources.settle_side_file(os.path.join(directory, name), root) for name in names
    ):
        entry_files.quarantine(done, root, Reason.UNSEALED)


def _root(directory: str) -> str:
    # The runtime can lie in the cache that is one by default, while another is in use.
    base = os.path.dirname(directory)
    return base if os.path.basename(directory).startswith("halide-runtime-") else generated.root_of(directory)


def _keep_to_ourselves(root: str) -> None:
    """Raise Immovable where others could exchange what compilers and loaders read by name: nothing is built there."""
    objection = ownership.why_not_private(root)
    if objection is not None:
        text = f"Halide's libraries cannot be kept where others can write: {objection}"
        raise directory_faults.Immovable(errno.EPERM, text, root)
