"""The real TileLang: nothing from its cache is loaded or unpickled unverified. It compiles for the CPU."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import pickle
import shutil
import subprocess
from importlib.metadata import version

import pytest

NEEDS_TILELANG = pytest.mark.skipif(importlib.util.find_spec("tilelang") is None, reason="needs tilelang")
pytestmark = [NEEDS_TILELANG, pytest.mark.xdist_group("tilelang")]

SCENES = {
    "kernel": ("compile_kernel", "kernels"),
    "result": ("tune", "autotuner"),
    "binary": ("use_binary", "cuda-binaries"),
}
# A library that leaves a mark when it is loaded.
PLANTED = """
#include <stdio.h>
__attribute__((constructor)) static void leave_mark(void) { fclose(fopen("%s", "w")); }
"""


class Tiles:
    """A home with a cache of TileLang's."""

    def __init__(self, home):
        self.home = home
        self.cache = home.base / "tiles"
        self.mark = home.base / "mark"

    def run(self, what="kernel", *, env=None, **arguments):
        scene, environment = SCENES.get(what, (what,))[0], {"TILELANG_CACHE_DIR": str(self.cache)} | (env or {})
        return self.home.run(f"scenes.tilelang_kernels:{scene}", env=environment, **arguments)

    def made(self, what="kernel", **arguments):
        answer = self.run(what, **arguments)
        assert answer.ok and not self.mark.exists(), answer
        return answer

    def find(self, name, what="kernel"):
        (path,) = self.cache.rglob(f"{SCENES[what][1]}/*/{name}")
        return path

    def kept(self):
        return [path.name for path in self.cache.rglob(".safecache/quarantine/*")]

    def plant(self, path, content):
        """Put it there, and have what TileLang states agree, where it states something."""
        path.write_bytes(content)
        stated = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for name in ("manifest.json", "metadata.json"):
            if (path.parent / name).exists():
                text = json.loads((path.parent / name).read_text())
                text.get("files", {path.name: text})[path.name].update(stated)
                (path.parent / name).write_text(json.dumps(text))


@pytest.fixture
def tiles(home):
    return Tiles(home)


@pytest.fixture(scope="module")
def template(new_home):
    """What safecache has attested: a kernel, a result of tuning and a device binary."""
    tiles = Tiles(new_home())
    for what in SCENES:
        answer = tiles.made(what)
        assert answer.result == 1 and answer.code_stats["code sealed"], answer
        assert answer.warnings == [], answer
    yield tiles
    shutil.rmtree(tiles.home.base)


@pytest.fixture
def full(tiles, template):
    """A copy of the template: a cache can move."""
    shutil.copytree(template.home.base, tiles.home.base, dirs_exist_ok=True, symlinks=True)
    return tiles


@pytest.fixture(scope="module")
def stock_template(new_home):
    """What stock TileLang has built."""
    tiles = Tiles(new_home())
    for what in SCENES:
        assert tiles.made(what, stock=True).result == 1
    yield tiles
    shutil.rmtree(tiles.home.base)


@pytest.fixture
def built(tiles, stock_template):
    shutil.copytree(stock_template.home.base, tiles.home.base, dirs_exist_ok=True, symlinks=True)
    return tiles


