"""Profiles, precompile entries and results of tuning that are part of an image: verified, damaged or not, never written."""

from __future__ import annotations

import json
import shutil

import pytest
from scenes import artifact_scenes

from faults import damage
from faults.doors import PRECOMPILE, PROFILE, STRICTNESS, assert_refused
from faults.test_layers import state

pytestmark = [pytest.mark.default_release, pytest.mark.xdist_group("artifact layers")]

EACH = pytest.mark.parametrize("door", [PRECOMPILE, PROFILE], ids=lambda door: door.name)
DAMAGE = [
    damage.truncate_by_one,
    damage.empty,
    damage.garbage,
    damage.zero_tail,
    damage.flip_in_payload,
    damage.flip_in_tag,
]
NO_FILE = [damage.directory, damage.fifo, damage.dangling_link]
EACH_DAMAGE = pytest.mark.parametrize("how", [*DAMAGE, *NO_FILE], ids=lambda how: how.__name__)


def make_image(home):
    """What lies in the cache becomes an image below an empty one."""
    home.image = home.cache.rename(home.base / "image")
    home.environment["SAFECACHE_LOWER"] = str(home.image)


@pytest.fixture(scope="module")
def saved(new_home):
    """A home that has the artifact, one for each door."""
    homes = {}

    def saved(door):
        if door.name not in homes:
            homes[door.name] = new_home()
            door.save(homes[door.name])
        return homes[door.name]

    return saved


@pytest.fixture
def layered(home, saved, door):
    """A home with an image that has the artifact, and where it lies there."""
    shutil.copytree(saved(door).base, home.base, dirs_exist_ok=True, symlinks=True)
    path = door.find(home)
    make_image(home)
    home.path = home.image / path.relative_to(home.cache)
    return home


@EACH
def test_artifact_of_an_image_is_a_hit(layered, door):
    before = state(layered.image)
    answer = door.load(layered, strict=True)
    assert answer.ok and answer.result is True, answer
    assert state(layered.image) == before


@EACH
@EACH_DAMAGE
def test_damaged_artifact_of_an_image_is_a_miss(layered, door, how):
    how(layered.path)
    before = state(layered.image)
    answer = door.load(layered)
    assert_refused(door, answer, strict=False, where=str(layered.path))
    assert state(layered.image) == before and not layered.quarantined


@EACH
@pytest.mark.parametrize("how", [damage.flip_in_payload, damage.fifo], ids=lambda how: how.__name__)
def test_damaged_artifact_of_an_image_heals_above_it(layered, door, how):
    how(layered.path)
    before = state(layered.image)
    assert_refused(door, door.load(layered, strict=True), strict=True)
    saved = layered.run(door.scene("save"), path=door.path(layered))
    assert saved.ok and door.find(layered).is_relative_to(layered.cache), saved
    again = door.load(layered, strict=True)
    assert again.ok and again.result is True, again
    assert state(layered.image) == before


@EACH
def test_artifact_of_an_image_under_another_key_is_not_used(layered, door):
    layered.environment["XDG_CONFIG_HOME"] = str(layered.base / "other")
    before = state(layered.image)
    answer = door.load(layered)
    assert answer.ok and answer.result is False, answer
    assert any(str(layered.path) in warning and "[unknown key]" in warning for warning in answer.warnings), answer
    assert state(layered.image) == before


class Tuning:
    """The result of a kernel's tuning, in an image: one that Inductor itself did not propose."""

    SIZE = 7

    def __init__(self, home):
        self.home = home
        self.kernel = {"filename": str(home.cache / "ab" / "cab.py")}
        self.save(self.SIZE)
        make_image(home)
        (self.path,) = (home.image / "ab").glob("*.best_config")

    def save(self, size):
        answer = self.home.run(artifact_scenes.save_tuning, size=size, coordesc=True, **self.kernel)
        assert answer.ok and not answer.warnings, answer

    def read(self, **how):
        return self.home.run(artifact_scenes.read_tuning, **self.kernel, **how)


@pytest.fixture
def tuning(home):
    pytest.importorskip("triton")
    return Tuning(home)


def test_result_of_tuning_in_an_image_is_used(tuning):
    before = state(tuning.home.image)
    answer = tuning.read(strict=True)
    assert answer.ok and answer.result["size"] == Tuning.SIZE, answer
    assert state(tuning.home.image) == before


def other_block(path):
    path.write_text(json.dumps(json.loads(path.read_text()) | {"XBLOCK": Tuning.SIZE + 1}))


def without_records(path):
    for record in path.parents[1].glob(".safecache/records/*/*"):
        damage.flip_in_tag(record)


DAMAGED_RESULTS = [damage.truncate_by_one, damage.empty, damage.garbage]
DAMAGED_RESULTS += [other_block, without_records, *NO_FILE]


@pytest.mark.parametrize("how", DAMAGED_RESULTS, ids=lambda how: how.__name__)
def test_damaged_result_of_tuning_in_an_image_is_tuned_again(tuning, how):
    how(tuning.path)
    before = state(tuning.home.image)
    answer = tuning.read()
    assert answer.ok and answer.result == {"size": None, "altered": False}, answer
    assert len(answer.warnings) <= 1, answer
    assert state(tuning.home.image) == before and not tuning.home.quarantined
    tuning.save(Tuning.SIZE + 2)
    again = tuning.read(strict=True)
    assert again.ok and again.result["size"] == Tuning.SIZE + 2, again


@STRICTNESS
def test_planted_result_of_tuning_in_an_image_is_named(tuning, strict):
    other_block(tuning.path)
    answer = tuning.read(strict=strict)
    if strict:
        assert answer.errors == ["EntryRefusedError"], answer
    else:
        assert len(answer.warnings) == 1 and "[damaged]" in answer.warnings[0], answer
