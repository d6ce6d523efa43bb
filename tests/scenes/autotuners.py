"""Real autotuners, compile results and launchers where there is no GPU.

Triton compiles down to the cubin there too; only loading a kernel and launching it are a recording stand-in's.
"""

from __future__ import annotations

import contextlib
import hashlib
from unittest import mock

CONFIGS = ({"XBLOCK": 128}, {"XBLOCK": 256})


class Driver:
    """In place of the GPU: remembers what was loaded (the SHA-256 of a cubin), launched and unloaded."""

    def __init__(self):
        self.loaded, self.launched, self.unloaded = [], [], []
        self.failure = None

    def _load(self, content):
        if self.failure is not None:
            raise self.failure
        self.loaded.append(hashlib.sha256(content).hexdigest())

    def _load_kernel(self, path, name, shared, device):
        from torch._inductor.runtime import static_triton_launcher

        with open(path, "rb") as file:
            self._load(file.read())
        handles = (7, 42) if hasattr(static_triton_launcher.StaticallyLaunchedTritonKernel, "close") else (42,)
        return (*handles, 16, 0)

    def _unload_kernel(self, module):
        self.unloaded.append(module)

    def _launch_kernel(self, function, grid_x, grid_y, grid_z, num_warps, shared, types, args, stream):
        self.launched.append((grid_x, grid_y, grid_z, stream, *(a for a in args if a is not None)))

    def init_handles(self, kernel):
        """CompiledKernel._init_handles."""
        if kernel.function is not None:
            return
        self._load(kernel.kernel)
        kernel.module, kernel.function, kernel.n_regs, kernel.n_spills = None, 42, 16, 0
        kernel._run = self.run

    def fast_launcher(self, function, num_warps, shared, types, scratch):
        """torch._C._FastCudaLauncher."""

        def launch(grid_x, grid_y, grid_z, stream, *args):
            self.launched.append((grid_x, grid_y, grid_z, stream, *args))

        return launch

    def run(self, grid_x, grid_y, grid_z, stream, function, metadata, launch_metadata, enter, leave, *args):
        self.launched.append((grid_x, grid_y, grid_z, stream, *args))


class Device:
    """A device interface, of the one device there is."""

    @staticmethod
    def exchange_device(index):
        return index

    maybe_exchange_device = exchange_device

    @staticmethod
    def current_device():
        return 0

    @staticmethod
    def get_raw_stream(index):
        return 5


class Benchmarker:
    """Calls once: each kernel is slower than the one before."""

    calls = 0

    @classmethod
    def benchmark(cls, *args, fn=None, **kwargs):
        (fn or args[0])()
        cls.calls += 1
        return float(cls.calls)

    benchmark_gpu = benchmark


@contextlib.contextmanager
def driver():
    """A Driver in place of the GPU's."""
    import torch._inductor.config  # first: triton_heuristics alone cannot be
    from torch._inductor.runtime import static_triton_launcher, triton_helpers, triton_heuristics
    from triton.compiler.compiler import CompiledKernel

    stand_in = Driver()
    with (
        mock.patch.object(triton_helpers, "set_driver_to_gpu", lambda: None),
        mock.patch.object(static_triton_launcher.StaticallyLaunchedCudaKernel, "C_impl", stand_in),
        mock.patch.object(CompiledKernel, "_init_handles", lambda kernel: stand_in.init_handles(kernel)),
        mock.patch.object(torch._C, "_FastCudaLauncher", stand_in.fast_launcher, create=True),
        mock.patch.object(triton_heuristics.CachingAutotuner, "get_device_interface", lambda self: Device),
        mock.patch.object(triton_heuristics, "benchmarker", Benchmarker),
    ):
        yield stand_in


def autotuner(function=None, configs=CONFIGS, static=True, **inductor_meta):
    """A CachingAutotuner as Inductor makes it for its code, not compiled yet."""
    import triton
    from torch._inductor.runtime import hints, triton_heuristics

    from scenes import triton_kernels

    device = hints.DeviceProperties("cuda", 0, 132, 90, 9, 65536, 2048, 1024, 32)
    signature = {"in_ptr0": "*fp32", "out_ptr0": "*fp32", "xnumel": "i32"}
    function = function or triton_kernels.triton_poi_scale
    constexprs = {name: "constexpr" for name in function.arg_names if name not in signature}
    heuristic = hints.HeuristicType
    return triton_heuristics.CachingAutotuner(
        function,
        triton_meta={"signature": signature | constexprs, "device": device, "constants": {}, "configs": [{}]},
        configs=[triton.Config(dict(config), num_warps=4, num_stages=1) for config in configs],
        save_cache_hook=None,
        mutated_arg_names=[],
        optimize_mem=False,
        heuristic_type=heuristic.POINTWISE if static else heuristic.USER_AUTOTUNE,
        size_hints={"x": 4096},
        inductor_meta={"grid_type": "Grid1D", "kernel_name": function.__name__, **inductor_meta},
        filename=triton_kernels.__file__,
    )


def compiled(**options):
    """An autotuner with compile results and their launchers, as after its precompile()."""
    made = autotuner(**options)
    made._precompile_worker()
    made.launchers = [result.make_launcher() for result in made.compile_results]
    return made


def launch(launcher):
    """Call a launcher as an autotuner does."""
    return launcher("in", "out", 1000, stream=5)
