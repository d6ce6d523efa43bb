"""The real tvm_ffi: what it builds is verified, of its sources of now, and needs no ninja, lock or write when warm."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
from conftest import needs_root

from faults import small_disks
from faults.built_modules import BuiltModule
from faults.users import GROUP, as_user, other_users_can_be, share_key

pytest.importorskip("tvm_ffi", reason="needs apache-tvm-ffi")
pytestmark = pytest.mark.xdist_group("tvm_ffi")

PROBE = '#include "answer.h"\nint answer() { return ANSWER; }\n'
EXPORTED = "#include <tvm/ffi/function.h>\n" + PROBE + "TVM_FFI_DLL_EXPORT_TYPED_FUNC(answer, answer);\n"
PROGRAM = """
import json, sys

ran = []
sys.addaudithook(lambda event, given: ran.append(given[0]) if event == "subprocess.Popen" else None)
if "stock" not in sys.argv:
    import safecache
import tvm_ffi.cpp

how = {"extra_include_paths": ["include"]}
if "inline" in sys.argv:
    module = tvm_ffi.cpp.load_inline("probe", cpp_sources=open("inline.cpp").read(), functions="answer", **how)
else:
    module = tvm_ffi.cpp.load("probe", sources=["probe.cpp", "more.cpp"], **how)
print(json.dumps([module.answer(), ran.count("ninja"), {} if "stock" in sys.argv else safecache.stats()]))
"""


class Library(BuiltModule):
    """One of tvm_ffi's, with the sources that it is built of."""

    program = PROGRAM

    def __init__(self, base):
        super().__init__(base, base / "libraries", "probe_*")
        (base / "probe.cpp").write_text(EXPORTED)
        (base / "more.cpp").write_text("int more() { return 1; }\n")
        (base / "inline.cpp").write_text(PROBE)
        # tvm_ffi imports torch if it is there, which takes longer than all the rest.
        (base / "torch.py").write_text("raise ImportError")
        self.environment |= self.location

    @property
    def location(self):
        return {"TVM_FFI_CACHE_DIR": str(self.cache)}


@pytest.fixture
def place(tmp_path):
    return Library(tmp_path)


@pytest.mark.parametrize("how", ["inline", "files"])
def test_warm_start_verifies_and_runs_no_ninja_and_writes_nothing(place, how):
    answer, ninjas, stats, errors = place.run(how)
    assert (answer, ninjas) == (41, 1) and "safecache:" not in errors, (stats, errors)
    before = place.listed()
    answer, ninjas, stats, errors = place.run(how)
    assert (answer, ninjas) == (41, 0) and "safecache:" not in errors, (stats, errors)
    assert place.listed() == before
    answer, _, _, _ = place.run(how, "stock")
    assert answer == 41


def test_of_four_cold_processes_one_builds(place):
    processes = [place.start("files") for _ in range(4)]
    said = [process.communicate(timeout=250) for process in processes]
    answers, ninjas, _ = zip(*(json.loads(output.splitlines()[-1]) for output, _ in said), strict=True)
    assert answers == (41,) * 4 and sum(ninjas) == 1, said


