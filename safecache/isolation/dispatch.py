"""Hand Triton's compiles to the isolation service if the cache does not have the result.

Triton's autotuner compiles a kernel's configurations one by one, each just before it is measured. Here those still to
come are compiled along with the current one. Nothing that this imports at its top imports Triton.
"""

from __future__ import annotations

import functools
import hashlib
import os
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any

from safecache import compiles
from safecache.entries import searches
from safecache.patching.hook import hook
from safecache.places.refs import locate
from safecache.ports import Compiling, KernelRequest, tell
from safecache.reporting.kinds import Kind
from safecache.settings import config, settings

if TYPE_CHECKING:
    from safecache.isolation.compiling import Attempt

__all__ = [
    "Asked",
    "Tuning",
    "begin",
    "bench",
    "compile",
    "is_isolated",
    "make",
    "prune_configs",
    "request",
    "should_compile_here",
]

# A compile inside a call of these is one of several: a function, or anything in a module.
_BENCHMARK = ("triton.runtime.autotuner", "_bench")
_PRECOMPILE = ("torch._inductor.runtime.triton_heuristics", "_precompile_worker")
_OF_MAX_AUTOTUNE = ("torch._inductor.select_algorithm", "torch._inductor.autotune_process")
# Knobs, and their variables, with which the compile itself is wanted, not a hit: it then runs in this process.
_OF_THE_COMPILE = {
    "always_compile": "TRITON_ALWAYS_COMPILE",
    "override": "TRITON_KERNEL_OVERRIDE",
    "dump_ir": "TRITON_KERNEL_DUMP",
}


class _Compiled(BaseException):
    """Ends a triton.compile() that has a listener: to that, the hit on what we compiled would be no compile.

    Not an Exception, which a caller in between might report or take for a failure.
    """

    def __init__(self, source: Any, key: str, group: dict[str, str], times: dict[str, Any]) -> None:
        self.source, self.key, self.group, self.times = source, key, group, times

    def tell_listener(self) -> Any:
        """Call Triton's listener, and return what triton.compile() returns."""
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
    """Return what ``work``, triton.compile() of ``source``, returns; an IR file is compiled apart before if missing.

    Implements Compiler.compile(). Triton would parse the file first, in this process. Raises what ``work`` and
    compiling.prepare_ahead() raise.
    """
    try:
        with compiles.override_scope(
            made=_make_ahead(source, *options) if isinstance(source, str) and is_isolated() else None
        ):
            return work()
    except _Compiled as end:
        return end.tell_listener()


def _make_ahead(src: str, target: Any, options: Any, variables: Any) -> Any:
    """Compile the IR file ``src`` before Triton reads it; None if it is cached, or is to be compiled here."""
    from safecache.isolation import compiling
    from safecache.isolation.client import current_limits

    ahead = compiling.prepare_ahead(src, target, options, variables, lambda: current_limits(tuning=_is_tuning()))
    if ahead is None or should_compile_here(ahead.request.source.name):
        return None
    # The miss is reported before the compile, as any other; Triton's own lookup will find the result.
    ref = locate(Kind.KERNEL, ahead.directory, os.path.dirname(ahead.directory))
    with searches.track_lookup(ref, lambda: ahead.name) as search:
        tell(Compiling(ref, KernelRequest(*ahead.request[:4], ahead.variables), lambda: ahead.name))
        compiles.current.is_told = True
        search.end_as_miss()
    return compiling.obtain(ahead.request, ahead.manager)


def should_compile_here(kernel: str) -> bool:
    """Whether a setting requires the compile to run in this process; if so, that is reported."""
    knobs = sys.modules["triton"].knobs.compilation
    variable = next((variable for name, variable in _OF_THE_COMPILE.items() if getattr(knobs, name)), None)
    if variable is not None:
        from safecache.isolation import compiling

        compiling.report_in_process(f"the kernel {kernel}", f"{variable} is set")
    return variable is not None


def is_isolated() -> bool:
    """Whether Triton's compiles are isolated in this process."""
    isolate = config.current().isolate
    return bool(isolate) and (isolate == settings.WORKERS or not config.is_compile_worker())


def begin() -> None:
    """Start the server if kernels are compiled apart and the cache is empty. Implements Compiler.begin().

    Otherwise the first miss starts it. Call it before the first cache key is computed: the key hashes Triton's 500 MB,
    which takes as long as the start.
    """
    if is_isolated():
        _start_if_cold()


@functools.cache
def _start_if_cold() -> None:
    """Start the server if the cache is empty. Looks once per process, so that hits cost one look at one directory."""
    chosen, knobs = config.current(), sys.modules["triton"].knobs
    may_be_elsewhere = chosen.lower or chosen.local or knobs.cache.manager_class or knobs.cache.remote_manager_class
    if may_be_elsewhere or any(getattr(knobs.compilation, name) for name in _OF_THE_COMPILE):
        return
    try:
        with os.scandir(knobs.cache.dir) as found:
            is_empty = all(entry.name.startswith(".") for entry in found)  # but for our own files
    except OSError as error:
        is_empty = isinstance(error, FileNotFoundError)  # Triton will report any other
    if is_empty:
        from safecache.isolation import client

        client.get_service().start()


