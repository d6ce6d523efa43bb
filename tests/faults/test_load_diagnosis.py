"""`safecache doctor --load`: says of a shared object why the dynamic loader refuses it, and runs nothing that is in it."""

from __future__ import annotations

import builtins
import errno
import importlib.util
import json
import mmap
import os
import re
import shlex
import shutil
import signal
import struct
import subprocess
import sys
from pathlib import Path
from unittest import mock

import hypothesis
import pytest
from conftest import SOURCE, isolated_environment, needs_root, python
from helpers.message_form import check_form, to_row
from hypothesis import strategies

from safecache.doctor import finding, load_check
from safecache.fs import opening

pytestmark = pytest.mark.default_release

# Leaves a mark as soon as any of it is run: by its constructor, and by the resolver that relocating it calls.
MARKING = """
#include <fcntl.h>
#include <unistd.h>
static void leave(const char *name) { int mark = creat(name, 0600); if (mark >= 0) close(mark); }
__attribute__((constructor)) static void construct(void) { leave(MARKS "/constructed"); }
static int one(void) { return 1; }
static int (*resolve(void))(void) { leave(MARKS "/resolved"); return one; }
__attribute__((visibility("hidden"), ifunc("resolve"))) int chosen(void);
int number(void) { return chosen(); }
"""
EXTENSION = "void *PyLong_FromLong(long); void *PyInit_probe(void) { return PyLong_FromLong(number()); }"
KERNEL = "int aoti_torch_device_type_cpu(void); int kernel(void) { return aoti_torch_device_type_cpu(); }"
USER = "int answer(void); int use(void) { return answer(); }"
LIBRARY = "int answer(void) { return 42; }"
# The loader passes over a library for auditing that does not answer to this.
AUDITOR = MARKING + "unsigned la_version(unsigned version) { return version; }"


