"""What a thread is about to compile with Triton, for the service to do it if the cache has it not."""

from __future__ import annotations

import hashlib
import math
import os
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from safecache.entries import searches
from safecache.places.refs import locate
from safecache.ports import plugs
from safecache.reporting.kinds import Kind
from safecache.settings import config, settings

__all__ = ["begin", "compiled", "group_of", "is_isolated", "is_told", "name_of", "note_miss", "record_pending_compile"]

# A compile inside a call of these is one of several: a function, or anything in a module.
_BENCHMARK = ("triton.runtime.autotuner", "_bench")
_PRECOMPILE = ("torch._inductor.runtime.triton_heuristics", "_precompile_worker")
_OF_MAX_AUTOTUNE = ("torch._inductor.select_algorithm", "torch._inductor.autotune_process")


class _Thread(threading.local):
    """``asked``: what this thread's triton.compile() has computed the cache key of, but not looked up yet."""

    asked: tuple[Any, Any, Any, str, Any] | None = None
    # Whether it is in a triton.compile(), which can pass through several hooks, one per module.
    compiles = False
    # What was compiled for it before it began, and whether its lookup has been reported.
    made: Any = None
    is_told = False


_thread = _Thread()


class _Compiled(BaseException):
    """Ends a triton.compile() that has a listener: to that, the hit on what we compiled would be no compile.

    Not an Exception, which a caller in between might report or take for a failure.
    """

    def __init__(self, source: Any, key: str, group: dict[str, str], times: dict[str, Any]) -> None:
        self.source, self.key, self.group, self.times = source, key, group, times

    def told(self) -> Any:
        """What triton.compile() returns, once the listener has been called."""
        knobs, compiler = sys.modules["triton"].knobs, sys.modules["triton.compiler.compiler"]
        kernel = compiler.CompiledKernel(self.source, self.group, hashlib.sha256(self.key.encode()).hexdigest())
        if knobs.compilation.listener is not None:
            knobs.compilation.listener(
                src=self.source,
                metadata=kernel.metadata._asdict(),
                metadata_group=self.group,
                times=knobs.CompileTimes(**self.times),
                cache_hit=False,
            )
        return kernel


def compiled(src: Any, options: tuple[Any, ...], compile: Callable[[], Any]) -> Any:
    """What ``compile`` returns, which is triton.compile() of ``src`` with these further arguments.

    A file of IR, which it would parse first of all, is compiled beforehand if the cache lacks it. Raises what
    ``compile`` does, and compiling.ahead().
    """
    if _thread.compiles:
        return compile()
    _thread.compiles = True
    try:
        _thread.made = _ahead(src, *options) if isinstance(src, str) and is_isolated() else None
        with plugs.single_flight.compile_scope(Kind.KERNEL, math.inf):
            return compile()
    except _Compiled as end:
        return end.told()
    finally:
        _thread.compiles, _thread.made, _thread.is_told = False, None, False


def _ahead(src: str, target: Any, options: Any, variables: Any) -> Any:
    from safecache.isolation import compiling

    ahead = compiling.ahead(src, target, options, variables)
    if ahead is None:
        return None
    _tell_of_miss(ahead)
    return ahead.make(tuning=_is_tuning())


def _tell_of_miss(ahead: Any) -> None:
    """Report the miss before the compile, as any other; Triton's own lookup will find the result."""
    ref = locate(Kind.KERNEL, ahead.directory, os.path.dirname(ahead.directory))
    with searches.track_lookup(ref, lambda: str(ahead.name)) as search:
        from safecache.explain import key_notes

        asked = (*ahead.request[:4], ahead.variables)
        key_notes.trying(Kind.KERNEL, lambda: _note_miss(asked, ahead.directory, ahead.name))
        _thread.is_told = True
        search.missed()


def is_told() -> bool:
    """Whether this lookup has been reported as a miss already, by the compile before it."""
    return _thread.is_told


