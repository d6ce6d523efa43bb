"""Copies of Inductor's compile results and autotuners without what lives only in this process.

Inductor strips the live objects themselves before a pickle, and some of it not at all: handles of a kernel that is
loaded, the kernel function of a compile result. The live objects stay as they are here.
"""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["autotuner", "compile_result"]

# Of a CompiledKernel: made anew by its _init_handles().
_HANDLES = ("module", "function", "_run", "_module_pid")


def autotuner(original: Any) -> Any:
    """A CachingAutotuner as its own prepare_for_pickle leaves it."""
    function = _never_launched(original.fn)
    memo = {id(original.fn): function}
    results = [compile_result(result, memo) for result in original.compile_results]
    copy = _shallow(original, fn=function, compile_results=results)
    copy.prepare_for_pickle()
    if "_reload_kernel" in vars(copy):
        copy._reload_kernel = None  # A closure over this process's worker pool; whoever loads the copy sets its own.
    return copy


def compile_result(original: Any, memo: dict[int, Any] | None = None) -> Any:
    """A CompileResult with a kernel that is not loaded."""
    return _shallow(original, kernel=_kernel(original, {} if memo is None else memo))


def _kernel(result: Any, memo: dict[int, Any]) -> Any:
    kernel = result.kernel
    source = getattr(kernel, "src", None)
    if source is None:
        # That of a static launcher, whose own state is without handles. A copy with handles would unload them.
        copy = object.__new__(type(kernel))
        vars(copy).update(kernel.__getstate__())
        return copy
    changes: dict[str, Any] = {name: None for name in _HANDLES if name in vars(kernel)}
    if hasattr(source, "fn"):
        changes["src"] = _shallow(source, fn=_function(source.fn, memo))
    if not result.inductor_meta.get("store_cubin"):
        # The texts of the stages, hundreds of kB, are for the eyes only.
        binaries = {stage: code for stage, code in kernel.asm.items() if isinstance(code, bytes)}
        changes["asm"] = type(kernel.asm)(binaries)
    return _shallow(kernel, **changes)


def _function(original: Any, memo: dict[int, Any]) -> Any:
    """A JITFunction as Inductor's own prepare_for_pickle leaves it."""
    if id(original) not in memo:
        heuristics = sys.modules["torch._inductor.runtime.triton_heuristics"]
        shell = object.__new__(heuristics.CachingAutotuner)
        shell.fn = _never_launched(original)
        shell.launchers, shell.compile_results, shell.benchmark_failure_reasons = [], [], {}
        shell.prepare_for_pickle()
        memo[id(original)] = shell.fn
    return memo[id(original)]


def _never_launched(function: Any) -> Any:
    copy = _shallow(function)
    caches = getattr(function, "device_caches", None)
    if caches is not None:
        # By device: the kernels that Triton itself compiled for its launches, and what binds their arguments, which
        # a method of the function makes.
        copy.device_caches = type(caches)(getattr(copy, caches.default_factory.__name__))
    return copy


def _shallow(original: Any, **changes: Any) -> Any:
    copy = object.__new__(type(original))
    vars(copy).update({**vars(original), **changes})
    return copy
