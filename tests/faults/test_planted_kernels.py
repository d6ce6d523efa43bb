"""What somebody else put into Triton's cache is not taken: neither kernels nor the modules that Triton loads."""

from __future__ import annotations

import json
import os

import pytest
from scenes import kernel_scenes

from faults import hostile
from faults.hostile import triton_files as files
from faults.kept import Kept

pytest.importorskip("triton")


SCENES = (kernel_scenes.compile_kernel, kernel_scenes.build_module)
pytestmark = pytest.mark.xdist_group("planted-kernels")


@pytest.fixture(scope="module")
def compiled(new_home):
    home = new_home()
    home.environment["TRITON_CACHE_DIR"] = str(home.base / "triton")
    for scene in SCENES:
        answer = home.run(scene)
        assert answer.ok and answer.result["compiled"], answer
    return Kept(home)


@pytest.fixture
def cache(compiled):
    """A home with a kernel and a module in Triton's cache, whose group file names the files by their paths."""
    return compiled.again()


def test_what_was_compiled_is_taken(cache):
    for scene in SCENES:
        answer = cache.run(scene)
        assert answer.ok and not answer.result["compiled"] and not answer.warnings, answer


def test_stock_triton_takes_it_too(cache):
    for scene in SCENES:
        answer = cache.run(scene, stock=True)
        assert answer.ok and not answer.result["compiled"], answer


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def cut(path):
    os.truncate(path, path.stat().st_size // 2)


def empty(path):
    os.truncate(path, 0)


def remove(path):
    path.unlink()


@pytest.mark.parametrize("pattern", ["*.cubin", "tri*.json", "__grp__*"])
def test_damaged_file_of_a_kernel_is_made_anew_by_the_service_that_compiles(cache, pattern):
    good = cache.run(kernel_scenes.compile_kernel).result["cubin"]
    flip(files(cache, pattern)[0])
    service = {"SAFECACHE_ISOLATE": "1"}
    answer = cache.run(kernel_scenes.compile_kernel, env=service)
    assert answer.ok and answer.result["cubin"] == good and len(answer.warnings) == 1, answer
    again = cache.run(kernel_scenes.compile_kernel, env=service)
    assert again.ok and again.result["cubin"] == good and not again.warnings, again


@pytest.mark.parametrize(
    ("pattern", "damage"),
    [
        *(("*.cubin", damage) for damage in (flip, cut, empty, remove)),
        *(("__grp__*", damage) for damage in (flip, cut, empty, remove)),
        *(("tri*.json", flip), ("tri*.json", remove), ("*.ptx", flip), ("*.ptx", empty), ("*.ttir", cut)),
    ],
)
def test_damaged_file_of_a_kernel_is_a_miss_and_heals(cache, pattern, damage):
    damage(files(cache, pattern)[0])
    answer = cache.run(kernel_scenes.compile_kernel)
    assert answer.ok and answer.result["compiled"], answer
    assert len(answer.warnings) == (0 if damage is remove else 1), answer
    again = cache.run(kernel_scenes.compile_kernel)
    assert again.ok and not again.result["compiled"] and again.result["cubin"] == answer.result["cubin"], again


def test_kernel_of_somebody_else_is_made_anew(home, trojan):
    answer = home.run(**hostile.kernel(home, trojan))
    assert answer.ok and answer.result["compiled"] and not hostile.did_harm(home, answer), answer
    (group,) = files(home, "__grp__*")
    assert len(answer.warnings) == 1 and str(group) in answer.warnings[0], answer


def test_module_of_somebody_else_is_made_anew(home, trojan):
    answer = home.run(**hostile.module_of_triton(home, trojan))
    assert answer.ok and answer.result["compiled"] and len(answer.warnings) == 1, answer


def test_cache_of_stock_triton_is_made_anew_once(home):
    home.environment["TRITON_CACHE_DIR"] = str(home.base / "triton")
    assert home.run(kernel_scenes.compile_kernel, stock=True).result["compiled"]
    answer = home.run(kernel_scenes.compile_kernel)
    assert answer.ok and answer.result["compiled"] and answer.stats["unsealed"] == 1, answer
    assert not home.run(kernel_scenes.compile_kernel).result["compiled"]


def test_private_trust_takes_the_cache_of_stock_triton(home):
    home.environment["TRITON_CACHE_DIR"] = str(home.base / "triton")
    assert home.run(kernel_scenes.compile_kernel, stock=True).result["compiled"]
    answer = home.run(kernel_scenes.compile_kernel, env={"SAFECACHE_TRUST": "private"})
    assert answer.ok and not answer.result["compiled"] and not answer.warnings, answer


@pytest.fixture
def exposed(home):
    (home.base / "triton").mkdir()
    (home.base / "triton").chmod(0o777)
    return home


@pytest.mark.parametrize("who", ["stock", "safecache"])
def test_kernel_that_is_exchanged_as_soon_as_it_is_written_is_not_taken(exposed, who):
    evil = b"evil".hex()
    answer = exposed.run(kernel_scenes.compile_kernel_under_attack, evil={".cubin": evil}, stock=who == "stock")
    assert answer.ok and (answer.result["cubin"] == evil) is (who == "stock"), answer
    again = exposed.run(kernel_scenes.compile_kernel, stock=who == "stock")
    assert again.ok and (again.result["cubin"] == evil) is (who == "stock"), again


@pytest.mark.parametrize("who", ["stock", "safecache"])
def test_module_that_is_exchanged_as_soon_as_it_is_written_is_not_loaded(exposed, trojan, monkeypatch, who):
    marker = exposed.base / "ran"
    evil = {".so": trojan.read_bytes().hex()}
    environment = {"TROJAN_MARKER": str(marker)}
    answer = exposed.run(kernel_scenes.build_module_under_attack, evil=evil, env=environment, stock=who == "stock")
    assert marker.exists() is (who == "stock") and answer.ok is (who == "safecache"), answer


@pytest.mark.parametrize("who", ["stock", "safecache"])
def test_kernel_that_is_exchanged_before_it_is_saved_is_not_saved(exposed, who):
    evil = b"evil".hex()
    answer = exposed.run(kernel_scenes.collect_under_attack, evil=evil, stock=who == "stock")
    assert answer.ok and (evil in answer.result) is (who == "stock"), answer


def test_kernels_of_an_exposed_cache_do_not_use_up_descriptors(exposed):
    """Each has eight files, and all were open for as long as the process lived."""
    before, after = (exposed.run(kernel_scenes.compile_kernel_and_count_descriptors).result for _ in range(2))
    assert before == after == 1, "by which its private directory is seen to be in use"


def test_group_names_the_files_in_the_cache_for_others(exposed):
    assert exposed.run(kernel_scenes.compile_kernel).ok
    (group,) = files(exposed, "__grp__*")
    for name, path in json.loads(group.read_text())["child_paths"].items():
        assert path == str(group.parent / name)
    stock = exposed.run(kernel_scenes.compile_kernel, stock=True)
    assert stock.ok and not stock.result["compiled"], stock


def test_kernel_is_read_out_of_the_reach_of_others(cache):
    (cache.base / "triton").chmod(0o777)
    answer = cache.run(kernel_scenes.compile_kernel)
    assert answer.ok and not answer.result["compiled"] and answer.result["cubin"], answer
    assert not any(path.startswith(str(cache.base / "triton")) for path in answer.result["files"]), answer


def test_override_and_dump_directories_are_left_alone(home):
    """People put files there by hand, and read them."""
    home.environment["TRITON_CACHE_DIR"] = str(home.base / "triton")
    dumped = home.run(kernel_scenes.dump_kernel, directory=str(home.base / "dump"))
    assert dumped.ok and not (home.base / "dump" / ".safecache").exists(), dumped
    assert list((home.base / "dump").glob("*/*.ttir"))


@pytest.mark.parametrize("who", ["stock", "safecache"])
def test_what_a_remote_cache_delivers_is_not_taken_unless_we_have_sealed_the_same(home, who):
    home.environment["TRITON_CACHE_DIR"] = str(home.base / "triton")
    evil = b"evil".hex()
    answer = home.run(kernel_scenes.compile_with_remote_cache, evil=evil, stock=who == "stock")
    second = answer.result["second"]
    assert answer.ok and (second["cubin"] == evil) is (who == "stock"), answer
    assert second["compiled"] is (who == "safecache") and len(answer.warnings) == (who == "safecache"), answer
    ours = home.run(kernel_scenes.compile_with_remote_cache, clear=False)
    assert ours.ok and not ours.result["second"]["compiled"] and not ours.warnings, ours
