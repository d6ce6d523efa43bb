"""Recipes that a Triton kernel's launcher is rebuilt from in another process, and copies that hold nothing more."""

from __future__ import annotations

import os
import pickle
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from safecache.built_code import triton_files
from safecache.errors import EntryRefusedError, LauncherError
from safecache.fs import opening
from safecache.places.layout import CodeFile
from safecache.reporting.kinds import Kind
from safecache.signing import provenance
from safecache.store import attestations, entry_files, gate

__all__ = ["Recipe", "copy_autotuner", "copy_compile_result", "freeze", "identify", "keep_cubin", "rebuild"]

# Attributes of a CompiledKernel that its _init_handles() makes again.
_HANDLES = ("module", "function", "_run", "_module_pid")


def copy_autotuner(original: Any) -> Any:
    """Return a copy of a CachingAutotuner, as its own prepare_for_pickle leaves it; the original stays as it is."""
    function = _copy_unlaunched(original.fn)
    memo = {id(original.fn): function}
    results = [copy_compile_result(result, memo) for result in original.compile_results]
    copy = _copy_shallow(original, fn=function, compile_results=results)
    copy.prepare_for_pickle()
    if "_reload_kernel" in vars(copy):
        copy._reload_kernel = None  # A closure over this process's worker pool; the loading process sets its own.
    return copy


def copy_compile_result(original: Any, memo: dict[int, Any] | None = None) -> Any:
    """A copy of a CompileResult whose kernel is not loaded. ``memo``: copies of functions by id, to share them."""
    return _copy_shallow(original, kernel=_copy_kernel(original, {} if memo is None else memo))


def _copy_kernel(result: Any, memo: dict[int, Any]) -> Any:
    kernel = result.kernel
    source = getattr(kernel, "src", None)
    if source is None:
        # A static launcher's kernel, whose own state has no handles. A copy with handles would unload them.
        copy = object.__new__(type(kernel))
        vars(copy).update(kernel.__getstate__())
        return copy
    changes: dict[str, Any] = {name: None for name in _HANDLES if name in vars(kernel)}
    if hasattr(source, "fn"):
        changes["src"] = _copy_shallow(source, fn=_copy_function(source.fn, memo))
    if not result.inductor_meta.get("store_cubin"):
        # The texts of the stages, hundreds of kB, are only for people to read.
        binaries = {stage: code for stage, code in kernel.asm.items() if isinstance(code, bytes)}
        changes["asm"] = type(kernel.asm)(binaries)
    return _copy_shallow(kernel, **changes)


def _copy_function(original: Any, memo: dict[int, Any]) -> Any:
    """A JITFunction as Inductor's own prepare_for_pickle leaves it."""
    if id(original) not in memo:
        heuristics = sys.modules["torch._inductor.runtime.triton_heuristics"]
        shell = object.__new__(heuristics.CachingAutotuner)
        shell.fn = _copy_unlaunched(original)
        shell.launchers, shell.compile_results, shell.benchmark_failure_reasons = [], [], {}
        shell.prepare_for_pickle()
        memo[id(original)] = shell.fn
    return memo[id(original)]


def _copy_unlaunched(function: Any) -> Any:
    copy = _copy_shallow(function)
    caches = getattr(function, "device_caches", None)
    if caches is not None:
        # By device: the kernels that Triton itself compiled for its launches, and their argument binder, which a
        # method of the function makes.
        copy.device_caches = type(caches)(getattr(copy, caches.default_factory.__name__))
    return copy


def _copy_shallow(original: Any, **changes: Any) -> Any:
    copy = object.__new__(type(original))
    vars(copy).update({**vars(original), **changes})
    return copy


_REMEDY = "Compile again: remove the entry or artifact that it came from."
_HASH_CHARACTERS = 16

# Cubins by the kernel of a static launcher, which forgets its cubin when loaded.
_cubins: weakref.WeakKeyDictionary[Any, bytes] = weakref.WeakKeyDictionary()


class Recipe(NamedTuple):
    """``content``: the pickled CompileResult, binary included, made by these versions of torch and Triton."""

    kernel: str
    content: bytes
    torch: str
    triton: str


def identify(result: Any, cache_hash: str) -> str:
    """``kernel[config]@hash``: the same in every process, and different for every config of a kernel."""
    settings = sorted(result.config.all_kwargs().items())
    # A meta-parameter of a user's kernel may be a function, whose str() is an address.
    config = ",".join(f"{name}={getattr(value, '__name__', value)}" for name, value in settings)
    return f"{result.kernel.name}[{config}]@{cache_hash[:_HASH_CHARACTERS]}"


