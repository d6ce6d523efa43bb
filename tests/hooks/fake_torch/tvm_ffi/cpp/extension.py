import torch


def build(
    name,
    *,
    sources=None,
    cpp_files=None,
    cuda_files=None,
    extra_cflags=None,
    extra_cuda_cflags=None,
    extra_ldflags=None,
    extra_include_paths=None,
    build_directory=None,
    backend=None,
    output=None,
):
    return torch.called("build")


def build_inline(
    name,
    *,
    cpp_sources=None,
    cuda_sources=None,
    functions=None,
    extra_cflags=None,
    extra_cuda_cflags=None,
    extra_ldflags=None,
    extra_include_paths=None,
    build_directory=None,
    embed_cubin=None,
    backend=None,
    output=None,
):
    return torch.called("build_inline")


def _maybe_write(path, content):
    torch.called("_maybe_write")


def build_ninja(build_dir):
    torch.called("build_ninja")
