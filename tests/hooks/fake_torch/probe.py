"""What the tests' interpreters ask: imports neither torch nor safecache by itself."""

import importlib
import importlib.util
import inspect
import os
import sys
import time

_HERE = os.path.dirname(__file__)
if str(importlib.util.find_spec("torch").origin).startswith(_HERE):
    # Where CUTLASS can be imported from the start, the real torch's QuACK counts as there as well.
    sys.path.append(os.path.join(_HERE, "apart"))

CODECACHE = "torch._inductor.codecache"
AUTOGRAD_CACHE = "torch._functorch._aot_autograd.autograd_cache"
MODULES = (
    CODECACHE,
    AUTOGRAD_CACHE,
    "torch._functorch._aot_autograd.aot_autograd_result",
    "torch._functorch._aot_autograd.graph_compile",
    "torch._functorch.aot_autograd",
    "torch._inductor.compile_fx",
    "torch._dynamo.aot_compile",
    "torch._dynamo.aot_compile_types",
    "torch._dynamo.convert_frame",
    "torch._dynamo.package",
    "torch._dynamo.pgo",
    "torch._inductor.runtime.autotune_cache",
    "torch._inductor.runtime.benchmarking",
    "torch._inductor.runtime.caching.implementations",
    "torch.compiler._cache",
    "torch.compiler",
    "torch._inductor.standalone_compile",
    "torch._inductor.compile_worker.subproc_pool",
    "torch._inductor.async_compile",
    "torch._inductor.runtime.triton_heuristics",
    "torch._inductor.select_algorithm",
    "torch._inductor.triton_bundler",
    "triton.runtime.build",
    "triton.runtime.autotuner",
    "triton.runtime.cache",
    "triton.runtime.jit",
    "triton.compiler.compiler",
    "triton.compiler",
    "triton",
    "torch.utils._filelock",
    "torch.utils.file_baton",
    "torch.utils._triton",
    "torch.cuda.memory",
    "torch.utils.cpp_extension",
    "torch._inductor.aoti_eager",
    "torch._inductor.codegen.cutlass.cache",
    "torch._inductor.codegen.cutlass.utils",
    "torch._inductor.compiler_bisector",
    "torch._inductor.remote_cache",
    "torch._inductor.runtime.cutedsl_cache",
    "torch._inductor.runtime.flydsl_cache",
    "torch._vendor.quack.cache.jit",
    "torch._vendor.quack.cache.async_compile",
    "quack.cache.jit",
    "quack.cache.async_compile",
    "flashinfer.cute_dsl.sparse.bsa_utils.cache_utils",
    "b12x.comm.roce._proxy",
    "b12x.loader._gds_native",
    "b12x.loader._native",
    "flashinfer.jit.alphamoe_nvrtc",
    "flashinfer.jit.cake_gdn",
    "flashinfer.kda_kernels.ptx.static_runtime",
    "flashinfer.kda_kernels.tirx.cache",
    "flashinfer.jit.core",
    "flashinfer.jit.cpp_ext",
    "flashinfer.jit.cubin_loader",
    "flashinfer.jit.cute_dsl_core",
    "flashinfer.jit.env",
    "deep_gemm.cuda_helpers",
    "sglang.srt.layers.deep_gemm_wrapper.compile_utils",
    "vllm.utils.deep_gemm",
    "tilelang.cache.kernel_cache",
    "tilelang.cache.binary_cache",
    "tilelang.autotuner.param",
    "tilelang.jit.adapter.cutedsl.adapter",
    "tvm_ffi.cpp.extension",
    "tvm_ffi.module",
    "tvm_ffi.utils.lockfile",
    "cutlass.base_dsl.cache_helpers",
    "cutlass.base_dsl.export.external_binary_module",
    "torch._precompile",
    "torch._inductor.cpp_builder",
    "torch._inductor.cpu_vec_isa",
    "torch._inductor.output_code",
    "torch._inductor.package",
    "torch._inductor.runtime.cache_dir_utils",
    "torch._export",
    "torch._export.serde.serialize",
    "torch.export",
    "torch.export.pt2_archive._package",
    "torch.utils._pytree",
    "sglang.srt.compilation.backend",
    "sglang.kernels.jit.cute_aot_cache",
    "sglang.kernels.jit.utils.compile.cache",
    "sglang.kernels.jit.utils.compile.loader",
    "sglang.kernels.jit.utils.compile.ninja",
    "torch.library",
    "vllm.compilation.backends",
    "vllm.compilation.caching",
    "vllm.compilation.decorators",
    "vllm.model_executor.models.registry",
)


# Those that came later than the first that is known, and the releases without them.
ABSENT = {
    "torch._inductor.runtime.cutedsl_cache": ("2.11", "2.12"),
    "torch._vendor.quack.cache.jit": ("2.11", "2.12"),
    "torch._vendor.quack.cache.async_compile": ("2.11", "2.12"),
    "torch._precompile": ("2.11", "2.12", "2.13"),
}


def import_all():
    """Import every target module that this release has."""
    import torch

    names = [name for name in MODULES if torch.__version__[:4] not in ABSENT.get(name, ())]
    if not hasattr(torch, "called"):  # the fake has these always
        # QuACK needs CUTLASS's package, which no test installs.
        names = [name for name in names if not name.startswith(("torch._vendor.quack", "cutlass"))]
        if importlib.util.find_spec("torch._inductor.runtime.flydsl_cache") is None:  # since 2.15
            names.remove("torch._inductor.runtime.flydsl_cache")
    return [importlib.import_module(name) for name in names]


def states():
    """The state of every hook that this torch has, by its name."""
    import safecache

    return {hook.name: hook.state for hook in safecache.status() if hook.state != "not for this torch"}


def reasons():
    """Why a hook stands down, by its name; only those that do."""
    import safecache

    return {hook.name: hook.reason for hook in safecache.status() if hook.reason}


def all_are(state):
    """Whether every hook is in this state."""
    return set(states().values()) == {state}


def await_all(state, seconds=5):
    """Wait until every hook is in this state: some are put on by a thread."""
    end = time.monotonic() + seconds
    while not all_are(state) and time.monotonic() < end:
        time.sleep(0.01)
    assert all_are(state), states()


def snapshot():
    """Every attribute of the target modules and of the classes in them, as it is stored."""
    found = {}
    for name in sys.modules.keys() & set(MODULES):
        module = sys.modules[name]
        for attribute, value in vars(module).items():
            found[name, attribute] = value
            # One says that it is of another module, for its instance is shown there (2.14).
            if inspect.isclass(value) and (value.__module__ == name or attribute == "_PrecompileApi"):
                for member in vars(value):
                    found[name, attribute, member] = inspect.getattr_static(value, member)
    return found


def differences(before, after):
    """The attributes that are not the identical object in both, or are missing from one."""
    missing = object()
    return [key for key in {**before, **after} if before.get(key, missing) is not after.get(key, missing)]
