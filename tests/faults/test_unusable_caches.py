"""One planted file keeps no process from its result: a cache that nothing can be moved out of is gone round."""

from __future__ import annotations

import shutil

import pytest
from scenes import kernel_scenes

from faults import hostile
from faults.trojan import Attack


def file(path):
    path.write_bytes(b"in the way")


def link_to_nothing(path):
    path.symlink_to("nowhere")


def link_away(path):
    (path.parents[1] / "elsewhere").mkdir(exist_ok=True)
    path.symlink_to(path.parents[1] / "elsewhere")


PLACES = pytest.mark.parametrize("place", [".safecache", ".safecache/quarantine"])
OBSTACLES = pytest.mark.parametrize("obstacle", [file, link_to_nothing, link_away])


def put(obstacle, path):
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    obstacle(path)


@pytest.fixture
def attack(warm):
    return Attack(warm)


@PLACES
@OBSTACLES
def test_planted_library_that_cannot_be_moved_away_costs_one_warning_and_the_cache(attack, trojan, place, obstacle):
    hostile.library_in_a_warm_cache(attack.home, trojan)
    put(obstacle, attack.home.cache / place)
    answer = attack.run()
    assert answer.ok and not attack.ran, answer
    assert len(answer.warnings) == 1 and str(attack.home.cache / place) in answer.warnings[0], answer
    again = attack.run()
    assert again.ok and not attack.ran and len(again.warnings) == 1, again


@PLACES
def test_planted_library_that_cannot_be_moved_away_is_an_error_in_strict_mode(attack, trojan, place):
    hostile.library_in_a_warm_cache(attack.home, trojan)
    put(file, attack.home.cache / place)
    answer = attack.run(strict=True)
    assert "EntryRefusedError" in answer.errors and not attack.ran, answer


@PLACES
@OBSTACLES
def test_planted_source_that_cannot_be_moved_away_costs_one_warning_and_the_cache(attack, trojan, place, obstacle):
    hostile.source_in_a_warm_cache(attack.home, trojan)
    put(obstacle, attack.home.cache / place)
    answer = attack.run()
    assert answer.ok and not attack.ran and len(answer.warnings) == 1, answer


@PLACES
@OBSTACLES
def test_cold_cache_with_an_obstacle_costs_one_warning_at_most(home, place, obstacle):
    home.cache.mkdir()
    put(obstacle, home.cache / place)
    answer = home.run()
    assert answer.ok and len(answer.warnings) <= 1, answer
    again = home.run()
    assert again.ok and len(again.warnings) <= 1, again


def test_planted_library_with_a_note_that_it_could_be_loaded_is_not_loaded(attack, trojan):
    hostile.library_in_a_warm_cache(attack.home, trojan)
    for path in attack.files("*.so"):
        path.with_name(path.name + ".load_ok").touch()
    for _ in range(2):
        answer = attack.run()
        assert answer.ok and not attack.ran and len(answer.warnings) <= 1, answer


@PLACES
@OBSTACLES
@pytest.mark.parametrize("planted", [False, True], ids=["as it was", "planted"])
def test_triton_cache_with_an_obstacle_costs_one_warning(home, place, obstacle, planted):
    pytest.importorskip("triton")
    assert home.run(kernel_scenes.compile_kernel).ok
    if planted:
        for path in hostile.triton_files(home, "*.cubin"):
            path.write_bytes(b"planted")
    put(obstacle, home.base / "triton" / place)
    for _ in range(2):
        answer = home.run(kernel_scenes.compile_kernel)
        assert answer.ok and len(answer.warnings) <= 1, answer
