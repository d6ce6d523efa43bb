"""Scenes with Triton's own cache: compiles for a GPU that need not be there."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from unittest import mock

MODULE = """
#include <Python.h>
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "probe", 0, -1, 0};
PyMODINIT_FUNC PyInit_probe(void) { return PyModule_Create(&module); }
"""


def compile_kernel(block=128):
    """Whether a kernel had to be compiled, its cubin in hex, and the files that it was read from."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, CompiledKernel

    from scenes.triton_kernels import triton_poi_scale

    signature = {"in_ptr0": "*fp32", "out_ptr0": "*fp32", "xnumel": "i32", "XBLOCK": "constexpr"}
    source = ASTSource(triton_poi_scale, signature, constexprs={"XBLOCK": block})
    passes = []
    parse = ASTSource.make_ir
    with mock.patch.object(ASTSource, "make_ir", lambda *rest, **named: passes.append(1) or parse(*rest, **named)):
        kernel: CompiledKernel = triton.compile(source, target=GPUTarget("cuda", 90, 32))
    return {
        "compiled": bool(passes),
        "cubin": kernel.asm["cubin"].hex(),
        "files": list(map(str, kernel.metadata_group.values())),
    }


def compile_kernel_in_a_worker():
    """compile_kernel, by one of Inductor's compile workers."""
    from torch._inductor.compile_worker.subproc_pool import SubprocPool

    pool = SubprocPool(1)
    try:
        return pool.submit(compile_kernel).result(timeout=100)
    finally:
        pool.shutdown()


def compile_ir(path):
    """The kernel of a file of IR."""
    import triton
    from triton.backends.compiler import GPUTarget

    return {"cubin": triton.compile(path, target=GPUTarget("cuda", 90, 32)).asm["cubin"].hex()}


def compile_kernel_and_count_descriptors():
    """How many are open afterwards that were not before."""
    before = len(os.listdir("/proc/self/fd"))
    compile_kernel()
    return len(os.listdir("/proc/self/fd")) - before


def build_module():
    """Whether a module had to be built."""
    from triton.runtime import build

    built = []
    stock = build._build
    with mock.patch.object(build, "_build", lambda *rest, **named: built.append(1) or stock(*rest, **named)):
        module = build.compile_module_from_src(MODULE, "probe")
    return {"compiled": bool(built), "module": module.__name__}


@contextlib.contextmanager
def exchanging(evil):
    """As somebody would who can write to the cache, at once when a file of these suffixes appears in it."""
    from triton.runtime import cache

    from safecache.fs import filesystem  # not where it is not installed: the scenes of patched sources

    replace, rename = os.replace, filesystem.rename

    def exchange(destination):
        if os.path.splitext(destination)[1] in evil:
            with open(destination, "wb") as file:
                file.write(bytes.fromhex(evil[os.path.splitext(destination)[1]]))

    def and_exchange(source, destination):
        replace(source, destination)
        exchange(destination)

    def rename_and_exchange(source, destination, *, src_dir_fd, dst_dir_fd):
        rename(source, destination, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
        exchange(os.path.join(os.readlink(f"/proc/self/fd/{dst_dir_fd}"), destination))

    # As stock Triton does it, and as we do.
    with (
        mock.patch.object(cache.os, "replace", and_exchange),
        mock.patch.object(filesystem, "rename", rename_and_exchange),
    ):
        yield


def compile_kernel_under_attack(evil):
    with exchanging(evil):
        return compile_kernel()


def build_module_under_attack(evil):
    with exchanging(evil):
        return build_module()


def collect_under_attack(evil):
    """What goes into an entry of a kernel whose files are exchanged just before, and just after, they are verified."""
    from torch._inductor import config, triton_bundler

    compile_kernel()
    root = os.environ["TRITON_CACHE_DIR"]
    (key,) = [
        name for name in os.listdir(root) if any(".cubin" in file for file in os.listdir(os.path.join(root, name)))
    ]
    bundler = triton_bundler.TritonBundler
    listdir = os.listdir

    def and_exchange(directory):
        names = listdir(directory)
        if sys._getframe(1).f_globals["__name__"] == triton_bundler.__name__:
            for name in names:
                if name.endswith(".cubin"):
                    with open(os.path.join(directory, name), "wb") as file:
                        file.write(bytes.fromhex(evil))
        return names

    with config.patch(bundle_triton_into_fx_graph_cache=True), mock.patch.object(os, "listdir", and_exchange):
        bundler.begin_compile()
        bundler._entries.append(triton_bundler.TritonBundleEntry(key, 0, root))
        bundle, _ = bundler.collect()
    return [artifact.payload.hex() for kernel in bundle.kernel_artifacts for artifact in kernel.artifacts]


def dump_kernel(directory):
    import triton

    with triton.knobs.compilation.scope(), triton.knobs.cache.scope():
        triton.knobs.compilation.dump_ir = True
        triton.knobs.cache.dump_dir = directory
        return compile_kernel()["compiled"]


def compile_with_remote_cache(evil=None, clear=True):
    """Twice, the second time with an empty local cache and, in one file, ``evil`` from the remote one."""
    import triton
    from triton.runtime import cache

    from scenes.triton_managers import RemoteBackend

    with triton.knobs.cache.scope():
        triton.knobs.cache.manager_class = cache.RemoteCacheManager
        triton.knobs.cache.remote_manager_class = RemoteBackend
        first = compile_kernel()
        if clear:
            shutil.rmtree(os.environ["TRITON_CACHE_DIR"])
        RemoteBackend.evil = evil and bytes.fromhex(evil)
        return {"first": first, "second": compile_kernel()}


def compile_kernel_through_fixed_redis():
    """As compile_kernel(), where stock Triton finds the knobs of its Redis."""
    import triton

    with mock.patch.object(triton.knobs.cache, "redis", triton.knobs.redis, create=True):
        return compile_kernel()


def compile_kernel_without_redis_client():
    with mock.patch.dict(sys.modules, {"redis": None}):
        return compile_kernel()


def send_file(key, name, content):
    """Make a file of a kernel, for whoever shares Triton's remote cache."""
    from triton.runtime import cache

    cache.RemoteCacheManager(key).put(content.encode(), name)
