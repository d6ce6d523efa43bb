"""Kernels that DeepGEMM finds in C++: it is shown what verifies. The package is a stand-in with deep_jit's DiskCache."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import SOURCE, isolated_environment

# What deep_jit 0.2.5's cache/disk.hpp and backend/cuda/kernel.hpp do, and find_cuda_home(), called at the import.
PACKAGE = {
    "cuda_helpers.py": "def find_cuda_home() -> str:\n    return '/usr/local/cuda'\n",
    "__init__.py": """
import os, uuid
from pathlib import Path
from .cuda_helpers import find_cuda_home
find_cuda_home()
compiled = []

def load(name):
    roots = os.environ.get("DG_JIT_CACHE_DIR", os.path.expanduser("~/.dj")).split(":")
    for root in roots:
        found = Path(root, "cache", name)
        if (found / ".committed").exists():
            return (found / "kernel.cubin").read_bytes()
    compiled.append(name)
    made = Path(roots[0], "tmp", uuid.uuid4().hex)
    made.mkdir(parents=True)
    (made / "kernel.cu").write_text(name)
    (made / "kernel.cubin").write_bytes(b"\\x7fELF code of " + name.encode())
    (made / ".committed").touch()
    final = Path(roots[0], "cache", name)
    final.parent.mkdir(exist_ok=True)
    os.rename(made, final)
    return (final / "kernel.cubin").read_bytes()
