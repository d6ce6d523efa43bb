"""triton.compiler.compiler: what is about to be compiled, for the service to do it if the cache has it not."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from safecache import compile_workers, config, settings
from safecache.lookups import Layer

__all__ = ["compile", "get_cache_key", "group_of", "name_of", "note_miss"]

# Within a call of these a compile is one of several: of a function, or of whatever is in a module.
_BENCHMARK = ("triton.runtime.autotuner", "_bench")
_PRECOMPILE = ("torch._inductor.runtime.triton_heuristics", "_precompile_worker")
_OF_MAX_AUTOTUNE = ("torch._inductor.select_algorithm", "torch._inductor.autotune_process")


class _Thread(threading.local):
    """What this thread's triton.compile() has computed the key of, and not looked up yet."""

    asked: tuple[Any, Any, Any, str, Any] | None = None
    # Whether it is in a triton.compile(): that can lead through several hooks, one for each module.
    compiles = False


_thread = _Thread()


def compile(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """triton.compile: a file of IR, which it parses first of all, is compiled before, if the cache has it not."""

    def prepare(src: Any, target: Any = None, options: Any = None, _env_vars: Any = None) -> None:
        if isinstance(src, str) and _is_isolated():
            from safecache.isolation import ir_files

            ir_files.prepare(src, target, options, _env_vars, _is_tuning())

    if _thread.compiles:
        return wrapped(*args, **kwargs)
    _thread.compiles = True
    try:
        prepare(*args, **kwargs)
        return wrapped(*args, **kwargs)
    finally:
        _thread.compiles = False


def _is_isolated() -> bool:
    isolate = config.current().isolate
    return bool(isolate) and (isolate == settings.WORKERS or not compile_workers.is_one())


def get_cache_key(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> str:
    """get_cache_key, as triton.compile() calls it."""

    def computed(src: Any, backend: Any, backend_options: Any, env_vars: Any) -> str:
        key: str = wrapped(src, backend, backend_options, env_vars)
        _thread.asked = src, backend, backend_options, key, env_vars
        return key

    return computed(*args, **kwargs)


def group_of(manager: Any, directory: str, filename: str, found: dict[str, str] | None) -> dict[str, str] | None:
    """What get_group() found, or what the service has compiled instead. Raises as compiling.obtain() does."""
    asked, _thread.asked = _asked_for(filename), None
    if asked is None:
        return found
    knobs = sys.modules["triton"].knobs
    if found is not None and not knobs.compilation.always_compile:
        return found
    if not _is_isolated():
        return found
    # Not before: a process that hits needs none of it.
    from safecache.isolation import compiling, limits

    request = compiling.Request(*asked[:4], metadata=filename)
    if compiling.stays(request.source.name):
        return found
    return compiling.obtain(request, os.path.dirname(directory), limits.current(tuning=_is_tuning()), manager)


def _asked_for(filename: str) -> tuple[Any, Any, Any, str, Any] | None:
    """What this thread is about to compile, if that is the name of its metadata."""
    asked = _thread.asked
    return asked if asked is not None and filename == f"{asked[0].name[:150]}.json" else None


def name_of(filename: str) -> str:
    """What the kernel is called that has this metadata: with its module, where triton.compile() asks."""
    # Here and below: not before, since a process that hits needs none of it.
    from safecache import triton_key_components

    asked = _asked_for(filename)
    return triton_key_components.name_of(asked[0]) if asked is not None else filename.removesuffix(".json")


def note_miss(filename: str, directory: str) -> None:
    """What triton.compile() is about to compile is not in this directory."""
    from safecache import key_notes

    asked = _asked_for(filename)
    if asked is not None:
        key_notes.trying(Layer.TRITON, lambda: _note_miss(asked, directory))


def _note_miss(asked: tuple[Any, Any, Any, str, Any], directory: str) -> None:
    from safecache import key_notes, triton_key_components

    source, backend, options, _, variables = asked
    triton_key = sys.modules["triton.runtime.cache"].triton_key()
    version = sys.modules["triton"].__version__
    parts = triton_key_components.components(source, backend, options, variables, triton_key, version)
    name = triton_key_components.name_of(source)
    key_notes.note(Layer.TRITON, os.path.basename(directory), name, os.path.dirname(directory), parts)


def _is_tuning() -> bool:
    """Asked at a miss only, which takes a thousand times as long."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        where = frame.f_globals.get("__name__"), frame.f_code.co_name
        if where == _BENCHMARK or where[0] in _OF_MAX_AUTOTUNE:
            return True
        if where == _PRECOMPILE:
            return len(frame.f_locals["self"].configs or ()) > 1
        frame = frame.f_back
    return False
