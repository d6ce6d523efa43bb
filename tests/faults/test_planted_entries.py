"""Entries come in by whichever way if they are good; what was planted beside them costs nothing.

That it never runs is in test_hostile_bytes.py.
"""

from __future__ import annotations

import json
import shutil

import pytest
from conftest import WARM
from scenes import model_scenes

from faults import damage
from faults.kept import Kept

KINDS = ["aot", "fx"]
REMOTE = pytest.mark.xdist_group("planted-remote-entries")


@pytest.mark.parametrize("as_torch_would", [False, True], ids=["any-name", "named-as-torch-would"])
@pytest.mark.parametrize("kind", KINDS)
def test_hostile_pickle_beside_an_entry_does_not_cost_the_hit(warm, kind, as_torch_would):
    marker = warm.base / "ran"
    planted = [damage.plant(path, marker, as_torch_would=as_torch_would) for path in warm.entries(kind)]
    answer = warm.run()
    assert answer.ok and answer.hits == WARM and not marker.exists(), answer
    assert answer.stats["unsealed" if as_torch_would else "damaged"] == len(planted)
    assert len(answer.warnings) == 1 and any(str(path) in answer.warnings[0] for path in planted), answer
    # What torch could have written is left to whoever reads it; what is not even named after its content is not.
    assert [path.exists() for path in planted] == [as_torch_would] * len(planted)


@pytest.mark.parametrize("kind", KINDS)
def test_hostile_pickle_is_refused_where_only_unsealed_private_entries_are_trusted(warm, kind):
    """In private mode a file that others could write is not taken."""
    marker = warm.base / "ran"
    for path in warm.entries(kind):
        planted = damage.plant(path, marker, as_torch_would=True)
        planted.chmod(0o666)
    answer = warm.run(env={"SAFECACHE_TRUST": "private"})
    assert answer.ok and answer.hits == WARM, answer
    assert not marker.exists() and answer.stats["not private"] >= 1, answer


@pytest.fixture(scope="module")
def stored(new_home):
    home = new_home()
    remote = home.base / "remote"
    remote.mkdir()
    assert home.run(model_scenes.compile_with_remote, directory=str(remote)).ok
    shutil.rmtree(home.cache)
    return Kept(home)


@pytest.fixture
def remote(stored):
    """The directory of a remote cache that has the model's entries; none are local."""
    return stored.again().base / "remote"


@REMOTE
def test_sealed_value_in_remote_cache_is_hit(stored, remote):
    answer = stored.home.run(model_scenes.compile_with_remote, directory=str(remote))
    assert answer.ok and answer.hits == WARM and answer.stats["verified"] == 3, answer


@REMOTE
@pytest.mark.parametrize(
    "value",
    [[], {}, {"data": 7}, {"data": "!"}, {"data": ""}, "text", {"data": "gASVCg=="}],
    ids=["list", "empty", "number", "no-base64", "no-data", "text", "truncated-pickle"],
)
def test_malformed_remote_value_is_a_miss_and_heals(stored, remote, value):
    home = stored.home
    for path in remote.iterdir():
        path.write_text(json.dumps(value))
    first = home.run(model_scenes.compile_with_remote, directory=str(remote))
    assert first.ok and first.hits == (0, 0) and first.torch_warnings == [], first
    shutil.rmtree(home.cache)
    second = home.run(model_scenes.compile_with_remote, directory=str(remote))
    assert second.ok and second.hits == WARM and second.warnings == [], second


def test_remote_cache_that_raises_does_not_fail_a_compile(home):
    answer = home.run(model_scenes.compile_with_remote)
    assert answer.ok and answer.result["aot"]["miss"] == 1, answer
    assert "no reply" in answer.warnings[0], answer
    assert any("stored everywhere" in text for text in answer.warnings), answer
    assert len(home.aot_entries) == 1 and home.run().ok


@pytest.fixture
def mega_cache(warm):
    path = warm.base / "mega"
    assert warm.run(model_scenes.save_mega_cache, path=str(path)).ok
    return path


def test_mega_cache_of_sealed_entries_is_loaded_and_hit(warm, mega_cache):
    shutil.rmtree(warm.cache)
    answer = warm.run(model_scenes.load_mega_cache, path=str(mega_cache))
    assert answer.ok and answer.hits == WARM, answer
    assert len(answer.result["loaded"]["inductor"]) == 2


@pytest.mark.parametrize("strict", [False, True], ids=["default", "strict"])
def test_entry_in_a_mega_cache_under_a_name_that_leaves_its_place_is_not_written(warm, mega_cache, strict):
    shutil.rmtree(warm.cache)
    where = {"path": str(mega_cache), "marker": "", "key": "../../../escaped"}
    answer = warm.run(model_scenes.load_planted_mega_cache, **where, strict=strict)
    assert not list(warm.base.rglob("escaped*"))
    if strict:
        assert "EntryRefusedError" in answer.errors, answer
    else:
        assert answer.ok and answer.hits == (0, 0) and answer.result["loaded"] == {}, answer
        assert any("artifact" in text for text in answer.warnings), answer


@pytest.mark.parametrize("fmt", ["binary", "unpacked"])
def test_standalone_artifact_round_trips(home, fmt):
    path = str(home.base / "artifact")
    saved = home.run(model_scenes.standalone, save=path, fmt=fmt)
    assert saved.ok, saved
    loaded = home.run(model_scenes.load_standalone, path=path, fmt=fmt)
    assert loaded.ok and loaded.stats["verified"] >= 2, loaded


@pytest.mark.parametrize("fmt", ["binary", "unpacked"])
def test_standalone_artifact_of_another_key_is_refused_by_name(home, fmt):
    path = str(home.base / "artifact")
    home.run(model_scenes.standalone, save=path, fmt=fmt)
    shutil.rmtree(home.keys)
    shutil.rmtree(home.cache)
    answer = home.run(model_scenes.load_standalone, path=path, fmt=fmt)
    assert answer.errors[0] == "RefusedArtifactError", answer
    assert "SAFECACHE_KEY_FILE" in answer.messages[0] or "key" in answer.messages[0], answer


def test_planted_pickle_in_unpacked_artifact_does_not_run(home):
    path = home.base / "artifact"
    assert home.run(model_scenes.standalone, save=str(path), fmt="unpacked").ok
    marker = home.base / "ran"
    for entry in [*path.glob("aotautograd/*/*"), *path.glob("fxgraph/*/*/*")]:
        damage.plant(entry, marker)
    answer = home.run(model_scenes.load_standalone, path=str(path), fmt="unpacked")
    assert answer.ok and not marker.exists(), answer