def keep_cubin(result: Any) -> None:
    """Keep in memory the cubin that a static CompileResult is about to load, for as long as its kernel lives.

    It is loaded from a private copy if its file cannot be verified. If there is none in memory either, raises OSError,
    EntryRefusedError or UnusableEntry for the file, or what torch raises where there is no file.
    """
    if not _is_static(result) or result.kernel in _cubins:
        return
    kernel = result.kernel
    if not kernel.cubin_path:
        result.reload_cubin_path()
    path, raw = kernel.cubin_path, kernel.cubin_raw
    file = CodeFile(path, os.path.dirname(os.path.dirname(path)), Kind.KERNEL)
    if raw is not None:  # in memory already, from a verified entry
        attestations.attest_in_process(path, raw)
    try:
        kernel.cubin_path = None  # no unverified file is loaded, whatever happens
        kernel.cubin_path, _ = gate.verify_load_path(file)
    except (OSError, EntryRefusedError, opening.UnusableEntry) as error:
        if raw is None:
            raise
        if isinstance(error, OSError):
            kernel.cubin_path = triton_files.write_private_copy(file, kernel.name, raw, error)
        else:
            kernel.cubin_path = gate.make_private_path(file, raw, is_kept=False)
    with suppress(FileNotFoundError):  # nobody else can put one there: the load that follows raises its own error
        check = opening.check_up_to(entry_files.max_entry_size(Kind.KERNEL))
        _cubins[kernel] = opening.read_regular(kernel.cubin_path, check)


def freeze(result: Any) -> Recipe:
    """The recipe of a CompileResult, loaded or not."""
    copy = copy_compile_result(result)
    if _is_static(copy):
        copy.kernel.cubin_raw = _cubins[result.kernel]
    versions = provenance.describe()
    return Recipe(result.kernel.name, pickle.dumps(copy), versions["torch"], versions["triton"])


def rebuild(recipe: Recipe) -> Callable[..., None]:
    """The launcher, its kernel loaded on this process's device.

    Raises LauncherError if the kernel cannot be loaded here for a known reason; any other error of torch's own code
    (out of memory, say) is raised unchanged.
    """
    result = _unpickle_recipe(recipe)
    with _memory_cubin_scope(result):
        try:
            launcher = result.make_launcher()
        except Exception as error:
            mismatch = _find_mismatch(result, recipe)
            if mismatch is None:
                raise
            raise _make_error(recipe, mismatch) from error
    function: Callable[..., None] = getattr(launcher, "func", launcher)
    return function


def _unpickle_recipe(recipe: Recipe) -> Any:
    try:
        return pickle.loads(recipe.content)  # noqa: S301  part of a pickle that was verified as a whole
    except Exception as error:
        here = _find_version_mismatch(recipe) or f"{type(error).__name__}: {error}"
        raise _make_error(recipe, f"what it was made from cannot be read: {here}") from error


@contextmanager
def _memory_cubin_scope(result: Any) -> Iterator[None]:
    """Let a static CompileResult load the cubin it came with, from a file that nobody else can name or change."""
    if not _is_static(result):
        yield
        return
    kernel = result.kernel
    descriptor = os.memfd_create(kernel.name)
    with open(descriptor, "wb", closefd=False) as file:
        file.write(kernel.cubin_raw)
    kernel.cubin_path = f"/proc/self/fd/{descriptor}"
    _cubins[kernel] = kernel.cubin_raw
    # A kernel for any device (compile-on-one-rank) loads its cubin again on each further device.
    any_device = result.compile_meta.get("device") is None
    close = weakref.finalize(kernel, os.close, descriptor)
    try:
        yield
    finally:
        if not any_device:
            close()


def _is_static(result: Any) -> bool:
    return hasattr(result, "reload_cubin_path")


def _find_mismatch(result: Any, recipe: Recipe) -> str | None:
    built_for = str(result.compile_meta.get("cc", ""))
    built_for = f"sm_{built_for}" if built_for.isdecimal() else built_for
    here = provenance.describe()["gpu"]
    if here and not any(name.startswith(built_for) for name in here.split(",")):
        return f"it was compiled for {built_for}, and this process has {here}"
    return _find_version_mismatch(recipe)


def _find_version_mismatch(recipe: Recipe) -> str | None:
    versions = provenance.describe()
    different = [name for name in ("torch", "triton") if getattr(recipe, name) != versions[name]]
    if not different:
        return None
    return "it was made with " + " and ".join(
        f"{name} {getattr(recipe, name)}, and this process has {versions[name]}" for name in different
    )


def _make_error(recipe: Recipe, why: str) -> LauncherError:
    return LauncherError(f"safecache: the kernel {recipe.kernel} cannot be launched: {why}. {_REMEDY}")
