"""What arrives from elsewhere, in remote caches, mega-caches, unpacked artifacts and bundles, is read if it is good.

That nothing planted in it runs or leaves its place is in test_hostile_bytes.py.
"""

from __future__ import annotations

import os
import shutil

import pytest
from scenes import artifact_scenes, model_scenes

from faults import damage
from faults.doors import PROFILE, STRICTNESS

# In a remote cache.


@pytest.fixture
def remote(home):
    path = home.base / "remote"
    path.mkdir()
    answer = home.run(artifact_scenes.save_profile, path="", remote=str(path))
    assert answer.ok and len(list(path.iterdir())) == 1, answer
    return path


def test_profile_in_a_remote_cache_is_hit_by_safecache_and_stock_torch(home, remote):
    answer = home.run(artifact_scenes.load_profile, path="", remote=str(remote))
    assert answer.ok and answer.result is True and answer.warnings == [], answer
    assert home.run(artifact_scenes.load_profile, path="", remote=str(remote), stock=True).result is True


# In a mega-cache.


@pytest.mark.parametrize(("name", "key"), [("autotune", "../escaped.best_config"), ("precompile", "../../escaped")])
def test_what_arrives_in_a_mega_cache_beside_a_name_that_is_refused_is_taken(home, name, key):
    arrived = [damage.artifact(name, key, b"{}"), damage.artifact("autotune", "ab/good.best_config", b"{}")]
    answer = home.run(artifact_scenes.populate, artifacts=arrived)
    assert answer.ok and answer.result == {"autotune": ["ab/good.best_config"]}, answer
    assert (home.cache / "ab/good.best_config").exists()
    assert len(answer.warnings) == 1 and "[unsafe name]" in answer.warnings[0], answer


def test_profile_in_a_mega_cache_is_hit(home):
    path = str(home.base / "mega")
    saved = home.run(artifact_scenes.save_profile_mega_cache, path=path)
    assert saved.ok and saved.result, saved
    PROFILE.find(home).unlink()
    answer = home.run(artifact_scenes.load_profile_mega_cache, path=path)
    assert answer.ok and answer.result is True and answer.warnings == [], answer


# In a directory that an artifact is unpacked to.


@STRICTNESS
@pytest.mark.parametrize("harm", [damage.flip_in_payload, damage.truncate_by_one], ids=lambda harm: harm.__name__)
@pytest.mark.parametrize("entries", ["aotautograd/*/*", "fxgraph/*/*/*"], ids=["aot", "fx"])
def test_damaged_entry_in_an_unpacked_artifact_is_refused(home, entries, harm, strict):
    path = home.base / "artifact"
    assert home.run(model_scenes.standalone, save=str(path), fmt="unpacked").ok
    (entry,) = path.glob(entries)
    harm(entry)
    answer = home.run(model_scenes.load_standalone, path=str(path), fmt="unpacked", strict=strict)
    assert answer.errors[0] == "RefusedArtifactError" and str(entry) in answer.messages[0], answer


@pytest.mark.parametrize("aot", [False, True], ids=["cache", "aot"])
def test_standalone_artifact_that_safecache_saved_is_loaded_by_stock_torch(home, aot):
    path = str(home.base / "artifact")
    assert home.run(model_scenes.standalone, save=path, aot=aot).ok
    for stock in False, True:
        answer = home.run(model_scenes.load_standalone, path=path, stock=stock)
        assert answer.ok and answer.warnings == [], answer


# In a bundle of autotuning results.


def test_what_is_in_a_bundle_beside_a_name_that_is_refused_is_taken(home):
    answer = home.run(artifact_scenes.load_bundle, names=["../escaped.best_config", "cgood.best_config"])
    assert answer.ok and answer.result is True and len(answer.warnings) == 1, answer
    assert len(list(home.cache.rglob("cgood.best_config"))) == 1


def test_fifo_in_place_of_a_standalone_artifact_is_not_waited_for(home):
    os.mkfifo(home.base / "artifact")
    answer = home.run(model_scenes.load_standalone, path=str(home.base / "artifact"))
    assert answer.errors[0] == "RefusedArtifactError" and "it is no file" in answer.messages[0], answer


def test_key_that_is_a_path_in_a_standalone_artifact_leads_nowhere(home):
    """It is not sealed, and torch joins it to the cache directory; what lies there was taken for damaged entries."""
    documents = home.base / "documents"
    documents.mkdir()
    (documents / "letter").write_text("dear")
    answer = home.run(model_scenes.load_with_key, path=str(home.base / "artifact"), key=str(documents))
    assert answer.errors and "would leave the place of its kind" in " ".join([*answer.messages, *answer.warnings]), (
        answer
    )
    assert (documents / "letter").read_text() == "dear"


def test_profile_of_another_job_of_the_scheduler_is_taken_from_a_mega_cache_as_by_torch(home):
    """Torch writes it under the name of the job that runs now; the cache then has it for that job's other processes."""
    path = str(home.base / "mega")
    assert home.run(artifact_scenes.save_profile_mega_cache, path=path, mast="first").ok
    shutil.rmtree(home.cache)
    assert home.run(artifact_scenes.load_profile_mega_cache, path=path, mast="second", stock=True).result is True
    shutil.rmtree(home.cache)
    answer = home.run(artifact_scenes.load_profile_mega_cache, path=path, mast="second")
    assert answer.ok and answer.result is True and answer.warnings == [], answer
    again = home.run(artifact_scenes.load_profile, path="", mast="second")
    assert again.ok and again.result is True and again.warnings == [], again
    assert home.run(artifact_scenes.load_profile, path="", mast="second", stock=True).result is True


def mast_profile(home, job):
    """That of a job of the scheduler, whose name is its key."""
    assert home.run(artifact_scenes.save_profile, path="", mast=job).ok
    (path,) = (home.cache / "dynamo").glob(f"code_state_mast_{job}_*.pkl")
    return path


@pytest.mark.parametrize("claimed", ["mast:first:1:None:None", "mast:second:1:None:None"], ids=["other", "own"])
def test_profile_that_was_sealed_under_another_key_than_it_arrives_under_is_refused(home, claimed):
    """Torch's rewriting makes a job's key of any such key: what counts is which one the profile was sealed under."""
    path = mast_profile(home, "third")
    content = path.read_bytes()
    path.unlink()
    answer = home.run(
        artifact_scenes.populate_profile, artifacts=[damage.artifact("pgo", claimed, content)], mast="second"
    )
    assert answer.ok and answer.result is False and answer.stats["other cache key"] == 1, answer


def test_profile_of_another_job_that_lies_in_the_cache_by_itself_is_refused(home):
    """Only in a mega-cache, which the program has asked for, does torch rewrite keys."""
    path = mast_profile(home, "first")
    path.rename(path.with_name(path.name.replace("first", "second")))
    answer = home.run(artifact_scenes.load_profile, path="", mast="second")
    assert answer.ok and answer.result is False and answer.stats["other cache key"] == 1, answer
