"""Seconds of a process's main thread by phase: a phase that runs within another counts once, as the inner one."""

from __future__ import annotations

import collections
import functools
import threading
import time
from collections.abc import Callable

import wrapt

# Where torch, Triton and FlashInfer spend a start, whichever server calls them.
COMMON = {
    "torch._dynamo.convert_frame:_compile": "trace",
    "torch._dynamo.convert_frame:fullgraph_capture": "trace",
    "torch._dynamo.aot_compile:AOTCompiledFunction.deserialize": "load graphs",
    "torch._functorch._aot_autograd.autograd_cache:AOTAutogradCache.try_load": "load graphs",
    "torch._inductor.codecache:FxGraphCache.load_with_key": "load graphs",
    "torch._inductor.standalone_compile:CompiledArtifact.load": "load graphs",
    "torch._inductor.standalone_compile:AOTCompiledArtifact.deserialize": "load graphs",
    "torch._inductor.compile_fx:fx_codegen_and_compile": "compile graphs",
    "torch._inductor.async_compile:AsyncCompile.wait": "Triton kernels",
    "triton.runtime.jit:JITFunction._do_compile": "Triton kernels",
    "torch._inductor.runtime.triton_heuristics:CachingAutotuner.benchmark_all_configs": "tune",
    "torch._inductor.runtime.triton_heuristics:CachingAutotuner.coordinate_descent_tuning": "tune",
    "triton.runtime.autotuner:Autotuner._bench": "tune",
    "flashinfer.jit.core:JitSpec.build_and_load": "other libraries",
}


class Clock:
    """Wall and CPU seconds of the thread that made it, by phase, since a time of the epoch."""

    def __init__(self, began: float, phase: str):
        self.seconds: dict[str, list[float]] = collections.defaultdict(lambda: [0.0, 0.0])
        self.phases, self.thread = [phase], threading.get_ident()
        # Of the CPU time before the process started there is none here.
        self.wall, self.cpu = began, 0.0
        self.missing: list[str] = []

    def charge(self) -> None:
        """Count what has passed since the last change for the phase that runs."""
        wall, cpu = time.time(), time.process_time()
        seconds = self.seconds[self.phases[-1]]
        seconds[0] += wall - self.wall
        seconds[1] += cpu - self.cpu
        self.wall, self.cpu = wall, cpu

    def enter(self, phase: str) -> None:
        self.charge()
        self.phases.append(phase)

    def leave(self) -> None:
        self.charge()
        self.phases.pop()

    def change(self, phase: str) -> None:
        """What runs outside all other phases is that one from now on."""
        self.charge()
        self.phases[0] = phase

    def watch(self, functions: dict[str, str]) -> None:
        """Have calls of these functions, each ``module:name``, be phases; those that are not there are ``missing``."""
        for target, phase in functions.items():
            try:
                wrapt.wrap_function_wrapper(*target.split(":"), functools.partial(self.time, phase))
            except (ImportError, AttributeError):
                self.missing.append(target)

    def time(self, phase: str, function: Callable, _: object, given: tuple, named: dict) -> object:
        if threading.get_ident() != self.thread:
            return function(*given, **named)
        self.enter(phase)
        try:
            return function(*given, **named)
        finally:
            self.leave()

    def read(self) -> dict[str, object]:
        self.charge()
        phases = {name: [round(wall, 3), round(cpu, 3)] for name, (wall, cpu) in self.seconds.items()}
        return {"phases": phases} | ({"missing": self.missing} if self.missing else {})


def start_at(target: str, start: Callable[[], None]) -> None:
    """Call that once, before the first call of this function."""
    owner, name, function = wrapt.resolve_path(*target.split(":"))

    def call(*given, **named):
        setattr(owner, name, function)
        start()
        return function(*given, **named)

    setattr(owner, name, functools.wraps(function)(call))
