"""Scenes in which the layers load shared objects, and run compilers."""

from __future__ import annotations

import concurrent.futures
import ctypes
import os
import sys
import sysconfig
import zipfile


def load_shared_object(site, path):
    """Have one of the layers load a shared object the way it loads its own, which it has just built."""
    if os.path.isfile(path) and "safecache" in sys.modules:
        from safecache.store import attestations

        with open(path, "rb") as file:
            attestations.attest_in_process(path, file.read())
    if site == "inductor":
        from torch._inductor.codecache import CppCodeCache

        return CppCodeCache._load_library(path, "key").key
    if site == "inductor-python":
        from torch._inductor.codecache import CppPythonBindingsCodeCache

        return CppPythonBindingsCodeCache._load_library(path, "key").key
    if site == "cutlass":
        from torch._inductor.codecache import DLLWrapper

        return DLLWrapper(path).is_open
    if site == "extension":
        from torch.utils.cpp_extension import _import_module_from_library

        return _import_module_from_library("probe", os.path.dirname(path), True).__name__
    if site == "operators":
        from torch.utils.cpp_extension import _import_module_from_library

        return _import_module_from_library("probe", os.path.dirname(path), False)
    if site == "aot":
        import torch._export

        return torch._export.aot_load(path, "cpu")
    if site == "aot-autograd":
        from torch._inductor import config, output_code

        with config.patch(enable_autograd_for_aot=True):
            return output_code.CompiledAOTI(path, "cpu")
    from triton.runtime.build import _load_module_from_path

    return _load_module_from_path("probe", path).__name__


def load_for_triton_backend(path):
    """The first use of Triton's driver through torch, where its helper module cannot be loaded."""
    from unittest import mock

    from torch.utils import _triton
    from triton.runtime import build, driver

    class Active:
        def get_current_target(self):
            build._load_module_from_path("probe", path)

    with mock.patch.object(type(driver), "active", Active()):
        _triton.triton_backend()


def load_in_thread(site, path):
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(load_shared_object, site, path).result()


def load_in_compile_worker(site, path):
    from torch._inductor.compile_worker.subproc_pool import SubprocPool

    pool = SubprocPool(1)
    try:
        return pool.submit(load_shared_object, site, path).result(timeout=100)
    finally:
        pool.shutdown()


MS_NOEXEC = 0x8


def hide(directory, flags=0, keep=()):
    """Mount an empty file system over a directory, seen by this process and its children alone.

    What they import or preload from stays where it is, and what is below the directories in ``keep``.
    """
    libc = ctypes.CDLL(None, use_errno=True)

    def must(result):
        if result != 0:
            raise OSError(ctypes.get_errno(), "unshare or mount")

    clone_newns, ms_rec_private, ms_rec_bind = 0x20000, 0x44000, 0x5000
    must(libc.unshare(clone_newns))
    must(libc.mount(b"none", b"/", None, ms_rec_private, None))
    source = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
    preloaded = map(os.path.dirname, os.environ.get("LD_PRELOAD", "").split(":"))
    stays = dict.fromkeys([source, sys.prefix, *sys.path, *preloaded, *keep])
    hidden = [path for path in stays if path.startswith(directory + os.sep) and os.path.isdir(path)]
    kept = [(path, os.open(path, os.O_PATH)) for path in hidden]
    must(libc.mount(b"none", os.fsencode(directory), b"tmpfs", flags, None))
    for path, descriptor in kept:
        os.makedirs(path, exist_ok=True)
        must(libc.mount(f"/proc/self/fd/{descriptor}".encode(), os.fsencode(path), None, ms_rec_bind, None))


def load_package(path, library):
    """Load an AOTInductor package where /tmp is mounted noexec, in a mount namespace of our own."""
    import torch._inductor

    with open(library, "rb") as file:
        content = file.read()
    hide("/tmp", flags=MS_NOEXEC)
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in PACKAGE.items():
            archive.writestr(f"package/{name}", content if data is None else data)
    if "safecache" in sys.modules:
        from safecache.built_code import packages

        packages.adopt(path)
    return torch._inductor.aoti_load_package(path)


MODEL = "data/aotinductor/model/probe.wrapper"
PACKAGE = {
    f"{MODEL}.cpp": "",  # which torch before 2.13 takes the name from
    f"{MODEL}.so": None,
    f"{MODEL}_metadata.json": '{"AOTI_DEVICE_KEY": "cpu"}',
    "archive_format": "pt2",
    "archive_version": "0",
    ".data/version": "3\n",
    "byteorder": "little",
}


def find_vector_instructions():
    """Whether torch finds that it can use AVX2, which every machine that runs the suite has: asked anew."""
    from torch._inductor import cpu_vec_isa

    isa = cpu_vec_isa.VecAVX2()
    return isa.check_build(isa._avx_code)


