"""What tests of tunings have a fresh process do; see process.py.

Everything that Triton calls while it tunes says so in ``log``, in order; nothing is run on a GPU.
"""

from __future__ import annotations

import contextlib
import threading
from types import SimpleNamespace
from unittest import mock

from crashes import crash_scenes
from safecache.isolation import client

log = []


def benchmark(call, quantiles):
    log.append("bench")
    call()
    # The faster, the later.
    return [1.0 / len(log)] * 3


class Integers:
    dtype = "i32"

    def data_ptr(self):
        return 16


class Descriptor(Integers):
    block_shape = (1,)


@contextlib.contextmanager
def stand_ins():
    """For the GPU; and what the service is given is in the log."""
    from triton.compiler.compiler import CompiledKernel
    from triton.runtime import autotuner, jit

    from crashes import crashing_kernels

    device = SimpleNamespace(
        get_current_device=lambda: 0,
        get_current_stream=lambda device: 0,
        get_current_target=lambda: crashing_kernels.TARGET,
        get_benchmarker=lambda: benchmark,
    )

    def load(kernel):
        kernel.module, kernel.function, kernel._run = 1, 1, lambda *rest: log.append("launch")

    real = client.Service.run

    def run(self, job, *rest, **named):
        log.append("compile")
        return real(self, job, *rest, **named)

    with (
        mock.patch.object(autotuner, "driver", SimpleNamespace(active=device)),
        mock.patch.object(jit, "driver", SimpleNamespace(active=device)),
        mock.patch.object(CompiledKernel, "_init_handles", load),
        mock.patch.object(client.Service, "run", run),
    ):
        yield


def said(what, result=None):
    """A function that says when it is called, and for which configuration."""

    def call(named, *rest, **more):
        log.append(what)
        return result

    return call


def autotuned(kinds, hooked=False, **how):
    import triton

    from crashes import crashing_kernels

    hooks = {"pre_hook": said("its own")} if hooked else {}
    configs = [triton.Config({"KIND": kind}, num_warps=4, **hooks) for kind in kinds]
    return triton.autotune(configs=configs, key=["N"], **how)(crashing_kernels.some_configurations)


def launch(kernel, first=Integers):
    kernel[(1,)](first(), Integers(), N=128)


def tune(kinds, hooked=False, descriptor=False, launches=1):
    """Launches of a kernel with these to choose from."""
    kernel = autotuned(kinds, hooked)
    with stand_ins():
        for _ in range(launches):
            launch(kernel, Descriptor if descriptor else Integers)
    timings = {config.kwargs["KIND"]: str(times[0]) for config, times in kernel.configs_timings.items()}
    return {"log": log, "best": kernel.best_config.kwargs["KIND"], "timings": timings, "threads": _threads()}


def tune_with_everything(kinds):
    """With all that a user can have called, and heuristics."""

    def prune(configs, named, **more):
        log.append("prune")
        return configs[1:]

    def model(KIND, **named):
        log.append(f"model of {KIND}")
        return KIND

    def bench(call, quantiles):
        log.append("own benchmark")
        return benchmark(call, quantiles)

    chosen = {"early_config_prune": prune, "perf_model": model, "top_k": len(kinds) - 2}
    kernel = autotuned(kinds, pre_hook=said("before"), post_hook=said("after"), prune_configs_by=chosen, do_bench=bench)
    with stand_ins():
        launch(kernel)
    return {"log": log, "best": kernel.best_config.kwargs["KIND"]}


def tune_with_heuristics(kinds):
    import triton

    from crashes import crashing_kernels

    configs = [triton.Config({"KIND": kind}, num_warps=4) for kind in kinds]
    kernel = triton.heuristics({"N": lambda named: 128})(crashing_kernels.some_configurations)
    kernel = triton.autotune(configs=configs, key=[])(kernel)
    with stand_ins():
        kernel[(1,)](Integers(), Integers())


def tune_with_hooks_of_the_kernel(kinds):
    """That would be called once more for each configuration that is asked for."""
    kernel = autotuned(kinds)
    kernel.fn.add_pre_run_hook(lambda *rest, **named: log.append("before the run"))
    with stand_ins():
        launch(kernel)
    kernel.fn.pre_run_hooks.pop()


def tune_with_hooks():
    """The log of each tuning, of configurations that no other one has compiled."""
    tunings = {
        "heuristics": lambda: tune_with_heuristics([0, 3, 4]),
        "kernel": lambda: tune_with_hooks_of_the_kernel([5, 6, 7]),
        "shape": lambda: tune([8, 9, 10], hooked=True, descriptor=True),
        "configuration": lambda: tune([11, 12, 13], hooked=True),
    }
    logs = {}
    for name, tuned in tunings.items():
        log.clear()
        tuned()
        logs[name] = list(log)
    return logs


def tune_what_crashes(kind):
    """With nothing else to choose from."""
    try:
        tune([kind])
    except Exception as error:
        return type(error).__name__


def tune_until(kinds, error):
    """A benchmark that raises in its second turn; and then a whole tuning."""
    kernel = autotuned(kinds)
    kind = {"KeyboardInterrupt": KeyboardInterrupt, "ValueError": ValueError}[error]

    def bench(call, quantiles):
        call()
        if log.count("launch") == 2:
            raise kind("enough")
        return [1.0] * 3

    kernel._do_bench = bench
    with stand_ins():
        try:
            launch(kernel)
        except kind as raised:
            log.append(str(raised))
        launch(kernel)
    return {"log": log, "threads": _threads()}


def listen():
    """What a listener hears of compiles, of a kernel and of a file with its IR, twice."""
    import triton

    heard = []

    def listener(*, src, metadata, metadata_group, times, cache_hit):
        stages = [name for name, _ in times.lowering_stages]
        times_are_known = times.ir_initialization > 0 and all(time > 0 for _, time in times.lowering_stages)
        heard.append([src.name, cache_hit, stages, times_are_known, metadata["num_warps"], sorted(metadata_group)])

    triton.knobs.compilation.listener = listener
    compiled = [crash_scenes.compile_ir(["ttir"]) for _ in range(2)]
    return {"heard": heard, "compiled": compiled}


def start_when_cold():
    """In which order the server is started and keys are computed."""
    import triton

    from crashes import crashing_kernels

    begun, real = client.Service.start, triton.runtime.cache.triton_key

    def key():
        log.append("key")
        return real()

    def start(self):
        log.append("start")
        begun(self)

    with mock.patch.object(client.Service, "start", start), mock.patch.object(triton.runtime.cache, "triton_key", key):
        crashing_kernels.compile("sound")
    return log


def _threads():
    """Those that go on; what renews leases ends by itself half a second after the last one."""
    names = {thread.name for thread in threading.enumerate() if thread is not threading.main_thread()}
    return sorted(names - {"safecache-leases"})
