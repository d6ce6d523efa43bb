"""Generated sources and compiled code that somebody else put into the cache are replaced.

That they never run is in test_hostile_bytes.py.
"""

from __future__ import annotations

import os
import shutil

import pytest
from conftest import WARM
from scenes import load_scenes, model_scenes

from faults import damage, hostile
from faults.trojan import Attack

STRICTNESS = pytest.mark.parametrize("strict", [False, True], ids=["default", "strict"])


@pytest.fixture
def attack(warm):
    return Attack(warm)


@pytest.mark.parametrize("plant", hostile.CODE, ids=lambda plant: plant.__name__)
def test_what_is_planted_is_healed(attack, trojan, plant):
    before = {path: path.read_bytes() for pattern in ("*.py", "*.cpp") for path in attack.files(pattern)}
    plant(attack.home, trojan)
    answer = attack.run()
    assert answer.ok and not attack.ran, answer
    assert len(answer.warnings) == 1 and str(attack.home.cache) in answer.warnings[0], answer
    assert {path: path.read_bytes() for path in before} == before
    again = attack.run()
    assert again.ok and again.hits == WARM and not again.warnings and not attack.ran, again


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
    adopted = home.run(model_scenes.adopt_cache, directory=str(home.cache))
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
    answer = warm.run(model_scenes.compile_model_and_say_where)
    assert answer.ok and answer.hits == WARM, answer
    assert len(answer.warnings) == 1 and f"{warm.cache} has mode 0777" in answer.warnings[0], answer
    files = answer.result["files"]
    assert {path[-3:] for path in files} == {".py", ".so"}, answer
    assert not any(path.startswith(str(warm.cache)) for path in files), answer


@pytest.mark.parametrize("plant", [hostile.header, hostile.precompiled_header], ids=lambda plant: plant.__name__)
def test_planted_header_is_made_anew(attack, trojan, plant):
    """The headers lie outside of the cache: in the temporary directory, by default."""
    scene = plant(attack.home, trojan)
    directory = attack.home.base / "headers"
    answer = attack.run(**scene)
    assert answer.ok and not attack.ran and len(answer.warnings) == 1, answer
    assert str(directory) in answer.warnings[0], answer
    (header,) = directory.glob("safecache-*/*.h")
    assert hostile.CONSTRUCTOR not in header.read_text()
    again = attack.run(**scene)
    assert again.ok and not again.warnings and not attack.ran, again


def test_planted_probe_of_vector_instructions_is_made_anew(attack, trojan):
    scene = hostile.probe_of_vector_instructions(attack.home, trojan)
    answer = attack.run(**scene)
    assert answer.result is True and len(answer.warnings) == 1, answer


def test_headers_of_two_keys_and_of_stock_torch_do_not_get_in_each_others_way(home):
    """All processes of a user keep them in one place, whatever their cache."""
    environments = [
        {"XDG_CONFIG_HOME": str(home.base / name), "TORCHINDUCTOR_CACHE_DIR": str(home.base / name)}
        for name in ("one", "two")
    ]
    directory = str(home.base / "headers")
    assert home.run(load_scenes.build_with_header, directory=directory, stock=True).ok
    for environment in environments * 2:
        answer = home.run(load_scenes.build_with_header, directory=directory, env=environment, strict=True)
        assert answer.ok and not answer.warnings, answer
    assert len(answer.result) == 2 * 3, answer
