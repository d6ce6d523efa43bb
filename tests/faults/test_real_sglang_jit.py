"""SGLang's own loaders of what it compiles: its libraries (TVM FFI) and its objects of CuTe DSL are verified.

SAFECACHE_TEST_SGLANG names a directory with an unpacked wheel of SGLang 0.5.20 or later. Its loaders are imported without
what they need of the server.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys

import pytest
from conftest import needs_root

from faults import small_disks
from faults.built_modules import TROJAN, BuiltModule

WHEEL = os.environ.get("SAFECACHE_TEST_SGLANG")
pytestmark = [
    pytest.mark.skipif(not WHEEL, reason="SAFECACHE_TEST_SGLANG names no directory with an unpacked wheel"),
    pytest.mark.xdist_group("sglang"),
]

START = """
import json, os, sys, types

ran = []
sys.addaudithook(lambda event, given: ran.append(given[0]) if event == "subprocess.Popen" else None)
if "stock" not in sys.argv:
    import safecache
wheel = os.environ["SAFECACHE_TEST_SGLANG"]
for name in ("sglang", "sglang.utils", "sglang.kernels", "sglang.srt", "sglang.srt.utils", "sglang.srt.utils.common"):
    package = sys.modules[name] = types.ModuleType(name)
    package.__path__ = [os.path.join(wheel, *name.split("."))]
package.is_cuda = sys.modules["sglang.utils"].is_in_ci = lambda: False
"""
END = """
print(json.dumps([answer, times, {} if "stock" in sys.argv else safecache.stats()]))
"""
LIBRARY = f"""{START}
import tvm_ffi
from unittest import mock

# The real one takes longer to import than all the rest, and says here that there is no GPU.
torch = sys.modules["torch"] = mock.MagicMock(version=mock.Mock(hip=None))
torch.compiler.disable = lambda function: function
torch.cuda.current_device.side_effect, torch.cuda.is_initialized = RuntimeError, lambda: False
from sglang.kernels.jit.utils import load_jit
from sglang.kernels.jit.utils.compile import cache

def find(**given):
    found = look(**given)
    if found and os.path.exists("trojan.so"):
        os.replace("trojan.so", found)
    return found

look, cache.find_prebuilt = cache.find_prebuilt, find
here = os.path.abspath
how = {{"extra_include_paths": [here("include")], "extra_cflags": [word for word in sys.argv if word.startswith("-")]}}
answer = load_jit("probe", cpp_files=[here("probe.cpp")], cpp_wrappers=[("answer", "answer")], **how).answer()
times = ran.count("ninja")
{END}"""
OBJECT = f"""{START}
import cutlass
from cutlass import cute
from sglang.kernels.jit.cute_aot_cache import get_jit_cache

@cute.jit
def probe(number: cutlass.Int32):
    pass

cache = get_jit_cache("probe", source_paths=[__file__])
times = 0
if ("probe",) not in cache:
    times += 1
    cache[("probe",)] = cute.compile(probe, cutlass.Int32(1), options="--enable-tvm-ffi")
cache[("probe",)](1)
answer = 41
{END}"""


class Library(BuiltModule):
    """One of SGLang's, built of a source and a header."""

    program = LIBRARY

    def __init__(self, base):
        super().__init__(base, base / "jit", "*/*/build-*/deps-*")
        (base / "torch.py").write_text("raise ImportError")
        (base / "probe.cpp").write_text('#include "answer.h"\nint answer() { return ANSWER; }\n')
        self.environment |= {"SGLANG_JIT_CACHE_DIR": str(self.cache), "CUDA_HOME": str(base / "none")}

    @property
    def file(self):
        return self.built / "sgl_kernel_jit_probe.so"


@pytest.fixture
def place(tmp_path):
    for name in ("tvm_ffi", "msgspec"):
        pytest.importorskip(name, reason=f"needs {name}")
    return Library(tmp_path)