""",
}
PROGRAM = """
import json, os, sys
import safecache
import deep_gemm
request = json.loads(sys.argv[1])
before = os.environ.get("DG_JIT_CACHE_DIR")
found = {name: deep_gemm.load(name).decode("latin1") for name in request["names"]}
print(json.dumps({"found": found, "compiled": deep_gemm.compiled, "place": before}), flush=True)
exec(request["then"])
"""
NAMES = ["gemm.00ff", "layout.1234"]


class Machine:
    """A home on which programs use DeepGEMM."""

    def __init__(self, base):
        self.base, self.packages = base, base / "packages"
        (self.packages / "deep_gemm").mkdir(parents=True)
        for name, text in PACKAGE.items():
            (self.packages / "deep_gemm" / name).write_text(text)
        self.environment = os.environ | isolated_environment(base) | {"TMPDIR": str(base / "temporary")}
        (base / "temporary").mkdir()
        self.environment["PYTHONPATH"] = os.pathsep.join([str(self.packages), str(SOURCE)])
        self.environment["HOME"] = str(base)
        self.stock = base / ".dj"
        self.cache = Path(self.environment["TORCHINDUCTOR_CACHE_DIR"])

    def start(self, names=NAMES, then="", **env):
        request = json.dumps({"names": names, "then": then})
        return subprocess.Popen(
            [sys.executable, "-c", PROGRAM, request],
            env=self.environment | env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *args, **env):
        process = self.start(*args, **env)
        said, errors = process.communicate(timeout=120)
        self.errors = errors
        return json.loads(said) if process.returncode == 0 else None

    def found(self, *args, **env):
        """What was compiled. What was loaded is right."""
        answer = self.run(*args, **env)
        assert answer is not None, self.errors
        assert answer["found"] == {name: f"\x7fELF code of {name}" for name in answer["found"]}
        return answer["compiled"]

    def compile_as_stock(self, name, content):
        place = self.stock / "cache" / name
        place.mkdir(parents=True)
        for each, text in {"kernel.cu": b"", "kernel.cubin": content, ".committed": b""}.items():
            (place / each).write_bytes(text)

    def archives(self):
        return {path for path in self.cache.rglob("*.o") if b"code of" in path.read_bytes()}


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def test_kernels_are_kept_and_the_librarys_own_directory_is_neither_read_nor_written(machine):
    assert machine.found() == NAMES
    assert "safecache" not in machine.errors
    assert machine.found() == []
    assert not machine.stock.exists()
    assert machine.found([*NAMES, "more"]) == ["more"]
    assert machine.found([*NAMES, "more"]) == []
    assert list((machine.base / "temporary").iterdir()) == [], "the run's directory has gone with its last process"


def test_what_lies_in_the_librarys_directory_is_left_and_not_loaded(machine):
    machine.compile_as_stock(NAMES[0], b"planted")
    assert machine.found() == NAMES
    assert f"safecache adopt {machine.stock}" in machine.errors
    assert (machine.stock / "cache" / NAMES[0] / "kernel.cubin").read_bytes() == b"planted"
    assert machine.found() == [] and "adopt" not in machine.errors, "what lies there too is no news"
    assert machine.run(["more"], SAFECACHE_STRICT="1") is not None
    machine.compile_as_stock("other", b"planted")
    assert machine.run(["more"], SAFECACHE_STRICT="1") is None and "EntryRefusedError" in machine.errors


@pytest.mark.parametrize("harm", ["bit", "half", "empty", "swapped", "records"])
def test_harmed_archive_is_compiled_anew(machine, harm):
    for name in NAMES:
        machine.found([name])
    first, second = sorted(machine.archives())
    content = first.read_bytes()
    new = {
        "bit": content.replace(b"code of", b"code on"),
        "half": content[: len(content) // 2],
        "empty": b"",
        "swapped": second.read_bytes(),
    }
    first.write_bytes(new.get(harm, content))
    if harm == "records":
        shutil.rmtree(machine.cache / ".safecache" / "records")
    reason = "unsealed" if harm == "records" else "damaged"
    assert len(machine.found()) == (2 if harm == "records" else 1) and f"[{reason}]" in machine.errors
    assert machine.found() == [] and "safecache" not in machine.errors


def test_strict_mode_ends_with_a_harmed_archive(machine):
    machine.found()
    (archive,) = machine.archives()
    archive.write_bytes(archive.read_bytes()[:-1])
    assert machine.run(SAFECACHE_STRICT="1") is None and "EntryRefusedError" in machine.errors


def test_many_archives_are_written_as_one(machine):
    names = [f"gemm.{number:02}" for number in range(36)]
    program = "from safecache.built_code import device_kernels as kernels\n"
    program += (
        f"for name in {names!r}:\n    deep_gemm.load(name); kernels._directories.now['DG_JIT_CACHE_DIR'].keep_new()\n"
    )
    assert machine.run([], program) is not None, machine.errors
    assert machine.found(names) == []
    (table,) = set(machine.cache.rglob("*.o")) - machine.archives()
    assert len(json.loads(table.read_text())) == 4


def test_killed_process_leaves_what_it_has_compiled(machine):
    process = machine.start(then="input()")
    json.loads(process.stdout.readline())
    deadline = time.monotonic() + 60
    while len(list(machine.cache.rglob("*.o"))) < 2:  # an archive, and the table
        assert time.monotonic() < deadline
        time.sleep(0.1)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert machine.found() == []
    assert list((machine.base / "temporary").iterdir()) == [], "the killed one's directory is removed by the next"


def test_processes_of_a_run_share_what_one_of_them_compiles(machine):
    run = {"_SAFECACHE_RUN": "20261128T000000-00000000"}
    first = machine.start(then="input()", **run)
    place = json.loads(first.stdout.readline())["place"]
    assert machine.found(**run) == []
    assert machine.run(**run)["place"] == place
    first.communicate("\n", timeout=60)
    assert first.returncode == 0 and not os.path.exists(place)


def test_directory_that_another_has_made_for_the_run_is_not_used(machine):
    run = {"_SAFECACHE_RUN": "20261128T000000-00000001"}
    first = machine.start(then="input()", **run)
    place = Path(json.loads(first.stdout.readline())["place"])
    first.kill()
    first.communicate()
    shutil.rmtree(machine.cache, ignore_errors=True)
    place.parent.chmod(0o777)
    for name in NAMES:
        (place / "cache" / name / "kernel.cubin").write_bytes(b"planted")
    assert machine.found(**run) == NAMES


def adopt(machine):
    command = [sys.executable, "-m", "safecache", "adopt", str(machine.stock)]
    done = subprocess.run(command, env=machine.environment, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def test_adopted_kernels_are_used(machine):
    for name in NAMES:
        machine.compile_as_stock(name, f"\x7fELF code of {name}".encode())
    assert adopt(machine)[0] == 0
    assert machine.found() == [] and "adopt" not in machine.errors


def test_kernel_that_others_could_write_is_not_adopted(machine):
    machine.compile_as_stock(NAMES[0], b"planted")
    (machine.stock / "cache" / NAMES[0] / "kernel.cubin").chmod(0o666)
    code, said = adopt(machine)
    assert code and str(machine.stock) in said, said
    assert machine.found() == NAMES


def test_pack_brings_them_to_another_path(machine, tmp_path_factory):
    machine.found()
    pack = machine.base / "kernels.safecache"
    command = [sys.executable, "-m", "safecache", "copy", str(machine.cache), str(pack)]
    subprocess.run(command, env=machine.environment, check=True, capture_output=True)
    other = Machine(tmp_path_factory.mktemp("other"))
    keys = {name: text for name, text in machine.environment.items() if name.startswith("SAFECACHE_KEY")}
    keys["XDG_CONFIG_HOME"] = machine.environment["XDG_CONFIG_HOME"]
    assert other.found(SAFECACHE_TIERS=str(pack), **keys) == []


def test_observe_uses_what_stock_uses(machine):
    machine.compile_as_stock(NAMES[0], b"\x7fELF code of " + NAMES[0].encode())
    answer = machine.run(SAFECACHE="observe")
    assert answer["compiled"] == NAMES[1:] and answer["place"] is None
    assert "SAFECACHE=observe" in machine.errors


def test_variable_that_is_set_after_the_import_is_no_way_around(machine):
    """SGLang sets it in a module of its own, and calls a function of that before its first kernel."""
    wrapper = machine.packages / "sglang/srt/layers/deep_gemm_wrapper"
    wrapper.mkdir(parents=True)
    for parent in (wrapper, *wrapper.parents[:3]):
        (parent / "__init__.py").touch()
    text = "import os\nos.environ['DG_JIT_CACHE_DIR'] = os.path.expanduser('~/sglang')\n"
    (wrapper / "compile_utils.py").write_text(f"{text}def update_deep_gemm_config(gpu_id: int):\n    pass\n")
    called = "from sglang.srt.layers.deep_gemm_wrapper import compile_utils as c; c.update_deep_gemm_config(0);"
    answer = machine.run([], f"{called} deep_gemm.load('late')")
    assert answer is not None, machine.errors
    assert not (machine.base / "sglang").exists()
    assert machine.found(["late"]) == []


def test_models_of_vllm_share_them(machine):
    """VLLM sets TORCHINDUCTOR_CACHE_DIR anew for each model, after it has imported DeepGEMM."""
    root = machine.base / "vllm"
    machine.environment |= {"VLLM_CACHE_ROOT": str(root), "DG_JIT_CACHE_DIR": str(root / "deep_gemm")}
    chosen = "os.environ['TORCHINDUCTOR_CACHE_DIR'] = "
    for model, name in (("a" * 64, "one"), ("b" * 64, "two")):
        cache = root / "torch_compile_cache/torch_aot_compile" / model / "inductor_cache"
        assert machine.run([], f"{chosen}{str(cache)!r}; deep_gemm.load({name!r})") is not None, machine.errors
    assert machine.found(["one", "two"]) == []
    outlives = "import os, sys, time, safecache, deep_gemm\nwhile os.getppid() == int(sys.argv[1]): time.sleep(0.05)\n"
    outlives += "deep_gemm.load('of a child')"
    child = "import subprocess; subprocess.Popen([sys.executable, '-c', os.environ['CHILD'], str(os.getpid())])"
    assert machine.run([], f"{chosen}{str(cache)!r}; {child}", CHILD=outlives) is not None, machine.errors
    assert machine.found(["of a child"]) == []
    machine.stock = root / "deep_gemm"
    machine.compile_as_stock("three", b"\x7fELF code of three")
    assert adopt(machine)[0] == 0 and machine.found(["one", "two", "three"]) == []


def test_full_cache_costs_a_warning(machine):
    machine.cache.parent.mkdir(parents=True, exist_ok=True)
    machine.cache.write_text("no directory")
    assert machine.found() == NAMES
    assert machine.errors.count("UserWarning") <= 2
