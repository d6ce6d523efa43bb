"""A cache that is part of an image: read where the cache itself has nothing, verified as ever, and never written."""

from __future__ import annotations

import os
import shutil

import pytest
from conftest import WARM
from scenes import model_scenes

from faults.damage import truncate_by_one

pytestmark = pytest.mark.default_release

BUILDS = model_scenes.compile_and_count_builds


@pytest.fixture
def layered(home, warm_template):
    """A home whose cache is empty, above an image with the warm one."""
    home.image = home.base / "image"
    shutil.copytree(warm_template.cache, home.image, symlinks=True)
    home.environment |= {
        "SAFECACHE_LOWER": str(home.image),
        "XDG_CONFIG_HOME": str(warm_template.base / "config"),
    }
    return home


def state(root):
    return {path: (path.lstat().st_mtime_ns, path.lstat().st_size) for path in (root, *root.rglob("*"))}


def entries(root):
    return sorted(path for path in root.glob("aotautograd/*/*")) + sorted(path for path in root.glob("fxgraph/*/*/*"))


def test_image_is_a_full_hit_under_an_empty_cache(layered):
    for path in (layered.image, *layered.image.rglob("*")):
        path.chmod(path.stat().st_mode & ~0o222)
    before = state(layered.image)
    answer = layered.run(BUILDS, unprivileged=True)
    assert answer.ok and answer.hits == WARM and answer.result["builds"] == 0, answer
    assert not answer.warnings and answer.stats == {"verified": 3}, answer
    assert state(layered.image) == before
    assert entries(layered.cache) == [], "what is below is not copied if it is an entry"
    again = layered.run(BUILDS, strict=True)
    assert again.ok and again.hits == WARM and again.result["builds"] == 0, again


def test_strict_mode_takes_an_image_for_what_it_is(layered):
    answer = layered.run(BUILDS, strict=True)
    assert answer.ok and answer.hits == WARM and answer.result["builds"] == 0, answer


def test_cache_itself_comes_first(layered):
    """An entry below that is never looked at cannot be refused."""
    shutil.copytree(layered.image, layered.cache, symlinks=True)
    for path in entries(layered.image):
        truncate_by_one(path)
    answer = layered.run(BUILDS)
    assert answer.ok and answer.hits == WARM and not answer.warnings, answer


@pytest.mark.parametrize("kind", ["entries", "libraries"])
def test_what_is_damaged_below_is_made_anew_and_stays_there(layered, kind):
    paths = entries(layered.image) if kind == "entries" else sorted(layered.image.glob("??/*.so"))
    assert paths
    for path in paths:
        truncate_by_one(path)
    before = state(layered.image)
    answer = layered.run(BUILDS)
    assert answer.ok and answer.warnings, answer
    assert answer.result["builds"] == (0 if kind == "entries" else 1), answer
    assert answer.hits == ((0, 0) if kind == "entries" else WARM), answer
    assert state(layered.image) == before and not layered.quarantined, answer
    again = layered.run(BUILDS)
    assert again.ok and again.hits == WARM and again.result["builds"] == 0 and not again.warnings, again
    strict = layered.run(strict=True)
    assert strict.ok, "the cache itself has it by now"


@pytest.mark.parametrize("kind", ["entries", "libraries"])
def test_what_nobody_has_sealed_below_is_not_used(layered, kind):
    if kind == "entries":
        shutil.rmtree(layered.cache, ignore_errors=True)
        layered.environment["XDG_CONFIG_HOME"] = str(layered.base / "config")  # another key
    else:
        shutil.rmtree(layered.image / ".safecache")
    before = state(layered.image)
    answer = layered.run(BUILDS)
    assert answer.ok and answer.result["builds"] == 1 and answer.warnings, answer
    assert answer.hits == ((0, 0) if kind == "entries" else WARM), answer
    assert state(layered.image) == before
    strict = layered.run(strict=True)
    assert strict.ok, "the cache itself has it by now"


def test_damaged_library_below_is_an_error_in_strict_mode(layered):
    for path in layered.image.glob("??/*.so"):
        truncate_by_one(path)
    answer = layered.run(strict=True)
    assert "EntryRefusedError" in answer.errors, answer


def test_layer_that_is_not_there_is_no_layer(layered):
    layered.environment["SAFECACHE_LOWER"] = os.pathsep.join([str(layered.base / "absent"), str(layered.image)])
    answer = layered.run(BUILDS)
    assert answer.ok and answer.hits == WARM and answer.result["builds"] == 0 and not answer.warnings, answer


def test_second_layer_has_what_the_first_has_not(layered):
    upper = layered.base / "upper"
    shutil.copytree(layered.image, upper, symlinks=True)
    shutil.rmtree(layered.image / "aotautograd")
    shutil.rmtree(upper / "fxgraph")
    layered.environment["SAFECACHE_LOWER"] = os.pathsep.join([str(upper), str(layered.image)])
    answer = layered.run(BUILDS)
    assert answer.ok and answer.hits == WARM and not answer.warnings, answer
