"""Scenes in which torch takes from a cache what is neither an entry nor generated code."""

from __future__ import annotations

from scenes import halide_archive
from scenes.model_scenes import compile_model


def bisect():
    """Whatever a bisection has left says to do: its configuration for torch.compile, and a compile."""
    from torch._inductor.compiler_bisector import CompilerBisector

    return {"config": CompilerBisector.get_config_change("inductor"), **compile_model()}


def start_bisection(config):
    """What a bisection writes before it has a process test a configuration."""
    import torch
    from torch._inductor.compiler_bisector import CompilerBisector

    CompilerBisector.update_bisect_status("inductor", "inductor_emulate_precision_casts")
    CompilerBisector.set_config_values("inductor", "inductor_emulate_precision_casts", config)
    torch._dynamo.reset()


def run_operator(trojan=None):
    """An operator that AOTInductor compiles by itself; with ``trojan``, the library that its JSON file is to name."""
    import glob
    import json
    import os

    import torch

    x = torch.randn(64)
    expected = torch.asinh(x)
    if trojan is not None:
        (listing,) = glob.glob(os.path.join(os.environ["TORCHINDUCTOR_CACHE_DIR"], "aoti_eager/aten/cpu/*.json"))
        with open(listing) as file:
            entries = json.load(file)
        entries[0]["kernel_path"] = trojan
        with open(listing, "w") as file:
            json.dump(entries, file)
    from torch._inductor import aoti_eager

    compiled = []
    compile_it = aoti_eager.aoti_compile_with_persistent_cache
    aoti_eager.aoti_compile_with_persistent_cache = lambda *args, **kwargs: (
        compiled.append(compile_it(*args, **kwargs)) or compiled[-1]
    )
    with torch.library._scoped_library("aten", "IMPL") as library:
        library._impl_with_aoti_compile("asinh", "CPU")
        torch.testing.assert_close(torch.asinh(x), expected)
    return {"compiled": len(compiled)}


def import_cutlass(directory):
    """CUTLASS's generators from a clone of a few lines, and then what somebody else may have put beside them."""
    import importlib.util

    from torch._inductor import config
    from torch._inductor.codegen.cutlass.utils import try_import_cutlass

    with config.patch({"cutlass.cutlass_dir": directory}):
        found = try_import_cutlass()
    return {"found": found, "planted": importlib.util.find_spec("planted_beside_cutlass") is not None}


def fetch_operations():
    """What CUTLASS's template takes from a file of operations that lies in the cache, if anything."""
    import inspect
    import json
    import os
    import types
    from unittest import mock

    from torch._inductor.codegen.cutlass import cache

    path = os.path.join(os.environ["TORCHINDUCTOR_CACHE_DIR"], cache._generate_config_filename("0" * 8))
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as file:
        json.dump(["planted"], file)
    serializer = types.SimpleNamespace(deserialize=lambda text: text)
    with (
        mock.patch.object(cache, "get_config_request_key", lambda *parts: "0" * 8),
        mock.patch.object(cache, "get_cutlass_operation_serializer", lambda: serializer),
        mock.patch.multiple(cache.utils, cutlass_arch=lambda *_: "90", toolkit_version=lambda *_: "12.8", create=True),
        mock.patch.multiple(cache, get_cuda_arch=lambda: "90", get_cuda_version=lambda: "12.8", create=True),
    ):
        # Of the device only from torch 2.12 on.
        return cache.maybe_fetch_ops(*["cuda"][: len(inspect.signature(cache.maybe_fetch_ops).parameters)])


def compile_anew():
    """compile_model, with the compiler looked for as in a fresh process."""
    from torch._inductor import cpp_builder

    cpp_builder.cpp_compiler_search.cache_clear()
    return {"compiler": cpp_builder.get_cpp_compiler(), **compile_model()}


def precompile(source, cache):
    """Compile a function of a module to source and a cache, and write both."""
    from torch.compiler import precompile

    from scenes.models import call

    if hasattr(precompile, "capture"):
        with precompile.capture(call, artifact_path=source, cache_path=cache) as captured:
            captured(*_arguments())
        return
    code, content = precompile(call, *_arguments())
    with open(source, "w") as file, open(cache, "wb") as other:
        file.write(code)
        other.write(content)


