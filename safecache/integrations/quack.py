"""QuACK, kernels in CuTe DSL with a cache of their own: the copy that torch brings along, and quack-kernels itself."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from safecache.built_code import extension_builds, kept_code, sources
from safecache.integrations import cute_dsl
from safecache.patching.hook import verifier
from safecache.signing import keyring
from safecache.store import gate
from safecache.tiers.directory_faults import Immovable

__all__ = ["begin_worker", "compile_pool", "quack_dir", "quack_lock", "quack_unlock"]

_VARIABLE = "QUACK_CACHE_DIR"
_DIRECTORY = (
    "Quack keeps objects under a predictable name in the temporary directory, which another user can create first."
)
_OBJECT = "Quack loads whatever object file it finds after taking the lock, and notices only objects that fail to load."
_RECORD = "Quack publishes a compiled object without a digest, so no later process can verify it."
_WORKERS = "Quack's workers never run the program's main module, so that no import there makes them verify or attest."


@verifier(
    "torch._vendor.quack.cache.jit:get_cache_path()",
    why=_DIRECTORY,
    issue="https://github.com/pytorch/pytorch/blob/v2.15.0/torch/_vendor/quack/cache/jit.py#L52",
    since=(2, 13),
    needs="cutlass",
)
@verifier(
    "quack.cache.jit:get_cache_path()",
    why=_DIRECTORY,
    issue="https://github.com/Dao-AILab/quack/blob/v0.6.5/quack/cache/jit.py#L47",
)
def quack_dir(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Path:
    """quack.cache.jit.get_cache_path: a directory of this process if others can write there, or nobody can make it.

    Raises CacheWriteError for the latter in strict mode.
    """
    try:
        directory = cute_dsl.find_reachable_path(wrapped(*args, **kwargs))
        find_name = getattr(sys.modules[wrapped.__module__], "_compute_source_fingerprint", str)
        (directory / find_name()).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        cute_dsl.fail_write(str(error.filename), error, _VARIABLE)
        return Path(sources.replace_cache("quack_cache"))
    return directory


@verifier(
    "torch._vendor.quack.cache.jit:FileLock.__enter__(self)",
    why=_OBJECT,
    issue="https://github.com/pytorch/pytorch/blob/v2.15.0/torch/_vendor/quack/cache/jit.py#L189",
    since=(2, 13),
    needs="cutlass",
)
@verifier(
    "quack.cache.jit:FileLock.__enter__(self)",
    why=_OBJECT,
    issue="https://github.com/Dao-AILab/quack/blob/v0.6.5/quack/cache/jit.py#L103",
)
def quack_lock(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """FileLock.__enter__ of quack.cache.jit, which precedes the search for an object: quarantines an unattested one.

    Raises RuntimeError, after which quack compiles and keeps nothing, where it cannot be moved away or locked;
    EntryRefusedError or CacheWriteError for that in strict mode, and MissError where SAFECACHE_STRICT=misses=1 forbids
    a compile.
    """
    path = _find_object(instance)
    try:
        extension_builds.check_file(str(instance.lock_path))
        # Whoever holds the lock: what is attested is whole.
        if instance.exclusive or not gate.is_attested(cute_dsl.name_object(path, _make_key(path))):
            wrapped(*args, **kwargs)
    except OSError as error:
        if instance.exclusive:
            cute_dsl.fail_write(path, error, _VARIABLE)
            raise RuntimeError(f"{error}") from error
    instance._safecache_before = cute_dsl.identify_file(path)
    try:
        if not cute_dsl.settle_object(path, _make_key(path)) and instance.exclusive:
            kept_code.forbid_miss(f"the object {path}")
    except BaseException as error:
        instance.__exit__()
        if isinstance(error, Immovable):
            raise RuntimeError(f"{error}") from error
        raise
    instance._safecache_before = cute_dsl.identify_file(path)
    return instance


@verifier(
    "torch._vendor.quack.cache.jit:FileLock.__exit__(self, exc)",
    why=_RECORD,
    issue="https://github.com/pytorch/pytorch/blob/v2.15.0/torch/_vendor/quack/cache/jit.py#L327",
    since=(2, 13),
    needs="cutlass",
)
@verifier(
    "quack.cache.jit:FileLock.__exit__(self, exc)",
    why=_RECORD,
    issue="https://github.com/Dao-AILab/quack/blob/v0.6.5/quack/cache/jit.py#L118",
)
def quack_unlock(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> None:
    """FileLock.__exit__ of quack.cache.jit: attests the object if it was compiled under the lock."""
    try:
        if instance.exclusive:
            path = _find_object(instance)
            cute_dsl.attest_if_new(path, instance._safecache_before, _make_key(path))
    finally:
        wrapped(*args, **kwargs)


def _find_object(lock: Any) -> str:
    return str(Path(lock.lock_path).with_suffix(".o"))


def _make_key(path: str) -> str:
    """Quack's names: the hash of its sources and versions, and that of the function and its arguments."""
    return "/".join(path.split(os.sep)[-2:])


@verifier(
    "torch._vendor.quack.cache.async_compile:_make_executor(jobs)",
    why=_WORKERS,
    issue="https://github.com/pytorch/pytorch/blob/v2.15.0/torch/_vendor/quack/cache/async_compile.py#L304",
    since=(2, 15),
    needs="cutlass",
)
@verifier(
    "quack.cache.async_compile:_make_executor(jobs)",
    why=_WORKERS,
    issue="https://github.com/Dao-AILab/quack/blob/v0.6.5/quack/cache/async_compile.py#L296",
)
def compile_pool(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """_make_executor: its workers activate safecache first, and attest what they compile."""
    executor = wrapped(*args, **kwargs)
    secret = keyring.hand_down() if keyring.current().signing is None else b""
    executor._initializer = partial(begin_worker, executor._initializer, secret)
    return executor


def begin_worker(initialize: Callable[..., None], secret: bytes, *args: Any) -> None:
    """Begin a worker as quack does. The import of this module has activated safecache in it.

    ``secret``: by which it attests its objects if there is no signing key; else empty.
    """
    if secret:
        keyring.take_secret(secret)
    initialize(*args)
