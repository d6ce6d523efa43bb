"""Code and names planted in what arrives from elsewhere: remote caches, mega-caches, unpacked artifacts, bundles."""

from __future__ import annotations

import base64
import json
import pickle

import pytest

from faults import damage
from faults.doors import HOSTILE, PRECOMPILE, PROFILE, STRICTNESS, assert_refused

# In a remote cache.


@pytest.fixture
def remote(home):
    path = home.base / "remote"
    path.mkdir()
    answer = home.run("save_profile", path="", remote=str(path))
    assert answer.ok and len(list(path.iterdir())) == 1, answer
    return path


def test_profile_in_a_remote_cache_is_hit_by_safecache_and_stock_torch(home, remote):
    answer = home.run("load_profile", path="", remote=str(remote))
    assert answer.ok and answer.result is True and answer.warnings == [], answer
    assert home.run("load_profile", path="", remote=str(remote), stock=True).result is True


@pytest.mark.parametrize("how", ["default", "strict", "stock"])
def test_planted_profile_in_a_remote_cache(home, remote, how):
    marker = home.base / "ran"
    for path in remote.iterdir():
        path.write_text(json.dumps(damage.remote_value(pickle.dumps(damage.Marker(marker)))))
    answer = home.run("load_profile", path="", remote=str(remote), stock=how == "stock", strict=how == "strict")
    assert marker.exists() == (how == "stock")
    if how != "stock":
        assert_refused(PROFILE, answer, how == "strict", "the remote cache")


# In a mega-cache.


def artifact(name: str, key: str, content: bytes) -> tuple[str, str, str]:
    return name, key, base64.b64encode(content).decode()


@pytest.mark.parametrize("how", ["default", "strict", "stock"])
@pytest.mark.parametrize(
    ("name", "key"),
    [
        pytest.param("autotune", "../escaped.best_config", id="autotune-above"),
        pytest.param("autotune", "ab/escaped.py", id="autotune-code"),
        pytest.param("autotune", "{base}/escaped.best_config", id="autotune-absolute"),
        pytest.param("precompile", "../../escaped", id="precompile-above"),
        pytest.param("precompile", "{base}/escaped", id="precompile-absolute"),
    ],
)
def test_name_in_a_mega_cache_does_not_leave_its_place(home, name, key, how):
    arrived = [artifact(name, key.format(base=home.base), b"{}"), artifact("autotune", "ab/good.best_config", b"{}")]
    answer = home.run("populate", artifacts=arrived, stock=how == "stock", strict=how == "strict")
    assert bool(list(home.base.rglob("escaped*"))) == (how == "stock")
    if how == "strict":
        assert "EntryRefusedError" in answer.errors, answer
    elif how == "default":
        assert answer.ok and answer.result == {"autotune": ["ab/good.best_config"]}, answer
        assert (home.cache / "ab/good.best_config").exists()
        assert len(answer.warnings) == 1 and "would leave" in answer.warnings[0], answer


@pytest.mark.parametrize("how", ["default", "strict", "stock"])
@pytest.mark.parametrize("door", [PRECOMPILE, PROFILE], ids=lambda door: door.name)
def test_planted_pickle_in_a_mega_cache(home, door, how):
    """One that is written, and unpickled when it is looked up."""
    path = door.save(home)
    key = path.parent.name if door.name == "precompile" else path.name[len("code_state_") : -len(".pkl")]
    path.unlink()
    marker = home.base / "ran"
    name = {"precompile": "precompile", "profile": "pgo"}[door.name]
    arrived = [artifact(name, key, pickle.dumps(damage.Marker(marker)))]
    answer = home.run("populate", artifacts=arrived, stock=how == "stock", strict=how == "strict")
    assert path.exists() == (how == "stock")
    door.load(home, stock=how == "stock")
    assert marker.exists() == (how == "stock")
    if how == "strict":
        assert "EntryRefusedError" in answer.errors, answer
    elif how == "default":
        assert answer.ok and answer.result == {} and len(answer.warnings) == 1, answer


