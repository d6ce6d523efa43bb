"""torch.utils.cpp_extension: extensions that are compiled when they are used."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from safecache import compiles, load_errors
from safecache.built_code import extension_builds
from safecache.patching.hook import verifier

__all__ = ["build_library", "import_module_from_library", "init_allocator", "jit_compile", "run_ninja_build"]


@verifier(
    "torch.utils.cpp_extension:_jit_compile(name, sources, extra_cflags, extra_cuda_cflags, extra_sycl_cflags, "
    "extra_ldflags, extra_include_paths, build_directory, verbose, with_cuda, with_sycl, is_python_module, "
    "is_standalone, keep_intermediates=)",
    why="Stock torch waits without a timeout for a lock in the build directory, which a killed or hostile process "
    "can block.",
    issue="https://github.com/pytorch/pytorch/issues/189245",
)
def jit_compile(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """_jit_compile: takes no lock for an attested build, since anyone who can write there could hold it."""
    with extension_builds.postpone_lock(translates=sys.modules["torch"].version.hip is not None):
        return wrapped(*args, **kwargs)


@verifier(
    "torch.utils.cpp_extension:_write_ninja_file_and_build_library(name, sources, extra_cflags, extra_cuda_cflags, "
    "extra_sycl_cflags, extra_ldflags, extra_include_paths, build_directory, verbose, with_cuda, with_sycl, "
    "is_standalone=)",
    why="Ninja goes by file times alone, so stock torch takes an outdated or planted library with a recent time for "
    "current.",
    issue="https://github.com/pytorch/pytorch/blob/v2.15.0/torch/utils/cpp_extension.py#L2559",
)
def build_library(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """_write_ninja_file_and_build_library: unattested files are quarantined, so that ninja builds them again.

    Nothing is built if all is attested, whatever the file times are. Not for a setup.py, whose files are no cache.
    Raises EntryRefusedError for a refused file in strict mode, and for a standalone one that cannot be quarantined.
    """

    def build(*, name: str, build_directory: str, is_standalone: bool = False, **named: Any) -> None:
        def run(directory: str, **other: Any) -> None:
            wrapped(name=name, build_directory=directory, is_standalone=is_standalone, **{**named, **other})

        flags = named.get("extra_ldflags") or ()
        extension_builds.build(name, build_directory, run, flags, standalone=is_standalone)

    return build(*args, **kwargs)


@verifier(
    "torch.utils.cpp_extension:_import_module_from_library(module_name, path, is_python_module)",
    why="Stock torch dlopens whatever library lies in the extensions directory, without checking who built it.",
    issue="https://github.com/pytorch/pytorch/blob/v2.15.0/torch/utils/cpp_extension.py#L3021",
)
def import_module_from_library(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """_import_module_from_library: verifies the library, and explains a failure to load it from a noexec mount.

    Raises EntryRefusedError, in default mode too.
    """

    def load(module_name: str, path: str, *rest: Any, **named: Any) -> Any:
        extension = sys.modules["torch.utils.cpp_extension"].LIB_EXT
        placed = extension_builds.admit(path, f"{module_name}{extension}")
        arguments = (module_name, os.path.dirname(placed), *rest)
        return load_errors.explain_load(wrapped, arguments, named, "TORCH_EXTENSIONS_DIR")

    return load(*args, **kwargs)


@verifier(
    "torch.utils.cpp_extension:_run_ninja_build(build_directory, verbose, error_prefix)",
    why="Stock torch reports a missing compiler or Python.h only as raw ninja output in a RuntimeError.",
    issue="https://github.com/pytorch/pytorch/blob/v2.15.0/torch/utils/cpp_extension.py#L2997",
)
def run_ninja_build(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """_run_ninja_build: says what to install if there is no compiler, or no Python.h."""
    if compiles.current.is_planning:
        return None
    return load_errors.explain_build(wrapped, args, kwargs, "the extension is compiled with it", language="C++")


@verifier(
    "torch.cuda.memory:CUDAPluggableAllocator.__init__(self, path_to_so_file, alloc_fn_name, free_fn_name)",
    why="Servers build an allocator in a shared directory and load it by its path, where others can replace it.",
    issue="https://github.com/vllm-project/vllm/blob/v0.33.0/vllm/distributed/device_communicators/pynccl_allocator.py#L92",
)
def init_allocator(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> None:
    """CUDAPluggableAllocator: an extension that this process has built is loaded as import_module_from_library() does.

    Raises EntryRefusedError, in default mode too, for another file in its place.
    """

    def init(path_to_so_file: str, *rest: Any, **named: Any) -> None:
        directory, name = os.path.split(path_to_so_file)
        is_built = extension_builds.has_built(directory)
        wrapped(extension_builds.admit(directory, name) if is_built else path_to_so_file, *rest, **named)

    init(*args, **kwargs)
