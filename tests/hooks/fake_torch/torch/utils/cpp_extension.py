import torch


def _import_module_from_library(module_name, path, is_python_module):
    return torch.called("_import_module_from_library", module_name)


def _jit_compile(
    name,
    sources,
    extra_cflags,
    extra_cuda_cflags,
    extra_sycl_cflags,
    extra_ldflags,
    extra_include_paths,
    build_directory,
    verbose,
    with_cuda,
    with_sycl,
    is_python_module,
    is_standalone,
    keep_intermediates=True,
):
    return torch.called("_jit_compile", name)


def _write_ninja_file_and_build_library(
    name,
    sources,
    extra_cflags,
    extra_cuda_cflags,
    extra_sycl_cflags,
    extra_ldflags,
    extra_include_paths,
    build_directory,
    verbose,
    with_cuda,
    with_sycl,
    is_standalone=False,
):
    return torch.called("_write_ninja_file_and_build_library", build_directory)


def _run_ninja_build(build_directory, verbose, error_prefix):
    return torch.called("_run_ninja_build", build_directory)
