"""A kernel that cannot be loaded is an error that says why and what to do, and nothing unverified is loaded."""

from __future__ import annotations

import pytest
from scenes import launcher_scenes

pytest.importorskip("triton")

DAMAGE = pytest.mark.parametrize("how", ["deleted", "altered"])
ARCHITECTURE = {"gpu": "sm_80,sm_86"}
HERE = {"gpu": "sm_80,sm_90"}


def assert_tells(failure, *words):
    assert failure is not None, "nothing was raised"
    assert failure["type"] == "LauncherError" and failure["runtime"], failure
    for word in (*words, "Compile again", "remove the entry"):
        assert word in failure["text"], failure


@DAMAGE
@pytest.mark.parametrize("when", ["before", "after", "meanwhile"])
def test_launcher_loads_the_cubin_it_was_made_with_whatever_lies_in_the_cache(home, how, when):
    answer = home.run(launcher_scenes.load_with_cubin, how=how, when=when)
    assert answer.ok, answer
    result = answer.result
    assert result["failure"] is None and result["again"] is None, answer
    assert result["loaded"] == result["original"] and len(result["loaded"]) == 1
    assert result["descriptors"] == 0


@pytest.mark.parametrize("kind", ["static", "ordinary"])
def test_failure_on_another_architecture_names_both(home, kind):
    answer = home.run(launcher_scenes.load_elsewhere, name=kind, **ARCHITECTURE)
    assert answer.ok, answer
    assert_tells(answer.result, "triton_poi_scale", "sm_90", "sm_80")
    assert answer.result["cause"] == "ValueError" and answer.result["same"], answer
    assert answer.result["repaired"] is None and answer.result["descriptors"] == []


@pytest.mark.parametrize("package", ["torch", "triton"])
@pytest.mark.parametrize("kind", ["static", "ordinary"])
def test_failure_with_another_release_names_both(home, kind, package):
    answer = home.run(launcher_scenes.load_elsewhere, name=kind, **HERE, **{package: "1.2.3"})
    assert answer.ok, answer
    assert_tells(answer.result, "triton_poi_scale", package, "this process has 1.2.3")
    assert answer.result["cause"] == "ValueError" and answer.result["same"], answer


@pytest.mark.parametrize("provenance", [HERE, {"gpu": ""}, {**HERE, "memory": True}], ids=["here", "unknown", "memory"])
@pytest.mark.parametrize("kind", ["static", "ordinary"])
def test_failure_of_the_driver_itself_passes_through_untouched(home, kind, provenance):
    answer = home.run(launcher_scenes.load_elsewhere, name=kind, **provenance)
    assert answer.ok, answer
    assert answer.result["type"] == ("MemoryError" if "memory" in provenance else "ValueError"), answer
    assert answer.result["as it was"], answer
    assert answer.result["repaired"] is None, "the next call must try again"


@pytest.mark.parametrize("package", ["torch", "triton"])
def test_recipe_of_another_release_that_cannot_be_read_names_both(home, package):
    answer = home.run(launcher_scenes.load_unreadable, **{package: "1.2.3"})
    assert answer.ok, answer
    assert_tells(answer.result, "triton_poi_scale", f"made with {package} 1.2.3, and this process has")
    assert answer.result["cause"] == "ModuleNotFoundError"
    assert answer.result["hash"] and answer.result["loaded"] == [], "it unpickles, and tells what it was"


def test_recipe_that_cannot_be_read_tells_the_error(home):
    answer = home.run(launcher_scenes.load_unreadable)
    assert answer.ok, answer
    assert_tells(answer.result, "triton_poi_scale", "ModuleNotFoundError", "no_such_module")