def request(request: KernelRequest) -> None:
    """Raise Asked with ``request`` in a tuning query, else do nothing. Implements Compiler.request()."""
    if compiles.current.asks_kernel:
        raise Asked(request)


def make(
    request: KernelRequest | None, manager: Any, directory: str, found: dict[str, str] | None
) -> dict[str, str] | None:
    """Return ``found``, or else the group of an isolated compile; None if Triton is to compile the kernel here.

    Implements Compiler.make(). Raises what compiling.obtain() raises.
    """
    if request is None:
        return found
    knobs = sys.modules["triton"].knobs
    if found is not None and not knobs.compilation.always_compile:
        return _check_listener(request, found, compiles.current.made)
    if not is_isolated():
        return found
    # Not at the top, since a process that only hits needs none of it.
    from safecache.isolation import compiling
    from safecache.isolation.client import Request, current_limits

    if should_compile_here(request.source.name):
        return found
    limits = current_limits(tuning=_is_tuning())
    made = compiling.obtain(Request(*request[:4], request.metadata, os.path.dirname(directory), limits), manager)
    return found if made is None else _check_listener(request, made.group, made)


def _check_listener(request: KernelRequest, group: dict[str, str], made: Any) -> dict[str, str]:
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


class Asked(BaseException):
    """Ends a compile begun only to see what it looks up in its cache. Its argument is the KernelRequest.

    Not an Exception, which code on the way might report or take for a failure.
    """


class Tuning:
    """The configurations of one autotuner call; those in ``left`` have not had their turn."""

    def __init__(self, configs: Iterable[Any]) -> None:
        self.left = list(configs)
        # What was compiled ahead, by cache key.
        self.attempts: dict[str, Attempt] = {}
        # What is measured: a function, and its arguments.
        self.function: Any = None
        self.call: tuple[tuple[Any, ...], dict[str, Any]] = (), {}
        self._is_asked = False

    def end(self) -> None:
        """Discard what was compiled ahead: nothing more is compiled."""
        self.left = []
        while self.attempts:
            self.attempts.popitem()[1].close()

    def iter_requests(self) -> Iterator[KernelRequest]:
        """Yield the lookup of each configuration that is left; nothing after the first call."""
        if self._is_asked:
            return
        from safecache.isolation.values import find_language

        function = self.function
        while type(function) is sys.modules["triton.runtime.autotuner"].Heuristics:
            function = function.fn
        cache_hook = sys.modules["triton"].knobs.runtime.jit_cache_hook
        # Whether a compile begun to ask has no side effects: no hooks of the user's, no nested autotuner.
        is_plain = find_language(function) is not None and cache_hook is None and not function.pre_run_hooks
        if not is_plain:
            return
        self._is_asked = True
        arguments, named = self.call
        # On its turn, a configuration's hook writes its block shapes into descriptors.
        has_descriptor = any(hasattr(value, "block_shape") for value in (*arguments, *named.values()))
        for left in self.left:
            if left.pre_hook is not None and has_descriptor:
                continue
            try:
                with compiles.override_scope(asks_kernel=True):
                    self.function.run(*arguments, **{**named, **left.all_kwargs(), "warmup": True})
            except Asked as asked:
                yield asked.args[0]
            except Exception:
                continue  # its own turn will meet the same error and raise it


@hook(
    "triton.runtime.autotuner:Autotuner.prune_configs(self, kwargs)",
    why="Triton's autotuner compiles the configurations one after another, although compiling takes most of its time.",
    issue="https://github.com/triton-lang/triton/issues/4806",
)
def prune_configs(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """Autotuner.prune_configs: the remaining ones will be compiled, unless a cache has the result of the tuning."""
    configs = wrapped(*args, **kwargs)
    if is_isolated() and config.current().prefetch:
        # By autotuner: while one tunes, the code that it measures may start another.
        tunings = compiles.current.tunings = compiles.current.tunings or weakref.WeakKeyDictionary()
        previous = tunings.pop(instance, None)
        if previous is not None:
            previous.end()
        tunings[instance] = Tuning(configs)
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

    def bench_config(*arguments: Any, config: Any, **named: Any) -> Any:
        tunings = compiles.current.tunings or {}
        tuning = tunings.get(instance)
        if tuning is not None:  # it is the turn of this configuration
            tuning.function, tuning.call = instance.fn, (arguments, named)
            tuning.left = tuning.left[tuning.left.index(config) + 1 :] if config in tuning.left else []
        try:
            with compiles.override_scope(kernel_tuning=tuning):
                return wrapped(*arguments, config=config, **named)
        except BaseException:
            if tuning is not None:
                tuning.left = []
            raise
        finally:
            if tuning is not None and not tuning.left:
                tuning.end()
                tunings.pop(instance, None)

    return bench_config(*args, **kwargs)