class Planted:
    """Leaves a mark when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


def planted(tiles, what):
    """The file of a kernel or a result, and content that leaves a mark."""
    if what == "result":
        return tiles.find("function.pkl", what), pickle.dumps(Planted(tiles.mark))
    base = tiles.home.base
    (base / "planted.c").write_text(PLANTED % tiles.mark)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", "planted.so", "planted.c"], cwd=base, check=True)
    return tiles.find("kernel_lib.so", what), (base / "planted.so").read_bytes()


@pytest.mark.parametrize("what", SCENES)
def test_what_is_attested_hits_in_the_next_process_and_in_stock_tilelang(full, what):
    answer = full.made(what)
    assert answer.result == 0 and answer.warnings == [] and set(answer.code_stats) == {"code verified"}, answer
    assert full.made(what, stock=True).result == 0
    assert full.kept() == []


@pytest.mark.parametrize("what", ["kernel", "result"])
def test_planted_code_runs_in_stock_tilelang(built, what):
    built.plant(*planted(built, what))
    built.run(what, stock=True)
    assert built.mark.exists()


@pytest.mark.parametrize("what", ["kernel", "result"])
def test_planted_code_does_not_run(full, what):
    """With a manifest made to agree, if there is one."""
    path, content = planted(full, what)
    full.plant(path, content)
    answer = full.made(what)
    assert answer.result == 1 and len(answer.warnings) == 1 and "[unsealed]" in answer.warnings[0], answer
    assert any(name.startswith(path.name) for name in full.kept())
    answer = full.made(what)
    assert answer.result == 0 and answer.warnings == [], answer


def flipped(content):
    changed = bytearray(content)
    changed[len(changed) // 2] ^= 1
    return bytes(changed)


def halved(content):
    return content[: len(content) // 2]


DAMAGES = {
    "flipped library": ("kernel", "kernel_lib.so", flipped, False),
    "flipped library, as stated": ("kernel", "kernel_lib.so", flipped, True),
    "truncated library": ("kernel", "kernel_lib.so", halved, False),
    "emptied library, as stated": ("kernel", "kernel_lib.so", lambda _: b"", True),
    "other parameters, as stated": ("kernel", "params.json", lambda content: content.replace(b"64", b"32"), True),
    "truncated manifest": ("kernel", "manifest.json", halved, False),
    "other source": ("kernel", "host_kernel.cu", flipped, False),
    "flipped library of a result": ("result", "kernel_lib.so", flipped, False),
    "truncated function": ("result", "function.pkl", halved, False),
    "other parameters of a result": ("result", "params.json", lambda content: content.replace(b"64", b"32"), False),
    "other configuration": ("result", "best_config.json", lambda _: b"[]", False),
    "planted binary, as stated": ("binary", "kernel.cubin", lambda _: b"planted", True),
    "truncated binary": ("binary", "kernel.cubin", halved, False),
}


@pytest.mark.parametrize("how", DAMAGES)
def test_what_does_not_verify_is_made_anew_once(full, how):
    what, name, damage, is_stated = DAMAGES[how]
    path = full.find(name, what)
    before = path.read_bytes()
    content = damage(before)
    assert content != before
    if is_stated:
        full.plant(path, content)
    else:
        path.write_bytes(content)
    answer = full.made(what)
    assert answer.result == 1 and len(answer.warnings) == 1 and "[unsealed]" in answer.warnings[0], answer
    answer = full.made(what)
    assert answer.result == 0 and answer.warnings == [], answer


def link_to(path, target):
    path.rename(target)
    path.symlink_to(target)


NO_FILES = {
    "link": link_to,
    "FIFO": lambda path, aside: (path.rename(aside), os.mkfifo(path)),
    "directory": lambda path, aside: (path.rename(aside), path.mkdir()),
}


@pytest.mark.parametrize("name", ["kernel_lib.so", "params.json", "manifest.json"])
@pytest.mark.parametrize("how", NO_FILES)
def test_kernel_of_which_something_is_no_file_is_made_anew_once(full, how, name):
    path = full.find(name)
    NO_FILES[how](path, full.home.base / "aside")
    answer = full.made()
    assert answer.result == 1, answer
    answer = full.made()
    assert answer.result == 0 and answer.warnings == [], answer


@pytest.mark.parametrize("what", SCENES)
def test_what_stock_tilelang_has_built_is_built_again_once(built, what):
    answer = built.made(what)
    assert answer.result == 1 and len(answer.warnings) == 1 and "[unsealed]" in answer.warnings[0], answer
    answer = built.made(what)
    assert answer.result == 0 and answer.warnings == [], answer


def test_what_stock_tilelang_has_built_is_adopted(built):
    found = sum(1 for name in ("kernels", "autotuner", "cuda-binaries") for _ in built.cache.rglob(f"{name}/*"))
    writable = built.find("params.json", "result")
    writable.chmod(0o666)
    answer = built.home.run("safecache.upkeep.audit:adopt", root=str(built.cache))
    sealed, already_sealed, skipped = answer.result
    assert (sealed, already_sealed, [path for path, _ in skipped]) == (found - 1, 0, [str(writable.parent)]), answer
    for what in ("kernel", "binary"):
        answer = built.made(what)
        assert answer.result == 0 and answer.warnings == [], answer


@pytest.mark.parametrize("what", SCENES)
def test_strict_mode_raises(built, what):
    answer = built.run(what, strict=True)
    assert answer.error == "EntryRefusedError", answer


def test_attested_kernel_is_not_taken_for_another(full):
    first = full.find("kernel_lib.so").parent
    assert full.made(added=2).result == 1
    (second,) = (path for path in first.parent.iterdir() if path != first)
    shutil.rmtree(second)
    shutil.copytree(first, second)
    answer = full.made(added=2)
    assert answer.result == 1 and len(answer.warnings) == 1, answer


@pytest.mark.parametrize("name", ["kernel_lib.so", "params.json"])
def test_file_of_another_attested_kernel_is_not_taken(full, name):
    """What TileLang states agrees with it."""
    first = full.find("kernel_lib.so").parent
    assert full.made(added=2).result == 1
    (second,) = (path for path in first.parent.iterdir() if path != first)
    content = (first / name).read_bytes() + (b"\n" if name == "params.json" else b"")
    full.plant(second / name, content)
    answer = full.made(added=2)
    assert answer.result == 1 and len(answer.warnings) == 1, answer


def test_file_that_was_added_to_an_attested_kernel_is_not_taken(full):
    (full.find("kernel_lib.so").parent / "launcher.so").write_bytes(b"planted")
    answer = full.made()
    assert answer.result == 1 and len(answer.warnings) == 1, answer


def test_kernel_that_several_processes_publish_is_attested(full):
    """One that publishes none has attested its own as well."""
    first = full.find("kernel_lib.so").parent
    first.rename(full.home.base / "first")
    assert full.made().result == 1
    shutil.rmtree(first)
    (full.home.base / "first").rename(first)
    answer = full.made()
    assert answer.result == 0 and answer.warnings == [], answer


def test_copy_of_a_module_that_python_keeps_there_is_not_run(full):
    """TileLang imports modules from there for some backends."""
    copies = full.find("kernel_lib.so").parent / "__pycache__"
    copies.mkdir()
    (copies / "kernel.cpython-312.pyc").write_bytes(b"planted")
    answer = full.made()
    assert answer.result == 0 and answer.warnings == [] and not copies.exists(), answer


def test_cubin_that_is_added_at_the_first_launch_is_attested(full):
    directory = full.find("kernel_lib.so").parent
    (full.home.base / "kernel.cubin").write_bytes(b"compiled")
    assert full.run("save_cubin", directory=str(directory), made=str(full.home.base / "kernel.py")).ok
    assert (directory / "kernel.cubin").read_bytes() == b"compiled"
    answer = full.made()
    assert answer.result == 0 and answer.warnings == [], answer
    (directory / "kernel.cubin").write_bytes(b"planted")
    answer = full.made()
    assert answer.result == 1 and len(answer.warnings) == 1, answer


def test_cubin_does_not_attest_a_kernel_that_has_changed(full):
    path = full.find("kernel_lib.so")
    full.plant(path, flipped(path.read_bytes()))
    (full.home.base / "kernel.cubin").write_bytes(b"compiled")
    assert full.run("save_cubin", directory=str(path.parent), made=str(full.home.base / "kernel.py")).ok
    answer = full.made()
    assert answer.result == 1 and len(answer.warnings) == 1, answer


@pytest.mark.parametrize("what", SCENES)
def test_directory_that_others_can_write_to_is_not_used(full, what):
    for path in full.cache.rglob("*"):
        if path.is_dir() and ".safecache" not in path.parts:
            path.chmod(0o777)
    answer = full.made(what)
    assert (
        answer.result == 1 and len(answer.warnings) == 1 and "[directory writable by others]" in answer.warnings[0]
    ), answer
    assert full.kept() == []


def test_directory_that_others_can_write_to_ends_the_import_in_strict_mode(full):
    """Which makes directories there."""
    (full.cache / version("tilelang")).chmod(0o777)
    environment = {"TILELANG_CACHE_DIR": str(full.cache)}
    answer = full.home.run("importlib:import_module", name="tilelang", strict=True, env=environment)
    assert answer.error == "EntryRefusedError", answer


@pytest.mark.parametrize("name", [".", "kernel_lib.so"])
def test_kernel_that_others_can_write_to_is_made_anew(full, name):
    """In a directory that they cannot write to."""
    path = full.find("kernel_lib.so").parent / name
    path.chmod(0o777)
    answer = full.made()
    assert (
        answer.result == 1 and len(answer.warnings) == 1 and "[directory writable by others]" in answer.warnings[0]
    ), answer
    answer = full.made()
    assert answer.result == 0 and answer.warnings == [], answer


def test_observe_uses_what_stock_tilelang_would(built):
    answer = built.made(env={"SAFECACHE": "observe"})
    assert answer.result == 0 and len(answer.warnings) == 1, answer


def test_kernel_whose_record_cannot_be_read_is_made_anew(full):
    for record in full.cache.rglob(".safecache/records/*/*"):
        record.chmod(0)
    answer = full.made(unprivileged=True)
    assert answer.result == 1 and len(answer.warnings) == 1 and "[unreadable]" in answer.warnings[0], answer
    answer = full.made(unprivileged=True)
    assert answer.result == 0 and answer.warnings == [], answer


def test_refused_kernel_that_cannot_be_moved_away_is_not_loaded(full):
    path, content = planted(full, "kernel")
    full.plant(path, content)
    for directory in (path.parent, path.parents[2] / ".safecache"):
        directory.chmod(0o500)
    for _ in range(2):
        answer = full.made(unprivileged=True)
        assert answer.result == 1 and len(answer.warnings) == 1, answer
    path.parent.chmod(0o700)
