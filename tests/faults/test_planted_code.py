"""Generated sources and compiled code that somebody else put into the cache are replaced, and never run."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest
from conftest import WARM

from faults import damage
from faults.trojan import CONSTRUCTOR, PYTHON, Attack

STRICTNESS = pytest.mark.parametrize("strict", [False, True], ids=["default", "strict"])


@pytest.fixture
def attack(warm):
    return Attack(warm)


def source_in_a_warm_cache(attack, trojan):
    for path in attack.files("*.py"):
        path.write_text(PYTHON + path.read_text())


def source_in_a_cold_cache(attack, trojan):
    source_in_a_warm_cache(attack, trojan)
    forget_entries(attack)


def library_in_a_warm_cache(attack, trojan):
    for path in attack.files("*.so"):
        shutil.copy(trojan, path)


def library_in_a_cold_cache(attack, trojan):
    library_in_a_warm_cache(attack, trojan)
    forget_entries(attack)
    shutil.rmtree(attack.home.cache / ".safecache")


def source_of_a_library(attack, trojan):
    for path in attack.files("*.cpp"):
        path.write_text(f"#include <cstdio>\n#include <cstdlib>\n{CONSTRUCTOR}{path.read_text()}")
    for path in attack.files("*.so"):
        path.unlink()


def forget_entries(attack):
    for folder in ("aotautograd", "fxgraph"):
        shutil.rmtree(attack.home.cache / folder)


ATTACKS = [
    source_in_a_warm_cache,
    source_in_a_cold_cache,
    library_in_a_warm_cache,
    library_in_a_cold_cache,
    source_of_a_library,
]


@pytest.mark.parametrize("plant", ATTACKS)
def test_what_is_planted_runs_on_stock_torch(attack, trojan, plant):
    """Or the tests here would prove nothing."""
    plant(attack, trojan)
    attack.run(stock=True)
    assert attack.ran


@pytest.mark.parametrize("plant", ATTACKS)
def test_what_is_planted_does_not_run_and_is_healed(attack, trojan, plant):
    before = {path: path.read_bytes() for pattern in ("*.py", "*.cpp") for path in attack.files(pattern)}
    plant(attack, trojan)
    answer = attack.run()
    assert answer.ok and not attack.ran, answer
    assert len(answer.warnings) == 1 and str(attack.home.cache) in answer.warnings[0], answer
    assert {path: path.read_bytes() for path in before} == before
    again = attack.run()
    assert again.ok and again.hits == WARM and not again.warnings and not attack.ran, again


@pytest.mark.parametrize("plant", ATTACKS)
def test_what_is_planted_is_refused_by_name_in_strict_mode(attack, trojan, plant):
    plant(attack, trojan)
    answer = attack.run(strict=True)
    assert "EntryRefusedError" in answer.errors and not attack.ran, answer


@pytest.mark.parametrize("cut", damage.CUT, ids=lambda cut: cut.__name__)
@pytest.mark.parametrize("pattern", ["??/*.py", "??/*.cpp", "??/*.so", ".safecache/records/*/*"])
def test_code_or_record_that_was_cut_short_is_never_run_and_heals(attack, pattern, cut):
    spoiled = {path: damage.digest(path) for path in attack.home.cache.glob(pattern)}
    before = {path: path.read_bytes() for path in spoiled}
    for path in spoiled:
        cut(path)
    spoiled = {path: damage.digest(path) for path in spoiled}
    assert spoiled
    answer = attack.run()
    assert answer.ok, answer
    if pattern.endswith((".py", ".cpp")):
        assert {path: path.read_bytes() for path in before} == before
    again = attack.run()
    assert again.ok and again.hits == WARM and not again.warnings, again
    assert not any(damage.digest(path) == spoiled[path] for path in spoiled if path.exists())


@STRICTNESS
def test_flipped_library_is_built_again(attack, strict):
    path = attack.files("*.so")[0]
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    answer = attack.run(strict=strict)
    if strict:
        assert "EntryRefusedError" in answer.errors, answer
    else:
        assert answer.ok and answer.stats["damaged"] == 1, answer
        assert path.read_bytes() != bytes(content)


@pytest.mark.parametrize("kind", ["fifo", "directory", "link", "foreign"])
@pytest.mark.parametrize("pattern", ["*.py", "*.so"])
def test_what_is_no_file_of_ours_is_moved_aside(attack, tmp_path, pattern, kind):
    for path in attack.files(pattern):
        content = path.read_bytes()
        path.unlink()
        if kind == "fifo":
            os.mkfifo(path)
        elif kind == "directory":
            path.mkdir()
        elif kind == "link":
            elsewhere = tmp_path / path.name
            elsewhere.write_bytes(content)
            path.symlink_to(elsewhere)
        else:
            path.write_bytes(content)
            os.chown(path, 12345, 12345)
    answer = attack.run()
    assert answer.ok and answer.hits == WARM and len(answer.warnings) == 1, answer
    assert all(path.is_file() and not path.is_symlink() for path in attack.files(pattern))


def test_library_of_stock_torch_is_adopted(home):
    assert home.run(stock=True).ok
    adopted = home.run("adopt_cache", directory=str(home.cache))
    assert adopted.ok, adopted
    answer = home.run()
    assert answer.ok and answer.hits == WARM and not answer.warnings, answer


def test_cache_without_records_is_built_again_once(warm):
    """As one that was filled by stock torch, or copied without its hidden directory."""
    shutil.rmtree(warm.cache / ".safecache")
    answer = warm.run()
    assert answer.ok and len(answer.warnings) == 1 and answer.stats["unsealed"] >= 1, answer
    again = warm.run()
    assert again.ok and not again.warnings and "unsealed" not in again.stats, again


def test_private_trust_takes_what_has_no_record(warm):
    shutil.rmtree(warm.cache / ".safecache")
    answer = warm.run(env={"SAFECACHE_TRUST": "private"})
    assert answer.ok and answer.hits == WARM and not answer.warnings, answer


def test_cache_that_others_can_write_to_runs_from_copies_out_of_their_reach(warm):
    warm.cache.chmod(0o777)
    answer = warm.run("compile_model_and_say_where")
    assert answer.ok and answer.hits == WARM, answer
    assert len(answer.warnings) == 1 and f"{warm.cache} has mode 0777" in answer.warnings[0], answer
    files = answer.result["files"]
    assert {path[-3:] for path in files} == {".py", ".so"}, answer
    assert not any(path.startswith(str(warm.cache)) for path in files), answer


def header(trojan, directory):
    (path,) = directory.glob("*.h")
    path.write_text(f"#include <cstdio>\n#include <cstdlib>\n{CONSTRUCTOR}")
    path.with_suffix(".h.gch").unlink()


def precompiled_header(trojan, directory):
    """Precompiled with the flags of the kernels, or the compiler would not take it."""
    (path,) = directory.glob("*.h")
    genuine = path.read_text()
    header(trojan, directory)
    command = trojan.with_name("command").read_text().split()
    subprocess.run([*command, str(path), "-o", f"{path}.gch"], check=True, stderr=subprocess.DEVNULL)
    path.write_text(genuine)


@pytest.mark.parametrize("plant", [header, precompiled_header])
def test_planted_header_is_not_compiled_in(attack, trojan, plant):
    """The headers lie outside of the cache: in the temporary directory, by default."""
    directory = attack.home.base / "headers"
    arguments = {"scene": "build_with_header", "directory": str(directory)}
    built = attack.run(**arguments)
    assert built.ok and [name[-2:] for name in built.result] == [".h", "ch"], built
    if plant is precompiled_header:
        flags = attack.home.run("header_command", directory=str(directory)).result
        trojan.with_name("command").write_text(" ".join(flags))

    def spoil():
        plant(trojan, directory)
        for path in attack.files("*.so"):
            path.unlink()

    genuine = {path.name: path.read_bytes() for path in directory.glob("*.h")}
    spoil()
    assert attack.run(stock=True, **arguments).ok and attack.ran
    attack.run(**arguments)
    spoil()
    answer = attack.run(**arguments)
    assert answer.ok and not attack.ran and len(answer.warnings) == 1, answer
    assert str(directory) in answer.warnings[0], answer
    assert {path.name: path.read_bytes() for path in directory.glob("*.h")} == genuine


def test_planted_probe_of_vector_instructions_does_not_run(attack, trojan):
    assert attack.run(scene="find_vector_instructions").result is True
    probes = {path for path in attack.home.cache.glob("??/*.so") if ".main." not in path.name}

    def spoil():
        for path in probes:
            shutil.copy(trojan, path)
            path.with_name(f"{path.name}.load_ok").unlink(missing_ok=True)

    spoil()
    attack.run(scene="find_vector_instructions", stock=True)
    assert attack.ran
    spoil()
    answer = attack.run(scene="find_vector_instructions")
    assert answer.result is True and not attack.ran and len(answer.warnings) == 1, answer


def test_audit_hook_sees_nothing_run_before_it_is_verified(attack, trojan):
    for plant in (source_in_a_warm_cache, library_in_a_warm_cache):
        plant(attack, trojan)
    stock = attack.run(scene="audit", trojan=str(trojan), stock=True)
    assert stock.result["executed"], stock
    answer = attack.run(scene="audit", trojan=str(trojan))
    assert answer.result["seen"] and not answer.result["executed"], answer
