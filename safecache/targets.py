"""The table of every symbol we patch: the only place that names torch versions and upstream signatures.

Signatures are parameter names in order, "=" after one with a default, "*" before one that is keyword-only, read from
the released wheels with inspect.signature.
"""

from __future__ import annotations

__all__ = ["MODULES", "TARGETS", "TORCH_FROM", "TORCH_UNTIL", "Target"]

# From the first up to, but not including, the second: the releases the suite runs on.
TORCH_FROM = (2, 11)
TORCH_UNTIL = (2, 16)


class Target:
    """A symbol, the hook that wraps it (``module:function`` below safecache.hooks) and the signatures it may have.

    ``since``: the first torch that has it.
    """

    def __init__(
        self,
        module: str,
        attribute: str,
        hook: str,
        signatures: tuple[str, ...],
        since: tuple[int, int] = TORCH_FROM,
    ) -> None:
        self.since = since
        self.module = module
        self.attribute = attribute
        self.hook = hook
        self.signatures = signatures

    def is_absent_from(self, torch: tuple[int, int]) -> bool:
        """Whether this release of torch, one that we know, does not have the symbol yet."""
        return TORCH_FROM <= torch < self.since

    @property
    def name(self) -> str:
        """How status() and warnings name it."""
        return f"{self.module}.{self.attribute}"


_CODECACHE = "torch._inductor.codecache"
_AUTOGRAD_CACHE = "torch._functorch._aot_autograd.autograd_cache"
_STANDALONE = "torch._inductor.standalone_compile"
_HEURISTICS = "torch._inductor.runtime.triton_heuristics"
# A module global in place of which SealingPickle stands, rather than a function.
PICKLE_MODULE = "<module pickle>"

TARGETS: tuple[Target, ...] = (
    Target(
        _CODECACHE,
        "GuardedCache.iterate_over_candidates",
        "codecache:iterate_over_candidates",
        ("cls, local, remote_cache, key",),
    ),
    Target(
        _CODECACHE,
        "FxGraphCache._save_graph",
        "codecache:save_graph",
        ("key, compiled_graph, example_inputs, local, remote_cache",),
    ),
    Target(_CODECACHE, "FxGraphCache._write_to_local_cache", "codecache:write_to_local_cache", ("key, content",)),
    Target(_CODECACHE, "CppCodeCache._load_library", "codecache:load_library", ("cls, path, key",)),
    Target(_CODECACHE, "DLLWrapper.__init__", "codecache:load_library", ("self, lib_path",)),
    Target(_CODECACHE, "pickle", "pickle_module:sealing_pickle", (PICKLE_MODULE,)),
    Target(_AUTOGRAD_CACHE, "AOTAutogradCache.save", "autograd_cache:save", ("key, entry, remote",)),
    Target(
        _AUTOGRAD_CACHE,
        "AOTAutogradCache._handle_save_error",
        "autograd_cache:handle_save_error",
        ("e, remote, is_bypass",),
    ),
    Target(
        _AUTOGRAD_CACHE,
        "AOTAutogradCache.try_load",
        "autograd_cache:try_load",
        (
            "mod, args, aot_config, cudagraphs, boxed_forward_device_index, local, remote",  # 2.11
            "mod, args, aot_config, compiler_config_extra, local, remote, compile_region_name=",  # 2.12, 2.13
            "mod, args, aot_config, compiler_config_extra, local, remote, act_input_paths=, compile_region_name=",
        ),
    ),
    Target(
        _AUTOGRAD_CACHE,
        "AOTAutogradCache._write_to_local_cache",
        "autograd_cache:write_to_local_cache",
        ("key, content",),
    ),
    Target(_AUTOGRAD_CACHE, "pickle", "pickle_module:sealing_pickle", (PICKLE_MODULE,)),
    Target("torch._dynamo.aot_compile_types", "pickle", "pickle_module:sealing_pickle", (PICKLE_MODULE,)),
    Target(
        "torch.compiler._cache",
        "CacheArtifactManager.populate_caches",
        "compiler_cache:populate_caches",
        ("artifacts",),
    ),
    Target(_STANDALONE, "CompiledArtifact.load", "standalone_compile:load", ("*path, *format=",)),
    Target(_STANDALONE, "CacheCompiledArtifact.load", "standalone_compile:load", ("*path, *format=",)),
    Target(
        "torch._inductor.compile_worker.subproc_pool",
        "SubprocPool.__init__",
        "subproc_pool:init",
        ("self, nprocs, pickler=, kind=, quiesce=",),
    ),
    Target(_HEURISTICS, "StaticTritonCompileResult.make_launcher", "triton_heuristics:make_launcher", ("self",)),
    Target(_HEURISTICS, "TritonCompileResult.make_launcher", "triton_heuristics:make_launcher", ("self",)),
    Target(_HEURISTICS, "CachingAutotuner.__getstate__", "triton_heuristics:getstate", ("self",)),
    Target(
        _HEURISTICS,
        "CachingAutotuner._build_fast_launcher",
        "triton_heuristics:build_fast_launcher",
        ("self, launcher",),
        since=(2, 13),
    ),
    Target("triton.runtime.build", "_load_module_from_path", "triton_build:load_module_from_path", ("name, path",)),
    Target(
        "torch.utils._triton",
        "_raise_triton_cache_load_error",
        "torch_triton:raise_triton_cache_load_error",
        ("exc",),
        since=(2, 13),
    ),
    Target(
        "torch.utils.cpp_extension",
        "_import_module_from_library",
        "cpp_extension:import_module_from_library",
        ("module_name, path, is_python_module",),
    ),
    Target(
        "torch._inductor.triton_bundler",
        "TritonBundler.put_static_autotuner",
        "triton_bundler:put_static_autotuner",
        ("cls, key, kernel",),
    ),
)

MODULES = frozenset(target.module for target in TARGETS)
