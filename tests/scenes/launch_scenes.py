"""Kernels that are launched by Triton itself, where a stand-in takes the place of the GPU's driver."""

from __future__ import annotations

import contextlib
import os
import signal
from types import SimpleNamespace
from unittest import mock

# What the stand-in does to the process when it loads, or launches, a binary that ends so.
LOADED, LAUNCHED = "ends who loads it", "ends who launches it"
MODULE = """
#include <Python.h>
#include <signal.h>
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "probe", 0, -1, 0};
PyMODINIT_FUNC PyInit_probe(void) { %s return PyModule_Create(&module); }
"""


class Gpu:
    """As a driver of Triton's."""

    def __init__(self):
        self.launched = 0
        self.utils = SimpleNamespace(
            load_binary=self._load,
            unload_module=lambda module: None,
            get_device_properties=lambda device: {"max_shared_mem": 1 << 20},
        )

    def get_current_target(self):
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0

    def launcher_cls(self, src, metadata):
        return self._launch

    def _load(self, name, binary, shared, device):
        _die_if(LOADED, binary)
        return 1, binary, 16, 0, 1024

    def _launch(self, grid_x, grid_y, grid_z, stream, function, *rest):
        _die_if(LAUNCHED, function)
        self.launched += 1


def _die_if(what, binary):
    if binary.endswith(what.encode()):
        os.kill(os.getpid(), signal.SIGSEGV)


@contextlib.contextmanager
def _gpu():
    from triton.runtime import driver

    gpu = Gpu()
    with mock.patch.object(type(driver), "active", gpu):
        yield gpu


def launch(times=3, fails=False):
    """Launch a kernel so often: how often it was compiled and launched, and what is left of a trial after each launch."""
    import torch
    from triton.compiler import ASTSource

    from scenes.triton_kernels import triton_poi_scale

    compiled, left, parse = [], [], ASTSource.make_ir
    x = torch.ones(128)
    with _gpu() as gpu:
        if fails:
            gpu.utils.load_binary = mock.Mock(side_effect=RuntimeError("no kernel image is available"))
        with mock.patch.object(
            ASTSource, "make_ir", lambda *args, **kwargs: compiled.append(1) or parse(*args, **kwargs)
        ):
            for _ in range(times):
                kernel = triton_poi_scale[(1,)](x, x, 128, XBLOCK=128)
                left.append([kernel._run.__name__, "_init_handles" in vars(kernel)])
    return {"compiled": len(compiled), "launched": gpu.launched, "left": left}


def spoil(what):
    """Have the cubin of every kernel in the cache end so, and attest it under the key of the test: how many there are."""
    from pathlib import Path

    from safecache.built_code import triton_files

    found = sorted(Path(_root()).glob("*/*.cubin"))
    for cubin in found:
        triton_files.put(str(cubin.parent), cubin.name, cubin.read_bytes() + what.encode())
        (listing,) = cubin.parent.glob("__grp__*")
        triton_files.put(str(listing.parent), listing.name, listing.read_bytes())
    return len(found)


def build_module():
    """Whether a helper of Triton's had to be built, which is then loaded."""
    from triton.runtime import build

    built, stock = [], build._build
    with mock.patch.object(build, "_build", lambda *args, **kwargs: built.append(1) or stock(*args, **kwargs)):
        build.compile_module_from_src(MODULE % "", "probe")
    return bool(built)


def spoil_module():
    """Exchange that helper for one that ends who loads it, and attest it: how many there are."""
    import subprocess
    import sysconfig
    from pathlib import Path

    from safecache.built_code import triton_files

    found = sorted(Path(_root()).glob("*/probe*.so"))
    for path in found:
        path.unlink()
        command = ["gcc", "-xc", "-", "-shared", "-fPIC", f"-I{sysconfig.get_path('include')}", "-o", f"{path}.new"]
        subprocess.run(command, input=MODULE % "raise(SIGSEGV);", text=True, check=True)
        content = Path(f"{path}.new").read_bytes()
        os.unlink(f"{path}.new")
        triton_files.put(str(path.parent), path.name, content)
    return len(found)


def _root():
    return os.environ["TRITON_CACHE_DIR"]
