"""Scenes with Triton's own cache: compiles for a GPU that need not be there."""

from __future__ import annotations

import os
from unittest import mock

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, CompiledKernel
from triton.runtime import build, cache
from triton_kernels import triton_poi_scale

MODULE = """
#include <Python.h>
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "probe", 0, -1, 0};
PyMODINIT_FUNC PyInit_probe(void) { return PyModule_Create(&module); }
"""


def compile_kernel():
    """Whether a kernel had to be compiled, its cubin in hex, and the files that it was read from."""
    signature = {"in_ptr0": "*fp32", "out_ptr0": "*fp32", "xnumel": "i32", "XBLOCK": "constexpr"}
    source = ASTSource(triton_poi_scale, signature, constexprs={"XBLOCK": 128})
    passes = []
    parse = ASTSource.make_ir
    with mock.patch.object(ASTSource, "make_ir", lambda *rest, **named: passes.append(1) or parse(*rest, **named)):
        kernel: CompiledKernel = triton.compile(source, target=GPUTarget("cuda", 90, 32))
    return {
        "compiled": bool(passes),
        "cubin": kernel.asm["cubin"].hex(),
        "files": list(map(str, kernel.metadata_group.values())),
    }


def build_module():
    """Whether a module had to be built."""
    built = []
    stock = build._build
    with mock.patch.object(build, "_build", lambda *rest, **named: built.append(1) or stock(*rest, **named)):
        module = build.compile_module_from_src(MODULE, "probe")
    return {"compiled": bool(built), "module": module.__name__}


def dump_kernel(directory):
    with triton.knobs.compilation.scope(), triton.knobs.cache.scope():
        triton.knobs.compilation.dump_ir = True
        triton.knobs.cache.dump_dir = directory
        return compile_kernel()["compiled"]


def materialize_remote():
    """Whether a file of one's own is there for the next who asks, and one that a remote cache delivered."""
    own = cache.FileCacheManager("KEY")
    own.put(b"own", "own.bin")
    manager = cache.RemoteCacheManager.__new__(cache.RemoteCacheManager)
    manager._file_cache_manager = own
    manager._materialize("remote.bin", b"remote")
    assert os.path.exists(os.path.join(own.cache_dir, "remote.bin"))
    again = cache.FileCacheManager("KEY")
    return {"own": again.get_file("own.bin") is not None, "remote": again.get_file("remote.bin") is not None}