@pytest.mark.parametrize("name", ["probe.so", "cpp_0.o"])
@pytest.mark.parametrize("how", ["planted", "truncated", "flipped"])
def test_what_does_not_verify_is_built_anew(place, name, how):
    place.run("files")
    path = place.built / name
    content = bytearray(path.read_bytes())
    place.kept.unlink()
    if how == "planted":
        place.compile_trojan(path)
    else:
        content[len(content) // 2] ^= 1
        path.write_bytes(content[: len(content) // 2] if how == "truncated" else content)
    if name.endswith(".o"):
        (place.built / "probe.so").unlink()
        os.utime(path, ns=((place.built / "cpp_1.o").stat().st_mtime_ns,) * 2)
    answer, ninjas, stats, errors = place.run("files")
    assert (answer, ninjas) == (41, 1) and stats["damaged"] == 1 and "[damaged]" in errors, (stats, errors)
    answer, ninjas, stats, errors = place.run("files")
    assert (answer, ninjas) == (41, 0) and "safecache:" not in errors, (stats, errors)


def test_on_stock_a_planted_library_runs(place):
    place.run("files", "stock")
    place.compile_trojan(place.built / "probe.so")
    process = place.start("files", "stock")
    process.communicate(timeout=200)
    assert process.returncode == 66


@pytest.mark.parametrize("how", ["inline", "files"])
def test_library_that_was_built_in_another_directory_is_not_built_again(place, how):
    place.run(how)
    for elsewhere in ("second", "third"):
        place.cache = place.base / elsewhere
        answer, ninjas, _, errors = place.run(how, **place.location, SAFECACHE_STRICT="1,misses=1")
        assert (answer, ninjas) == (41, 0) and "safecache:" not in errors, errors
        assert not [*place.built.glob("*.o")]
    (place.built / "probe.so").write_bytes(b"damaged")
    answer, ninjas, stats, errors = place.run(how, **place.location)
    assert (answer, ninjas) == (41, 0) and stats["damaged"] == 1 and "[damaged]" in errors, errors
    place.write_header(42)
    for elsewhere, ran in (("third", 1), ("fourth", 0)):
        place.cache = place.base / elsewhere
        answer, ninjas, _, errors = place.run(how, **place.location)
        assert (answer, ninjas) == (42, ran) and "safecache:" not in errors, errors


CALLED = EXPORTED.replace("int answer() { return ANSWER; }", 'extern "C" int call(); int answer() { return call(); }')
HOW = 'how = {"extra_include_paths": ["include"]'
EMBEDDED = """
extern "C" const char __tvm_ffi__cubin_image[];
int answer() { return __tvm_ffi__cubin_image[0]; }
"""


def archive(place, answer, flags):
    (place.base / "called.c").write_text(f"int call(void) {{ return {answer}; }}\n")
    build = "cc -fPIC -c called.c -o called.o && rm -f libcalled.a && ar rc libcalled.a called.o"
    subprocess.run(build, shell=True, cwd=place.base, check=True)
    (place.base / "probe.cpp").write_text(CALLED)
    (place.base / "program.py").write_text(PROGRAM.replace(HOW, f'{HOW}, "extra_ldflags": {flags!r}'))
    return ["files"], {}


def image(place, answer):
    (place.base / "inline.cpp").write_text(EMBEDDED)
    text = PROGRAM.replace(HOW, f'{HOW}, "embed_cubin": {{"image": bytes([{answer}] * 9)}}')
    (place.base / "program.py").write_text(text)
    return ["inline"], {}


def search_path(place, answer):
    directory = place.base / f"include{answer}"
    directory.mkdir()
    (directory / "answer.h").write_text(f"#define ANSWER {answer}\n")
    (place.base / "program.py").write_text(PROGRAM.replace(HOW, "how = {"))
    return ["files"], {"CPATH": str(directory)}


OTHER = {
    "archive": lambda place, answer: archive(place, answer, [str(place.base / "libcalled.a")]),
    "archive by its name": lambda place, answer: archive(place, answer, [f"-L{place.base}", "-lcalled"]),
    "embedded image": image,
    "search path": search_path,
}


@pytest.mark.parametrize("what", OTHER)
def test_library_that_was_built_of_something_else_is_built_again(place, what):
    """What neither the command nor a compiler tells."""
    for answer in (41, 42):
        place.cache = place.base / f"libraries{answer}"
        words, settings = OTHER[what](place, answer)
        assert place.run(*words, **place.location, **settings)[:2] == (answer, 1)
        assert place.run(*words, **place.location, **settings)[:2] == (answer, 0)


@pytest.mark.parametrize("fault", ["planted", "another's", "truncated", "unsealed"])
def test_kept_library_that_does_not_verify_is_built_again(place, fault):
    place.run("files")
    kept = place.kept
    if fault == "planted":
        place.compile_trojan(kept)
    elif fault == "another's":
        kept.unlink()
        (place.base / "more.cpp").write_text("int more() { return 2; }\n")
        place.cache = place.base / "other"
        place.run("files", **place.location)
        (place.base / "more.cpp").write_text("int more() { return 1; }\n")
        place.kept.rename(kept)
    elif fault == "truncated":
        kept.write_bytes(kept.read_bytes()[:-1])
    else:
        shutil.rmtree(place.base / "cache" / ".safecache")
    place.cache = place.base / "elsewhere"
    answer, ninjas, _, errors = place.run("files", **place.location)
    assert (answer, ninjas) == (41, 1), errors
    place.cache = place.base / "third"
    answer, ninjas, _, errors = place.run("files", **place.location)
    assert (answer, ninjas) == (41, 0) and "safecache:" not in errors, errors


def test_observe_replaces_nothing_by_a_copy(place):
    place.run("files")
    shutil.rmtree(place.built / ".safecache")
    before = {path.name: path.stat().st_ino for path in place.built.glob("*.?o")}
    answer, _, _, errors = place.run("files", SAFECACHE="observe")
    assert answer == 41 and "would refuse" in errors, errors
    assert {path.name: path.stat().st_ino for path in place.built.glob("*.?o")} == before


def test_what_is_to_be_built_is_an_error_where_misses_are(place):
    _, errors = place.start("files", SAFECACHE_STRICT="misses=1").communicate(timeout=200)
    assert "MissError: safecache: no cache has the library of " in errors and not [*place.cache.rglob("*.o")], errors


@pytest.mark.parametrize("travels", ["pack", "remote"])
def test_library_travels_to_another_host(place, travels):
    """With the key, to another user's path: nothing but the sources is there."""
    (place.base / "share").mkdir()
    share = f"file://{place.base}/share"
    place.run("files", **({"SAFECACHE_TIERS": share} if travels == "remote" else {}))
    if travels == "pack":
        share = str(place.base / "one.safecache")
        pack = [sys.executable, "-m", "safecache", "pack", str(place.base / "cache"), "--output", share]
        subprocess.run(pack, env=place.environment, cwd=place.base, check=True, timeout=200)
    place.cache = place.base / "host" / "libraries"
    there = {"TORCHINDUCTOR_CACHE_DIR": str(place.base / "host" / "cache"), "SAFECACHE_TIERS": share}
    answer, ninjas, stats, errors = place.run("files", **place.location, **there, SAFECACHE_STRICT="1,misses=1")
    assert (answer, ninjas) == (41, 0) and "safecache:" not in errors, (stats, errors)


@needs_root
def test_cache_that_cannot_be_written_keeps_no_library_and_ends_nothing(place):
    with small_disks.mounted(place.base / "cache", "size=1m"):
        small_disks.fill(place.base / "cache")
        answer, ninjas, _, errors = place.run("files")
    assert (answer, ninjas) == (41, 1) and errors.count("safecache:") <= 2, errors


@pytest.fixture
def adopt(place):
    def adopt():
        command = [sys.executable, "-m", "safecache", "adopt", str(place.cache), "--json"]
        done = subprocess.run(
            command, env=place.environment, cwd=place.base, capture_output=True, text=True, timeout=200
        )
        assert done.returncode in (0, 1), done.stderr
        return json.loads(done.stdout)

    return adopt


def test_what_stock_built_is_adopted(place, adopt):
    place.run("files", "stock")
    assert adopt() == {"sealed": 3, "already_sealed": 0, "skipped": []}
    assert place.kept.read_bytes() == (place.built / "probe.so").read_bytes()
    answer, ninjas, _, errors = place.run("files")
    assert (answer, ninjas) == (41, 0) and "safecache:" not in errors, errors
    assert adopt() == {"sealed": 0, "already_sealed": 3, "skipped": []}


def test_what_stock_built_is_kept_until_it_is_adopted(place, adopt):
    place.run("files", "stock")
    before = {path.name: path.read_bytes() for path in place.built.glob("*.?o")}
    compiler = place.base / "bin" / "c++"
    compiler.parent.mkdir()
    compiler.write_text("#!/bin/sh\nexit 1\n")
    compiler.chmod(0o755)
    process = place.start("files", PATH=os.pathsep.join([str(compiler.parent), place.environment["PATH"]]))
    _, errors = process.communicate(timeout=200)
    assert process.returncode == 1 and errors.count("[unsealed]") == 1, errors
    assert f"safecache adopt {place.built}" in errors
    assert adopt()["sealed"] == 3
    assert {path.name: path.read_bytes() for path in place.built.glob("*.?o")} == before
    assert place.run("files")[:2] == (41, 0)


def test_what_ninja_would_build_again_or_others_could_have_written_is_not_adopted(place, adopt):
    place.run("files", "stock")
    (place.base / "more.cpp").write_text("int more() { return 2; }\n")
    (place.built / "cpp_1.o").chmod(0o666)
    skipped = dict(adopt()["skipped"])
    assert set(skipped) == {str(place.built / name) for name in ("cpp_0.o", "cpp_1.o", "probe.so")}


def test_library_is_not_adopted_without_its_objects(place, adopt):
    place.run("files", "stock")
    (place.built / "cpp_1.o").chmod(0o666)
    skipped = dict(adopt()["skipped"])
    assert set(skipped) == {str(place.built / name) for name in ("cpp_1.o", "probe.so")}


def test_library_that_nobody_built_is_not_loaded(place):
    def load(path):
        program = f"import safecache, tvm_ffi; print(tvm_ffi.load_module({str(path)!r}).answer())"
        command = [sys.executable, "-c", program]
        return subprocess.run(
            command, env=place.environment, cwd=place.base, capture_output=True, text=True, timeout=200
        )

    place.run("files")
    other = place.cache / "other" / "other.so"
    other.parent.mkdir()
    shutil.copy2(place.built / "probe.so", other)
    assert load(place.built / "probe.so").stdout == "41\n", "as SGLang does"
    assert "EntryRefusedError" in load(other).stderr
    other.unlink()
    other.symlink_to(shutil.copy2(place.built / "probe.so", place.base / "elsewhere.so"))
    assert "EntryRefusedError" in load(other).stderr, "wherever a link leads"
    done = load(shutil.copy2(place.built / "probe.so", place.base / "own.so"))
    assert done.stdout == "41\n", done.stderr


def test_own_library_beside_a_build_is_loaded(place):
    """In a directory that is named as the build's, which is no cache."""
    loaded = 'tvm_ffi.load_module(__import__("shutil").copy("probe.so", "./own.so"))'
    text = PROGRAM.replace(HOW, f'{HOW}, "build_directory": "."').replace("module.answer()", f"{loaded}.answer()")
    (place.base / "program.py").write_text(text)
    assert place.run("files")[0] == 41
    place.compile_trojan(place.base / "probe.so")
    answer, _, _, errors = place.run("files")
    assert answer == 41 and "[damaged]" in errors, errors


@pytest.mark.parametrize("how", ["inline", "files"])
def test_header_that_was_replaced_by_an_older_one_is_noticed(place, how):
    place.run(how)
    place.write_header(42)
    assert place.run(how, "stock")[0] == 41
    assert place.run(how)[:2] == (42, 1)
    assert place.run(how)[:2] == (42, 0)


def test_times_and_ninjas_own_files_decide_nothing(place):
    place.run("files")
    for path in [*place.built.iterdir(), *place.base.glob("*.cpp")]:
        if path.is_file():
            os.utime(path)
    for name in (".ninja_log", ".ninja_deps"):
        (place.built / name).unlink()
    assert place.run("files")[:2] == (41, 0)


def test_colon_in_a_path_builds_nothing_again(tmp_path):
    (tmp_path / "a:b").mkdir()
    place = Library(tmp_path / "a:b")
    assert [place.run("files")[:2] for _ in range(2)] == [(41, 1), (41, 0)]


@pytest.mark.parametrize("how", ["inline", "files"])
def test_cache_that_moved_is_used(place, how):
    place.run(how)
    moved = place.base / "elsewhere" / "cache"
    moved.parent.mkdir()
    place.cache.rename(moved)
    answer, ninjas, stats, errors = place.run(how, TVM_FFI_CACHE_DIR=str(moved))
    assert (answer, ninjas) == (41, 0), (stats, errors)


def test_attested_library_is_loaded_whoever_holds_the_lock(place):
    place.run("files")
    with open(place.built / "lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        answer, ninjas, _, errors = place.run("files")
    assert (answer, ninjas) == (41, 0) and "safecache:" not in errors, errors


def test_link_in_the_place_of_build_ninja_leads_to_no_other_build(place):
    place.run("files")
    other = place.base / "other"
    shutil.copytree(place.built, other)
    (place.built / "build.ninja").unlink()
    (place.built / "build.ninja").symlink_to(other / "build.ninja")
    place.compile_trojan(place.built / "probe.so")
    answer, _, stats, errors = place.run("files")
    assert answer == 41 and stats["damaged"] == 1, errors


@pytest.mark.parametrize("name", ["lock", "build.ninja"])
def test_what_is_no_file_is_not_waited_for(place, name):
    place.run("files")
    (place.built / name).unlink()
    os.mkfifo(place.built / name)
    place.write_header(42)
    answer, ninjas, _, errors = place.run("files")
    assert (answer, ninjas) == (42, 1) and "it is no file" in errors, errors


@pytest.fixture
def mounted(place):
    """The cache on a file system of its own."""
    with small_disks.mounted(place.cache, "size=20m"):
        yield place


@needs_root
@pytest.mark.parametrize("how", ["inline", "files"])
def test_read_only_cache_starts_as_any(mounted, how):
    mounted.run(how)
    small_disks.read_only(mounted.cache)
    answer, ninjas, _, errors = mounted.run(how)
    assert (answer, ninjas) == (41, 0) and "safecache:" not in errors, errors
    mounted.write_header(42)
    answer, ninjas, _, errors = mounted.run(how)
    assert (answer, ninjas) == (42, 1) and errors.count("safecache:") == 1 and "cannot use" in errors, errors


@needs_root
def test_full_disk_is_built_on_elsewhere(mounted):
    small_disks.fill(mounted.cache)
    answer, _, _, errors = mounted.run("files")
    assert answer == 41 and "No space left" in errors, errors


@pytest.mark.skipif(not other_users_can_be(), reason="needs root, to become another user")
def test_cache_of_root_starts_as_any_for_a_user(place):
    share_key(place)
    place.run("files")
    for directory in [place.base, *place.base.parents]:
        directory.chmod(directory.stat().st_mode | 0o005)
    answer, ninjas, _, errors = place.run("files", within=as_user(1000, GROUP))
    assert (answer, ninjas) == (41, 0) and "safecache:" not in errors, errors


def test_lock_of_a_stopped_process_is_not_waited_for_without_end(place):
    place.run("files")
    (place.built / "probe.so").unlink()
    holder = subprocess.Popen(["flock", str(place.built / "lock"), "sleep", "1000"], start_new_session=True)
    try:
        time.sleep(0.5)
        os.killpg(holder.pid, signal.SIGSTOP)
        answer, _, _, errors = place.run("files", SAFECACHE_WAIT="lock=15")
    finally:
        os.killpg(holder.pid, signal.SIGKILL)
        holder.wait()
    assert answer == 41 and "cannot use" in errors, errors


def test_directory_where_others_can_write_is_not_built_in(place):
    place.run("files")
    place.built.chmod(0o777)
    before = place.listed()
    answer, ninjas, _, errors = place.run("files")
    assert (answer, ninjas) == (41, 0), errors
    (place.built / "probe.so").unlink()
    place.kept.unlink()
    answer, ninjas, _, errors = place.run("files")
    assert answer == 41 and ninjas == 1 and "others can write there" in errors, errors
    assert not (place.built / "probe.so").exists() and set(place.listed()) <= set(before)


def test_killed_build_goes_on_from_what_is_finished(place):
    slow = place.base / "bin" / "c++"
    slow.parent.mkdir()
    slow.write_text(
        '#!/bin/sh\ncase "$*" in *-shared*) [ -e linked ] || { touch linked waits; while [ -e waits ]; do sleep 0.1; done; '
        'exit 1; };; esac\nexec g++ "$@"\n'
    )
    slow.chmod(0o755)
    paths = os.pathsep.join([str(slow.parent), place.environment["PATH"]])
    process = place.start("files", PATH=paths)
    try:
        deadline = time.monotonic() + 150
        while not list(place.cache.glob("probe_*/linked")) and time.monotonic() < deadline:
            time.sleep(0.1)
        time.sleep(2)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        for waits in place.cache.glob("probe_*/waits"):  # ninja starts it in a group of its own
            waits.unlink()
    objects = {path.name: path.stat().st_mtime_ns for path in place.built.glob("*.o")}
    assert len(objects) == 2
    answer, ninjas, stats, errors = place.run("files", PATH=paths)
    assert (answer, ninjas) == (41, 1) and "safecache:" not in errors, (stats, errors)
    assert {path.name: path.stat().st_mtime_ns for path in place.built.glob("*.o")} == objects, "only linked"
