"""Halide, a backend of Inductor that links libraries with a runtime of its own."""

from __future__ import annotations

import errno
import functools
import glob
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from safecache.built_code import generated, sources
from safecache.fs import ownership
from safecache.patching.hook import verifier
from safecache.places.layout import CodeFile
from safecache.reporting.kinds import Reason
from safecache.store import entry_files, gate
from safecache.tiers import directory_faults, fallback

__all__ = ["build_halide_runtime", "generate_halide", "halide_work", "touch_halide"]

_DONE = "done"
_RUNTIME = "libStandaloneHalideRuntime.so"
_KERNEL = ("halide_kernel.a", "halide_kernel.h")


@verifier(
    "torch._inductor.codecache:HalideCodeCache.generate_halide_async(cls, meta, source_code, submit_fn=)",
    why="Torch takes the done marker as proof, and links whatever Halide library lies beside it.",
    issue="https://github.com/pytorch/pytorch/blob/v2.15.0/torch/_inductor/codecache.py#L4740",
)
def generate_halide(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """generate_halide_async, which makes a library for each source: an unattested one is quarantined and made again."""

    def start(meta: Any, source_code: str, *rest: Any, **named: Any) -> Any:
        codecache = sys.modules["torch._inductor.codecache"]
        key = codecache.code_hash(source_code, extra=repr((instance.config_hash(), meta)))
        directory = codecache.get_path(key, "halide")[2]
        root = generated.find_root(directory)
        # Others could replace what compilers and loaders read by name.
        if (objection := ownership.find_exposure(root)) is not None:
            text = f"Halide's libraries cannot be kept where others can write: {objection}"
            raise directory_faults.Immovable(errno.EPERM, text, root)
        _settle_files(directory, _KERNEL)
        return wrapped(meta, source_code, *rest, **named)

    return fallback.attempt(lambda: start(*args, **kwargs))


@verifier(
    "torch._inductor.codecache:HalideCodeCache.build_standalone_runtime(cls)",
    why="Torch takes the done marker as proof, and links every kernel with whatever runtime lies beside it.",
    issue="https://github.com/pytorch/pytorch/blob/v2.15.0/torch/_inductor/codecache.py#L4821",
)
def build_halide_runtime(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """build_standalone_runtime, which all kernels are linked with: quarantines an unattested one.

    It lies in the cache, or in the default cache directory if the former is gone.
    """
    codecache = sys.modules["torch._inductor.codecache"]
    base = codecache.default_cache_dir() if instance._standalone_runtime_path else codecache.cache_dir()
    for directory in glob.glob(os.path.join(glob.escape(base), "halide-runtime-*")):
        _settle_files(directory, (_RUNTIME,))
    return wrapped(*args, **kwargs)


@verifier(
    "torch._inductor.codecache:_worker_task_halide(lockfile, jobs)",
    why="Torch links the library that a subprocess left in the cache directory, without any check of its content.",
    issue="https://github.com/pytorch/pytorch/blob/v2.15.0/torch/_inductor/codecache.py#L4867",
)
def halide_work(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> None:
    """_worker_task_halide: attests what the first job, another process, has made before it is linked."""

    def run_jobs(lockfile: str, jobs: Sequence[Any]) -> None:
        wrapped(lockfile, [*jobs[:1], functools.partial(_attest_files, os.path.dirname(lockfile), _KERNEL), *jobs[1:]])

    run_jobs(*args, **kwargs)


@verifier(
    "torch._inductor.codecache:touch(filename)",
    why="Torch marks the runtime as built with an empty file, which holds no digest of the library.",
    issue="https://github.com/pytorch/pytorch/blob/v2.15.0/torch/_inductor/codecache.py#L4850",
)
def touch_halide(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> None:
    """touch, by which torch marks the runtime as built: attests the runtime first."""

    def touch_file(filename: str) -> None:
        _attest_files(os.path.dirname(filename), (_RUNTIME,))
        wrapped(filename)

    touch_file(*args, **kwargs)


def _attest_files(directory: str, names: Sequence[str]) -> None:
    for path in (os.path.join(directory, name) for name in names):
        if os.path.lexists(path):
            gate.attest_file(CodeFile(path, _find_root(directory)))


def _settle_files(directory: str, names: Sequence[str]) -> None:
    """Have the files of these names built again, unless each of them exists and is attested."""
    done, root = os.path.join(directory, _DONE), _find_root(directory)
    if os.path.lexists(done) and not all(
        sources.settle_side_file(os.path.join(directory, name), root) for name in names
    ):
        entry_files.quarantine(done, root, Reason.UNSEALED)


def _find_root(directory: str) -> str:
    # The runtime can lie in the default cache directory while another is in use.
    base = os.path.dirname(directory)
    return base if os.path.basename(directory).startswith("halide-runtime-") else generated.find_root(directory)