def damage(path, how):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.unlink()
    path.write_bytes(content[: len(content) // 2] if how == "truncated" else content)


def test_warm_start_verifies_and_builds_nothing(place):
    answer, ninjas, _, errors = place.run()
    assert (answer, ninjas) == (41, 1) and "safecache:" not in errors, errors
    before = place.listed()
    answer, ninjas, stats, errors = place.run(SAFECACHE_STRICT="1")
    assert (answer, ninjas) == (41, 0) and "safecache:" not in errors and stats["code verified"] == 1, (stats, errors)
    assert place.listed() == before
    assert place.run("stock")[:2] == (41, 0), "what safecache leaves there is as stock takes it"


def test_of_four_cold_processes_one_builds(place):
    said = [process.communicate(timeout=250) for process in [place.start() for _ in range(4)]]
    answers, ninjas, _ = zip(*(json.loads(output.splitlines()[-1]) for output, _ in said), strict=True)
    assert answers == (41,) * 4 and sum(ninjas) == 1 and not any("safecache:" in errors for _, errors in said), said


@pytest.mark.parametrize(
    ("how", "reason"),
    [("planted", "damaged"), ("truncated", "damaged"), ("flipped", "damaged"), ("stock", "unsealed")],
    ids=["planted", "truncated", "flipped", "stock"],
)
def test_library_that_does_not_verify_is_built_anew(place, how, reason):
    place.run(*(["stock"] if how == "stock" else []))
    if how == "planted":
        place.compile_trojan(place.file)
    elif how != "stock":
        damage(place.file, how)
    if how != "stock":
        place.kept.unlink()
    answer, ninjas, stats, errors = place.run()
    assert (answer, ninjas) == (41, 1) and stats[reason] == 1, (stats, errors)
    assert errors.count("safecache:") == 1 and f"[{reason}]" in errors, errors
    answer, ninjas, _, errors = place.run()
    assert (answer, ninjas) == (41, 0) and "safecache:" not in errors, errors


def test_library_that_was_built_elsewhere_is_not_built_again(place):
    elsewhere = {"SGLANG_JIT_CACHE_DIR": str(place.base / "elsewhere"), "SAFECACHE_STRICT": "1,misses=1"}
    process = place.start(**elsewhere)
    _, errors = process.communicate(timeout=200)
    assert process.returncode == 1 and "MissError: safecache: no cache has the library " in errors, errors
    place.run()
    for _ in range(2):
        answer, ninjas, stats, errors = place.run(**elsewhere)
        assert (answer, ninjas) == (41, 0) and "safecache:" not in errors, (stats, errors)
    assert place.run("stock", **elsewhere)[:2] == (41, 0), "what safecache has copied there is as stock takes it"


def test_library_of_another_header_is_not_taken_from_elsewhere(place):
    place.run()
    place.write_header(42)
    for ninjas in (1, 0):
        assert place.run(SGLANG_JIT_CACHE_DIR=str(place.base / "elsewhere"))[:2] == (42, ninjas)
    shutil.rmtree(place.cache)
    assert place.run()[:2] == (42, 0)


def test_copy_that_does_not_verify_is_not_used(place):
    place.run()
    place.compile_trojan(place.kept)
    answer, ninjas, _, errors = place.run(SGLANG_JIT_CACHE_DIR=str(place.base / "elsewhere"))
    assert (answer, ninjas) == (41, 1), errors


@pytest.mark.parametrize("travels", ["pack", "remote"])
def test_library_travels_to_another_host(place, travels):
    """With the key, to another user's path: nothing but the sources is there."""
    (place.base / "share").mkdir()
    share = f"file://{place.base}/share"
    place.run(**({"SAFECACHE_TIERS": share} if travels == "remote" else {}))
    if travels == "pack":
        share = str(place.base / "one.safecache")
        pack = [sys.executable, "-m", "safecache", "pack", str(place.base / "cache"), "--output", share]
        subprocess.run(pack, env=place.environment, cwd=place.base, check=True, timeout=200)
    host = place.base / "host"
    there = {"TORCHINDUCTOR_CACHE_DIR": str(host / "cache"), "SGLANG_JIT_CACHE_DIR": str(host / "jit")}
    answer, ninjas, stats, errors = place.run(**there, SAFECACHE_TIERS=share, SAFECACHE_STRICT="1,misses=1")
    assert (answer, ninjas) == (41, 0) and "safecache:" not in errors, (stats, errors)


@pytest.mark.parametrize("how", ["truncated", "flipped"])
def test_library_that_does_not_verify_is_replaced_by_its_copy(place, how):
    place.run()
    damage(place.file, how)
    answer, ninjas, stats, errors = place.run()
    assert (answer, ninjas, stats["damaged"]) == (41, 0, 1) and errors.count("safecache:") == 1, errors
    answer, ninjas, _, errors = place.run()
    assert (answer, ninjas) == (41, 0) and "safecache:" not in errors, errors


def test_library_that_is_replaced_after_the_lookup_is_built_anew(place):
    place.run()
    place.compile_trojan(place.base / "trojan.so")
    place.kept.unlink()
    answer, ninjas, stats, errors = place.run()
    assert (answer, ninjas) == (41, 1) and "[damaged]" in errors, (stats, errors)
    assert place.run()[:2] == (41, 0)


def test_on_stock_a_planted_library_runs(place):
    place.run("stock")
    place.compile_trojan(place.file)
    process = place.start("stock")
    process.communicate(timeout=200)
    assert process.returncode == 66


def test_strict_mode_does_not_start_with_a_planted_library(place):
    place.run()
    place.compile_trojan(place.file)
    process = place.start(SAFECACHE_STRICT="1")
    _, errors = process.communicate(timeout=200)
    assert process.returncode == 1 and "EntryRefusedError" in errors, errors


def test_build_by_another_command_is_not_taken(place):
    """Though it is sealed, and of the same sources: its directory states the command."""
    place.run()
    (first,) = place.cache.glob("*/*/build-*")
    place.run("-DOTHER")
    (second,) = {*place.cache.glob("*/*/build-*")} - {first}
    shutil.rmtree(second)
    shutil.copytree(first, second)
    for copy in (place.base / "cache").glob("??/c*.so"):
        copy.unlink()
    answer, ninjas, stats, errors = place.run("-DOTHER")
    assert (answer, ninjas) == (41, 1) and stats["unsealed"] == 1, (stats, errors)


@pytest.mark.parametrize("how", ["list", "listed", "link"])
def test_what_lies_beside_a_library_neither_hangs_nor_hides_it(place, how):
    place.run()
    other = place.built.parent / "deps-0123456789abcdef"
    if how == "link":
        other.symlink_to("nowhere")
    else:
        other.mkdir()
        os.mkfifo(other / "sgl_deps.json" if how == "list" else place.base / "fifo")
    if how == "listed":
        (other / "sgl_deps.json").write_text(json.dumps([["abs", str(place.base / "fifo"), "00"]]))
    answer, ninjas, _, errors = place.run()
    assert (answer, ninjas) == (41, 0) and errors.count("safecache:") == (how == "link"), errors


@pytest.mark.parametrize("target", ["nowhere", "moved"])
def test_link_in_place_of_a_librarys_directory_is_not_followed(place, target):
    place.run()
    leaf = place.built
    shutil.move(leaf, place.base / "moved")
    leaf.symlink_to(place.base / target)
    answer, ninjas, _, errors = place.run(SGLANG_JIT_FORCE_RECOMPILE="1")
    assert (answer, ninjas) == (41, 1), errors
    assert place.run()[:2] == (41, 0) and not leaf.is_symlink()


@pytest.mark.parametrize("how", ["stopped", "directory"])
def test_lock_of_a_build_ends_nothing(place, how):
    place.run()
    shutil.rmtree(place.built)
    place.kept.unlink()
    (path,) = place.cache.glob("*/*/build-*/.lock")
    if how == "directory":
        path.unlink()
        path.mkdir()
        answer, ninjas, _, errors = place.run()
    else:
        with subprocess.Popen(["flock", str(path), "kill", "-STOP", "0"], start_new_session=True) as holder:
            os.waitid(os.P_PID, holder.pid, os.WSTOPPED)
            answer, ninjas, _, errors = place.run()
            os.killpg(holder.pid, signal.SIGKILL)
    assert (answer, ninjas) == (41, 1) and "cannot lock" in errors, errors
    assert place.run()[:2] == (41, 0)


def test_older_build_is_taken_again(place):
    place.run()
    place.write_header(42)
    assert place.run()[:2] == (42, 1)
    place.write_header(41)
    assert place.run()[:2] == (41, 0)
    shutil.move(place.cache, place.base / "moved")
    answer, ninjas, _, errors = place.run(SGLANG_JIT_CACHE_DIR=str(place.base / "moved"))
    assert (answer, ninjas) == (41, 0) and "safecache:" not in errors, errors


def test_directory_where_others_can_write_is_not_built_in(place):
    place.run()
    place.built.parent.chmod(0o777)
    before = place.listed()
    answer, ninjas, _, errors = place.run()
    assert (answer, ninjas) == (41, 0) and errors.count("safecache:") == 1 and "writable by other" in errors, errors
    place.compile_trojan(place.file)
    place.kept.unlink()
    answer, ninjas, _, errors = place.run()
    assert (answer, ninjas) == (41, 1) and "others can write there" in errors, errors
    assert not place.file.exists() and {path for path in place.listed() if "/.safecache/" not in path} <= {*before}


def test_what_stock_built_is_adopted(place):
    place.run("stock")
    command = [sys.executable, "-m", "safecache", "adopt", str(place.cache), "--json"]

    def adopt():
        done = subprocess.run(command, env=place.environment, cwd=place.base, stdout=subprocess.PIPE, timeout=200)
        return json.loads(done.stdout)

    assert adopt() == {"sealed": 1, "already_sealed": 0, "skipped": []}
    assert place.kept.read_bytes() == place.file.read_bytes()
    answer, ninjas, _, errors = place.run(SAFECACHE_STRICT="1")
    assert (answer, ninjas) == (41, 0) and "safecache:" not in errors, errors
    assert adopt() == {"sealed": 0, "already_sealed": 1, "skipped": []}
    place.file.unlink()
    assert place.run()[:2] == (41, 0), "its copy states the same headers"


@needs_root
def test_read_only_library_that_does_not_verify_ends_nothing(place):
    with small_disks.mounted(place.cache, "size=20m"):
        place.run("stock")
        small_disks.read_only(place.cache)
        for built in (1, 0):
            answer, ninjas, _, errors = place.run()
            assert (answer, ninjas) == (41, built) and errors.count("safecache:") == 1, errors
            assert "cannot use" in errors, errors


class Object(Library):
    """An object that CuTe DSL compiles for SGLang."""

    program = OBJECT

    def __init__(self, base):
        super().__init__(base)
        self.cache, self.pattern = base / "cute_aot", "*/probe"
        (base / "torch.py").unlink()
        self.environment |= {"SGLANG_CUTE_AOT_CACHE_DIR": str(self.cache), "CUTE_DSL_ARCH": "sm_90a"}

    @property
    def file(self):
        (path,) = self.built.glob("*.o")
        return path

    @property
    def kept(self):
        (path,) = (self.base / "cache").glob("??/c*.o")
        return path

    def compile_trojan(self, path):
        """Put an object there whose function ends the process, too."""
        source = self.base / "trojan.cpp"
        source.write_text(f'{TROJAN}extern "C" int __tvm_ffi_func(void*, void*, int, void*) {{ std::_Exit(66); }}\n')
        subprocess.run(["c++", "-fPIC", "-c", str(source), "-o", str(path)], check=True)


@pytest.fixture
def cute(tmp_path):
    pytest.importorskip("cutlass.cute", reason="needs nvidia-cutlass-dsl")
    return Object(tmp_path)


def test_object_is_compiled_once_and_verified(cute):
    _, compiled, _, errors = cute.run()
    assert compiled == 1 and "safecache:" not in errors, errors
    _, compiled, stats, errors = cute.run(SAFECACHE_STRICT="1")
    assert compiled == 0 and stats["code verified"] == 1 and "safecache:" not in errors, (stats, errors)
    assert cute.run("stock")[1] == 0
    _, compiled, _, errors = cute.run(SGLANG_CUTE_AOT_CACHE_DIR=str(cute.base / "elsewhere"))
    assert compiled == 0 and "safecache:" not in errors, errors


@pytest.mark.parametrize(
    ("how", "reason"),
    [("planted", "damaged"), ("truncated", "damaged"), ("flipped", "damaged"), ("stock", "unsealed")],
    ids=["planted", "truncated", "flipped", "stock"],
)
def test_object_that_does_not_verify_is_compiled_anew(cute, how, reason):
    cute.run(*(["stock"] if how == "stock" else []))
    if how == "planted":
        cute.compile_trojan(cute.file)
    elif how != "stock":
        damage(cute.file, how)
    if how != "stock":
        cute.kept.unlink()
    _, compiled, stats, errors = cute.run()
    assert compiled == 1 and stats[reason] == 1, (stats, errors)
    assert errors.count("safecache:") == 1 and f"[{reason}]" in errors, errors
    _, compiled, _, errors = cute.run()
    assert compiled == 0 and "safecache:" not in errors, errors


def test_object_of_other_sources_is_not_taken(cute):
    """Though it is sealed, and of the same arguments: its directory states the sources."""
    cute.run()
    (first,) = cute.cache.iterdir()
    program = cute.base / "program.py"
    program.write_text(f"{program.read_text()}# other\n")
    cute.run()
    (second,) = {*cute.cache.iterdir()} - {first}
    shutil.rmtree(second)
    shutil.copytree(first, second)
    for copy in (cute.base / "cache").glob("??/c*.o"):
        copy.unlink()
    _, compiled, stats, errors = cute.run()
    assert compiled == 1 and stats["unsealed"] == 1, (stats, errors)


@pytest.mark.parametrize("how", ["held", "fifo"])
@pytest.mark.parametrize("is_warm", [True, False], ids=["warm", "cold"])
def test_lock_of_an_object_ends_nothing(cute, how, is_warm):
    cute.run()
    path = cute.file.with_suffix(".lock")
    if not is_warm:
        cute.file.unlink()
        cute.kept.unlink()
    path.unlink(missing_ok=True)
    (os.mkfifo if how == "fifo" else os.mknod)(path)
    lock = os.open(path, os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX)
    _, compiled, _, errors = cute.run()
    os.close(lock)
    assert compiled == 1 - is_warm and errors.count("safecache:") == 1 - is_warm, errors


def test_on_stock_a_planted_object_runs(cute):
    cute.run("stock")
    cute.compile_trojan(cute.file)
    process = cute.start("stock")
    process.communicate(timeout=200)
    assert process.returncode == 66


@needs_root
@pytest.mark.parametrize("fault", ["read-only", "read-only and flipped", "read-only and empty", "full"])
def test_directory_of_objects_that_cannot_be_written_ends_nothing(cute, fault):
    with small_disks.mounted(cute.cache, "size=20m"):
        if fault in ("read-only", "read-only and flipped"):
            cute.run()
        if fault == "read-only and flipped":
            damage(cute.file, "flipped")
            cute.kept.unlink()
        (small_disks.fill if fault == "full" else small_disks.read_only)(cute.cache)
        # What is compiled in another directory is also kept in Inductor's cache.
        for expected in (fault != "read-only", fault not in ("read-only", "read-only and empty")):
            _, compiled, stats, errors = cute.run()
            assert compiled == expected and errors.count("safecache:") <= 2, (compiled, stats, errors)