def probed_libraries():
    """What find_vector_instructions has another process load."""
    import subprocess
    from unittest import mock

    from torch._inductor import cpu_vec_isa

    commands = []
    run = subprocess.run
    look = mock.patch.object(
        cpu_vec_isa.subprocess, "run", lambda command, **how: commands.append(command) or run(command, **how)
    )
    with look:
        assert find_vector_instructions()
    return [word.split('LoadLibrary("')[1].split('"')[0] for _, *words in commands for word in words if "Load" in word]


def check_exposure(directory):
    """What is counted when a directory is looked at."""
    from safecache.reporting import events
    from safecache.tiers import directory_faults

    directory_faults.check(directory)
    return events.read_counters()


def check_exposure_in_worker(directory):
    from torch._inductor.compile_worker.subproc_pool import SubprocPool

    pool = SubprocPool(1)
    try:
        return pool.submit(check_exposure, directory).result(timeout=100)
    finally:
        pool.shutdown()


def build(site, headers=True, broken=False):
    """Have one of the layers compile a Python module, perhaps without Python.h, or from a source with an error."""
    if not headers:
        hide(sysconfig.get_path("include"))
    error = "#error broken\n" if broken else ""
    if site == "triton":
        from triton.runtime.build import compile_module_from_src

        return compile_module_from_src(error + EXTENSION, "probe").__name__
    if site == "inductor":
        from torch._inductor import codecache, cpp_builder

        cpp_builder.cpp_compiler_search.cache_clear()
        kernel = error + 'extern "C" long kernel(long x) { return x; }'
        return codecache.CppPythonBindingsCodeCache.load_pybinding(["long"], kernel)(3)
    from torch.utils import cpp_extension

    # Not load_inline: that includes all of torch's headers.
    source = os.path.join(os.environ["TORCH_EXTENSIONS_DIR"], "probe.cpp")
    os.makedirs(os.path.dirname(source), exist_ok=True)
    with open(source, "w") as file:
        file.write(error + EXTENSION)
    return cpp_extension.load("probe", [source]).__name__


EXTENSION = """
#include <Python.h>
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "probe", 0, -1, 0};
PyMODINIT_FUNC PyInit_probe(void) { return PyModule_Create(&module); }
"""


def build_with_header(directory):
    """Compile a kernel that includes a precompiled header of its own, kept in ``directory``."""
    from torch._inductor import codecache

    os.makedirs(directory, exist_ok=True)
    codecache._HEADER_DIR = directory
    codecache._HEADER_LOCK_DIR = os.path.join(directory, "locks")
    # Not torch's own, which takes a quarter of a minute.
    codecache._get_cpp_prefix_header = lambda device: "cstdlib"
    codecache._precompile_header.cache_clear()
    kernel = 'extern "C" long kernel(long x) { return x; }'
    codecache.CppPythonBindingsCodeCache.load_pybinding(["long"], kernel)
    return sorted(
        name
        for place, _, names in os.walk(directory)
        for name in names
        if ".safecache" not in place and name[-4:] != "lock"
    )


def load_kernel_asynchronously():
    """Load a kernel as Inductor does with a pool of compile workers; whether something was left to them."""
    from concurrent.futures import ThreadPoolExecutor

    from torch._inductor import codecache

    left = []
    with ThreadPoolExecutor(1) as pool:

        def submit(work):
            left.append(work)
            return pool.submit(work)

        kernel = 'extern "C" long kernel(long x) { return x + 1; }'
        load = codecache.CppPythonBindingsCodeCache.load_pybinding_async(["long"], kernel, submit_fn=submit)
        assert load()(3) is None
    return len(left)


def probe_vector_instructions():
    """Whether this CPU has those that torch looks for first, as a library says that it builds and loads."""
    from torch._inductor import cpu_vec_isa

    isa = cpu_vec_isa.supported_vec_isa_list[0]
    return isa.check_build(cpu_vec_isa.VecISA._avx_code)


def ask_for_vector_instructions_at_once():
    """The flags for AVX-512, as each of two threads is told that ask torch while it probes the CPU for the first of them."""
    import threading
    from unittest import mock

    from torch._inductor import cpu_vec_isa

    cpu_vec_isa.valid_vec_isa_list.cache_clear()
    cpu_vec_isa.VecAVX512.__bool__.cache_clear()
    probing, meanwhile, finished = threading.Event(), threading.Event(), threading.Event()

    def check_build(isa, code):
        if code is getattr(isa, "_avx512_bf16_code", ""):
            mine, other = (meanwhile, finished) if probing.is_set() else (probing, meanwhile)
            mine.set()
            other.wait(2)
        return True

    said = {}

    def ask(who):
        said[who] = [isa.build_arch_flags() for isa in cpu_vec_isa.valid_vec_isa_list()]

    def ask_meanwhile():
        probing.wait(10)
        ask("second")

    with (
        mock.patch.object(cpu_vec_isa.VecISA, "check_build", check_build),
        mock.patch.object(cpu_vec_isa, "x86_isa_checker", lambda: ["avx512"]),
        mock.patch("torch.cpu._is_avx512_bf16_supported", lambda: True),
    ):
        other = threading.Thread(target=ask_meanwhile)
        other.start()
        ask("first")
        finished.set()
        other.join()
    return said


