"""What a launcher of a Triton kernel is rebuilt from in another process, and the rebuilding.

Inductor's CompileResult, pickled. That of a static launcher names its cubin, which lies in Triton's cache: the recipe
holds its digest, and only bytes that match are loaded. That of an ordinary launcher holds the binary itself.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from safecache import detached, provenance
from safecache.errors import LauncherError

__all__ = ["Recipe", "cubin_digest", "freeze", "identify", "rebuild"]

_REMEDY = "Compile again: remove the entry or artifact that it came from."
_HASH_CHARACTERS = 16

# By the kernel, which forgets its cubin when it is loaded.
_digests: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()


class Recipe(NamedTuple):
    """``content`` is the pickled CompileResult; ``cubin_sha256`` is None where it holds the binary itself."""

    kernel: str
    content: bytes
    cubin_sha256: str | None
    torch: str
    triton: str


def identify(result: Any, cache_hash: str) -> str:
    """``kernel[config]@hash``: the same in every process, and another one for every config of a kernel."""
    settings = sorted(result.config.all_kwargs().items())
    # A meta-parameter of a user's kernel may be a function, whose str() is an address.
    config = ",".join(f"{name}={getattr(value, '__name__', value)}" for name, value in settings)
    return f"{result.kernel.name}[{config}]@{cache_hash[:_HASH_CHARACTERS]}"


def cubin_digest(result: Any) -> str | None:
    """The SHA-256 of the cubin that a static CompileResult is about to load; None if it has none or cannot have it."""
    if not _is_static(result):
        return None
    kernel = result.kernel
    if kernel not in _digests:
        try:
            _digests[kernel] = hashlib.sha256(_cubin(result)).hexdigest()
        except (OSError, RuntimeError):
            return None  # The load that follows fails in its own words.
    return _digests[kernel]


def freeze(result: Any, cubin_sha256: str | None) -> Recipe:
    """The recipe of a CompileResult, loaded or not."""
    versions = provenance.describe()
    content = pickle.dumps(detached.compile_result(result))
    return Recipe(result.kernel.name, content, cubin_sha256, versions["torch"], versions["triton"])


def rebuild(recipe: Recipe) -> Callable[..., None]:
    """The launcher, its kernel loaded on this process's device.

    Raises LauncherError if the kernel cannot be loaded here for a reason that is known; what else goes wrong in torch's
    own code (out of memory, say) is raised as it is.
    """
    result = _unpickle(recipe)
    with _verified_cubin(result, recipe):
        try:
            launcher = result.make_launcher()
        except Exception as error:
            mismatch = _mismatch(result, recipe)
            if mismatch is None:
                raise
            raise _error(recipe, mismatch) from error
    function: Callable[..., None] = getattr(launcher, "func", launcher)
    return function


def _unpickle(recipe: Recipe) -> Any:
    try:
        return pickle.loads(recipe.content)  # noqa: S301  part of a pickle that was verified as a whole
    except Exception as error:
        here = _version_mismatch(recipe) or f"{type(error).__name__}: {error}"
        raise _error(recipe, f"what it was made from cannot be read: {here}") from error


@contextmanager
def _verified_cubin(result: Any, recipe: Recipe) -> Iterator[None]:
    """Have the kernel load verified bytes, from a file that nobody can replace."""
    if not _is_static(result):
        yield
        return
    kernel = result.kernel
    try:
        content = _cubin(result)
    except (OSError, RuntimeError) as error:
        raise _error(recipe, f"its cubin {error.args[-1]} cannot be read") from error
    if hashlib.sha256(content).hexdigest() != recipe.cubin_sha256:
        raise _error(recipe, f"its cubin {kernel.cubin_path} is not the one that it was made with")
    descriptor = os.memfd_create(kernel.name)
    # A kernel for any device (compile-on-one-rank) loads its cubin once more on each further device.
    if result.compile_meta.get("device") is None:
        weakref.finalize(kernel, os.close, descriptor)
        close = None
    else:
        close = descriptor
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(content)
        kernel.cubin_path = f"/proc/self/fd/{descriptor}"
        yield
    finally:
        if close is not None:
            os.close(close)


def _is_static(result: Any) -> bool:
    return hasattr(result, "reload_cubin_path")


def _cubin(result: Any) -> bytes:
    kernel = result.kernel
    if getattr(kernel, "cubin_raw", None) is not None:
        content: bytes = kernel.cubin_raw
        return content
    if not kernel.cubin_path:
        result.reload_cubin_path()
    with open(kernel.cubin_path, "rb") as file:
        return file.read()


def _mismatch(result: Any, recipe: Recipe) -> str | None:
    built_for = str(result.compile_meta.get("cc", ""))
    built_for = f"sm_{built_for}" if built_for.isdecimal() else built_for
    here = provenance.describe()["gpu"]
    if here and not any(name.startswith(built_for) for name in here.split(",")):
        return f"it was compiled for {built_for}, and this process has {here}"
    return _version_mismatch(recipe)


def _version_mismatch(recipe: Recipe) -> str | None:
    versions = provenance.describe()
    different = [name for name in ("torch", "triton") if getattr(recipe, name) != versions[name]]
    if not different:
        return None
    return "it was made with " + " and ".join(
        f"{name} {getattr(recipe, name)}, and this process has {versions[name]}" for name in different
    )


def _error(recipe: Recipe, why: str) -> LauncherError:
    return LauncherError(f"safecache: the kernel {recipe.kernel} cannot be launched: {why}. {_REMEDY}")