def is_isolated() -> bool:
    """Whether Triton's compiles are isolated in this process."""
    isolate = config.current().isolate
    return bool(isolate) and (isolate == settings.WORKERS or not config.is_compile_worker())


def begin() -> None:
    """Have the compile server start, if kernels are compiled apart, at this first sign that one may be."""
    if is_isolated():
        from safecache.isolation import early_start

        early_start.begin()


def record_pending_compile(src: Any, backend: Any, options: Any, variables: Any, key: str) -> None:
    """Keep in mind what this thread is about to look up. Raises tuning.Asked in a tuning query."""
    # An unimported module asks nothing, nor does, in this thread, one that another thread is still importing.
    tuning: Any = sys.modules.get("safecache.isolation.tuning")
    if hasattr(tuning, "is_asking") and tuning.is_asking():
        raise tuning.Asked(src, backend, options, key)
    _thread.asked = src, backend, options, key, variables


def group_of(manager: Any, directory: str, filename: str, found: dict[str, str] | None) -> dict[str, str] | None:
    """What get_group() found, else what the service has compiled. None if neither. Raises as compiling.obtain()."""
    asked, _thread.asked = _asked_for(filename), None
    if asked is None:
        return found
    knobs = sys.modules["triton"].knobs
    if found is not None and not knobs.compilation.always_compile:
        return _listened(asked, found, _thread.made)
    if not is_isolated():
        return found
    # Not at the top, since a process that only hits needs none of it.
    from safecache.isolation import attempts, compiling, limits

    request = attempts.Request(*asked[:4], metadata=filename)
    if compiling.stays(request.source.name):
        return found
    made = compiling.obtain(request, os.path.dirname(directory), limits.current(tuning=_is_tuning()), manager)
    return found if made is None else _listened(asked, made.group, made)


def _listened(asked: tuple[Any, Any, Any, str, Any], group: dict[str, str], made: Any) -> dict[str, str]:
    """The group; raises _Compiled if a listener has to hear that it was ``made`` for this compile."""
    if made is not None and _thread.compiles and sys.modules["triton"].knobs.compilation.listener is not None:
        raise _Compiled(asked[0], asked[3], group, made.times)
    return group


def _asked_for(filename: str) -> tuple[Any, Any, Any, str, Any] | None:
    """What this thread is about to compile, if ``filename`` is the name of its metadata."""
    asked = _thread.asked
    return asked if asked is not None and filename == f"{asked[0].name[:150]}.json" else None


def name_of(filename: str) -> str:
    """The name of the kernel with this metadata file; with its module if triton.compile() asks."""
    # Here and below: not at the top, since a process that only hits needs none of it.
    from safecache.explain import components

    asked = _asked_for(filename)
    return components.name_of(asked[0]) if asked is not None else filename.removesuffix(".json")


def note_miss(filename: str, directory: str) -> None:
    """Note that what triton.compile() is about to compile is not in this directory."""
    from safecache.explain import key_notes

    asked = _asked_for(filename)
    if asked is not None:
        key_notes.trying(Kind.KERNEL, lambda: _note_miss(asked, directory, name_of(filename)))


def _note_miss(asked: tuple[Any, Any, Any, str, Any], directory: str, name: str) -> None:
    from safecache.explain import components, key_notes

    source, backend, options, _, variables = asked
    triton_key = sys.modules["triton.runtime.cache"].triton_key()
    version = sys.modules["triton"].__version__
    parts = components.kernel_components(source, backend, options, variables, triton_key, version)
    key_notes.note(locate(Kind.KERNEL, directory, os.path.dirname(directory)), name, parts)


def _is_tuning() -> bool:
    """Whether the compile is one of several for tuning. Only asked at a miss, which takes a thousand times as long."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        where = frame.f_globals.get("__name__"), frame.f_code.co_name
        if where == _BENCHMARK or where[0] in _OF_MAX_AUTOTUNE:
            return True
        if where == _PRECOMPILE:
            return len(frame.f_locals["self"].configs or ()) > 1
        frame = frame.f_back
    return False