class Workshop:
    """Builds libraries, gives them to the real loader, and to the doctor in a process of its own."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.marks = base / "marks"
        self.marks.mkdir()
        isolated = isolated_environment(base) | {"PYTHONPATH": str(SOURCE)}
        self.environment = {key: value for key, value in os.environ.items() if not key.startswith("LD_")} | isolated
        self.plain = self.build(base / "plain.so", MARKING)

    def build(self, path: Path, source: str, *flags: object) -> Path:
        path.parent.mkdir(exist_ok=True)
        macro = f'-DMARKS="{self.marks}"'
        command = ["gcc", "-xc", "-shared", "-fPIC", macro, "-", "-xnone", *map(str, flags), "-o", str(path)]
        subprocess.run(command, input=source, text=True, check=True)
        return path

    def ran(self) -> set[str]:
        """What has been run since the last call."""
        names = {path.name for path in self.marks.iterdir()}
        for name in names:
            (self.marks / name).unlink()
        return names

    def load(self, path: Path, *, within: str = "", first: str = "") -> str:
        """What the real loader says of it, "" if it has loaded it, or the signal that this process died of."""
        code = f"{first}\nimport ctypes\nctypes.CDLL({str(path)!r})"
        command = [*shlex.split(within), sys.executable, "-c", code]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=60)
        self.ran()
        if done.returncode < 0:
            return signal.Signals(-done.returncode).name
        return done.stderr.strip().rpartition("\n")[2]

    def check(self, path: Path) -> list[finding.Finding]:
        """What is found by this process in that environment, after it was seen that nothing was run."""
        with mock.patch.dict(os.environ, self.environment, clear=True):
            findings = load_check.check(str(path))
        assert self.ran() == set()
        check_form(map(to_row, findings))
        return findings

    def doctor(self, path: Path, *, within: str = "env") -> tuple[int, list[dict[str, str]]]:
        """The exit code and the findings of the command, after it was seen that nothing was run."""
        command = [*shlex.split(within), sys.executable, "-m", "safecache", "doctor", "--load", str(path), "--json"]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=60)
        assert self.ran() == set()
        assert done.stderr == "", done.stderr
        answer = json.loads(done.stdout)
        assert answer["file"] == str(path)
        return done.returncode, answer["findings"]

    def finding(self, path: Path, code: str, within: str = "") -> str:
        """The evidence of the one finding, which is an error with this code and has a remedy."""
        if within:
            status, rows = self.doctor(path, within=within)
            assert status == 1
            check_form(rows)
            findings = [finding.Finding(*(row[field] for field in finding.Finding._fields)) for row in rows]
        else:
            findings = self.check(path)
        assert [(one.code, one.severity) for one in findings] == [(code, "error")], findings
        assert findings[0].remedy
        return findings[0].evidence

    def assert_loads(self, path: Path) -> None:
        findings = self.check(path)
        assert [(one.code, one.severity) for one in findings] == [("loads", "ok")], findings


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    return Workshop(tmp_path_factory.mktemp("shop"))


@pytest.fixture
def plain(shop, tmp_path):
    """A copy of a good library, to be damaged."""
    return Path(shutil.copy(shop.plain, tmp_path / "kernel.so"))


@pytest.fixture
def noexec(tmp_path):
    point = tmp_path / "noexec"
    point.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "noexec,size=1m", "none", str(point)], check=True)
    yield point
    subprocess.run(["umount", str(point)], check=True)


def change(path: Path, layout: str, offset: int, value: int) -> None:
    content = bytearray(path.read_bytes())
    struct.pack_into(layout, content, offset, value)
    path.write_bytes(content)


PT_LOAD, PT_DYNAMIC = 1, 2


def program_headers(path: Path, kind: int) -> list[int]:
    """Where in the file those of this type are."""
    content = path.read_bytes()
    (start,) = struct.unpack_from("<Q", content, 32)
    size, count = struct.unpack_from("<HH", content, 54)
    return [at for at in range(start, start + size * count, size) if struct.unpack_from("<I", content, at) == (kind,)]


def torch_libraries() -> Path:
    return Path(importlib.util.find_spec("torch").origin).parent / "lib"


# What loads ---------------------------------------------------------------------------------------------------------


def test_good_library_loads_and_is_not_run(shop):
    status, (found,) = shop.doctor(shop.plain)
    assert (status, found["code"], found["severity"]) == (0, "loads", "ok")
    assert python(f"import ctypes; ctypes.CDLL({str(shop.plain)!r})").returncode == 0
    assert shop.ran() == {"constructed", "resolved"}, "a load leaves marks, and so the doctor has not loaded it"


def test_python_extension_needs_what_python_defines(shop, tmp_path):
    path = shop.build(tmp_path / "probe.so", MARKING + EXTENSION)
    shop.assert_loads(path)
    assert shop.load(path) == ""


def test_kernel_finds_the_libraries_of_torch_that_its_process_has_loaded(shop, tmp_path):
    flags = ("-Wl,--no-as-needed,--allow-shlib-undefined", f"-L{torch_libraries()}", "-ltorch_cpu", "-lc10")
    path = shop.build(tmp_path / "kernel.so", MARKING + KERNEL, *flags)
    assert re.search("libtorch_cpu.so|libc10.so", shop.load(path)), "alone, nothing tells the loader where they are"
    shop.assert_loads(path)
    loaded = f"import ctypes; ctypes.CDLL({str(torch_libraries() / 'libtorch_cpu.so')!r})"
    assert shop.load(path, first=loaded) == ""


def test_library_of_torch_loads(shop):
    shop.assert_loads(torch_libraries() / "libc10.so")


def test_library_that_is_needed_by_its_path_is_found(shop, tmp_path):
    library = shop.build(tmp_path / "answer.so", LIBRARY)
    path = shop.build(tmp_path / "kernel.so", MARKING + USER, library)
    shop.assert_loads(path)
    assert shop.load(path) == ""


@pytest.mark.parametrize("name", ["a b.so", "a:b.so", "$b.so", "-b.so", "[red]b.so", "ü\n.so", os.fsdecode(b"\xff.so")])
def test_any_name_of_a_file_will_do(shop, tmp_path, name):
    folder = tmp_path / "a b:c"
    shop.build(folder / "libanswer.so", LIBRARY)
    path = shop.build(
        tmp_path / "kernel.so", MARKING + USER, f"-L{folder}", "-lanswer", f"-Wl,-rpath,{folder.parent}/lib"
    )
    shutil.copytree(folder, tmp_path / "lib")
    path = path.rename(folder / name)
    shop.assert_loads(path)
    assert shop.load(path) == ""


def test_library_beside_a_file_is_found_by_its_origin(shop, tmp_path):
    shop.build(tmp_path / "libanswer.so", LIBRARY)
    flags = (f"-L{tmp_path}", "-lanswer", "-Wl,-rpath,$ORIGIN")
    path = shop.build(tmp_path / "kernel.so", MARKING + USER, *flags)
    shop.assert_loads(path)
    assert shop.load(path) == ""


def test_library_is_found_by_the_library_path_of_this_process(shop, tmp_path, monkeypatch):
    shop.build(tmp_path / "lib" / "libanswer.so", LIBRARY)
    path = shop.build(tmp_path / "kernel.so", MARKING + USER, f"-L{tmp_path / 'lib'}", "-lanswer")
    assert "libanswer.so" in shop.finding(path, "missing-library")
    monkeypatch.setitem(shop.environment, "LD_LIBRARY_PATH", str(tmp_path / "lib"))
    shop.assert_loads(path)
    assert shop.load(path) == ""


def test_symbol_of_a_preloaded_library_is_defined(shop, tmp_path, monkeypatch):
    library = shop.build(tmp_path / "answer.so", LIBRARY)
    path = shop.build(tmp_path / "kernel.so", MARKING + USER)
    assert "answer" in shop.finding(path, "undefined-symbol")
    monkeypatch.setitem(shop.environment, "LD_PRELOAD", str(library))
    shop.assert_loads(path)
    assert shop.load(path) == ""


def test_weak_symbol_may_be_missing(shop, tmp_path):
    source = "__attribute__((weak)) int answer(void); int use(void) { return answer ? answer() : 0; }"
    path = shop.build(tmp_path / "kernel.so", MARKING + source)
    shop.assert_loads(path)
    assert shop.load(path) == ""


# Its format ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 3, 20, 63, 100, "half"])
def test_library_that_is_cut_short_is_refused_in_the_words_of_the_loader(shop, plain, size):
    os.truncate(plain, plain.stat().st_size // 2 if size == "half" else size)
    said = shop.load(plain)
    words = said.rpartition(": ")[2].replace("SIGBUS", "signal 7")
    assert re.match("file too short|cannot read file data|signal 7", words)
    assert words in shop.finding(plain, "refused-by-loader")


@pytest.mark.parametrize("machine", [183, 0x7E57])
def test_library_of_another_machine_names_both(shop, plain, machine):
    (here,) = struct.unpack_from("<H", plain.read_bytes(), 18)
    machine = 62 if machine == here else machine
    change(plain, "<H", 18, machine)
    assert "cannot open shared object file" in shop.load(plain) or "invalid ELF header" in shop.load(plain)
    assert (
        f"built for {load_check.MACHINES.get(machine, 'e_machine 32343')}, this machine is {load_check.MACHINES[here]}"
        in shop.finding(plain, "wrong-architecture")
    )


@pytest.mark.parametrize("offset, value", [(0, 0x7E), (4, 1), (4, 7), (5, 9)])
def test_header_that_is_not_one_of_a_library_is_told(shop, plain, offset, value):
    change(plain, "<B", offset, value)
    said = "invalid ELF header|wrong ELF class|invalid class|ELF file data encoding"
    assert re.search(said, shop.load(plain)) and re.search(said, shop.finding(plain, "refused-by-loader"))


def test_text_is_no_library(shop, plain):
    plain.write_text("#!/bin/sh\nexit 0\n" * 10)
    assert "invalid ELF header" in shop.load(plain)
    assert "invalid ELF header" in shop.finding(plain, "refused-by-loader")


def test_object_file_is_no_library(shop, tmp_path):
    path = tmp_path / "kernel.so"
    subprocess.run(["gcc", "-c", "-xc", "-", "-o", str(path)], input=LIBRARY, text=True, check=True)
    assert "only ET_DYN and ET_EXEC can be loaded" in shop.load(path)
    assert "only ET_DYN and ET_EXEC can be loaded" in shop.finding(path, "refused-by-loader")


def test_library_that_the_loader_refuses_for_another_reason_has_its_words(shop, plain):
    change(plain, "<Q", program_headers(plain, PT_LOAD)[0] + 16, 8)  # p_vaddr
    said = shop.load(plain)
    assert "not page-aligned" in said or "not properly aligned" in said
    assert said.rpartition(": ")[2] in shop.finding(plain, "refused-by-loader")


def test_library_that_kills_the_loader_is_told(shop, plain):
    change(plain, "<Q", program_headers(plain, PT_DYNAMIC)[0] + 16, 1 << 40)  # p_vaddr
    assert shop.load(plain) == "SIGSEGV"
    assert "signal 11" in shop.finding(plain, "refused-by-loader")


@hypothesis.settings(max_examples=50, deadline=None, database=None)
@hypothesis.given(strategies.data())
def test_damage_anywhere_is_survived_and_runs_nothing(shop, data):
    content = bytearray(shop.plain.read_bytes())
    headers = strategies.integers(0, 63 + 56 * 11)
    for place in data.draw(
        strategies.lists(headers | strategies.integers(0, len(content) - 1), min_size=1, max_size=4)
    ):
        content[place] = data.draw(strategies.integers(0, 255))
    path = shop.base / "damaged.so"
    path.write_bytes(content[: data.draw(strategies.just(len(content)) | strategies.integers(0, len(content)))])
    assert load_check.check(str(path))
    assert shop.ran() == set()


# What it needs ------------------------------------------------------------------------------------------------------


def build_user(shop: Workshop, folder: Path, name: str = "kernel.so", flags: tuple[str, ...] = ()) -> Path:
    """A library that needs libanswer.so of its own folder, which there is after this."""
    shop.build(folder / "libanswer.so", LIBRARY, "-Wl,-soname,libanswer.so", *flags)
    return shop.build(folder / name, MARKING + USER, f"-L{folder}", "-lanswer", f"-Wl,-rpath,{folder}")


def build_versions(shop: Workshop, folder: Path) -> Path:
    """A library that needs a version of libanswer.so which that has no more."""
    for name in ("ANSWER_1", "ANSWER_2"):
        (folder / name).write_text(f"{name} {{ global: answer; }};")
    path = build_user(shop, folder, flags=(f"-Wl,--version-script={folder / 'ANSWER_2'}",))
    flags = (f"-Wl,--version-script={folder / 'ANSWER_1'}", "-Wl,-soname,libanswer.so")
    shop.build(folder / "libanswer.so", LIBRARY, *flags)
    return path


def test_library_that_is_missing_is_named(shop, tmp_path):
    path = build_user(shop, tmp_path)
    shop.assert_loads(path)
    (tmp_path / "libanswer.so").unlink()
    assert "libanswer.so: cannot open shared object file" in shop.load(path)
    assert shop.finding(path, "missing-library").endswith("does not find libanswer.so. It cannot be loaded.")


def test_every_missing_library_is_named(shop, tmp_path):
    shop.build(tmp_path / "libsecond one.so", "int second;")
    build_user(shop, tmp_path)
    path = shop.build(
        tmp_path / "kernel.so", MARKING + USER, "-Wl,--no-as-needed", f"-L{tmp_path}", "-lanswer", "-lsecond one"
    )
    assert shop.finding(path, "missing-library").endswith(
        "does not find libanswer.so, libsecond one.so. It cannot be loaded."
    )


def test_library_that_is_damaged_is_named_though_another_needs_it(shop, tmp_path):
    path = build_user(shop, tmp_path)
    os.truncate(tmp_path / "libanswer.so", 100)
    said = shop.load(path)
    assert "libanswer.so: " in said
    assert str(tmp_path / "libanswer.so") in shop.finding(path, "refused-by-loader")


def test_symbol_that_is_missing_is_named(shop, tmp_path):
    path = shop.build(tmp_path / "kernel.so", MARKING + USER, "-Wl,-z,now")
    assert "undefined symbol: answer" in shop.load(path)
    assert shop.finding(path, "undefined-symbol").startswith(
        "symbols that the file needs are undefined: answer, 1 in all;"
    )


def test_symbol_that_a_library_has_lost_is_named(shop, tmp_path):
    path = build_user(shop, tmp_path)
    shop.build(tmp_path / "libanswer.so", "int other;", "-Wl,-soname,libanswer.so")
    assert shop.finding(path, "undefined-symbol").startswith(
        "symbols that the file needs are undefined: answer, 1 in all;"
    )


def test_many_missing_symbols_are_counted(shop, tmp_path):
    names = [f"missing_{number}" for number in range(9)]
    source = "".join(f"int {name}(void); int use_{name}(void) {{ return {name}(); }}" for name in names)
    evidence = shop.finding(shop.build(tmp_path / "kernel.so", MARKING + source), "undefined-symbol")
    assert f": {', '.join(names[:5])}, …, 9 in all;" in evidence


def test_symbol_of_a_library_that_this_process_alone_has_loaded_is_missing(shop, tmp_path):
    # Extension modules and what they need are not there for others: ctypes loads them without RTLD_GLOBAL.
    path = shop.build(tmp_path / "kernel.so", MARKING + USER, "-Wl,-z,now")
    library = shop.build(tmp_path / "answer.so", LIBRARY)
    code = "import ctypes; ctypes.CDLL({!r}); from safecache.doctor import load_check; print(load_check.check({!r})[0].code)"
    assert python(code.format(str(library), str(path))).stdout == "undefined-symbol\n"
    assert "undefined symbol: answer" in shop.load(path, first=f"import ctypes; ctypes.CDLL({str(library)!r})")


def test_version_that_is_missing_is_named_with_its_library(shop, tmp_path):
    path = build_versions(shop, tmp_path)
    assert "version `ANSWER_2' not found" in shop.load(path)
    assert f"it needs ANSWER_2 of {tmp_path / 'libanswer.so'}," in shop.finding(path, "missing-version")


def test_version_that_another_library_misses_is_named_with_both(shop, tmp_path):
    middle = build_versions(shop, tmp_path).rename(tmp_path / "libmiddle.so")
    path = shop.build(tmp_path / "outer.so", MARKING, "-Wl,--no-as-needed,--allow-shlib-undefined", middle)
    assert "version `ANSWER_2' not found" in shop.load(path)
    assert shop.finding(path, "missing-version").count(f": {middle}, which it needs, needs ANSWER_2 of {tmp_path}") == 1


def test_version_of_the_c_library_that_is_newer_than_this_machine_is_named(shop, plain):
    """As of a cache that a newer system shares: another name in the string table, and its hash in the list of versions."""
    content = plain.read_bytes()
    old = re.search(rb"\0(GLIBC_2\.[0-9.]+)\0", content)[1]
    new = b"GLIBC_9" + old[7:]
    table = content.replace(sysv_hash(old), sysv_hash(new)).replace(b"\0" + old + b"\0", b"\0" + new + b"\0")
    plain.write_bytes(table)
    assert f"version `{new.decode()}' not found" in shop.load(plain)
    assert re.search(rf"it needs {new.decode()} of /\S*libc\.so", shop.finding(plain, "missing-version"))


def sysv_hash(name: bytes) -> bytes:
    value = 0
    for letter in name:
        value = (value << 4) + letter
        value = (value ^ (value >> 24 & 0xF0)) & 0x0FFFFFFF
    return struct.pack("<I", value)


@pytest.mark.parametrize("flag", ["--audit", "--depaudit"])
def test_auditing_library_that_a_file_names_is_not_run(shop, tmp_path, flag):
    auditor = shop.build(tmp_path / "auditor.so", AUDITOR)
    path = shop.build(tmp_path / "kernel.so", MARKING, f"-Wl,{flag}={auditor}")
    shop.assert_loads(path)
    subprocess.run([load_check._find_loader(), "--list", str(path)], stdout=subprocess.DEVNULL, env=shop.environment)
    assert "constructed" in shop.ran(), "as ldd, which is why the doctor does not do as ldd does"


@pytest.mark.parametrize("variable", ["LD_BIND_NOW", "LD_WARN", "LD_VERBOSE", "LD_DEBUG"])
def test_variables_of_the_loader_do_not_change_the_answer(shop, tmp_path, monkeypatch, variable):
    path = build_versions(shop, tmp_path)
    (tmp_path / "libanswer.so").unlink()
    monkeypatch.setitem(shop.environment, variable, "bindings" if variable == "LD_DEBUG" else "1")
    monkeypatch.setitem(shop.environment, "LD_DEBUG_OUTPUT", str(tmp_path / "log"))
    assert shop.finding(path, "missing-library").endswith("does not find libanswer.so. It cannot be loaded.")
    shop.assert_loads(shop.plain)


def test_library_that_the_loader_would_wait_for_is_waited_for_in_vain(shop, tmp_path, monkeypatch):
    library = shop.build(tmp_path / "answer.so", LIBRARY)
    path = shop.build(tmp_path / "kernel.so", MARKING + USER, library)
    library.unlink()
    os.mkfifo(library)
    monkeypatch.setattr(load_check, "_LOADER_TIMEOUT", 0.5)
    assert [finding.code for finding in load_check.check(str(path))] == ["refused-by-loader"]


# Its place ----------------------------------------------------------------------------------------------------------


def test_file_that_is_missing_is_not_found(shop, tmp_path):
    assert "does not exist" in shop.finding(tmp_path / "kernel.so", "not-found")
    assert "No such file" in shop.load(tmp_path / "kernel.so")


def test_link_that_leads_nowhere_is_not_found(shop, tmp_path):
    path = tmp_path / "kernel.so"
    path.symlink_to(tmp_path / "gone.so")
    assert str(path) in shop.finding(path, "not-found")


def test_link_to_itself_is_unreadable(shop, tmp_path):
    path = tmp_path / "kernel.so"
    path.symlink_to(path)
    assert os.strerror(errno.ELOOP) in shop.finding(path, "unreadable")


def test_fifo_is_not_waited_for(shop, tmp_path):
    os.mkfifo(tmp_path / "kernel.so")
    assert "not a regular file" in shop.finding(tmp_path / "kernel.so", "unreadable")


def test_directory_is_no_library(shop, tmp_path):
    assert "not a regular file" in shop.finding(tmp_path, "unreadable")


# As root that file modes bind.
BOUND = "setpriv --bounding-set=-dac_override,-dac_read_search --inh-caps=-dac_override,-dac_read_search"


@needs_root
@pytest.mark.parametrize("closed", ["file", "folder", "folder behind a link"])
def test_file_that_this_user_may_not_read_names_what_is_closed(shop, tmp_path, closed):
    folder = tmp_path / "folder"
    folder.mkdir()
    path = folder / "kernel.so"
    shutil.copy(shop.plain, path)
    what = path if closed == "file" else folder
    os.chown(what, 65534, 65534)
    what.chmod(0)
    if closed == "folder behind a link":
        path = tmp_path / "link.so"
        path.symlink_to(folder / "kernel.so")
    assert "Permission denied" in shop.load(path, within=BOUND)
    mode = "----------" if closed == "file" else "d---------"
    evidence = shop.finding(path, "permission", within=BOUND)
    assert evidence.endswith(f"{what} is {mode}, of uid 65534 and gid 65534; this is uid 0. It cannot be loaded.")


@needs_root
@pytest.mark.parametrize(
    "folder, variable",
    [
        ("torchinductor_me/ab", "TORCHINDUCTOR_CACHE_DIR"),
        ("torchinductor_me/triton/0/AB", "TRITON_CACHE_DIR"),
        ("elsewhere", "TRITON_CACHE_DIR"),
        ("elsewhere-too", "TORCHINDUCTOR_CACHE_DIR"),
        ("torch_extensions/py311_cpu/mine", "TORCH_EXTENSIONS_DIR"),
        ("aotinductor_x1/data", "TMPDIR"),
    ],
)
def test_noexec_mount_is_named_with_a_line_that_moves_the_cache(shop, noexec, monkeypatch, folder, variable):
    path = noexec / folder / "kernel.so"
    path.parent.mkdir(parents=True)
    shutil.copy(shop.plain, path)
    monkeypatch.setitem(shop.environment, "TRITON_CACHE_DIR", str(noexec / "elsewhere"))
    assert "failed to map segment from shared object" in shop.load(path)
    assert f"{path}: it is on {noexec} (tmpfs: rw,noexec" in shop.finding(path, "noexec")
    assert re.fullmatch(rf"export {variable}=/\S+", shop.check(path)[0].remedy)


@needs_root
def test_empty_variable_of_triton_moves_nothing(shop, noexec, monkeypatch):
    path = Path(shutil.copy(shop.plain, noexec / "kernel.so"))
    monkeypatch.setitem(shop.environment, "TRITON_CACHE_DIR", "")
    assert shop.check(path)[0].remedy.startswith("export TORCHINDUCTOR_CACHE_DIR=/")


def test_library_too_large_to_be_read_is_one_for_want_of_memory(shop, plain):
    os.truncate(plain, 4 << 30)
    assert "2048 MiB" in shop.finding(plain, "out-of-memory", within=f"prlimit --as={2 << 30}")


# Policy -------------------------------------------------------------------------------------------------------------


def can_trace() -> bool:
    command = ["strace", "-qq", "-o", "/dev/null", "true"]
    return shutil.which("strace") is not None and subprocess.run(command, capture_output=True).returncode == 0


def test_kernel_that_does_not_let_it_be_mapped_is_told_from_a_noexec_mount(shop, plain):
    if not can_trace():
        pytest.skip("needs strace and the right to trace")
    within = f"strace -f -qq -o /dev/null -P {plain} -e trace=mmap -e inject=mmap:error=EACCES"
    assert "failed to map segment from shared object" in shop.load(plain, within=within)
    evidence = shop.finding(plain, "denied-by-policy", within=within)
    assert f"{plain} may not be mapped as code: {os.strerror(errno.EACCES)}" in evidence and "not noexec" in evidence


@pytest.mark.parametrize("number", [errno.EPERM, errno.EACCES])
def test_policy_that_refuses_to_map_it_is_told(shop, monkeypatch, number):
    def refuse(*args, **kwargs):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(mmap, "mmap", refuse)
    (finding,) = load_check.check(str(shop.plain))
    assert (finding.code, finding.severity) == ("denied-by-policy", "error")
    assert os.strerror(number) in finding.evidence and "SAFECACHE_EXEC_DIR" in finding.remedy


@pytest.mark.parametrize("number, code", [(errno.EPERM, "denied-by-policy"), (errno.EACCES, "permission")])
def test_policy_that_refuses_to_open_it_is_told_from_file_modes(shop, monkeypatch, number, code):
    def refuse(*args, **kwargs):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(opening, "read_regular", refuse)
    (finding,) = load_check.check(str(shop.plain))
    assert finding.code == code and "SELinux" in finding.evidence
    assert number == errno.EPERM or "owners and modes allow it" in finding.evidence


@pytest.mark.parametrize("enforcing, said", [("1", "SELinux is enforcing"), ("0", "SELinux is permissive")])
def test_security_modules_of_this_machine_are_named(shop, monkeypatch, tmp_path, enforcing, said):
    def refuse(*args, **kwargs):
        raise OSError(errno.EACCES, os.strerror(errno.EACCES))

    status = tmp_path / "enforce"
    status.write_text(enforcing)

    def open_instead(path, *args, **kwargs):
        return builtins.open(status if path == "/sys/fs/selinux/enforce" else path, *args, **kwargs)

    monkeypatch.setattr(load_check, "open", open_instead, raising=False)
    monkeypatch.setattr(os, "getxattr", lambda path, name: b"system_u:object_r:user_tmp_t:s0\0")
    exists = os.path.exists
    monkeypatch.setattr(os.path, "exists", lambda path: path == "/run/fapolicyd" or exists(path))
    monkeypatch.setattr(mmap, "mmap", refuse)
    (finding,) = load_check.check(str(shop.plain))
    assert f"{said}; its label is system_u:object_r:user_tmp_t:s0; fapolicyd is running" in finding.evidence


# How it is shown ----------------------------------------------------------------------------------------------------


def show(shop: Workshop, path: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "safecache", "doctor", "--load", str(path)]
    environment = shop.environment | {"COLUMNS": "1000", "FORCE_COLOR": "1", "PYTHONIOENCODING": "utf-8"}
    return subprocess.run(command, env=environment, capture_output=True, encoding="utf-8", timeout=60)


def test_table_has_code_evidence_and_remedy(shop, tmp_path):
    done = show(shop, shop.plain)
    assert (done.returncode, done.stderr) == (0, "") and "loads" in done.stdout
    path = shop.build(tmp_path / "kernel.so", MARKING + USER)
    done = show(shop, path)
    assert done.returncode == 1 and all(word in done.stdout for word in ("undefined-symbol", "answer", "Help: rm "))


def test_name_with_markup_is_shown_as_it_is(shop, tmp_path):
    done = show(shop, tmp_path / "[red]" / "[/nothing].so")
    assert (done.returncode, done.stderr) == (1, "") and "/[red]/[/nothing].so does not exist" in done.stdout


@pytest.mark.parametrize("name, shown", [("\x1b]0;title\x07", r"\x1b]0;title\x07"), (os.fsdecode(b"\xff"), r"\udcff")])
def test_name_that_a_terminal_would_obey_is_escaped(shop, tmp_path, name, shown):
    done = show(shop, tmp_path / name)
    assert (done.returncode, done.stderr) == (1, "") and f"/{shown} does not exist" in done.stdout