def wait_for_baton(directory):
    """How torch up to 2.13 goes about the lock of a build directory that somebody else holds: with a guard, and with none."""
    import threading
    import time

    from torch.utils.file_baton import FileBaton

    from safecache import compiles

    path = os.path.join(directory, "lock")
    with open(path, "x"):
        pass

    def attempt(guard):
        baton, start = FileBaton(path, wait_seconds=0.01), time.monotonic()
        with compiles.override_scope(lock_guard=guard):
            acquired = baton.try_acquire()
        if acquired:
            baton.release()
        return acquired, time.monotonic() - start, os.path.exists(path)

    stock, spared = attempt(None), attempt(lambda lock: None)
    threading.Timer(0.5, os.unlink, [path]).start()
    return {"stock": stock, "spared": spared, "taken": attempt(lambda lock: lock.take())}


def build_under_attack(directory, compiler):
    """build_with_header, by a compiler that is not torch's choice; whether a kernel of it can be called."""
    from torch._inductor import codecache, config, cpp_builder

    cpp_builder.cpp_compiler_search.cache_clear()
    with config.patch({"cpp.cxx": (None, compiler)}):
        build_with_header(directory)
        kernel = 'extern "C" long kernel(long x) { return x; }'
        return codecache.CppPythonBindingsCodeCache.load_pybinding(["long"], kernel)(3) is None


def header_command(directory):
    """The command that precompiles the header of build_with_header, without its names."""
    from unittest import mock

    from torch._inductor import cpp_builder

    commands = []
    run = cpp_builder.run_compile_cmd
    with mock.patch.object(cpp_builder, "run_compile_cmd", lambda line, cwd: commands.append(line) or run(line, cwd)):
        build_with_header(os.path.join(os.path.dirname(directory), "other-headers"))
    (words,) = [words for words in map(str.split, commands) if "-include" not in words and "-E" not in words]
    place = words.index("-o")
    return [word for word in words[:place] + words[place + 2 :] if not word.endswith(".h")]


def load_cutlass_kernel(source):
    """Compile a kernel as for CUTLASS, with the C++ compiler in the place of nvcc, and load it: its compiler's commands."""
    from torch._inductor import codecache

    commands = []

    class Cache(codecache.CUTLASSCodeCache):
        _SOURCE_CODE_SUFFIX = "cpp"
        _BACKEND = "test"

        @classmethod
        def _use_re_build(cls):
            return False

        @classmethod
        def _source_code_extra(cls):
            return ""

        @classmethod
        def _compile_command(cls, sources, target, extension, extra_args=None):
            commands.append(extension)
            return " ".join(["g++", "-fPIC", "-c" if extension == "o" else "-shared", *sources, "-o", target])

    library, _, _ = Cache.load(source, "so")
    return {"commands": commands, "path": library.lib_path, "answer": library.DLL.answer()}


def load_operators(source, name="probe", folder="", more=(), standalone=False):
    """Have torch.utils.cpp_extension build a library and load it: whether ninja had to compile or link."""
    import ctypes
    import subprocess
    import time

    from torch.utils import cpp_extension

    directory = os.path.join(os.environ["TORCH_EXTENSIONS_DIR"], folder)
    os.makedirs(directory, exist_ok=True)
    path = os.path.join(directory, "probe.cpp")
    if not os.path.exists(path):
        with open(path, "w") as file:
            file.write(source)
    sources = [path, *(os.path.join(directory, each) for each in more)]
    start = time.monotonic()
    loaded = cpp_extension.load(
        name, sources, is_python_module=False, is_standalone=standalone, build_directory=directory
    )
    took = time.monotonic() - start
    with open(os.path.join(directory, ".ninja_log")) as file:
        steps = len(file.readlines())
    answer = subprocess.run([loaded]).returncode if standalone else ctypes.CDLL(loaded).answer()
    return {"steps": steps, "answer": answer, "path": loaded, "took": took}


def load_allocator(planted):
    """Build an allocator, append ``planted`` to it, and load it by its path, as servers do: whether that was loaded."""
    from unittest import mock

    from torch.cuda.memory import CUDAPluggableAllocator
    from torch.utils import cpp_extension

    directory = os.environ["TORCH_EXTENSIONS_DIR"]
    source, path = os.path.join(directory, "probe.cpp"), os.path.join(directory, "probe.so")
    cpp_extension.load("probe", [source], is_python_module=False, build_directory=directory)
    with open(path, "rb") as file:
        content = file.read()
    with open(f"{path}.new", "wb") as file:
        file.write(content + planted.encode())
    os.replace(f"{path}.new", path)
    loaded, stock = [], ctypes.CDLL

    def load(name, *rest, **named):
        with open(name, "rb") as file:
            loaded.append(file.read() == content)
        return stock(name, *rest, **named)

    with mock.patch.object(ctypes, "CDLL", load):
        CUDAPluggableAllocator(path, "answer", "answer")
    return loaded


def activate():
    """As a process that begins with these settings."""
    import safecache

    safecache.deactivate()
    safecache.activate()
