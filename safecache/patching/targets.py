"""The table of every symbol we patch, with torch versions and upstream signatures. What features patch is added to it.

Signatures are parameter names in order, "=" after one with a default, "*" before one that is keyword-only, read from
the released wheels with inspect.signature.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from safecache.settings.config import Config

__all__ = [
    "MODULES",
    "PACKAGES_OBEY_TMPDIR_FROM",
    "PROBE_MARKERS_FROM",
    "STARTS",
    "TARGETS",
    "TORCH_FROM",
    "TORCH_UNTIL",
    "TRITON_FROM",
    "TRITON_UNTIL",
    "UPSTREAM_HOOKS",
    "VERIFYING",
    "Target",
    "add",
]

# From the first up to, but not including, the second: the releases the suite runs on.
TORCH_FROM = (2, 11)
TORCH_UNTIL = (2, 16)
TRITON_FROM = (3, 6)
TRITON_UNTIL = (3, 10)


class Target:
    """A symbol, the hook that wraps it and the signatures it may have.

    ``hook``: ``module:function`` below safecache.hooks, or a feature's ``package.module:function``. ``since``: the
    first torch that has it; ``until``: the first that does not need the hook. ``copies``: modules that import it by
    name, and so may hold the unhooked function. ``marker``: an attribute that its module has if a source patch
    (patches/) does all of the hook's work. ``needs``: the third-party package without which the module cannot be
    imported, by default the one that it is part of. ``builtin``: the symbol is a built-in function that the module
    calls.
    """

    def __init__(
        self,
        module: str,
        attribute: str,
        hook: str,
        signatures: tuple[str, ...],
        since: tuple[int, int] = TORCH_FROM,
        until: tuple[int, int] = TORCH_UNTIL,
        copies: tuple[str, ...] = (),
        marker: str = "",
        needs: str = "",
        *,
        builtin: bool = False,
    ) -> None:
        self.copies = copies
        self.marker = marker
        self.needs = needs or module.partition(".")[0]
        self.builtin = builtin
        self.since = since
        self.until = until
        self.module = module
        self.attribute = attribute
        self.hook = hook
        self.signatures = signatures

    def is_not_for(self, torch: tuple[int, int]) -> bool:
        """Whether this release of torch is supported but lacks the symbol, or does not need the hook any more."""
        return TORCH_FROM <= torch < self.since or self.until <= torch < TORCH_UNTIL

    @property
    def name(self) -> str:
        """Its name in status() and warnings."""
        return f"{self.module}.{self.attribute}"

    @property
    def upstream_hook(self) -> str:
        """The one of UPSTREAM_HOOKS that it does without, and why; "" where it is patched for lack of any."""
        return ": ".join(UPSTREAM_HOOKS.get(self.hook) or UPSTREAM_HOOKS.get(self.hook.partition(":")[0]) or ())


_CODECACHE = "torch._inductor.codecache"
_AUTOGRAD_CACHE = "torch._functorch._aot_autograd.autograd_cache"
_AOT_COMPILE = "torch._dynamo.aot_compile"
_PACKAGE = "torch._dynamo.package"
_PRECOMPILE = "torch._precompile"
_PGO = "torch._dynamo.pgo"
_CACHING = "torch._inductor.runtime.caching.implementations"
_AUTOTUNE_CACHE = "torch._inductor.runtime.autotune_cache"
_COMPILER_CACHE = "torch.compiler._cache"
_STANDALONE = "torch._inductor.standalone_compile"
_HEURISTICS = "torch._inductor.runtime.triton_heuristics"
_OUTPUT_CODE = "torch._inductor.output_code"
_PT2_ARCHIVE = "torch.export.pt2_archive._package"
_SERDE = "torch._export.serde.serialize"
_FLYDSL = "torch._inductor.runtime.flydsl_cache"
_CPP_BUILDER = "torch._inductor.cpp_builder"
_CPP_EXTENSION = "torch.utils.cpp_extension"
_CUTLASS = "torch._inductor.codegen.cutlass"
_CUTEDSL = "torch._inductor.runtime.cutedsl_cache"
_QUACK = "torch._vendor.quack.cache.jit"
_AOTI_EAGER = "torch._inductor.aoti_eager"
_BISECTOR = "torch._inductor.compiler_bisector"
_BUNDLER = "torch._inductor.triton_bundler"
_TRITON_CACHE = "triton.runtime.cache"
_CACHE_DIR = "torch._inductor.runtime.cache_dir_utils"
_COMPILED_GRAPH = (
    "self, current_callable, graph, gm, output_strides, disabled_cudagraphs_reason, metrics_deltas, counter_deltas, "
    "cudagraphs, example_inputs, static_input_idxs"
)
_COMPILED_GRAPH_TEXTS = (
    "inputs_to_check, runnable_graph_str, inductor_post_grad_graph_str, compiled_fn_runner=, "
    "inductor_provenance_mapping_str=, inductor_provenance_stack_traces_str="
)
_CACHE_DIR_COPIES = (
    _CODECACHE,
    _AUTOGRAD_CACHE,
    _CPP_BUILDER,
    _HEURISTICS,
    _AOTI_EAGER,
    "torch._inductor.autoheuristic.autoheuristic",
    f"{_CUTLASS}.cache",
    f"{_CUTLASS}.utils",
    "torch._inductor.codegen.wrapper",
    "torch._inductor.compile_fx",
    "torch._inductor.compiler_bisector",
    "torch._inductor.kernel.flex_gemm.runtime",
    _AUTOTUNE_CACHE,
    "torch._inductor.runtime.caching.interfaces",
    "torch._inductor.runtime.flydsl_cache",
    "torch._inductor.runtime.runtime_utils",
)
_COMPILE_DLL = ("cls, source_code, dst_file_ext, extra_args=",)
_TRITON_BUILD = "triton.runtime.build"
_ASYNC_COMPILE = "torch._inductor.async_compile"
# The marker in the modules that the source patch picklable-launchers changes.
_PICKLABLE_LAUNCHERS = "_safecache_picklable_launchers"
# In place of a signature: the symbol is a module global, which a proxy replaces.
PICKLE_MODULE, OS_MODULE, TORCH_MODULE = "<module pickle>", "<module os>", "<module torch>"
SYMPY_MODULE, IMPORTLIB_MODULE = "<module sympy>", "<module importlib>"
# Older releases unpack AOTInductor packages below /tmp, whatever TMPDIR says.
PACKAGES_OBEY_TMPDIR_FROM = (2, 13)
# Older releases probe the CPU's vector instructions in every process, and leave no marker that a probe was loaded.
PROBE_MARKERS_FROM = (2, 14)

TARGETS: list[Target] = [
    Target(
        _CODECACHE,
        "GuardedCache.iterate_over_candidates",
        "codecache:iterate_over_candidates",
        ("cls, local, remote_cache, key",),
    ),
    Target(
        _CODECACHE,
        "FxGraphCache.load_with_key",
        "codecache:load_with_key",
        ("key, debug_lines, example_inputs, local, remote_cache, is_backward, constants, evaluate_guards=",),
    ),
    Target(
        _CODECACHE,
        "FxGraphCache.cache_hit_post_compile",
        "codecache:cache_hit_post_compile",
        ("graph, cache_info, constants",),
    ),
    Target(
        _CODECACHE,
        "FxGraphCache.prepare_key",
        "codecache:prepare_key",
        ("gm, example_inputs, fx_kwargs, inputs_to_check, remote",),
    ),
    Target(
        "torch._inductor.compile_fx",
        "fx_codegen_and_compile",
        "codecache:fx_codegen_and_compile",
        (
            "gm, example_inputs, inputs_to_check, graph_kwargs",  # 2.11
            "gm, example_inputs, inputs_to_check, compile_region_name=, graph_kwargs",
        ),
    ),
    Target(
        "torch._inductor.compile_fx",
        "compile_fx",
        "compile_scopes:compile_fx",
        (
            "model_, example_inputs_, inner_compile=, config_patches=, decompositions=, ignore_shape_env=",  # 2.11
            "model_, example_inputs_, inner_compile=, config_patches=, decompositions=, ignore_shape_env=, "
            "compile_region_name=",
        ),
    ),
    Target(
        "torch._inductor.compile_fx",
        "_compile_fx_inner",
        "compile_scopes:compile_fx_inner",
        ("gm, example_inputs, graph_kwargs", "gm, example_inputs, compile_region_name=, graph_kwargs"),  # 2.11, 2.12
    ),
    Target(
        "torch._functorch.aot_autograd",  # where AOTAutograd looks it up
        "should_use_remote_autograd_cache",
        "autograd_cache:should_use_remote_autograd_cache",
        ("",),
    ),
    Target(
        _CODECACHE,
        "FxGraphCache._save_graph",
        "codecache:save_graph",
        ("key, compiled_graph, example_inputs, local, remote_cache",),
    ),
    Target(_CODECACHE, "FxGraphCache._write_to_local_cache", "codecache:write_to_local_cache", ("key, content",)),
    Target(_CODECACHE, "CppCodeCache._load_library", "codecache:load_library", ("cls, path, key",)),
    Target(_CODECACHE, "CUTLASSCodeCache.compile", "codecache:compile_dll", _COMPILE_DLL),
    Target(_CODECACHE, "ROCmCodeCache.compile", "codecache:compile_dll", _COMPILE_DLL),
    Target(_CODECACHE, "DLLWrapper.__init__", "codecache:load_dll", ("self, lib_path",)),
    Target(_CODECACHE, "pickle", "pickle_module:sealing_pickle", (PICKLE_MODULE,)),
    Target(
        _CODECACHE,
        "torch_key",
        "installation:torch_key",
        ("",),
        copies=("torch._inductor.async_compile", "torch._inductor.compile_worker.subproc_pool"),
    ),
    Target(
        _AUTOGRAD_CACHE,
        "autograd_cache_key",
        "autograd_cache:autograd_cache_key",
        (
            "gm, example_inputs, config, fx_config",  # 2.11
            "mod, example_inputs, config, compiler_config_extra=",  # 2.12, 2.13
            "mod, example_inputs, config, compiler_config_extra=, act_input_paths=",
        ),
        copies=("torch._functorch.aot_autograd",),  # 2.11
    ),
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
    Target(
        "torch._functorch._aot_autograd.aot_autograd_result",
        "deserialize_bundled_cache_entry",
        "autograd_cache:load_artifact",
        ("entry",),
    ),
    Target(
        "torch._dynamo.convert_frame",
        "ConvertFrame.__call__",
        "convert_frame:convert",
        ("self, frame, cache_entry, hooks, frame_state, skip=",),
    ),
    Target(_AOT_COMPILE, "AOTCompiledFunction.serialize", "dynamo:serialize", ("cls, fn, external_data=",)),
    Target(
        _AOT_COMPILE,
        "AOTCompiledFunction.deserialize",
        "dynamo:deserialize",
        (
            "cls, data, f_globals=, external_closure_data=",  # to 2.14
            "cls, data, f_globals=, external_closure_data=, *guard_globals=, *forward_not_resolved_reason=",
        ),
    ),
    Target(_AOT_COMPILE, "AOTCompiledModel.serialize", "dynamo:serialize_model", ("self",)),
    Target(
        _AOT_COMPILE,
        "AOTCompiledModel.deserialize",
        "dynamo:deserialize_model",
        ("cls, model, data", "cls, model, data, *guard_globals="),  # to 2.14, 2.15
    ),
    Target(
        "torch.compiler",
        "load_compiled_function",
        "compiler_cache:load_compiled_function",
        ("file, *f_globals=, *external_data=",),
    ),
    # Not the functions that use it: torch pickles references to them into its artifacts.
    Target("torch._dynamo.aot_compile_types", "pickle", "dynamo:sealing_pickle", (PICKLE_MODULE,)),
    Target(
        _PRECOMPILE,
        "PrecompiledModule.to_cache_bytes",
        "precompile:to_cache_bytes",
        ("self, python_code=",),
        since=(2, 14),
        until=(2, 15),  # from 2.15 on, files are written and read
    ),
    Target(
        _PRECOMPILE,
        "_PrecompileApi.load",
        "precompile:load",
        ("self, python_code, cache",),
        since=(2, 14),
        until=(2, 15),
    ),
    Target(
        _PRECOMPILE,
        "_write_artifact",
        "precompile:write_artifact",
        ("artifact_path, cache_path, python_code, cache",),
        since=(2, 15),
    ),
    Target(_PRECOMPILE, "_read_artifact", "precompile:read_artifact", ("artifact_path, cache_path",), since=(2, 15)),
    Target(_PACKAGE, "DiskDynamoStore.write", "dynamo:write_package", ("self, cache_entry, path",)),
    Target(_PACKAGE, "DiskDynamoStore.read", "dynamo:read_package", ("self, path",)),
    Target(_PACKAGE, "DiskDynamoCache.load", "dynamo:load_package", ("self, fn",)),
    Target(_PACKAGE, "pickle", "pickle_module:sealing_pickle", (PICKLE_MODULE,)),
    Target(_PGO, "get_local_code_state", "dynamo:get_local_code_state", ("cache_key",)),
    Target(
        _PGO,
        "lookup_remote_cache_entry",
        "dynamo:lookup_remote_cache_entry",
        ("remote_cache, cache_key, event_name=",),
    ),
    Target(_PGO, "put_local_code_state", "dynamo:put_local_code_state", ("cache_key",)),
    Target(_PGO, "put_remote_code_state", "dynamo:put_code_state", ("cache_key, extra_code_state=",)),
    Target(_PGO, "pickle", "pickle_module:sealing_pickle", (PICKLE_MODULE,)),
    Target(_CACHING, "_OnDiskCacheImpl.get", "standalone_compile:get_cached", ("self, key",)),
    Target(_CACHING, "_OnDiskCacheImpl.insert", "standalone_compile:insert_cached", ("self, key, value",)),
    Target(_AUTOTUNE_CACHE, "AutotuneCache.read_best", "autotune_cache:read_best", ("self, inductor_meta, configs",)),
    Target(
        _AUTOTUNE_CACHE,
        "AutotuneCache.save",
        "autotune_cache:save",
        ("self, config, time_taken_ns, found_by_coordesc=, triton_cache_hash=",),
    ),
    Target(_AUTOTUNE_CACHE, "_AutotuneCacheBundlerImpl._load_cache", "autotune_cache:load_cache", ("self",)),
    Target(
        _COMPILER_CACHE,
        "CacheArtifactManager.deserialize",
        "compiler_cache:deserialize",
        ("serialized_artifacts",),
    ),
    Target(_COMPILER_CACHE, "CacheArtifactManager.populate_caches", "compiler_cache:populate_caches", ("artifacts",)),
    Target(_STANDALONE, "CompiledArtifact.load", "standalone_compile:load", ("*path, *format=",)),
    Target(_STANDALONE, "CacheCompiledArtifact.load", "standalone_compile:load", ("*path, *format=",)),
    Target(_STANDALONE, "CacheCompiledArtifact.__init__", "standalone_compile:init", ("self, compiled_fn, artifacts",)),
    Target(_STANDALONE, "CacheCompiledArtifact.save", "standalone_compile:save", ("self, *path, *format=",)),
    Target(_STANDALONE, "pickle", "standalone_compile:verifying_pickle", (PICKLE_MODULE,)),
    Target(
        "torch._inductor.compile_worker.subproc_pool",
        "SubprocPool.__init__",
        "compile_workers:init_pool",
        ("self, nprocs, pickler=, kind=, quiesce=",),
    ),
    Target(_ASYNC_COMPILE, "AsyncCompile.wakeup", "async_compile:wakeup", ("cls",)),
    Target(_ASYNC_COMPILE, "AsyncCompile.use_process_pool", "async_compile:use_process_pool", ("cls",)),
    Target(
        _ASYNC_COMPILE, "AsyncCompile.triton", "async_compile:triton", ("self, kernel_name, source_code, device_str=",)
    ),
    # No marker: the hook also keeps the cubin, which the source patch does not.
    Target(_HEURISTICS, "StaticTritonCompileResult.make_launcher", "triton_in_inductor:make_launcher", ("self",)),
    Target(
        _HEURISTICS,
        "TritonCompileResult.make_launcher",
        "triton_in_inductor:make_launcher",
        ("self",),
        marker=_PICKLABLE_LAUNCHERS,
    ),
    Target(
        _HEURISTICS,
        "StaticTritonCompileResult.reload_cubin_path",
        "triton_in_inductor:reload_cubin_path",
        ("self",),
    ),
    Target(
        _HEURISTICS,
        "CachingAutotuner.__getstate__",
        "triton_in_inductor:getstate",
        ("self",),
        marker=_PICKLABLE_LAUNCHERS,
    ),
    Target(
        _HEURISTICS,
        "CachingAutotuner._build_fast_launcher",
        "triton_in_inductor:build_fast_launcher",
        ("self, launcher",),
        since=(2, 13),
        marker=_PICKLABLE_LAUNCHERS,
    ),
    Target(_TRITON_BUILD, "_load_module_from_path", "triton_runtime:load_module_from_path", ("name, path",)),
    Target(
        _TRITON_BUILD,
        "_build",
        "triton_runtime:build",
        (
            "name, src, srcdir, library_dirs, include_dirs, libraries, ccflags",  # 3.6, 3.7
            "name, src, srcdir, library_dirs, include_dirs, libraries, ccflags, language=",
        ),
    ),
    Target(
        "torch.utils._triton",
        "_raise_triton_cache_load_error",
        "triton_runtime:raise_triton_cache_load_error",
        ("exc",),
        since=(2, 13),
    ),
    Target(
        _CPP_EXTENSION,
        "_jit_compile",
        "cpp_extension:jit_compile",
        (
            "name, sources, extra_cflags, extra_cuda_cflags, extra_sycl_cflags, extra_ldflags, extra_include_paths, "
            "build_directory, verbose, with_cuda, with_sycl, is_python_module, is_standalone, keep_intermediates=",
        ),
    ),
    Target(
        _CPP_EXTENSION,
        "_write_ninja_file_and_build_library",
        "cpp_extension:build_library",
        (
            "name, sources, extra_cflags, extra_cuda_cflags, extra_sycl_cflags, extra_ldflags, extra_include_paths, "
            "build_directory, verbose, with_cuda, with_sycl, is_standalone=",
        ),
    ),
    Target(
        _CPP_EXTENSION,
        "_import_module_from_library",
        "cpp_extension:import_module_from_library",
        ("module_name, path, is_python_module",),
    ),
    Target(
        _CPP_EXTENSION,
        "_run_ninja_build",
        "cpp_extension:run_ninja_build",
        ("build_directory, verbose, error_prefix",),
    ),
    Target(_CODECACHE, "CacheBase.get_local_cache", "autotune_cache:get_local_cache", ("self",)),
    Target(_CODECACHE, "CacheBase.update_local_cache", "autotune_cache:update_local_cache", ("self, local_cache",)),
    Target(
        _CODECACHE,
        "write",
        "generated_code:write",
        ("content, extension, extra=, hash_type=, specified_dir=, key=",),
        copies=("torch._inductor.autotune_process",),
    ),
    Target(
        _CODECACHE,
        "_reload_python_module",  # from runtime.compile_tasks
        "generated_code:reload_python_module",
        ("key, path, set_sys_modules=",),
    ),
    Target(_CODECACHE, "_worker_compile_cpp", "generated_code:worker_compile_cpp", ("lock_path, cpp_builders",)),
    Target(
        _CPP_BUILDER,
        "CppBuilder.__init__",
        "generated_code:init_builder",
        ("self, name, sources, BuildOption, output_dir=",),
    ),
    Target(_CPP_BUILDER, "CppBuilder.get_target_file_path", "generated_code:get_target_file_path", ("self",)),
    Target(_CPP_BUILDER, "CppBuilder.build", "generated_code:build", ("self",)),
    Target(_OUTPUT_CODE, "CompiledFxGraph.write_to_disk", "generated_code:write_to_disk", ("self",)),
    Target(
        _OUTPUT_CODE,
        "CompiledFxGraph.__init__",
        "generated_code:init",
        (
            f"{_COMPILED_GRAPH}, fx_kwargs, {_COMPILED_GRAPH_TEXTS}",  # 2.11
            f"{_COMPILED_GRAPH}, compile_region_name, fx_kwargs, {_COMPILED_GRAPH_TEXTS}",
        ),
    ),
    Target(_CPP_BUILDER, "cpp_compiler_search", "cpp_codecache:cpp_compiler_search", ("search",)),
    Target(_CPP_BUILDER, "install_gcc_via_conda", "cpp_codecache:install_gcc_via_conda", ("",)),
    Target(_CPP_BUILDER, "run_compile_cmd", "cpp_codecache:run_compile_cmd", ("cmd_line, cwd",)),
    Target("torch._inductor.cpu_vec_isa", "VecISA.check_build", "cpp_codecache:check_build", ("self, code",)),
    Target(
        "torch._inductor.cpu_vec_isa",
        "VecISA._probe_load",
        "cpp_codecache:probe_load",
        ("self, output_path",),
        since=(2, 13),
    ),
    Target("torch._inductor.cpu_vec_isa", "valid_vec_isa_list", "cpp_codecache:valid_vec_isa_list", ("",)),
    Target(_CACHE_DIR, "cache_dir", "installation:cache_dir", ("",), copies=_CACHE_DIR_COPIES),
    Target("torch.utils._filelock", "FileLock.__enter__", "locks:enter", ("self",)),
    Target("torch.utils._filelock", "FileLock.__exit__", "locks:exit", ("self, exc_type, exc_value, traceback",)),
    Target("torch.utils.file_baton", "FileBaton.try_acquire", "locks:try_acquire", ("self",)),
    Target("torch.utils.file_baton", "FileBaton.release", "locks:release", ("self",)),
    Target(
        _CODECACHE,
        "CppCodeCache.load_async",
        "cpp_codecache:load_async",
        (
            "cls, main_code, device_type=, submit_fn=, extra_flags=, optimized_code=",  # 2.11, 2.12
            "cls, main_code, device_type=, submit_fn=, extra_flags=, optimized_code=, "
            "needs_vec_isa=, kernel_needs_vec_isa=",
        ),
    ),
    Target(
        _CODECACHE,
        "_precompile_header",
        "cpp_codecache:precompile_header",
        ("header, hashable_cmd_line, compile_command",),
    ),
    Target(
        _CODECACHE,
        "write_atomic",
        "generated_code:write_atomic",
        ("path_, content, make_dirs=, encode_utf_8=",),
        copies=(_AUTOGRAD_CACHE, "torch._inductor.codegen.multi_kernel", "torch._inductor.codegen.triton"),
    ),
    Target(
        _CACHE_DIR,
        "default_cache_dir",
        "installation:default_cache_dir",
        ("",),
        until=(2, 13),  # the first that works for a uid without a user name
        copies=(_CODECACHE, "torch._inductor.runtime.runtime_utils"),
    ),
    Target(
        "torch._inductor.package",  # where aoti_load_package looks it up
        "load_package",
        "aot_inductor:load_package",
        (
            "path, model_name=, run_single_threaded=, num_runners=, device_index=",  # to 2.14
            "path, model_name=, run_single_threaded=, num_runners=, device_index=, use_stream_affinity=",
        ),
    ),
    Target(
        _PT2_ARCHIVE,
        "_load_aoti",
        "aot_inductor:load",
        (
            "file, model_name, run_single_threaded, num_runners, device_idx",  # to 2.14
            "file, model_name, run_single_threaded, num_runners, device_idx, use_stream_affinity=",
        ),
    ),
    Target(
        _PT2_ARCHIVE,
        "load_pt2",
        "aot_inductor:load_pt2",
        (
            "f, *expected_opset_version=, *run_single_threaded=, *num_runners=, *device_index=, "
            "*load_weights_from_disk=",  # to 2.14
            "f, *expected_opset_version=, *run_single_threaded=, *num_runners=, *device_index=, "
            "*load_weights_from_disk=, *use_stream_affinity=",
        ),
        copies=("torch._inductor.package.package",),
    ),
    Target(
        _PT2_ARCHIVE,
        "package_pt2",
        "aot_inductor:package",
        (
            "f, *exported_programs=, *aoti_files=, *extra_files=, *opset_version=, *pickle_protocol=, "
            "*executorch_files=",
        ),
        copies=("torch._inductor.package.package", "torch.nativert.backends._lower_utils"),
    ),
    # Reads archives of torch 2.7 and before by itself.
    Target("torch.export", "load", "exported:load_pt2", ("f, *extra_files=, *expected_opset_version=",)),
    Target(_PT2_ARCHIVE, "torch", "exported:guard_torch", (TORCH_MODULE,)),
    Target(_PT2_ARCHIVE, "pickle", "exported:guard_pickle", (PICKLE_MODULE,), since=(2, 13)),
    Target(_SERDE, "deserialize_torch_artifact", "exported:deserialize_artifact", ("serialized",)),
    Target(
        _SERDE,
        "ExportedProgramDeserializer.deserialize",
        "exported:deserialize_program",
        ("self, exported_program, state_dict, constants, example_inputs=, *_unsafe_skip_version_check=",),
    ),
    Target(_SERDE, "sympy", "exported:guard_sympy", (SYMPY_MODULE,)),
    Target("torch.utils._pytree", "importlib", "exported:guard_importlib", (IMPORTLIB_MODULE,)),
    Target(
        _CODECACHE,
        "AotCodeCompiler.compile",
        "aot_inductor:compile",
        ("cls, graph, wrapper_code, kernel_code, serialized_extern_kernel_nodes, *device_type, *additional_files",),
    ),
    Target(
        _CODECACHE,
        "HalideCodeCache.generate_halide_async",
        "other_backends:generate_halide",
        ("cls, meta, source_code, submit_fn=",),
    ),
    Target(_CODECACHE, "HalideCodeCache.build_standalone_runtime", "other_backends:build_halide_runtime", ("cls",)),
    Target(_CODECACHE, "_worker_task_halide", "other_backends:halide_work", ("lockfile, jobs",)),
    Target(_CODECACHE, "touch", "other_backends:touch_halide", ("filename",)),
    Target("torch._export", "aot_load", "output_code:aot_load", ("so_path, device",)),
    Target(_OUTPUT_CODE, "CompiledAOTI.__post_init__", "output_code:load_compiled", ("self",)),
    Target(
        _BISECTOR,
        "CompilerBisector.read_lines_from_file",
        "compiler_bisector:read_lines_from_file",
        ("cls, file_path",),
    ),
    Target(
        _BISECTOR,
        "CompilerBisector.write_lines_to_file",
        "compiler_bisector:write_lines_to_file",
        ("cls, file_path, lines", "cls, file_path, lines, *append="),  # to 2.12, 2.13
    ),
    Target(
        f"{_CUTLASS}.utils",
        "try_import_cutlass",
        "other_backends:try_import_cutlass",
        ("",),
        copies=(
            f"{_CUTLASS}.lib_extensions.evt_extensions",
            f"{_CUTLASS}.lib_extensions.gemm_operation_extensions",
            f"{_CUTLASS}.serialization",
        ),
    ),
    Target(
        f"{_CUTLASS}.cache",
        "maybe_fetch_ops",
        "other_backends:fetch_ops",
        ("", "device_type"),  # 2.11, 2.12
        copies=(f"{_CUTLASS}.gemm_template",),
    ),
    Target(_CUTEDSL, "_cache_dir", "other_backends:cutedsl_dir", ("",), since=(2, 13)),
    Target(
        _CUTEDSL,
        "disk_cache_get",
        "other_backends:cutedsl_get",
        ("mem_cache, module_path, config_key, runtime_key, device_index=, device_capability=",),
        since=(2, 13),
    ),
    Target(
        _CUTEDSL,
        "disk_cache_set",
        "other_backends:cutedsl_set",
        ("mem_cache, module_path, config_key, runtime_key, compiled_fn, device_index=, device_capability=",),
        since=(2, 13),
    ),
    Target(_FLYDSL, "configure_flydsl_cache_dir", "other_backends:flydsl_dir", ("",), since=(2, 15)),
    Target(_QUACK, "get_cache_path", "other_backends:quack_dir", ("",), since=(2, 13), needs="cutlass"),
    Target(_QUACK, "FileLock.__enter__", "other_backends:quack_lock", ("self",), since=(2, 13), needs="cutlass"),
    Target(_QUACK, "FileLock.__exit__", "other_backends:quack_unlock", ("self, exc",), since=(2, 13), needs="cutlass"),
    Target(_AOTI_EAGER, "aoti_eager_cache_dir", "aot_inductor:eager_cache_dir", ("namespace, device",)),
    Target(
        _AOTI_EAGER,
        "load_aoti_eager_cache",
        "aot_inductor:load_eager_cache",
        ("ns, op_func_name_with_overload, device_type",),
    ),
    Target(
        _AOTI_EAGER,
        "aoti_compile_with_persistent_cache",
        "aot_inductor:compile_eager",
        (
            "ns, op_func_name_with_overload, device_type, dynamic, f, args, kwargs, *dynamic_shapes=, *options=, "
            "*remove_runtime_assertions=, *disable_constraint_solver=",
        ),
    ),
    Target(
        _TRITON_CACHE,
        "triton_key",
        "installation:triton_key",
        ("",),
        copies=("triton.runtime.autotuner", "torch._inductor.runtime.triton_compat"),
    ),
    Target(_TRITON_CACHE, "FileCacheManager.__init__", "triton_cache:init", ("self, key, override=, dump=",)),
    Target(_TRITON_CACHE, "FileCacheManager.put", "triton_cache:put", ("self, data, filename, binary=",)),
    Target(_TRITON_CACHE, "FileCacheManager.put_group", "triton_cache:put_group", ("self, filename, group",)),
    Target(_TRITON_CACHE, "FileCacheManager.get_file", "triton_cache:get_file", ("self, filename",)),
    Target(_TRITON_CACHE, "FileCacheManager.get_group", "triton_cache:get_group", ("self, filename",)),
    Target(
        _TRITON_CACHE,
        "RemoteCacheManager.__init__",
        "triton_cache:init_remote",
        ("self, key, override=, dump=",),
    ),
    Target(_TRITON_CACHE, "RemoteCacheManager.put", "triton_cache:remote_put", ("self, data, filename, binary=",)),
    Target(_TRITON_CACHE, "RemoteCacheManager.get_group", "triton_cache:remote_get_group", ("self, filename",)),
    Target(_TRITON_CACHE, "RemoteCacheManager._materialize", "triton_cache:materialize", ("self, filename, data",)),
    Target(
        "triton.compiler.compiler",
        "CompiledKernel.__init__",
        "triton_runtime:init_kernel",
        ("self, src, metadata_group, hash",),
    ),
    Target(
        "triton.compiler.compiler",
        "get_cache_key",  # from runtime.cache
        "triton_compiler:get_cache_key",
        ("src, backend, backend_options, env_vars",),
    ),
    # Each of these modules may have imported it from the one before, before it was hooked.
    *(
        Target(module, "compile", "triton_compiler:compile", ("src, target=, options=, _env_vars=",))
        for module in ("triton.compiler.compiler", "triton.compiler", "triton")
    ),
    Target(_BUNDLER, "TritonBundler.read_and_emit", "triton_in_inductor:read_and_emit", ("bundle",)),
    Target(_BUNDLER, "TritonBundler.collect", "triton_in_inductor:collect", ("cls",)),
    Target(
        _BUNDLER,
        "TritonBundler.put_static_autotuner",
        "triton_in_inductor:put_static_autotuner",
        ("cls, key, kernel",),
    ),
    Target(
        "vllm.compilation.decorators",
        "_try_load_aot_compiled_fn",
        "vllm:load_model",
        ("model, aot_compilation_path",),  # 0.20 to 0.33
    ),
    Target(
        "vllm.compilation.caching",
        "reconstruct_serializable_fn_from_mega_artifact",
        "vllm:reconstruct",
        (  # 0.20 to 0.33
            "state, standalone_compile_artifacts, vllm_config, sym_shape_indices_map, returns_tuple_map, fake_mode",
        ),
    ),
    # Not what saves models: it is a function within a function.
    Target("vllm.compilation.decorators", "os", "vllm:sending_os", (OS_MODULE,)),
    Target(
        "vllm.compilation.backends",
        "CompilerManager.initialize_cache",
        "vllm:initialize_cache",
        ("self, cache_dir, disable_cache=, prefix=",),
    ),
    Target(
        "vllm.compilation.backends",
        "CompilerManager.load",
        "vllm:load_artifact",
        ("self, graph, example_inputs, graph_index, compile_range",),  # 0.20 to 0.33
    ),
    # Not the methods that write: one of the files is written amid a whole compile.
    *(
        Target(
            f"{server}.{module}",
            "open",
            "vllm:open_file",
            ("file, mode=, buffering=, encoding=, errors=, newline=, closefd=, opener=",),
            builtin=True,
        )
        for server, module in (("vllm", "compilation.backends"), ("sglang", "srt.compilation.backend"))
    ),
]

# With it torch itself has all ranks miss in the AOTAutograd cache where one does.
OWN_AGREEMENT = ("torch._functorch.config", "_sync_cache_decision_cross_ranks")  # from 2.15 on
# Settings with which the ranks of a group meet in collectives while they compile: none may wait for another there.
COMPILE_COLLECTIVES = (
    ("torch._functorch.config", "_sync_decision_cross_ranks"),
    OWN_AGREEMENT,
    ("torch._inductor.config", "distributed_max_autotune_gemm"),
    ("torch._inductor.config", "aten_distributed_optimizations.enable_overlap_scheduling"),
    ("torch._inductor.config", "reorder_for_compute_comm_overlap"),
    ("torch._inductor.config_comms", "runtime_estimations_align_across_all_distributed_ranks"),
)
# Seconds; a backend of which it is not known: that of NCCL, kProcessGroupNCCLDefaultTimeout, which is the shortest.
SHORTEST_WATCHDOG = 600.0

# Every target is patched for lack of a supported hook, but those of these modules of safecache.hooks, or functions of
# theirs: what upstream has in each release, and why it does not do. tests/faults/test_kernel_managers.py shows it of
# the first.
_VEC_ISA_OK = ("torch._inductor.config.cpp.vec_isa_ok", "it is the answer, which is to be found out")
UPSTREAM_HOOKS = {
    "triton_cache": (
        "triton.knobs.cache.manager_class",
        "a manager made directly, one that a user sets, and a reset or the end of a scope of the knob get round it",
    ),
    "triton_runtime:build": ("triton.knobs.build.impl", "it builds in Triton's place, and in that of a user's own"),
    "triton_compiler": ("triton.knobs.compilation.listener", "it hears of compiles that are over"),
    "cpp_codecache:check_build": _VEC_ISA_OK,
    "cpp_codecache:probe_load": _VEC_ISA_OK,
}

MODULES = {target.module for target in TARGETS}


# Called with the settings each time that the hooks are turned on.
STARTS: list[Callable[[Config], None]] = []


def add(targets: Iterable[Target], start: Callable[[Config], None]) -> None:
    """Add rows to the table, and to STARTS, for activation to come."""
    STARTS.append(start)
    for target in targets:
        TARGETS.append(target)
        MODULES.add(target.module)


# The hooks that seal, verify, or make sure that what is refused is recompiled. The others count lookups, explain
# failures, and look after directories, launchers and compiles.
VERIFYING = frozenset(
    f"{module}:{function}"
    for module, functions in {
        "aot_inductor": "compile compile_eager eager_cache_dir load load_eager_cache load_package load_pt2 package",
        "autograd_cache": "handle_save_error save try_load write_to_local_cache",
        "autotune_cache": "load_cache read_best save",
        "codecache": "compile_dll iterate_over_candidates load_dll load_library save_graph write_to_local_cache",
        "compiler_bisector": "read_lines_from_file write_lines_to_file",
        "compiler_cache": "deserialize populate_caches",
        "cpp_codecache": "check_build install_gcc_via_conda load_async precompile_header probe_load",
        "cpp_extension": "build_library import_module_from_library jit_compile run_ninja_build",
        "dynamo": (
            "deserialize deserialize_model get_local_code_state load_package lookup_remote_cache_entry "
            "put_code_state put_local_code_state read_package sealing_pickle serialize serialize_model "
            "write_package"
        ),
        "exported": (
            "deserialize_artifact deserialize_program guard_importlib guard_pickle guard_sympy guard_torch load_pt2"
        ),
        "generated_code": (
            "build get_target_file_path init init_builder reload_python_module worker_compile_cpp write write_to_disk"
        ),
        "locks": "release try_acquire",
        "other_backends": (
            "build_halide_runtime cutedsl_dir cutedsl_get cutedsl_set fetch_ops flydsl_dir generate_halide "
            "halide_work quack_dir quack_lock quack_unlock touch_halide try_import_cutlass"
        ),
        "output_code": "aot_load load_compiled",
        "pickle_module": "sealing_pickle",
        "precompile": "load read_artifact to_cache_bytes write_artifact",
        "standalone_compile": "get_cached insert_cached load verifying_pickle",
        "triton_cache": "get_file get_group init init_remote materialize put put_group remote_get_group remote_put",
        "triton_in_inductor": "collect read_and_emit reload_cubin_path",
        "triton_runtime": "init_kernel",
        "vllm": "open_file",
    }.items()
    for function in functions.split()
)
