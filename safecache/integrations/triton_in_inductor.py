"""Inductor's Triton kernels: their launchers, and the bundles they are shipped in."""

from __future__ import annotations

import dataclasses
import os
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

from safecache import launchers
from safecache.built_code import triton_files
from safecache.entries import saving
from safecache.launchers import kernel_recipe
from safecache.patching.hook import PICKLABLE_LAUNCHERS, hook, verifier
from safecache.places import layout
from safecache.places.layout import CodeFile
from safecache.ports import Use, plugs
from safecache.reporting import events, report
from safecache.reporting.kinds import Kind, Reason
from safecache.reporting.report import Refusal
from safecache.store import attestations, gate
from safecache.tiers import directory_faults

__all__ = [
    "build_fast_launcher",
    "collect",
    "getstate",
    "make_launcher",
    "put_static_autotuner",
    "read_and_emit",
    "reload_cubin_path",
]

# What torch says of a binary that is not there, and the path.
_MISSING = "Cubin file saved by TritonBundler not found at %s"


@hook(
    "torch._inductor.runtime.triton_heuristics:StaticTritonCompileResult.make_launcher(self)",
    why="Inductor makes launchers with exec, so pickle cannot find them by name, and one reference makes an entry "
    "unsaveable.",
    issue="https://github.com/pytorch/pytorch/issues/180911",
)
@hook(
    "torch._inductor.runtime.triton_heuristics:TritonCompileResult.make_launcher(self)",
    why="Inductor makes launchers with exec, so pickle cannot find them by name, and one reference makes an entry "
    "unsaveable.",
    issue="https://github.com/pytorch/pytorch/issues/180911",
    marker=PICKLABLE_LAUNCHERS,
)
def make_launcher(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """StaticTritonCompileResult.make_launcher and TritonCompileResult.make_launcher: the launcher can be pickled.

    If that fails it is reported, and torch's launcher returned.
    """
    kernel_recipe.keep_cubin(instance)
    use = Use(Kind.KERNEL, "", [], instance.kernel)
    function = plugs.load_guard.load(use, lambda: wrapped(*args, **kwargs))
    if not isinstance(function, types.FunctionType):
        return function  # picklable already, by the source patch picklable-launchers
    try:
        return launchers.make(function, instance)
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        events.report(
            Reason.STOOD_DOWN,
            "cannot make a launcher picklable",
            why=text,
            cause=text,
            remedy="Entries that refer to it are not saved. Help: upgrade safecache, which may know this kernel",
            error=error,
        )
        return function


@verifier(
    "torch._inductor.runtime.triton_heuristics:StaticTritonCompileResult.reload_cubin_path(self)",
    why="Torch only tests whether a cubin file exists, then loads whatever it contains.",
    issue="https://github.com/pytorch/pytorch/pull/194918",
)
def reload_cubin_path(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> None:
    """StaticTritonCompileResult.reload_cubin_path: the binary is attested, in a lower tier too, or the kernel's own.

    Raises torch's RuntimeError if there is none, and OSError if there is no place for a copy.
    """
    kernel = instance.kernel
    raw, kernel.cubin_raw = kernel.cubin_raw, None  # or torch would write it, and in place
    missing = None
    try:
        wrapped(*args, **kwargs)
        location: str = kernel.cubin_path
    except RuntimeError as error:
        if not _is_of_missing(error):
            raise
        missing, location = error, error.args[1]
    finally:
        kernel.cubin_path, kernel.cubin_raw = None, raw  # an unverified binary is never loaded
    kernel.cubin_path = triton_files.find_binary(location, raw)
    if kernel.cubin_path is None:
        raise missing or RuntimeError(_MISSING, location)


def _is_of_missing(error: RuntimeError) -> bool:
    return error.args[:1] == (_MISSING,)


@hook(
    "torch._inductor.runtime.triton_heuristics:CachingAutotuner._build_fast_launcher(self, launcher)",
    why="Torch builds the fast launcher as another nameless function, which pickle cannot save either.",
    issue="https://github.com/pytorch/pytorch/blob/v2.15.0/torch/_inductor/runtime/triton_heuristics.py#L2705",
    since=(2, 13),
    marker=PICKLABLE_LAUNCHERS,
)
def build_fast_launcher(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """CachingAutotuner._build_fast_launcher: the plain function that the autotuner calls from the second launch on.

    Torch's fast one if there is one, else the launcher's own, which saves the 60 ns of a functools.partial.
    """

    def build(launcher: Any) -> Any:
        fast = wrapped(launcher)
        if not isinstance(launcher, launchers.Launcher):
            return fast
        if fast is None:
            return launcher.func
        launchers.share_recipe(launcher, fast)
        return fast

    return build(*args, **kwargs)


@hook(
    "torch._inductor.runtime.triton_heuristics:CachingAutotuner.__getstate__(self)",
    why="Torch raises AssertionError when an autotuner is pickled after its launchers were made.",
    issue="https://github.com/pytorch/pytorch/pull/144044",
    marker=PICKLABLE_LAUNCHERS,
)
def getstate(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """CachingAutotuner.__getstate__, of a prepared copy, since torch's asserts that there are no launchers."""
    return wrapped.__func__(kernel_recipe.copy_autotuner(instance))  # type: ignore[attr-defined]


@verifier(
    "torch._inductor.triton_bundler:TritonBundler.read_and_emit(bundle)",
    why="Torch skips a kernel directory that is not empty, however incomplete, and a full disk makes the cache hit "
    "fail.",
    issue="https://github.com/pytorch/pytorch/blob/v2.15.0/torch/_inductor/triton_bundler.py#L384",
)
def read_and_emit(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """TritonBundler.read_and_emit: the verified entry attests its files, which are published one by one.

    Torch would write them as one directory, leave that behind half-written if there is no room, and fail; and write
    nothing if the directory exists. Here it only loads the autotuners, afterwards, of which the binaries are found.
    """

    def emit(bundle: Any) -> Any:
        bundler = sys.modules["torch._inductor.triton_bundler"]
        if not bundler.TritonBundler.is_enabled():
            return wrapped(bundle)
        for kernel in bundle.kernel_artifacts:
            directory = os.path.join(bundler.triton_cache_dir(kernel.device), kernel.kernel_hash)
            files = {os.path.basename(path): content for path, content in _iter_kernel_files(kernel, directory)}
            triton_files.restore(directory, files)
        autotuners = [each for each in bundle.static_autotuners or () if _has_binaries(each.kernel)]
        return wrapped(dataclasses.replace(bundle, kernel_artifacts=[], static_autotuners=autotuners))

    return emit(*args, **kwargs)


def _has_binaries(autotuner: Any) -> bool:
    """Tell whether all binaries are found; else the kernel is compiled, which torch would say in a traceback."""
    try:
        for result in autotuner.compile_results:
            result.reload_cubin_path()
    except RuntimeError as error:
        return not _is_of_missing(error)
    return True


def _iter_kernel_files(kernel: Any, directory: str) -> Iterator[tuple[str, bytes]]:
    placeholder = sys.modules["torch._inductor.triton_bundler"].TritonBundler._REPLACE_BYTES
    for artifact in kernel.artifacts:
        content: bytes = artifact.payload
        if artifact.filename.endswith(".json"):
            content = content.replace(placeholder, directory.encode())
        yield os.path.join(directory, artifact.filename), content


@verifier(
    "torch._inductor.triton_bundler:TritonBundler.collect(cls)",
    why="Torch bundles whatever files lie in a kernel's directory into the entry, without any hash to detect "
    "corruption.",
    issue="https://github.com/pytorch/pytorch/pull/138239",
)
def collect(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """TritonBundler.collect: files from Triton's cache are verified before it puts them into an entry.

    So are the bytes that it has read: a kernel that has changed meanwhile is left out.
    """
    directories = {}
    unread = set()
    for kernel in getattr(sys.modules["torch._inductor.triton_bundler"].TritonBundler, "_entries", None) or ():
        directory = directories[kernel.kernel_hash] = os.path.join(kernel.directory, kernel.kernel_hash)
        if not _settle_directory(directory):
            unread.add(kernel.kernel_hash)
    bundle, *rest = wrapped(*args, **kwargs)
    kernels = [_drop_temporaries(each) for each in bundle.kernel_artifacts if each.kernel_hash not in unread]
    sound = [kernel for kernel in kernels if _is_sound(kernel, directories[kernel.kernel_hash])]
    return dataclasses.replace(bundle, kernel_artifacts=sound), *rest


def _settle_directory(directory: str) -> bool:
    """Quarantine each unattested file in there; False, and reported, if a file cannot be settled."""
    for name in os.listdir(directory) if os.path.isdir(directory) else ():
        path = os.path.join(directory, name)
        try:
            if not layout.is_temporary(name):
                gate.quarantine_unattested(CodeFile(path, os.path.dirname(directory), Kind.KERNEL))
        except directory_faults.Unsettled as error:
            remedy = "Its kernel is not bundled with the entry; make it readable or remove it."
            report.refuse(Refusal(Reason.UNREADABLE, error.evidence), Kind.KERNEL, path, remedy, error=error)
            return False
    return True


def _drop_temporaries(kernel: Any) -> Any:
    artifacts = [artifact for artifact in kernel.artifacts if not layout.is_temporary(artifact.filename)]
    return dataclasses.replace(kernel, artifacts=artifacts)


def _is_sound(kernel: Any, directory: str) -> bool:
    return all(attestations.is_known(path, content) for path, content in _iter_kernel_files(kernel, directory))


@hook(
    "torch._inductor.triton_bundler:TritonBundler.put_static_autotuner(cls, key, kernel)",
    why="If the deepcopy raises, torch leaves the autotuner stripped of its launchers and function, and the compile "
    "fails.",
    issue="https://github.com/pytorch/pytorch/blob/v2.15.0/torch/_inductor/triton_bundler.py#L193",
)
def put_static_autotuner(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> None:
    """TritonBundler.put_static_autotuner strips, copies and restores an autotuner: here also if the copy fails."""

    def put(key: str, kernel: Any) -> None:
        before, function_before = vars(kernel).copy(), vars(kernel.fn).copy()
        try:
            wrapped(key, kernel)
        except BaseException as error:
            vars(kernel).update(before)
            vars(kernel.fn).update(function_before)
            if not isinstance(error, Exception):
                raise
            saving.report_unpicklable(kernel, f"the autotuner of {kernel.fn.__name__}", error)

    put(*args, **kwargs)