def load_precompiled(source, cache):
    import torch
    from torch.compiler import precompile

    if hasattr(precompile, "capture"):
        loaded = precompile.load(source, cache)
    else:
        with open(source) as file, open(cache, "rb") as other:
            loaded = precompile.load(file.read(), other.read())
    model, x = _arguments()
    with torch.no_grad():
        torch.testing.assert_close(loaded(model, x), model(x))
    return True


def _arguments():
    import torch

    torch.manual_seed(0)
    return torch.nn.Linear(8, 8).requires_grad_(False), torch.randn(4, 8)


def cute_kernel(cache="cutedsl"):
    """A kernel of CuTe DSL, with a compiler and a loader of a few lines: how often it was compiled, and what was loaded."""
    import sys
    import types

    said = {"compiled": 0, "loaded": []}

    class Compiled:
        def export_to_c(self, object_file_path, function_name):
            with open(object_file_path, "w") as file:
                file.write("the object")

    class Loaded:
        func = "loaded"

        def __getitem__(self, name):
            return self.func

    def load_module(path, enable_tvm_ffi):
        with open(path) as file:
            said["loaded"].append(file.read())
        return Loaded()

    def compile_it():
        said["compiled"] += 1
        return Compiled()

    cute = types.ModuleType("cutlass.cute")
    cute.runtime = types.SimpleNamespace(load_module=load_module)
    cutlass = types.ModuleType("cutlass")
    cutlass.cute, cutlass.__version__ = cute, "0"
    ffi = types.ModuleType("tvm_ffi")
    ffi.__version__ = "0"
    sys.modules.update({"cutlass": cutlass, "cutlass.cute": cute, "tvm_ffi": ffi})
    if cache == "cutedsl":
        _cutedsl_kernel(compile_it)
    else:
        _quack_kernel(compile_it, cache)
    return said


def _cutedsl_kernel(compile_it):
    from torch._inductor.runtime.cutedsl_cache import disk_cache_get, disk_cache_set

    key = ("module.py", ("config",), ("runtime",))
    if disk_cache_get({}, *key) is None:
        disk_cache_set({}, *key, compile_it())


def _quack_kernel(compile_it, name):
    import importlib
    import os
    import sys
    import types

    import torch

    # The package itself imports all of CUTLASS's, its cache does not.
    package = types.ModuleType(name)
    place = os.path.join(os.path.dirname(torch.__file__), "_vendor", "quack")
    package.__path__, package.__file__ = [place], os.path.join(place, "__init__.py")
    sys.modules[name] = package
    torch._vendor.quack = package
    jit = importlib.import_module(f"{name}.cache.jit")

    kernel = jit.jit_cache(lambda size: compile_it())
    kernel(1)


def package_model(path, trojan=None):
    """A model packaged by AOTInductor; ``trojan`` takes the place of its library after it was built."""
    import shutil

    import torch
    from torch._inductor.package import package_aoti

    from scenes.models import Tanh

    program = torch.export.export(Tanh(), (torch.ones(4),))
    files = torch._inductor.aot_compile(program.module(), (torch.ones(4),), options={"aot_inductor.package": True})
    if trojan is not None:
        shutil.copyfile(trojan, next(file for file in files if file.endswith(".so")))
    package_aoti(path, files)


def load_models(paths):
    """What becomes of each of these packages: the text of its error, or "" if it computes what it should."""
    import torch

    return {path: _attempt(lambda path=path: torch._inductor.aoti_load_package(path)(torch.ones(4))) for path in paths}


def load_package_elsewhere(path):
    """The other ways to load it: as a file object, by torch.export's loader, the directory it is unpacked to, and as a program."""
    import os
    import shutil

    import torch
    from torch.export.pt2_archive._package import load_pt2

    with open(path, "rb") as file:
        as_object = _attempt(lambda: torch._inductor.aoti_load_package(file)(torch.ones(4)))
    by_export = _attempt(lambda: load_pt2(path).aoti_runners["model"](torch.ones(4)))
    directory = f"{path}.unpacked"
    shutil.unpack_archive(path, directory, "zip")
    (model,) = os.listdir(directory)
    unpacked = _attempt(lambda: torch._inductor.aoti_load_package(os.path.join(directory, model))(torch.ones(4)))
    as_program = _attempt(lambda: torch.export.load(path))
    return [as_object, by_export, unpacked, as_program]


