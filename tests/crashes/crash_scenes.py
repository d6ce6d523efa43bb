"""What tests of isolation have a fresh process do; see process.py."""

from __future__ import annotations

import json
import os
import pickle
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

from safecache.errors import TritonCompileCrash


def _told(error):
    told = {"error": type(error).__name__, "text": str(error)}
    if isinstance(error, TritonCompileCrash):
        told |= _facts(error)
        again = pickle.loads(pickle.dumps(error))
        same = str(again) == str(error) and _facts(again) == _facts(error)
        told["survives pickling"] = type(again) is type(error) and same
    return told


def _facts(error):
    return {name: getattr(error, name) for name in ("how", "signal", "stage", "kernel", "config", "report")}


def _made(kernel):
    files = {key: Path(path).read_bytes().hex() for key, path in kernel.metadata_group.items()}
    return {"hash": kernel.hash, "files": files}


def _compiled(name):
    from crashes import crashing_kernels

    try:
        return _made(crashing_kernels.compile(name))
    except Exception as error:
        return _told(error)


def compile_each(names):
    """What became of the compile of each."""
    return [_compiled(name) for name in names]


def compile_ir(stages, names=()):
    """The sound kernel, the same from its IR, and then these."""
    import triton

    from crashes import crashing_kernels

    kernel = crashing_kernels.compile("sound")
    made = {"sound": _made(kernel)}
    for stage in stages:
        path = Path(os.environ["TRITON_CACHE_DIR"]).parent / f"scale.{stage}"
        path.write_text(kernel.asm[stage])
        made[stage] = _made(triton.compile(str(path), target=crashing_kernels.TARGET))
    return made | dict(zip(names, compile_each(names), strict=True))


def compile_in_threads(names, warps):
    """Each of them with each number of warps, all at once."""
    from crashes import crashing_kernels

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


def compile_what_cannot_be_isolated():
    """As where Python is embedded in another program, and then with a hook in the stages."""
    import triton

    with mock.patch.object(sys, "executable", ""):
        made = compile_each(["sound"] * 2)
    with triton.knobs.runtime.scope():
        triton.knobs.runtime.add_stages_inspection_hook = lambda *rest: None if rest else ("-hook", "hook")
        return made + compile_each(["sound"] * 2)


def compile_with_another_ptxas_from_now_on(names):
    """As torch 2.11 sets it in the middle, after Triton has asked its own for its version."""
    import triton

    from crashes import crashing_kernels

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


def tune_with_inductor(choices, kinds):
    """What each of Inductor's loops makes of real crashes: that of max-autotune, and that of CachingAutotuner."""
    from scenes import autotuners
    from torch._inductor.select_algorithm import AlgorithmSelectorCache

    from crashes import crashing_kernels

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
    from torch._inductor.runtime.triton_heuristics import NoTritonConfigsError

    from crashes import crashing_kernels

    configs = [{"N": 128, "KIND": kind} for kind in kinds]
    made = autotuners.autotuner(function=crashing_kernels.some_configurations, configs=configs)
    made.triton_meta["signature"] = {"x": "*i32", "y": "*i32", "N": "constexpr", "KIND": "constexpr"}
    try:
        made._precompile_worker()
    except NoTritonConfigsError as error:
        return _told(error)
    return [result.config.kwargs["KIND"] for result in made.compile_results]
