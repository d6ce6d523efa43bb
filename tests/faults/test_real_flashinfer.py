"""The real FlashInfer: the libraries that it builds and the objects that it keeps are verified. None needs a GPU."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from conftest import SOURCE, needs_root

from faults import small_disks
from faults.built_modules import BuiltModule
from faults.users import GROUP, as_user, other_users_can_be, share_key
from safecache.testing import damage, isolated

pytest.importorskip("flashinfer", reason="needs flashinfer-python")
pytestmark = pytest.mark.xdist_group("flashinfer")

KERNEL = """
import cutlass
import cutlass.cute as cute
import torch
from cutlass.cute.runtime import from_dlpack

@cute.jit
def fill(x: cute.Tensor):
    x[0] = cutlass.Int32(41)

def compile_it():
    x = torch.zeros(4, dtype=torch.int32)
    return cute.compile(fill, from_dlpack(x, enable_tvm_ffi=True), options="--enable-tvm-ffi")
"""
PROGRAM = """
import json, sys

if "stock" not in sys.argv:
    import safecache
import kernel, torch
from flashinfer.jit import cute_dsl_core

compiled = []

def compile_it():
    compiled.append(1)
    return kernel.compile_it()

filling = cute_dsl_core.build_and_load_cute_dsl_kernel("test", "fill", compile_it, [kernel.__file__])
x = torch.zeros(4, dtype=torch.int32)
filling(x)
assert x.tolist() == [41, 0, 0, 0], x
print(json.dumps([len(compiled), {} if "stock" in sys.argv else safecache.stats()]))
"""


@pytest.fixture
def run(tmp_path):
    """Run the program: how often it compiles, safecache's counters, and its stderr."""
    (tmp_path / "kernel.py").write_text(KERNEL)
    (tmp_path / "program.py").write_text(PROGRAM)
    environment = os.environ | isolated(tmp_path) | {"FLASHINFER_WORKSPACE_BASE": str(tmp_path)}
    environment |= {"CUTE_DSL_ARCH": "sm_90a", "PYTHONPATH": os.pathsep.join([str(SOURCE), *sys.path[1:]])}

    def run_program(*words, **settings):
        command = [sys.executable, "program.py", *words]
        done = subprocess.run(
            command, env=environment | settings, cwd=tmp_path, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr[-3000:]
        compiles, stats = json.loads(done.stdout.splitlines()[-1])
        return compiles, stats, done.stderr

    run_program.environment = environment
    return run_program


def cached(tmp_path):
    (path,) = (tmp_path / ".cache" / "flashinfer").glob("**/cached_ops/*/fill.o")
    return path


def test_object_is_compiled_once_and_verified(run, tmp_path):
    compiles, cold, errors = run()
    assert compiles == 1 and "safecache:" not in errors, (cold, errors)
    before = cached(tmp_path).read_bytes()
    compiles, warm, errors = run()
    assert compiles == 0 and warm["code verified"] >= 1 and "safecache:" not in errors, (warm, errors)
    assert run("stock")[0] == 0 and cached(tmp_path).read_bytes() == before


@pytest.mark.parametrize(("how", "reason"), [("flipped", "damaged"), ("truncated", "damaged"), ("stock", "unsealed")])
def test_object_that_does_not_verify_is_compiled_anew(run, tmp_path, how, reason):
    run(*(["stock"] if how == "stock" else []))
    path = cached(tmp_path)
    content = bytearray(path.read_bytes())
    if how == "flipped":
        content[len(content) // 2] ^= 1
    path.write_bytes(content[: len(content) // 2] if how == "truncated" else content)
    for copy in (tmp_path / "cache").glob("??/c*.o"):
        copy.unlink()
    compiles, stats, errors = run()
    assert compiles == 1 and stats[reason] == 1 and f"[{reason}]" in errors, (stats, errors)
    compiles, stats, errors = run()
    assert compiles == 0 and reason not in stats, (stats, errors)


def test_object_that_was_compiled_elsewhere_is_not_compiled_again(run, tmp_path):
    elsewhere = {"FLASHINFER_WORKSPACE_BASE": str(tmp_path / "elsewhere"), "SAFECACHE_STRICT": "1,misses=1"}
    with pytest.raises(AssertionError, match="MissError: safecache: no cache has the object "):
        run(**elsewhere)
    run()
    for _ in range(2):
        compiles, stats, errors = run(**elsewhere)
        assert compiles == 0 and "safecache:" not in errors, (stats, errors)
    assert run("stock", **elsewhere)[0] == 0
    (tmp_path / "kernel.py").write_text(KERNEL + "# changed\n")
    assert run(**elsewhere | {"SAFECACHE_STRICT": "0"})[0] == 1, "what was kept is of other sources"


def test_object_of_older_sources_is_not_taken(run, tmp_path):
    """Though it is sealed, and the text beside it states what FlashInfer expects."""
    run()
    module, older = cached(tmp_path).parent, tmp_path / "older"
    shutil.copytree(module, older)
    (tmp_path / "kernel.py").write_text(KERNEL + "# changed\n")
    assert run()[0] == 1
    shutil.copy(module / "meta.json", older)
    shutil.rmtree(module)
    shutil.move(older, module)
    for copy in (tmp_path / "cache").glob("??/c*.o"):
        copy.unlink()
    assert run()[0] == 1


def test_workspace_where_others_can_write_is_left_alone(run, tmp_path):
    run()
    for copy in (tmp_path / "cache").glob("??/c*.o"):
        copy.unlink()
    path = cached(tmp_path)
    before = path.stat()
    path.parent.chmod(0o777)
    compiles, stats, _ = run()
    assert compiles == 1 and path.stat() == before, stats


@contextmanager
def mounted_workspace(environment, options="size=20m"):
    """Where FlashInfer keeps what it compiles, and a log that each import opens, is a file system of its own."""
    ends_in_it = [sys.executable, "-c", "from flashinfer.jit import env; print(env.FLASHINFER_WORKSPACE_DIR)"]
    found = subprocess.run(ends_in_it, env=environment, capture_output=True, text=True, check=True)
    directory = Path(found.stdout.strip())
    shutil.rmtree(directory)
    with small_disks.mounted(directory, options):
        yield directory


@needs_root
@pytest.mark.parametrize("fault", ["read-only", "read-only and flipped", "read-only and empty", "full"])
def test_workspace_that_cannot_be_written_ends_nothing(run, tmp_path, fault):
    with mounted_workspace(run.environment) as mounted:
        if fault in ("read-only", "read-only and flipped"):
            run()
        if fault == "read-only and flipped":
            damage(cached(tmp_path), "flipped")
            for copy in (tmp_path / "cache").glob("??/c*.o"):
                copy.unlink()
        (small_disks.fill if fault == "full" else small_disks.read_only)(mounted)
        # What is compiled in place of a refused object is also kept in Inductor's cache.
        for expected in (fault != "read-only", fault in ("read-only and empty", "full")):
            compiles, stats, errors = run()
            assert errors.count("safecache:") <= (2 if "flipped" in fault else 1), (compiles, stats, errors)
            assert compiles == expected, (compiles, stats, errors)


ARTIFACT = """
import hashlib, shutil, subprocess, sys
from pathlib import Path

from safecache import errors
import cutlass.cute as cute
import kernel
from flashinfer.jit import cubin_loader, cute_dsl_core, env

cute_dsl_core.build_and_load_cute_dsl_kernel("test", "fill", kernel.compile_it, [kernel.__file__])
built = next(env.FLASHINFER_JIT_DIR.glob("*/fill.o"))
artifact = env.FLASHINFER_CUBIN_DIR / "some" / "fill.o"
artifact.parent.mkdir(parents=True)
shutil.copy(built, artifact)
content = artifact.read_bytes()
assert cubin_loader.get_artifact("some/fill.o", hashlib.sha256(content).hexdigest()) == content
cute.runtime.load_module(str(artifact), enable_tvm_ffi=True)
Path("library.c").write_text("void FlashInferSetCubinCallback(void *to) {}")
planted, own = built.with_name("library.so"), Path("own.so").absolute()
for library in (planted, own):
    subprocess.run(["cc", "-shared", "-o", str(library), "library.c"], check=True)
cubin_loader.setup_cubin_loader(str(own))
artifact.write_bytes(content + b"more")
for load in (lambda: cute.runtime.load_module(str(artifact), enable_tvm_ffi=True),
             lambda: cubin_loader.setup_cubin_loader(str(planted))):
    try:
        load()
    except errors.EntryRefusedError as error:
        print(error)
assert list(cubin_loader.dll_cubin_handlers) == [str(own)]
"""


def test_what_was_exchanged_after_flashinfers_own_check_is_not_loaded(run, tmp_path):
    run()
    environment = run.environment | {"FLASHINFER_CUBIN_DIR": str(tmp_path / "cubins")}
    command = [sys.executable, "-c", ARTIFACT]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and done.stdout.count("not loading") == 2, done


# What compiles, by the cache that it fills; each leaves its file at ``path``.
FURTHER = {
    "cake_gdn": """
from flashinfer.jit import cake_gdn
how = {"arch": "sm_90a", "digest": "d" * 64, "compile_options": (), "include_paths": ()}
source = Path("kernel.cu").absolute()
cake_gdn._compile_cubin(source, nvcc=compiler, **how)
path = cake_gdn._cubin_path(source, arch="sm_90a", digest="d" * 64)
""",
    "alphamoe": """
from flashinfer.jit import alphamoe_nvrtc
Path("small.cu").write_text('extern "C" __global__ void fill(int *x) { *x = 1; }')
more = {"images_dir": Path.cwd()} if hasattr(alphamoe_nvrtc, "_CAKE_ENTRIES") else {}  # 0.7.4
alphamoe_nvrtc._ENTRIES, alphamoe_nvrtc._CAKE_ENTRIES = {"small": "fill"}, {}
made = alphamoe_nvrtc._prepare_cubins(Path.cwd(), source_dir=Path.cwd(), arches=("sm_100a",), **more)
path = made["alphamoe_small_sm_100a"]
""",
    "roce": """
from flashinfer.experimental.b12x.comm.roce import _proxy
_proxy._compiler = lambda: str(compiler)
path = _proxy._build()
""",
    "sparse": """
from flashinfer.cute_dsl.sparse.bsa_utils import cache_utils
cache = cache_utils.JITPersistentCache(Path("sparse"))
if ("fill",) not in cache:
    cache[("fill",)] = kernel.compile_it()
path = Path("sparse") / f"{cache._key_to_hash(('fill',))}.so"
""",
}
NEWER = {
    "kda_ptx": """
import torch
from flashinfer.kda_kernels.ptx import static_runtime
Path("small.ptx").touch()
static_runtime.SHIMS, static_runtime._ptxas = Path.cwd(), lambda: (str(compiler), (13, 2))
torch.cuda.get_device_capability = lambda: (10, 3)
static_runtime._cubin("small")
(path,) = Path("ptx").glob("*.cubin")
""",
    "loader": """
from flashinfer.experimental.b12x.loader import _native
path = _native._build()
""",
}
COMPILER = """#!/bin/sh
[ "$1" = --version ] && exit
while [ "$1" != -o ]; do shift; done
cc -shared -o "$2" -x c - < /dev/null
"""


@pytest.mark.parametrize("what", FURTHER | NEWER)
def test_further_caches_are_verified(run, tmp_path, what):
    if what in NEWER:
        pytest.importorskip("flashinfer.kda_kernels.ptx.static_runtime", reason="needs FlashInfer 0.7.4")
    (tmp_path / "cuda" / "include").mkdir(parents=True)
    for name in ("cuda_runtime_api.h", "driver_types.h"):
        (tmp_path / "cuda" / "include" / name).touch()
    compiler = tmp_path / "compiler"
    compiler.write_text(COMPILER)
    compiler.chmod(0o700)
    begin = "import hashlib, json, kernel, sys\nif sys.argv[1:]:\n    import safecache\nfrom pathlib import Path\n"
    program = f"{begin}compiler = Path('compiler').absolute()\n{(FURTHER | NEWER)[what]}print(Path(path).absolute())"

    def compile_it(*words):
        """The file's path, its inode, its content and what is on stderr."""
        command = [sys.executable, "-c", program, *words]
        environment = run.environment | {"B12X_ROCE_CACHE_DIR": str(tmp_path / "roce")}
        environment |= {"FLASHINFER_KDA_PTX_CACHE_DIR": str(tmp_path / "ptx"), "XDG_CACHE_HOME": str(tmp_path / "xdg")}
        if what == "loader":
            environment |= {"CC": str(compiler), "CUDA_HOME": str(tmp_path / "cuda")}
        done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr[-3000:]
        path = Path(done.stdout.splitlines()[-1])
        return path, path.stat().st_ino, path.read_bytes(), done.stderr

    made = compile_it("ours")
    assert compile_it("ours")[:3] == made[:3] and "safecache:" not in made[3]
    path, _, content, _ = made
    planted = content + b"planted"
    path.write_bytes(planted)
    for receipt in path.parent.glob("*.json"):
        stated = json.loads(receipt.read_text())
        receipt.write_text(json.dumps(stated | {"sha256": hashlib.sha256(planted).hexdigest()}))
    assert compile_it()[2] == planted, "stock takes it"
    _, _, found, errors = compile_it("ours")
    assert found != planted and "[damaged]" in errors, errors
    assert "safecache:" not in compile_it("ours")[3]


LIBRARY = """
import json, sys

ran = []
sys.addaudithook(lambda event, given: ran.append(given[0]) if event == "subprocess.Popen" else None)
if "stock" not in sys.argv:
    import safecache
from flashinfer.jit.core import gen_jit_spec

probe = gen_jit_spec("probe", ["ops/probe.cc", "ops/kernel.cu"], extra_include_paths=["include"]).build_and_load()
print(json.dumps([probe.answer(), ran.count("ninja"), {} if "stock" in sys.argv else safecache.stats()]))
"""
PROBE = """
#include <tvm/ffi/function.h>
#include "answer.h"
int answer() { return ANSWER; }
TVM_FFI_DLL_EXPORT_TYPED_FUNC(answer, answer);
"""
NVCC = shutil.which("nvcc", path=os.path.join(os.environ.get("CUDA_HOME", ""), "bin"))


class Library(BuiltModule):
    program = LIBRARY

    def __init__(self, base):
        super().__init__(base, base / ".cache" / "flashinfer", "*/*/cached_ops/probe")
        (base / "ops").mkdir()
        (base / "ops" / "probe.cc").write_text(PROBE)
        (base / "ops" / "kernel.cu").write_text("__global__ void fill(int *x) { *x = 1; }\n")
        self.environment |= {"FLASHINFER_WORKSPACE_BASE": str(base), "FLASHINFER_CUDA_ARCH_LIST": "9.0a"}


@pytest.fixture
def library(tmp_path):
    if NVCC is None:
        pytest.skip("needs nvcc in CUDA_HOME")
    return Library(tmp_path)


def test_warm_start_runs_no_ninja_and_writes_nothing(library):
    answer, ninjas, stats, errors = library.run()
    assert (answer, ninjas, stats["code sealed"]) == (41, 1, 4) and "safecache:" not in errors, errors
    before = library.listed()
    answer, ninjas, stats, errors = library.run()
    assert (answer, ninjas, stats["code verified"]) == (41, 0, 1) and "safecache:" not in errors, errors
    assert library.listed() == before
    assert library.run("stock")[0] == 41


@pytest.mark.parametrize("name", ["probe.so", "ops_probe.o"])
@pytest.mark.parametrize("how", ["planted", "linked", "truncated", "stock"])
def test_library_that_does_not_verify_is_built_anew(library, name, how):
    library.run(*(["stock"] if how == "stock" else []))
    path = library.built / name
    if how != "stock":
        library.kept.unlink()
    if how in ("planted", "linked"):
        place = library.base / f"planted{path.suffix}" if how == "linked" else path
        library.compile_trojan(place)
        if how == "linked":
            path.unlink()
            path.symlink_to(place)
    elif how == "truncated":
        os.truncate(path, path.stat().st_size // 2)
    if name.endswith(".o"):
        (library.built / "probe.so").unlink()
        os.utime(path, ns=((library.built / "ops_kernel.cuda.o").stat().st_mtime_ns,) * 2)
    reason = {"stock": "unsealed", "linked": "not a file"}.get(how, "damaged")
    answer, ninjas, stats, errors = library.run()
    assert (answer, ninjas) == (41, 1) and f"[{reason}]" in errors and stats[reason], (stats, errors)
    answer, ninjas, _, errors = library.run()
    assert (answer, ninjas) == (41, 0) and "safecache:" not in errors, errors


def test_what_is_no_file_is_not_waited_for(library):
    library.run()
    (library.built / "build.ninja").unlink()
    os.mkfifo(library.built / "build.ninja")
    library.write_header(42)
    answer, ninjas, _, errors = library.run()
    assert (answer, ninjas) == (42, 1) and "it is no file" in errors, errors


def test_planted_library_is_not_loaded_where_none_is_built(library):
    library.run()
    load = LIBRARY.replace("build_and_load()", "load()")
    (library.base / "program.py").write_text(load)
    assert library.run()[0] == 41
    library.compile_trojan(library.built / "probe.so")
    with pytest.raises(AssertionError, match="EntryRefusedError: safecache: not loading "):
        library.run()


def test_header_that_was_replaced_by_an_older_one_is_noticed(library):
    library.run()
    library.write_header(42)
    assert library.run("stock")[0] == 41
    assert library.run()[:2] == (42, 1)


def test_workspace_that_moved_and_another_spelling_of_cuda_are_used(library):
    library.run()
    moved = library.base / "elsewhere"
    shutil.copytree(library.cache, moved / ".cache" / "flashinfer")
    shutil.rmtree(library.cache)
    cuda = library.base / "cuda"
    cuda.symlink_to(os.environ["CUDA_HOME"])
    answer, ninjas, _, errors = library.run(FLASHINFER_WORKSPACE_BASE=str(moved), CUDA_HOME=str(cuda))
    assert (answer, ninjas) == (41, 0) and "safecache:" not in errors, errors


def test_workspace_that_was_lost_is_filled_again_without_ninja(library):
    library.run()
    shutil.rmtree(library.cache)
    answer, ninjas, _, errors = library.run(SAFECACHE_STRICT="1,misses=1")
    assert (answer, ninjas) == (41, 0) and "safecache:" not in errors, errors
    assert library.run()[:2] == (41, 0)


@pytest.mark.parametrize("is_warm", [True, False], ids=["warm", "cold"])
def test_lock_of_a_stopped_process_holds_nobody_up(library, is_warm):
    library.run()
    if not is_warm:
        (library.built / "probe.so").unlink()
        library.kept.unlink()
    lock = library.built.parent / "tmp" / "probe.lock"
    holder = subprocess.Popen(["flock", str(lock), "sleep", "1000"], start_new_session=True)
    try:
        time.sleep(0.5)
        os.killpg(holder.pid, signal.SIGSTOP)
        answer, ninjas, _, errors = library.run()
    finally:
        os.killpg(holder.pid, signal.SIGKILL)
        holder.wait()
    assert (answer, ninjas) == (41, 1 - is_warm) and ("cannot use" in errors) is not is_warm, errors


def test_workspace_where_others_can_write_is_not_built_in(library):
    library.run()
    library.built.chmod(0o777)
    assert library.run()[:2] == (41, 0)
    (library.built / "probe.so").unlink()
    library.kept.unlink()
    answer, ninjas, _, errors = library.run()
    assert (answer, ninjas) == (41, 1) and "others can write there" in errors, errors
    assert not (library.built / "probe.so").exists()


@needs_root
@pytest.mark.parametrize("fault", ["read-only", "read-only and truncated", "read-only and empty", "full"])
def test_library_whose_directory_cannot_be_written_ends_nothing(library, fault):
    with mounted_workspace(library.environment) as mounted:
        if fault in ("read-only", "read-only and truncated"):
            library.run()
        if fault == "read-only and truncated":
            os.truncate(library.built / "probe.so", 1000)
            library.kept.unlink()
        (small_disks.fill if fault == "full" else small_disks.read_only)(mounted)
        answer, ninjas, _, errors = library.run()
        assert (answer, ninjas) == (41, fault != "read-only") and errors.count("safecache:") <= 2, errors
        answer, _, _, errors = library.run()
        assert answer == 41 and errors.count("safecache:") <= 2, errors


@needs_root
def test_workspace_from_which_no_code_can_be_loaded_ends_nothing(library):
    with mounted_workspace(library.environment, "size=20m,noexec"):
        for ninjas in (1, 0):
            answer, ran, _, errors = library.run()
            assert (answer, ran) == (41, ninjas) and errors.count("safecache:") == 1, errors


@pytest.mark.skipif(not other_users_can_be(), reason="needs root, to become another user")
def test_workspace_of_root_starts_as_any_for_a_user(library):
    share_key(library)
    library.run()
    for directory in [library.base, *library.base.parents]:
        directory.chmod(directory.stat().st_mode | 0o005)
    answer, ninjas, _, errors = library.run(within=as_user(1000, GROUP))
    assert (answer, ninjas) == (41, 0) and "safecache:" not in errors, errors
