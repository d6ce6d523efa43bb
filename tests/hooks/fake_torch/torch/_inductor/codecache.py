import os
import pickle  # noqa: F401

import torch


def cache_dir():
    return os.environ["TORCHINDUCTOR_CACHE_DIR"]


class GuardedCache:
    @classmethod
    def _get_tmp_dir_for_key(cls, key):
        return os.path.join(cache_dir(), cls.__name__, key)

    @classmethod
    def _get_shape_env(cls):
        return torch.called("_get_shape_env")

    @classmethod
    def iterate_over_candidates(cls, local, remote_cache, key):
        yield torch.called("iterate_over_candidates", cls, key)


def write(content, extension, extra="", hash_type="code", specified_dir="", key=None):
    return torch.called("write", content)


def _reload_python_module(key, path, set_sys_modules=True):
    return torch.called("_reload_python_module", key)


def _worker_compile_cpp(lock_path, cpp_builders):
    return torch.called("_worker_compile_cpp", lock_path)


def write_atomic(path_, content, make_dirs=False, encode_utf_8=False):
    return torch.called("write_atomic", path_)


def _precompile_header(header, hashable_cmd_line, **compile_command):
    return torch.called("_precompile_header", header)


class CppCodeCache:
    @classmethod
    def load_async(cls, main_code, device_type="cpu", submit_fn=None, extra_flags=(), optimized_code=None):
        return torch.called("load_async", main_code)

    @classmethod
    def _load_library(cls, path, key):
        return torch.called("_load_library", path)


class CacheBase:
    def get_local_cache(self):
        return torch.called("get_local_cache")

    def update_local_cache(self, local_cache):
        return torch.called("update_local_cache", local_cache)


class DLLWrapper:
    def __init__(self, lib_path):
        torch.called("DLLWrapper", lib_path)


class AotCodeCompiler:
    @classmethod
    def compile(
        cls, graph, wrapper_code, kernel_code, serialized_extern_kernel_nodes, *, device_type, additional_files
    ):
        return torch.called("AotCodeCompiler.compile", wrapper_code)


class HalideCodeCache:
    @classmethod
    def generate_halide_async(cls, meta, source_code, submit_fn=None):
        return torch.called("generate_halide_async", source_code)

    @classmethod
    def build_standalone_runtime(cls):
        return torch.called("build_standalone_runtime")


def _worker_task_halide(lockfile, jobs):
    return torch.called("_worker_task_halide", lockfile)


def touch(filename):
    return torch.called("touch", filename)


class CUTLASSCodeCache:
    @classmethod
    def compile(cls, source_code, dst_file_ext, extra_args=None):
        return torch.called("compile", source_code)


class ROCmCodeCache:
    @classmethod
    def compile(cls, source_code, dst_file_ext, extra_args=None):
        return torch.called("compile", source_code)


torch.reached("middle", globals())


class FxGraphCachePickler:
    def get_hash(self, obj):
        return torch.called("get_hash", obj)


class FxGraphCache(GuardedCache):
    @staticmethod
    def load_with_key(
        key, debug_lines, example_inputs, local, remote_cache, is_backward, constants, evaluate_guards=None
    ):
        return torch.called("load_with_key", key)

    @staticmethod
    def cache_hit_post_compile(graph, cache_info, constants):
        return torch.called("cache_hit_post_compile", graph)

    @staticmethod
    def prepare_key(gm, example_inputs, fx_kwargs, inputs_to_check, remote):
        return torch.called("prepare_key", gm)

    @staticmethod
    def _check_can_cache(gm, example_inputs=(), fx_kwargs=None, require_shape_env=True):
        return torch.called("_check_can_cache", gm)

    if os.environ.get("FAKE_TORCH_SIGNATURE") == "unknown":

        @staticmethod
        def _save_graph(key, compiled_graph, something_new):
            return torch.called("_save_graph", key)

    elif os.environ.get("FAKE_TORCH_SIGNATURE") != "missing":

        @staticmethod
        def _save_graph(key, compiled_graph, example_inputs, local, remote_cache):
            return torch.called("_save_graph", key)

    @staticmethod
    def _write_to_local_cache(key, content):
        return torch.called("fx._write_to_local_cache", key, content)


def torch_key():
    return torch.called("torch_key")


torch.reached("end", globals())
