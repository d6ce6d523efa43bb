"""tvm_ffi: the libraries that it builds with ninja, and its loader, which other compilers of kernels use as well."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from functools import partial
from typing import Any

from safecache import compiles, load_errors
from safecache.built_code import extension_builds, lock_guards, ninja_builds, sources
from safecache.patching.hook import hook, verifier
from safecache.settings import config
from safecache.tiers import directory_faults

__all__ = ["build_library", "build_ninja", "load_module", "lock", "unlock", "write_source"]

_VARIABLE = "TVM_FFI_CACHE_DIR"
_SOURCE = "https://github.com/apache/tvm-ffi/blob/v0.1.15/python/tvm_ffi"
_WAIT = "tvm_ffi waits for ever, in silence, for a build lock that a stopped process holds or that cannot be opened."
_FLAGS = "*extra_cflags=, *extra_cuda_cflags=, *extra_ldflags=, *extra_include_paths=, *build_directory="


@verifier(
    f"tvm_ffi.cpp.extension:build(name, *sources=, *cpp_files=, *cuda_files=, {_FLAGS}, *backend=, *output=)",
    why=_WAIT,
    issue=f"{_SOURCE}/cpp/extension.py#L801",
    copies=("tvm_ffi.cpp",),
)
@verifier(
    "tvm_ffi.cpp.extension:build_inline(name, *cpp_sources=, *cuda_sources=, *functions=, "
    f"{_FLAGS}, *embed_cubin=, *backend=, *output=)",
    why=_WAIT,
    issue=f"{_SOURCE}/cpp/extension.py#L1027",
    copies=("tvm_ffi.cpp",),
)
def build_library(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> str:
    """build and build_inline: no lock for an attested build, and a private directory where none can be built.

    Raises what they do, and in strict mode CacheWriteError in place of a private build.
    """

    def build(name: str, **named: Any) -> str:
        directory = named.get("build_directory") or _find_cache()
        try:
            with extension_builds.postpone_lock(translates=False):
                return str(wrapped(name, **named))
        except (OSError, RuntimeError) as error:
            fault = directory_faults.find(error, directory)
            if fault is None:
                raise
            private = extension_builds.make_private_directory(name)
            extension_builds.report_private_build(name, directory, private, fault.text, _VARIABLE, error)
            with extension_builds.postpone_lock(translates=False):
                return str(wrapped(name, **named | {"build_directory": private}))

    return build(*args, **kwargs)


def _find_cache() -> str:
    return os.path.expanduser(config.get_environment().get(_VARIABLE, "~/.cache/tvm-ffi"))


@verifier("tvm_ffi.utils.lockfile:FileLock.__enter__(self)", why=_WAIT, issue=f"{_SOURCE}/utils/lockfile.py#L119")
def lock(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """FileLock.__enter__: taken only once something is to be built, and no longer awaited than SAFECACHE_WAIT says."""
    path = os.fspath(instance.lock_file_path)

    def attempt_lock(seconds: float) -> None:
        try:
            instance.blocking_acquire(timeout=seconds)
        except TimeoutError as error:
            from filelock import Timeout

            raise Timeout(path) from error

    def acquire_lock() -> None:
        # FileLock takes a lock that it cannot open for one that is held.
        against = directory_faults.find_objection(os.path.dirname(path))
        if against is not None:
            raise PermissionError(errno.EACCES, against, path)
        extension_builds.check_file(path)
        lock_guards.wait(path, -1.0, attempt_lock)

    return instance if lock_guards.guard(instance, path, acquire_lock, instance.release) else wrapped(*args, **kwargs)


@hook(
    "tvm_ffi.utils.lockfile:FileLock.__exit__(self, exc_type, exc_val, exc_tb)",
    why="FileLock.__exit__ releases a lock that was never taken.",
    issue=f"{_SOURCE}/utils/lockfile.py#L69",
)
def unlock(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """FileLock.__exit__, also of a lock that was not taken."""
    return lock_guards.release(instance, partial(wrapped, *args, **kwargs))


@verifier(
    "tvm_ffi.cpp.extension:_maybe_write(path, content)",
    why="tvm_ffi reads its sources and build.ninja back from a directory that others may be able to write to.",
    issue=f"{_SOURCE}/cpp/extension.py#L153",
)
def write_source(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> None:
    """_maybe_write: takes the lock first if the file differs, and keeps the text for build_ninja."""

    def write(path: str, content: str) -> None:
        compiles.current.written = content
        if sources.read_unverified_text(path) != content:
            extension_builds.take_lock()
            extension_builds.check_file(path)
            wrapped(path, content)

    write(*args, **kwargs)


@verifier(
    "tvm_ffi.cpp.extension:build_ninja(build_dir)",
    why="Ninja goes by file times alone, so tvm_ffi takes an outdated or planted library with a recent time for "
    "current.",
    issue=f"{_SOURCE}/cpp/extension.py#L653",
)
def build_ninja(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> None:
    """build_ninja: what nothing attests is quarantined, so that ninja builds it again; it does not run if all is well.

    Raises what ninja's failure does, and EntryRefusedError for a refused file in strict mode.
    """

    def build(build_dir: str) -> None:
        planned = ninja_builds.plan_build(os.path.join(build_dir, "build.ninja"), compiles.current.written)
        for library in planned.libraries:  # in a directory that the caller names may lie others, of the caller's own
            sources.add_cache(library)
        extension_builds.run_ninja([planned], build_dir, lambda: wrapped(build_dir), is_exclusive=True)

    build(*args, **kwargs)


@verifier(
    "tvm_ffi.module:load_module(path, keep_module_alive=)",
    why="tvm_ffi dlopens whatever library lies in a cache, without checking who built it.",
    issue=f"{_SOURCE}/module.py#L438",
    copies=("tvm_ffi", "tvm_ffi.cpp.extension"),
)
def load_module(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """load_module: verifies a library that lies in a cache, and explains a failure to load it from a noexec mount.

    Raises EntryRefusedError, in default mode too.
    """

    def load(path: Any, *rest: Any, **named: Any) -> Any:
        sources.add_cache(_find_cache())
        placed = sources.find_load_path(os.fspath(path), is_built=True)
        return load_errors.explain_load(wrapped, (placed, *rest), named, _VARIABLE)

    return load(*args, **kwargs)