def load_source(path, how):
    """What a source is that lies there: loaded by a key of the caller's, by its hash, or given as a text."""
    from torch._inductor.codecache import PyCodeCache, code_hash

    with open(path) as file:
        text = file.read()
    if how == "text":
        return PyCodeCache.load(text).VALUE
    return PyCodeCache.load_by_key_path(code_hash(text.strip()) if how == "hash" else "by_hand", path).VALUE


def build_library():
    """The path of a library that AOTInductor builds in the cache, after it was loaded and run."""
    import torch

    from scenes.models import Tanh

    program = torch.export.export(Tanh(), (torch.ones(4),))
    return torch._inductor.aot_compile(program.module(), (torch.ones(4),))


def load_library(path):
    """What becomes of a library of AOTInductor's."""
    import torch

    return _attempt(lambda: torch._export.aot_load(path, "cpu")(torch.ones(4)))


def _attempt(compute):
    import torch

    try:
        result = compute()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    result = result[0] if isinstance(result, (list, tuple)) else result
    torch.testing.assert_close(result, torch.tanh(torch.ones(4)) + 1)
    return ""


def run_halide(directory):
    """Call a kernel as Halide makes them, by a stand-in for Halide that needs a C++ compiler alone."""
    import os
    import sys
    import types

    from torch._inductor.codecache import HalideCodeCache
    from torch._inductor.runtime.hints import HalideInputSpec, HalideMeta

    os.makedirs(directory, exist_ok=True)
    with open(os.path.join(directory, "HalideRuntime.h"), "w") as file:
        file.write('extern "C" int halide_runtime();\n')
    os.environ["HALIDE_INCLUDE"] = directory
    sys.modules["halide"] = types.ModuleType("halide")
    sys.modules["halide"].Target = str
    sys.modules["halide"].compile_standalone_runtime = lambda path, target: halide_archive.make_object(
        path, 'extern "C" int halide_runtime() { return 0; }'
    )
    source = HALIDE_KERNEL.format(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    meta = HalideMeta([HalideInputSpec("long", "x")], target="host-no_runtime")
    return HalideCodeCache.generate_halide(meta, source)(3)


HALIDE_KERNEL = """
import os, sys
sys.path.insert(0, {!r})
from scenes import halide_archive
folder = sys.argv[sys.argv.index("-o") + 1]
with open(os.path.join(folder, "halide_kernel.h"), "w") as file:
    file.write('extern "C" int halide_kernel(long x);')
code = 'extern "C" int halide_runtime(); extern "C" int halide_kernel(long x) {{ return x - 3 + halide_runtime(); }}'
halide_archive.make(os.path.join(folder, "halide_kernel.a"), code)
"""


def call_cpp_wrapper():
    """Call a graph whose wrapper is C++ that names a kernel for the GPU, as one for a GPU would; whether it was found."""
    from unittest import mock

    import torch
    from torch._dynamo.utils import counters
    from torch._inductor import codecache
    from torch._inductor.codegen.cpp_wrapper_cpu import CppWrapperCpu

    from scenes.models import Tanh

    write_header = CppWrapperCpu.write_header

    def write_kernel_too(wrapper):
        write_header(wrapper)
        _, path = codecache.write(b"\x7fELF kernel", "cubin", hash_type="cubin")
        wrapper.header.splice(f'static const char* kernel = "{path}";')

    with mock.patch.object(CppWrapperCpu, "write_header", write_kernel_too):
        run = torch.compile(Tanh(), options={"cpp_wrapper": True})
        torch.testing.assert_close(run(torch.ones(4)), torch.tanh(torch.ones(4)) + 1)
    return {"hits": counters["inductor"]["fxgraph_cache_hit"]}
