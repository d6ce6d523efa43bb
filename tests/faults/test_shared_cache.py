"""A cache that several users share: what one has sealed serves all of them, once that is said to be meant."""

from __future__ import annotations

import os
import shutil

import pytest
from conftest import WARM, needs_root
from scenes import kernel_scenes

from faults import damage
from faults.trojan import PYTHON
from faults.users import GROUP, User, owners, share_directory, share_key

pytestmark = [needs_root, pytest.mark.default_release]
SHARED = {"SAFECACHE_SHARED": "1"}
STRICTNESS = pytest.mark.parametrize("strict", [False, True], ids=["default", "strict"])


@pytest.fixture
def cache(home):
    share_key(home)
    for path in (home.cache, home.base / "triton"):
        share_directory(path)
    return home


@pytest.fixture
def first(cache):
    return User(cache, 54321)


@pytest.fixture
def second(cache):
    return User(cache, 54322)


@pytest.fixture
def filled(cache, first):
    answer = first.run(env=SHARED)
    assert answer.ok and answer.stats["saved"] == 3 and not answer.warnings, answer
    assert owners(cache.cache) == {first.uid}
    return cache


@STRICTNESS
def test_second_user_hits_what_the_first_has_saved(filled, second, strict):
    answer = second.run(env=SHARED, strict=strict)
    assert answer.ok and answer.hits == WARM and not answer.warnings, answer
    assert answer.stats["verified"] == 3 and answer.code_stats["code verified"] >= 1, answer
    assert "code sealed" not in answer.code_stats and not filled.quarantined


def test_what_is_made_there_belongs_to_the_group(filled):
    """By the setgid bit and the umask, which is all that is asked of them."""
    made = [path for path in filled.cache.rglob("*") if not path.is_symlink()]
    assert {path.stat().st_gid for path in made} == {GROUP}
    closed = [path for path in (filled.cache / ".safecache").rglob("*") if not path.stat().st_mode & 0o020]
    assert not closed


@STRICTNESS
def test_without_the_setting_the_second_user_compiles_and_is_told(filled, second, strict):
    answer = second.run(strict=strict)
    if strict:
        assert "EntryRefusedError" in answer.errors and any("SAFECACHE_TRUST=shared" in m for m in answer.messages), (
            answer
        )
        again = second.run(env={"SAFECACHE_TRUST": "shared"}, strict=True)
        assert again.ok and again.hits == WARM and not again.warnings, again
        return
    assert answer.ok and answer.hits == (0, 0), answer
    assert answer.stats["directory writable by others"] == 1 and answer.stats["owned by another user"] >= 3, answer
    (exposed,) = [text for text in answer.warnings if "[directory writable by others]" in text]
    assert f"{filled.cache} has mode 2775" in exposed and "SAFECACHE_TRUST=shared" in exposed, answer


@pytest.mark.parametrize("scene", [kernel_scenes.compile_kernel, kernel_scenes.build_module])
def test_second_user_takes_what_the_first_has_compiled_for_triton(cache, first, second, scene):
    pytest.importorskip("triton")
    assert first.run(scene, env=SHARED).result["compiled"]
    answer = second.run(scene, env=SHARED)
    assert answer.ok and not answer.result["compiled"] and not answer.warnings, answer
    without = second.run(scene)
    assert without.ok and without.result["compiled"] and without.stats["directory writable by others"] == 1, without


def test_second_user_moves_away_what_is_damaged(filled, first, second):
    """The quarantine is the group's too, though the first user has made it."""
    for _ in range(2):
        for path in filled.entries("fx"):
            damage.flip_in_payload(path)
        answer = second.run(env=SHARED)
        assert answer.ok and answer.stats["quarantined"] == len(filled.entries("fx")) == 2, answer
        first, second = second, first
    assert owners(filled.cache / ".safecache" / "quarantine") == {first.uid, second.uid}


@pytest.mark.parametrize("kind", ["aot", "fx"])
@pytest.mark.parametrize("trust", ["signed", "private"])
def test_unsealed_entry_of_the_other_user_does_not_run(filled, first, second, kind, trust):
    marker = second.base / "ran"
    for path in filled.entries(kind):
        planted = damage.plant(path, marker, as_torch_would=True)
        os.chown(planted, first.uid, GROUP)
    answer = second.run(env=SHARED | {"SAFECACHE_TRUST": trust})
    assert answer.ok and answer.hits == WARM and not marker.exists(), answer
    assert answer.stats["not private" if trust == "private" else "unsealed"] >= 1, answer


@pytest.mark.parametrize("pattern", ["*.so", "*.py"])
@pytest.mark.parametrize("trust", ["stock", "signed", "private"])
def test_code_of_the_other_user_that_nobody_sealed_does_not_run(filled, first, second, trojan, pattern, trust):
    marker = second.base / "ran"
    for path in filled.cache.glob(f"??/{pattern}"):
        evil = PYTHON.encode() + path.read_bytes() if pattern == "*.py" else trojan.read_bytes()
        path.unlink()
        path.write_bytes(evil)
        os.chown(path, first.uid, GROUP)
    if trust == "stock":
        second.run(stock=True, env={"TROJAN_MARKER": str(marker)})
        assert marker.exists(), "or this test would prove nothing"
        return
    answer = second.run(env=SHARED | {"SAFECACHE_TRUST": trust, "TROJAN_MARKER": str(marker)})
    assert answer.ok and not marker.exists() and answer.stats["damaged"] >= 1, answer


def test_second_user_with_a_key_of_his_own_takes_nothing(filled, second):
    answer = second.run(env=SHARED | {"SAFECACHE_KEY_FILE": ""})
    assert answer.ok and answer.hits == (0, 0) and answer.stats["unknown key"] >= 3, answer


def test_refused_code_that_cannot_be_moved_away_is_built_in_a_private_directory(home):
    """In a sticky directory only its owner can move it."""
    share_key(home)
    share_directory(home.cache)
    first, second = User(home, 54321), User(home, 54322)
    assert first.run(env=SHARED).ok
    shutil.rmtree(home.cache / "aotautograd")
    shutil.rmtree(home.cache / "fxgraph")
    for path in home.cache.glob("??"):
        path.chmod(0o3775)
    answer = second.run()
    assert answer.ok and answer.code_stats["code sealed"], answer
    assert any("cannot be moved away" in text for text in answer.warnings), answer
    strict = second.run(strict=True)
    assert not strict.ok and {"EntryRefusedError", "CacheWriteError"} & set(strict.errors), strict
    assert second.run(env=SHARED).ok
