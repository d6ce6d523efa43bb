"""What tests of isolation have a fresh process do; see process.py."""

from __future__ import annotations

import json
import os
import pickle
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

from safecache.errors import TritonCompileCrash


def _told(error):
    told = {"error": type(error).__name__, "text": str(error)}
    if isinstance(error, TritonCompileCrash):
        told |= {name: getattr(error, name) for name in ("how", "signal", "stage", "kernel", "config", "report")}
    return told


def _compiled(name):
    import crashing_kernels

    try:
        kernel = crashing_kernels.compile(name)
    except Exception as error:
        return _told(error)
    files = {key: Path(path).read_bytes().hex() for key, path in kernel.metadata_group.items()}
    return {"hash": kernel.hash, "files": files}


def compile_each(names, options=None):
    """What became of the compile of each."""
    return [_compiled(name) for name in names]


def compile_ir(stage):
    """The sound kernel from its IR, and not from its source."""
    import crashing_kernels
    import triton

    path = Path(os.environ["TRITON_CACHE_DIR"]).parent / f"scale.{stage}"
    path.write_text(crashing_kernels.compile("sound").asm[stage])
    kernel = triton.compile(str(path), target=crashing_kernels.TARGET)
    return {"hash": kernel.hash, "cubin": kernel.asm["cubin"].hex()}


def compile_in_threads(names, warps):
    """Each of them with each number of warps, all at once."""
    import crashing_kernels

    jobs = [(name, number) for name in names for number in warps]

    def compiled(job):
        try:
            crashing_kernels.compile(job[0], num_warps=job[1])
        except TritonCompileCrash as error:
            return error.config["num_warps"] == job[1]
        return job[0]

    with ThreadPoolExecutor(len(jobs)) as threads:
        return [[*job, result] for job, result in zip(jobs, threads.map(compiled, jobs), strict=True)]


def compile_in_a_compile_worker(names):
    """As in the side process of Inductor's pool, which is told by what it was started as."""
    sys.modules["__main__"].__file__ = "/torch/_inductor/compile_worker/__main__.py"
    return compile_each(names)


def compile_with_a_hook_in_the_stages(names):
    import triton

    with triton.knobs.runtime.scope():
        triton.knobs.runtime.add_stages_inspection_hook = lambda *rest: None if rest else ("-hook", "hook")
        return compile_each(names)


def compile_without_an_interpreter(names):
    """As where Python is embedded in another program."""
    sys.executable = ""
    return compile_each(names)


def compile_with_another_ptxas_from_now_on(names):
    """As torch 2.11 sets it in the middle, after Triton has asked its own for its version."""
    import crashing_kernels
    import triton

    triton.compiler.compiler.make_backend(crashing_kernels.TARGET).hash()
    for variable in ("TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH"):
        tool = triton.knobs.nvidia.ptxas if "BLACKWELL" not in variable else triton.knobs.nvidia.ptxas_blackwell
        path = Path(os.environ["TRITON_CACHE_DIR"]).parent / variable
        path.write_text(f'#!/bin/sh\n[ "$1" != --version ] || echo another build of\nexec {tool.path} "$@"\n')
        path.chmod(0o755)
        os.environ[variable] = str(path)
    return compile_each(names)


def compile_with_a_remote_cache(names):
    """And what that holds then."""
    import triton
    from scenes.triton_managers import RemoteBackend
    from triton.runtime import cache

    with triton.knobs.cache.scope():
        triton.knobs.cache.manager_class = cache.RemoteCacheManager
        triton.knobs.cache.remote_manager_class = RemoteBackend
        compiled = compile_each(names)
    return {"compiled": compiled, "remote": sorted(name for _, name in RemoteBackend.contents)}


def compile_after_a_fork(name):
    """What a child and its parent compile that has a service already."""
    before = _compiled("sound")
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, json.dumps(_compiled(name)).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        in_child = json.load(pipe)
    os.waitpid(child, 0)
    return {"before": before, "child": in_child, "parent": _compiled("wrong-types")}


def tune(kinds):
    """A launch of a kernel that Triton has to tune, where a benchmark only compiles: the faster, the later."""
    import crashing_kernels
    from triton.compiler.compiler import CompiledKernel
    from triton.runtime import autotuner

    kernel = crashing_kernels.autotuned(*kinds)
    launched = []
    device = SimpleNamespace(
        get_current_device=lambda: 0,
        get_current_stream=lambda device: 0,
        get_current_target=lambda: crashing_kernels.TARGET,
        get_benchmarker=lambda: bench,
    )

    def bench(call, quantiles):
        call()
        return [1.0 / len(launched)] * 3

    class Integers:
        dtype = "int32"

        def data_ptr(self):
            return 16

    def init_handles(self):
        self.module, self.function, self._run = 1, 1, lambda *rest: launched.append(rest)

    from triton.runtime import jit

    jit.type_canonicalisation_dict.setdefault("int32", "i32")
    with (
        mock.patch.object(autotuner, "driver", SimpleNamespace(active=device)),
        mock.patch.object(jit, "driver", SimpleNamespace(active=device)),
        mock.patch.object(CompiledKernel, "_init_handles", init_handles),
    ):
        try:
            kernel[(1,)](Integers(), Integers(), N=128)
        except Exception as error:
            return _told(error)
    timings = {config.kwargs["KIND"]: times[0] for config, times in (kernel.configs_timings or {}).items()}
    return {"best": kernel.best_config.kwargs["KIND"], "timings": {k: str(t) for k, t in timings.items()}}


def tune_with_inductor(choices, kinds):
    """What each of Inductor's loops makes of real crashes: that of max-autotune, and that of CachingAutotuner."""
    import crashing_kernels
    from scenes import autotuners
    from torch._inductor.select_algorithm import AlgorithmSelectorCache

    def benchmark(choice, arguments):
        crashing_kernels.compile(choice)
        return 1.0

    with autotuners.driver(), mock.patch.object(AlgorithmSelectorCache, "benchmark_choice", benchmark):
        timings = AlgorithmSelectorCache.benchmark_choices(choices, None)
        return {
            "max-autotune": {choice: str(timing) for choice, timing in timings.items()},
            "precompile": [_precompiled(autotuners, each) for each in kinds],
        }


def _precompiled(autotuners, kinds):
    import crashing_kernels
    from torch._inductor.runtime.triton_heuristics import NoTritonConfigsError

    configs = [{"N": 128, "KIND": kind} for kind in kinds]
    made = autotuners.autotuner(function=crashing_kernels.some_configurations, configs=configs)
    made.triton_meta["signature"] = {"x": "*i32", "y": "*i32", "N": "constexpr", "KIND": "constexpr"}
    try:
        made._precompile_worker()
    except NoTritonConfigsError as error:
        return _told(error)
    return [result.config.kwargs["KIND"] for result in made.compile_results]


def pickled(name):
    """What a process without Triton and one with it make of the pickled error."""
    import crashing_kernels

    try:
        crashing_kernels.compile(name)
    except TritonCompileCrash as error:
        again = pickle.loads(pickle.dumps(error))
        return {"before": _told(error), "after": _told(again), "same": type(again) is type(error)}
