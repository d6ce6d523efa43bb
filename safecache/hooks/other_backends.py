"""Inductor's other backends: Halide, CUTLASS, CuTeDSL, FlyDSL and Quack, each with a cache of its own."""

from __future__ import annotations

import errno
import functools
import glob
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from safecache.code import generated, sources
from safecache.files import filesystem, ownership, private_directory
from safecache.places.layout import CodeFile
from safecache.reporting.kinds import Reason
from safecache.settings import config
from safecache.store import entry_files, gate
from safecache.tiers import directory_faults, fallback

__all__ = [
    "build_halide_runtime",
    "cutedsl_dir",
    "cutedsl_get",
    "cutedsl_set",
    "fetch_ops",
    "flydsl_dir",
    "generate_halide",
    "halide_work",
    "quack_dir",
    "quack_lock",
    "quack_unlock",
    "touch_halide",
    "try_import_cutlass",
]

_DONE = "done"
_RUNTIME = "libStandaloneHalideRuntime.so"
_KERNEL = ("halide_kernel.a", "halide_kernel.h")


def generate_halide(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """generate_halide_async, which makes a library for each source: an unattested one is quarantined and made again."""

    def start(meta: Any, source_code: str, *rest: Any, **named: Any) -> Any:
        codecache = sys.modules["torch._inductor.codecache"]
        key = codecache.code_hash(source_code, extra=repr((instance.config_hash(), meta)))
        directory = codecache.get_path(key, "halide")[2]
        _keep_to_ourselves(generated.root_of(directory))
        _settle(directory, _KERNEL)
        return wrapped(meta, source_code, *rest, **named)

    return fallback.attempt(lambda: start(*args, **kwargs))


def build_halide_runtime(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """build_standalone_runtime, which all kernels are linked with: quarantines an unattested one.

    It lies in the cache, or in the default cache directory if the former is gone.
    """
    codecache = sys.modules["torch._inductor.codecache"]
    base = codecache.default_cache_dir() if instance._standalone_runtime_path else codecache.cache_dir()
    for directory in glob.glob(os.path.join(glob.escape(base), "halide-runtime-*")):
        _settle(directory, (_RUNTIME,))
    return wrapped(*args, **kwargs)


def halide_work(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> None:
    """_worker_task_halide: attests what the first job, another process, has made before it is linked."""

    def do(lockfile: str, jobs: Sequence[Any]) -> None:
        wrapped(lockfile, [*jobs[:1], functools.partial(_keep, os.path.dirname(lockfile), _KERNEL), *jobs[1:]])

    do(*args, **kwargs)


def touch_halide(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> None:
    """touch, by which torch marks the runtime as built: attests the runtime first."""

    def make(filename: str) -> None:
        _keep(os.path.dirname(filename), (_RUNTIME,))
        wrapped(filename)

    make(*args, **kwargs)


def _keep(directory: str, names: Sequence[str]) -> None:
    for path in (os.path.join(directory, name) for name in names):
        if os.path.lexists(path):
            gate.attest_file(CodeFile(path, _root(directory)))


def _settle(directory: str, names: Sequence[str]) -> None:
    """Have the files of these names built again, unless each of them exists and is attested."""
    done, root = os.path.join(directory, _DONE), _root(directory)
    if os.path.lexists(done) and not all(
        sources.settle_side_file(os.path.join(directory, name), root) for name in names
    ):
        entry_files.quarantine(done, root, Reason.UNSEALED)


def _root(directory: str) -> str:
    # The runtime can lie in the default cache directory while another is in use.
    base = os.path.dirname(directory)
    return base if os.path.basename(directory).startswith("halide-runtime-") else generated.root_of(directory)


def _keep_to_ourselves(root: str) -> None:
    """Raise Immovable if others could replace what compilers and loaders read by name: nothing is built there then."""
    objection = ownership.why_not_private(root)
    if objection is not None:
        text = f"Halide's libraries cannot be kept where others can write: {objection}"
        raise directory_faults.Immovable(errno.EPERM, text, root)


def cutedsl_dir(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Path:
    """cutedsl_cache._cache_dir, or a directory of this process alone if others can write there."""
    return _reachable(wrapped(*args, **kwargs))


def cutedsl_get(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """disk_cache_get: an object that is not in this process's memory is only loaded if it is attested."""

    def get(
        mem_cache: Any,
        module_path: str,
        config_key: Any,
        runtime_key: Any,
        device_index: int = 0,
        device_capability: Any = None,
    ) -> Any:
        if (runtime_key, device_index) not in mem_cache:
            path = _cutedsl_path(module_path, config_key, runtime_key, device_index, device_capability)
            sources.settle_side_file(path, os.path.dirname(path))
        return wrapped(mem_cache, module_path, config_key, runtime_key, device_index, device_capability)

    return get(*args, **kwargs)


def cutedsl_set(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> None:
    """disk_cache_set: attests the object, if one was written, which not every kernel allows."""

    def put(
        mem_cache: Any,
        module_path: str,
        config_key: Any,
        runtime_key: Any,
        compiled_fn: Any,
        device_index: int = 0,
        device_capability: Any = None,
    ) -> None:
        path = _cutedsl_path(module_path, config_key, runtime_key, device_index, device_capability)
        before = _identity(path)
        wrapped(mem_cache, module_path, config_key, runtime_key, compiled_fn, device_index, device_capability)
        _keep_if_new(path, before)

    put(*args, **kwargs)


def _cutedsl_path(*key: Any) -> str:
    module = sys.modules["torch._inductor.runtime.cutedsl_cache"]
    return os.path.join(module._cache_dir(), f"{module._make_disk_key(*key)}.o")


def flydsl_dir(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> str:
    """configure_flydsl_cache_dir: FlyDSL reads a format of its own there, so the directory itself has to be trusted.

    Unless the user does, it is one of this process. Compile workers inherit it from their parent's environment.
    """
    wanted, ours = config.flydsl_directory()
    if sources.is_private(wanted or str(sys.modules["torch._inductor.runtime.flydsl_cache"]._cache_dir())):
        return str(wrapped())
    if not ours or ownership.why_not_private(os.path.dirname(wanted)) is not None:
        wanted = os.path.join(private_directory.process_directory(), "flydsl_compile_cache")
        config.set_flydsl_directory(wanted)
    return wanted


def quack_dir(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Path:
    """quack.cache.jit.get_cache_path, which makes it; a directory of this process if others can write there."""
    directory = _reachable(wrapped(*args, **kwargs))
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def quack_lock(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """FileLock.__enter__ of quack.cache.jit, which precedes the search for an object: quarantines an unattested one."""
    entered = wrapped(*args, **kwargs)
    path = _object_of(instance)
    sources.settle_side_file(path, os.path.dirname(path))
    instance._safecache_before = _identity(path)
    return entered


def quack_unlock(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> None:
    """FileLock.__exit__ of quack.cache.jit: attests the object if it was compiled under the lock."""
    try:
        if instance.exclusive:
            _keep_if_new(_object_of(instance), instance._safecache_before)
    finally:
        wrapped(*args, **kwargs)


def _object_of(lock: Any) -> str:
    return str(Path(lock.lock_path).with_suffix(".o"))


def _reachable(directory: Any) -> Path:
    return Path(sources.reachable(str(directory)))


def _identity(path: str) -> list[int] | None:
    return filesystem.identity(os.lstat(path)) if os.path.lexists(path) else None


def _keep_if_new(path: str, before: list[int] | None) -> None:
    after = _identity(path)
    if after is not None and after != before:
        gate.attest_file(CodeFile(path, os.path.dirname(path)))


def fetch_ops(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """maybe_fetch_ops, which reads operations, later made into CUDA source text, from a JSON file in the cache.

    No released torch writes that file, so nothing could attest it: it is ignored, and the operations are generated.
    """
    module = sys.modules["torch._inductor.codegen.cutlass.cache"]
    with mock.patch.object(module, "cache_dir", lambda: os.devnull):  # no file can be there
        return wrapped(*args, **kwargs)


def try_import_cutlass(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """try_import_cutlass, which puts a cache directory on sys.path for good, for some links that it makes there.

    They go into this process's private directory instead: else whoever can write to the cache could add modules.
    """
    module = sys.modules["torch._inductor.codegen.cutlass.utils"]
    with mock.patch.object(module, "cache_dir", private_directory.process_directory):
        return wrapped(*args, **kwargs)
