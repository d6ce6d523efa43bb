"""What a launcher of a Triton kernel is rebuilt from in another process, and the rebuilding.

Inductor's CompileResult, pickled, with the binary that was loaded: what lies in Triton's cache is no substitute. It may
be gone, nobody has verified it, and whoever compiles the same kernel again replaces it with other bytes, for a cubin
tells the path of its source.
"""

from __future__ import annotations

import os
import pickle
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from safecache.code import gate, triton_files
from safecache.errors import EntryRefusedError, LauncherError
from safecache.files import checks, opening
from safecache.launchers import detached
from safecache.reporting.kinds import Kind
from safecache.signing import provenance
from safecache.store import entry_files

__all__ = ["Recipe", "freeze", "identify", "keep_cubin", "rebuild"]

_REMEDY = "Compile again: remove the entry or artifact that it came from."
_HASH_CHARACTERS = 16

# By a static launcher's kernel, which forgets its cubin when it is loaded.
_cubins: weakref.WeakKeyDictionary[Any, bytes] = weakref.WeakKeyDictionary()


class Recipe(NamedTuple):
    """``content`` is the pickled CompileResult, binary included, made by these versions."""

    kernel: str
    content: bytes
    torch: str
    triton: str


def identify(result: Any, cache_hash: str) -> str:
    """``kernel[config]@hash``: the same in every process, and another one for every config of a kernel."""
    settings = sorted(result.config.all_kwargs().items())
    # A meta-parameter of a user's kernel may be a function, whose str() is an address.
    config = ",".join(f"{name}={getattr(value, '__name__', value)}" for name, value in settings)
    return f"{result.kernel.name}[{config}]@{cache_hash[:_HASH_CHARACTERS]}"


def keep_cubin(result: Any) -> None:
    """Keep the cubin that a static CompileResult is about to load, for as long as its kernel lives.

    It is loaded from a private copy if what lies there cannot be verified. Without one in memory this raises what was
    in the way, and what torch raises where there is none.
    """
    if not _is_static(result) or result.kernel in _cubins:
        return
    kernel = result.kernel
    if not kernel.cubin_path:
        result.reload_cubin_path()
    path, raw = kernel.cubin_path, kernel.cubin_raw
    if raw is not None:  # in memory already, of an entry that was verified
        gate.expect(path, raw)
    try:
        kernel.cubin_path = None  # nothing that was not verified is loaded, whatever happens
        kernel.cubin_path, _ = gate.admit_code(path, os.path.dirname(os.path.dirname(path)), Kind.KERNEL)
    except (OSError, EntryRefusedError, checks.UnusableEntry) as error:
        if raw is None:
            raise
        if isinstance(error, OSError):
            kernel.cubin_path = triton_files.put_aside(kernel.name, raw, error)
        else:
            kernel.cubin_path = gate.private_copy(kernel.name, raw, Kind.KERNEL)
    with suppress(FileNotFoundError):  # nobody else can put one there: the load that follows fails in its own words
        check = checks.check_up_to(entry_files.largest(Kind.KERNEL))
        _cubins[kernel] = opening.read_regular(kernel.cubin_path, check)


def freeze(result: Any) -> Recipe:
    """The recipe of a CompileResult, loaded or not."""
    copy = detached.compile_result(result)
    if _is_static(copy):
        copy.kernel.cubin_raw = _cubins[result.kernel]
    versions = provenance.describe()
    return Recipe(result.kernel.name, pickle.dumps(copy), versions["torch"], versions["triton"])


def rebuild(recipe: Recipe) -> Callable[..., None]:
    """The launcher, its kernel loaded on this process's device.

    Raises LauncherError if the kernel cannot be loaded here for a reason that is known; what else goes wrong in torch's
    own code (out of memory, say) is raised as it is.
    """
    result = _unpickle(recipe)
    with _cubin_in_memory(result):
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
def _cubin_in_memory(result: Any) -> Iterator[None]:
    """Have a static CompileResult load the cubin that it came with, from a file that nobody else can name or change."""
    if not _is_static(result):
        yield
        return
    kernel = result.kernel
    descriptor = os.memfd_create(kernel.name)
    with open(descriptor, "wb", closefd=False) as file:
        file.write(kernel.cubin_raw)
    kernel.cubin_path = f"/proc/self/fd/{descriptor}"
    _cubins[kernel] = kernel.cubin_raw
    # A kernel for any device (compile-on-one-rank) loads its cubin once more on each further device.
    any_device = result.compile_meta.get("device") is None
    close = weakref.finalize(kernel, os.close, descriptor)
    try:
        yield
    finally:
        if not any_device:
            close()


def _is_static(result: Any) -> bool:
    return hasattr(result, "reload_cubin_path")


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
