"""torch._inductor.runtime.triton_heuristics: launchers that pickle, and autotuners that pickle with them."""

from __future__ import annotations

import os
import types
from collections.abc import Callable
from typing import Any

from safecache import launchers
from safecache.code import gate, triton_files
from safecache.launchers import detached, kernel_recipe
from safecache.reporting import events
from safecache.reporting.kinds import Kind, Reason

__all__ = ["build_fast_launcher", "getstate", "make_launcher", "reload_cubin_path"]


def make_launcher(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """StaticTritonCompileResult.make_launcher and TritonCompileResult.make_launcher."""
    kernel_recipe.keep_cubin(instance)
    function = wrapped(*args, **kwargs)
    if not isinstance(function, types.FunctionType):
        return function  # the source patch picklable-launchers has made one that pickles
    try:
        return launchers.make(function, instance)
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        events.report(
            Reason.STOOD_DOWN,
            f"a launcher stays as torch made it: {text}.",
            cause=text,
            remedy="An entry that refers to it is not saved; a newer safecache may know this kind of kernel.",
            error=error,
        )
        return function


def reload_cubin_path(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> None:
    """StaticTritonCompileResult.reload_cubin_path: a cubin that nothing attests is not there.

    Where one cannot be written, or its record not be read, the kernel's own is loaded from a private copy.
    """
    try:
        wrapped(*args, **kwargs)
        path: str = instance.kernel.cubin_path
        gate.admit_build(path, os.path.dirname(os.path.dirname(path)), Kind.KERNEL)
    except OSError as error:
        if instance.kernel.cubin_raw is None:
            instance.kernel.cubin_path = None  # nobody loads what could not be verified
            raise
        instance.kernel.cubin_path = triton_files.put_aside(instance.kernel.name, instance.kernel.cubin_raw, error)
        return
    if not os.path.exists(path):
        wrapped(*args, **kwargs)
        if instance.kernel.cubin_raw is not None:
            gate.expect(path, instance.kernel.cubin_raw)


def build_fast_launcher(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """CachingAutotuner._build_fast_launcher: what the autotuner calls from the second launch on, a plain function.

    Torch's fast one if it can be had, else the launcher's own, which saves the 60 ns of a functools.partial.
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


def getstate(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """CachingAutotuner.__getstate__, of a copy that is prepared: torch's own asserts that there are no launchers."""
    return wrapped.__func__(detached.autotuner(instance))  # type: ignore[attr-defined]
