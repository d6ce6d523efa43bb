"""Artifacts that torch unpickles as a whole, outside of the two entry caches: read if they are good, and healed.

A refusal is a miss where there is something to compile, and RefusedArtifactError where there is not. That nothing planted
in them runs is in test_hostile_bytes.py.
"""

from __future__ import annotations

import shutil
import zlib

import pytest
from scenes import artifact_scenes, model_scenes

from faults import damage
from faults.doors import DOORS, EACH_DOOR, FUNCTION, GRAPH, PRECOMPILE, assert_refused
from faults.kept import Kept

pytestmark = pytest.mark.xdist_group("planted-artifacts")
MISSES = pytest.mark.parametrize("door", [door for door in DOORS if door.misses], ids=lambda door: door.name)
# The others that miss are in the tests of how they heal.
REFUSED = [
    *((door, damage.flip_in_payload, True) for door in DOORS),
    *(
        (door, harm, False)
        for door in DOORS
        if not door.misses
        for harm in (damage.flip_in_payload, damage.truncate_to_half)
    ),
    *(
        pytest.param(door, harm, False, marks=pytest.mark.default_release)
        for door in (FUNCTION, PRECOMPILE)
        for harm in (damage.flip_in_tag, damage.truncate_by_one)
    ),
]


@pytest.fixture(scope="module")
def saved(new_home):
    """Gives the home in which the artifact of a door was saved."""
    kept = {}

    def give(door):
        if door not in kept:
            home = new_home()
            door.save(home)
            kept[door] = Kept(home)
        return kept[door].again()

    return give


@EACH_DOOR
def test_artifact_is_read_in_a_fresh_process_and_by_stock_torch(saved, door):
    home = saved(door)
    path = door.find(home)
    before = path.read_bytes()
    answer = door.load(home)
    assert answer.ok and answer.result is True and answer.warnings == [], answer
    assert answer.stats["verified"] >= 1, answer
    path.write_bytes(before)
    stock = door.load(home, stock=True)
    assert stock.ok and stock.result is True and stock.stats == {}, stock


@pytest.mark.parametrize(
    ("door", "harm", "strict"), REFUSED, ids=lambda value: getattr(value, "name", getattr(value, "__name__", None))
)
def test_damaged_artifact_is_refused(saved, door, harm, strict):
    home = saved(door)
    path = door.find(home)
    harm(path)
    # The others come as bytes, and nobody can tell from where.
    where = str(path) if door.misses or door.name == "function" else ""
    assert_refused(door, door.load(home, strict=strict), strict, where)


def assert_heals(door, home):
    # A profile is saved anew by the compile that missed it, the others by whoever saves.
    assert home.run(door.scene("save"), path=door.path(home)).ok
    again = door.load(home)
    assert again.ok and again.result is True and again.warnings == [], again


@EACH_DOOR
def test_artifact_of_stock_torch_is_refused_and_heals(home, door):
    door.save(home, stock=True)
    # The artifact alone: stock torch leaves unsealed entries and libraries beside it, which are refused too.
    for folder in home.cache.iterdir() if home.cache.exists() else ():
        if folder.name in ("aotautograd", "fxgraph") or len(folder.name) == 2:
            shutil.rmtree(folder)
    answer = door.load(home)
    assert_refused(door, answer, strict=False)
    assert answer.stats["unsealed"] == 1, answer
    if door.misses:
        assert_heals(door, home)
        assert door.load(home, stock=True).result is True


@MISSES
def test_damaged_artifact_is_moved_to_quarantine_and_heals(saved, door):
    """A result of autotuning is not: nobody can tell a damaged one from one that stock torch has written."""
    home = saved(door)
    path = door.find(home)
    damage.flip_in_payload(path)
    damaged = damage.digest(path)
    answer = door.load(home)
    assert_refused(door, answer, strict=False, where=str(path))
    (moved,) = [p for p in home.base.rglob(".safecache/quarantine/*") if p.suffix != ".json"]
    assert damage.digest(moved) == damaged and answer.stats["quarantined"] == 1, answer
    assert not path.exists() or damage.digest(path) != damaged, "a profile is saved anew at once"
    assert str(moved) in answer.warnings[0] and '"damaged"' in moved.with_name(moved.name + ".json").read_text()
    assert_heals(door, home)


@pytest.mark.parametrize("cut", damage.CUT, ids=lambda cut: cut.__name__)
@MISSES
def test_artifact_that_was_cut_short_is_a_miss_and_heals(saved, door, cut):
    home = saved(door)
    path = door.find(home)
    cut(path)
    answer = door.load(home)
    if door.name == "memo" and cut is damage.empty:
        # Torch's own header is gone too: to torch it is of another version, and is not even handed over.
        assert answer.ok and answer.result is False and answer.stats == {}, answer
    else:
        assert_refused(door, answer, strict=False, where=str(path))
    assert_heals(door, home)


@pytest.mark.timeout(120)  # would hang for ever
@MISSES
def test_fifo_in_place_of_an_artifact_is_passed_over(saved, door):
    home = saved(door)
    damage.fifo(door.find(home))
    answer = door.load(home)
    assert answer.ok and answer.result is False, answer


def test_artifact_of_one_kind_is_refused_as_another(saved):
    """The seal is good, and by our key."""
    answer = GRAPH.load(saved(FUNCTION))
    assert_refused(GRAPH, answer, strict=False)
    assert answer.stats["other kind"] == 1, answer


def test_precompile_entry_is_refused_for_another_function(saved):
    home = saved(PRECOMPILE)
    path = PRECOMPILE.find(home)
    moved = path.parent.with_name("0" * 64)
    path.parent.rename(moved)
    answer = home.run(artifact_scenes.read_precompile, path=str(moved / "entry"))
    assert answer.errors[0] == "RefusedArtifactError" and answer.stats == {"other cache key": 1}, answer


def test_value_that_torch_has_kept_comes_back_without_its_seal(home):
    answer = home.run(artifact_scenes.value_of_memo, path=str(home.base), value="value")
    assert answer.ok and answer.result == [True, False, "value"], answer
    assert answer.stats == {"sealed": 2, "verified": 2}, answer


def flip_version(path):
    """As of another torch, with a checksum that fits."""
    content = path.read_bytes()[4:]
    at = content.index((32).to_bytes(8, "big")) + 8  # the hash of torch
    content = content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]
    path.write_bytes(zlib.crc32(content).to_bytes(4, "big") + content)


@pytest.fixture(scope="module")
def standalone(new_home):
    home = new_home()
    path = home.base / "artifact"
    assert home.run(artifact_scenes.save_standalone, path=str(path)).ok
    assert home.run(model_scenes.load_standalone, path=str(path)).result is True
    return Kept(home)


@pytest.mark.parametrize(
    ("harm", "error"),
    [(damage.flip_in_payload, "RuntimeError"), (damage.empty, "AssertionError"), (flip_version, "AssertionError")],
    ids=["flipped", "empty", "version"],
)
def test_error_of_torch_for_a_standalone_artifact_names_it_and_a_remedy(standalone, harm, error):
    home = standalone.again()
    path = home.base / "artifact"
    harm(path)
    stock = home.run(model_scenes.load_standalone, path=str(path), stock=True)
    answer = home.run(model_scenes.load_standalone, path=str(path))
    assert answer.errors[0] == stock.errors[0] == error and str(path) not in stock.messages[0]
    assert answer.messages[0].startswith(stock.messages[0]), answer
    assert f"{path} is damaged, of another torch, or not of this format. Copy it" in answer.messages[0]