def test_profile_in_a_mega_cache_is_hit(home):
    path = str(home.base / "mega")
    saved = home.run("save_profile_mega_cache", path=path)
    assert saved.ok and saved.result, saved
    PROFILE.find(home).unlink()
    answer = home.run("load_profile_mega_cache", path=path)
    assert answer.ok and answer.result is True and answer.warnings == [], answer


# In a directory that an artifact is unpacked to.


@pytest.mark.parametrize("how", ["default", "strict", "stock"])
def test_planted_pickle_in_a_directory_that_an_artifact_is_unpacked_to(home, how):
    path = home.base / "artifact"
    assert home.run("standalone", save=str(path), fmt="unpacked").ok
    marker = home.base / "ran"
    for entry in path.glob("fxgraph/*/*/*"):
        damage.plant(entry, marker)
    answer = home.run("save_unpacked_over", path=str(path), stock=how == "stock", strict=how == "strict")
    assert marker.exists() == (how == "stock")
    if how != "stock":
        assert "EntryRefusedError" in answer.errors, answer


def test_planted_pickle_in_an_unpacked_artifact_runs_on_stock_torch(home):
    """That it does not with safecache is in test_planted_entries."""
    path = home.base / "artifact"
    assert home.run("standalone", save=str(path), fmt="unpacked").ok
    marker = home.base / "ran"
    for entry in path.glob("aotautograd/*/*"):
        damage.plant(entry, marker)
    home.run("load_standalone", path=str(path), fmt="unpacked", stock=True)
    assert marker.exists()


@STRICTNESS
@pytest.mark.parametrize("harm", [damage.flip_in_payload, damage.truncate_by_one], ids=lambda harm: harm.__name__)
@pytest.mark.parametrize("entries", ["aotautograd/*/*", "fxgraph/*/*/*"], ids=["aot", "fx"])
def test_damaged_entry_in_an_unpacked_artifact_is_refused(home, entries, harm, strict):
    path = home.base / "artifact"
    assert home.run("standalone", save=str(path), fmt="unpacked").ok
    (entry,) = path.glob(entries)
    harm(entry)
    answer = home.run("load_standalone", path=str(path), fmt="unpacked", strict=strict)
    assert answer.errors[0] == "EntryRefusedError" and str(entry) in answer.messages[0], answer


def test_nothing_planted_in_an_unpacked_artifact_is_even_looked_up(home):
    path = home.base / "artifact"
    assert home.run("standalone", save=str(path), fmt="unpacked").ok
    for entry in [*path.glob("aotautograd/*/*"), *path.glob("fxgraph/*/*/*")]:
        (entry.parent / "0").write_bytes(HOSTILE)
    arguments = {"inner": "load_standalone", "arguments": {"path": str(path), "fmt": "unpacked"}}
    answer = home.run("audited", **arguments, needle="planted_module")
    assert answer.ok and answer.result == {"seen": [], "outcome": True}, answer


@pytest.mark.parametrize("aot", [False, True], ids=["cache", "aot"])
def test_standalone_artifact_that_safecache_saved_is_loaded_by_stock_torch(home, aot):
    path = str(home.base / "artifact")
    assert home.run("standalone", save=path, aot=aot).ok
    for stock in False, True:
        answer = home.run("load_standalone", path=path, stock=stock)
        assert answer.ok and answer.warnings == [], answer


# In a bundle of autotuning results.


@pytest.mark.parametrize("how", ["default", "strict", "stock"])
@pytest.mark.parametrize(
    "name",
    ["{base}/escaped.best_config", "../escaped.best_config", "x..escaped.best_config", "cescaped.py"],
    ids=["absolute", "above", "folder-above", "code"],
)
def test_name_in_a_bundle_of_autotuning_results_does_not_leave_its_place(home, name, how):
    names = [name.format(base=home.base), "cgood.best_config"]
    answer = home.run("load_bundle", names=names, stock=how == "stock", strict=how == "strict")
    assert bool(list(home.base.rglob("*escaped*"))) == (how == "stock")
    if how == "strict":
        assert "EntryRefusedError" in answer.errors, answer
    elif how == "default":
        assert answer.ok and answer.result is True and len(answer.warnings) == 1, answer
        assert len(list(home.cache.rglob("cgood.best_config"))) == 1
