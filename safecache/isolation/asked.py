"""Where Triton's compiles are handed to the service, if the cache has not what they make."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from safecache import compiles
from safecache.entries import searches
from safecache.patching.hook import hook
from safecache.places.refs import locate
from safecache.ports import Compiling, KernelRequest, tell
from safecache.reporting.kinds import Kind
from safecache.settings import config, settings

__all__ = ["begin", "bench", "compile", "is_isolated", "make", "prune_configs", "request"]

# A compile inside a call of these is one of several: a function, or anything in a module.
_BENCHMARK = ("triton.runtime.autotuner", "_bench")
_PRECOMPILE = ("torch._inductor.runtime.triton_heuristics", "_precompile_worker")
_OF_MAX_AUTOTUNE = ("torch._inductor.select_algorithm", "torch._inductor.autotune_process")


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


def compile(source: Any, options: tuple[Any, ...], work: Callable[[], Any]) -> Any:
    """As Compiler.compile(): a file of IR, which it would parse first of all, is compiled before it if it is missing.

    Raises what ``work`` does, and compiling.ahead().
    """
    try:
        with compiles.scope(made=_ahead(source, *options) if isinstance(source, str) and is_isolated() else None):
            return work()
    except _Compiled as end:
        return end.told()


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
        source, backend, options, key, _ = ahead.request
        request = KernelRequest(source, backend, options, key, ahead.variables)
        tell(Compiling(ref, request, lambda: str(ahead.name)))
        compiles.current.is_told = True
        search.missed()


def is_isolated() -> bool:
    """Whether Triton's compiles are isolated in this process."""
    isolate = config.current().isolate
    return bool(isolate) and (isolate == settings.WORKERS or not config.is_compile_worker())


def begin() -> None:
    """As Compiler.begin(): have the compile server start, if kernels are compiled apart."""
    if is_isolated():
        from safecache.isolation import early_start

        early_start.begin()


def request(request: KernelRequest) -> None:
    """As Compiler.request(). Raises tuning.Asked in a tuning query."""
    if compiles.current.asks_kernel:
        raise sys.modules["safecache.isolation.tuning"].Asked(*request[:4])


def make(
    request: KernelRequest | None, manager: Any, directory: str, found: dict[str, str] | None
) -> dict[str, str] | None:
    """As Compiler.make(). Raises as compiling.obtain()."""
    if request is None:
        return found
    knobs = sys.modules["triton"].knobs
    if found is not None and not knobs.compilation.always_compile:
        return _listened(request, found, compiles.current.made)
    if not is_isolated():
        return found
    # Not at the top, since a process that only hits needs none of it.
    from safecache.isolation import attempts, compiling, limits

    if compiling.stays(request.source.name):
        return found
    attempt = attempts.Request(*request[:4], metadata=request.metadata)
    made = compiling.obtain(attempt, os.path.dirname(directory), limits.current(tuning=_is_tuning()), manager)
    return found if made is None else _listened(request, made.group, made)


def _listened(request: KernelRequest, group: dict[str, str], made: Any) -> dict[str, str]:
    """The group; raises _Compiled if a listener has to hear that it was ``made`` for this compile."""
    has_listener = sys.modules["triton"].knobs.compilation.listener is not None
    if made is not None and compiles.current.makes_kernel and has_listener:
        raise _Compiled(request.source, request.key, group, made.times)
    return group


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


@hook(
    "triton.runtime.autotuner:Autotuner.prune_configs(self, kwargs)",
    why="Triton's autotuner compiles the configurations one after another, although compiling takes most of its time.",
    issue="https://github.com/triton-lang/triton/issues/4806",
)
def prune_configs(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """Autotuner.prune_configs: the remaining ones will be compiled, unless a cache has the result of the tuning."""
    configs = wrapped(*args, **kwargs)
    if is_isolated() and config.current().prefetch:
        from safecache.isolation import tuning

        tuning.choose(instance, configs)
    return configs


@hook(
    "triton.runtime.autotuner:Autotuner._bench(self, args, *config, meta)",
    why="A configuration on which LLVM aborts kills the whole process, since the autotuner skips Python exceptions "
    "alone.",
    issue="https://github.com/triton-lang/triton/issues/6803",
)
def bench(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """Autotuner._bench, which a launch only calls while it tunes."""
    if not is_isolated():
        return wrapped(*args, **kwargs)
    from safecache.isolation import tuning

    def benched(*arguments: Any, config: Any, **named: Any) -> Any:
        with tuning.benching(instance, config, arguments, named):
            return wrapped(*arguments, config=config, **named)

    return benched(*args, **kwargs)
