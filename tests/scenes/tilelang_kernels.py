"""What TileLang keeps in its cache, made or loaded on a CPU; each returns how much it had to make."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import tilelang
import tilelang.language as T
import torch
from tilelang.autotuner.param import AutotuneResult, CompileArgs
from tilelang.cache.cuda_binary_cache import CUDABinaryCache
from tilelang.cache.kernel_cache import KernelCache
from tilelang.jit import JITKernel

KEY = "0" * 64


@T.prim_func
def add_one(A: T.Tensor((64,), "float32"), B: T.Tensor((64,), "float32")):
    with T.Kernel(1) as _:
        for i in T.serial(64):
            B[i] = A[i] + 1.0


@T.prim_func
def add_two(A: T.Tensor((64,), "float32"), B: T.Tensor((64,), "float32")):
    with T.Kernel(1) as _:
        for i in T.serial(64):
            B[i] = A[i] + 2.0


def compile_kernel(added=1):
    """Compile or load a kernel, and run it."""
    made = []
    begin = JITKernel.__init__

    def noting(*args, **kwargs):
        if not kwargs.get("from_database"):
            made.append("kernel")
        begin(*args, **kwargs)

    with mock.patch.object(JITKernel, "__init__", noting):
        kernel = tilelang.compile([add_one, add_two][added - 1], target="c", execution_backend="cython")
    run(kernel, added)
    return len(made)


def run(kernel, added):
    given, result = torch.arange(64, dtype=torch.float32), torch.zeros(64)
    kernel(given, result)
    assert result.equal(given + added)


def tune():
    """Load a result of tuning, or make one of a kernel that is compiled or loaded."""
    place = Path(KernelCache._get_namespace_root()) / "autotuner" / KEY
    found = AutotuneResult.load_from_disk(place, CompileArgs(target="c", execution_backend="cython"))
    if found is not None:
        run(found.kernel, 1)
        return 0
    kernel = tilelang.compile(add_one, target="c", execution_backend="cython")
    AutotuneResult(latency=1.0, config={}, func=kernel.prim_func, kernel=kernel).save_to_disk(place)
    run(kernel, 1)
    return 1


def use_binary(expected="compiled"):
    """Load a device binary, or save one."""
    found = CUDABinaryCache.load(KEY, "cubin")
    assert found in (None, expected.encode())
    if found is None:
        CUDABinaryCache.save(KEY, "cubin", b"compiled")
    return int(found is None)


def save_cubin(directory, made):
    """What CuTe DSL's backend does at the first launch of a kernel."""
    from tilelang.jit.adapter.cutedsl.adapter import CuTeDSLKernelAdapter

    adapter = CuTeDSLKernelAdapter.__new__(CuTeDSLKernelAdapter)
    adapter._cache_path, adapter.libpath = directory, made
    adapter._save_cubin_to_cache_if_needed()
