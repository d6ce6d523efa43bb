"""Names that lie on disk, in entries and patched sources of an earlier safecache, still lead to what they meant."""

from __future__ import annotations

import pytest
from conftest import python

from safecache.patching import patching

# As pickles and sources have them that 0.1.0 has written.
NAMES = {
    "safecache.launchers revive": "safecache.launchers revive",
    "safecache.kernel_recipe Recipe": "safecache.launchers.kernel_recipe Recipe",
    "safecache.errors TritonCompileCrash": "safecache.errors TritonCompileCrash",
    "safecache.patched hook": "safecache_entry hook",
}


@pytest.mark.parametrize("written", NAMES)
def test_name_that_was_written_by_an_earlier_safecache_is_found(written):
    code = f"""
import pickle
module, name = {written!r}.split()
found = pickle.loads(f"c{{module}}\\n{{name}}\\n.".encode())
print(found.__module__, found.__qualname__)
"""
    done = python(code, env={"SAFECACHE": "0"})
    assert done.stdout == f"{NAMES[written]}\n", done.stderr


# The hooks that these sources name, by module.
HOOKS = {
    "aot_compile": "deserialize deserialize_model serialize serialize_model",
    "aot_compile_types": "sealing_pickle",
    "aoti_eager": "cache_dir compile_operator load_cache",
    "aoti_package": "compile load load_pt2 package",
    "autograd_cache": "handle_save_error save try_load write_to_local_cache",
    "autotune_cache": "load_cache read_best save",
    "caching": "get insert",
    "codecache": "compile_dll iterate_over_candidates load_dll load_library save_graph write_to_local_cache",
    "compiler_bisector": "read_lines_from_file write_lines_to_file",
    "compiler_cache": "deserialize populate_caches",
    "cpp_builder": "install_gcc_via_conda",
    "cpp_codecache": "load_async precompile_header",
    "cpp_extension": "build_library import_module_from_library jit_compile run_ninja_build",
    "cpu_vec_isa": "check_build probe_load",
    "cutlass_utils": "fetch_ops try_import_cutlass",
    "file_baton": "release try_acquire",
    "generated_code": "build get_target_file_path init init_builder reload_python_module worker_compile_cpp write write_to_disk",
    "halide": "build_runtime generate touch work",
    "object_caches": "cutedsl_dir cutedsl_get cutedsl_set flydsl_dir quack_dir quack_lock quack_unlock",
    "output_code": "aot_load load_compiled",
    "package": "load read write",
    "pgo": "get_local_code_state lookup_remote_cache_entry put_code_state put_local_code_state",
    "pickle_module": "sealing_pickle",
    "precompile": "load read_artifact to_cache_bytes write_artifact",
    "standalone_compile": "load verifying_pickle",
    "triton_bundler": "collect read_and_emit",
    "triton_cache": "get_file get_group init materialize put put_group remote_get_group remote_put",
    "triton_compiler": "init",
    "triton_heuristics": "reload_cubin_path",
}


def test_each_hook_that_a_source_patched_by_an_earlier_safecache_names_is_found():
    for module, functions in HOOKS.items():
        for function in functions.split():
            assert callable(patching.hook_function(f"{module}:{function}")), function
