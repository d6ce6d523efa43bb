"""Entries and artifacts that refer to launchers are saved, hit, and bring back launchers that work."""

from __future__ import annotations

import pytest
from conftest import WARM
from scenes import launcher_entry_scenes
from scenes.model_scenes import PLACES

pytest.importorskip("triton")

# torch pickles these (BundledAOTAutogradSerializableCallable) out of sight of saving.dump(), by pickle.dumps alone.
PLACE_AND_WHAT = pytest.mark.parametrize(
    "place,what", [*((place, "launcher") for place in PLACES), ("aot", "function")]
)
PLACE = pytest.mark.parametrize("place", PLACES)
FUNCTORCH = pytest.mark.parametrize(
    "functorch",
    [{}, {"strict_autograd_cache": True}, {"bundled_autograd_cache": True}],
    ids=["torch-lax", "torch-strict", "bundled"],
)


def assert_launchers_work(result, at_least=1):
    assert result["revived"] >= at_least and result["names"] == ["triton_poi_scale"], result
    assert result["loaded before"] == 0 and result["launched"] == result["revived"], result


@PLACE
@FUNCTORCH
def test_entry_that_refers_to_a_launcher_is_hit_in_the_next_process(home, place, functorch):
    assert_next_process_hits(home, place, "launcher", functorch)


@pytest.mark.parametrize("place,what", [("aot", "function"), ("fx", "function"), ("aot", "fast")])
def test_entry_that_refers_to_the_function_below_a_launcher_is_hit_in_the_next_process(home, since, place, what):
    """torch keeps that one for its fast path."""
    if what == "fast":
        since(2, 13)
    assert_next_process_hits(home, place, what, {"strict_autograd_cache": True})


def assert_next_process_hits(home, place, what, functorch):
    cold = home.run(launcher_entry_scenes.save_referring, place=place, what=what, **functorch)
    assert cold.ok and cold.warnings == [] and cold.torch_warnings == [], cold
    assert cold.result["aot"]["miss"] == 1 and cold.result["aot"]["saved"] == 1, cold
    answer = home.run(launcher_entry_scenes.hit_referring, **functorch)
    assert answer.ok and answer.warnings == [] and answer.torch_warnings == [], answer
    assert answer.result["aot"]["hit"] == 1 and answer.result["fx"]["miss"] == 0, answer
    if "bundled_autograd_cache" not in functorch:
        assert answer.hits == WARM, answer
    # The one bundle loads its backward graph when that is needed.
    assert_launchers_work(answer.result, 2 if place == "fx" and answer.hits == WARM else 1)


@pytest.mark.parametrize("place,functorch", [("fx", {}), ("aot", {"strict_autograd_cache": True})])
def test_stock_entry_that_refers_to_a_launcher_is_no_use(home, place, functorch):
    cold = home.run(launcher_entry_scenes.save_referring, place=place, stock=True, **functorch)
    answer = home.run(launcher_entry_scenes.hit_referring, stock=True, **functorch)
    assert not cold.ok or not answer.ok or answer.result["aot"]["hit"] == 0, (cold, answer)


@PLACE
def test_standalone_compile_with_a_launcher_is_saved_and_loaded(home, place):
    assert_standalone_loads(home, place, "launcher")


@PLACE_AND_WHAT
def test_standalone_compile_to_one_bundle_with_a_launcher_is_saved_and_loaded(home, place, what):
    assert_standalone_loads(home, place, what, aot=True)


def assert_standalone_loads(home, place, what, **options):
    path = str(home.base / "artifact")
    made = home.run(launcher_entry_scenes.save_standalone_referring, place=place, path=path, what=what, **options)
    assert made.ok and made.warnings == [], made
    answer = home.run(launcher_entry_scenes.load_standalone_referring, path=path)
    assert answer.ok and answer.warnings == [], answer
    assert_launchers_work(answer.result)


@pytest.mark.parametrize("aot", [True, False], ids=["one-bundle", "artifact"])
def test_stock_standalone_compile_with_a_launcher_fails(home, aot):
    options = {"aot": True} if aot else {}
    path = str(home.base / "artifact")
    made = home.run(launcher_entry_scenes.save_standalone_referring, place="aot", path=path, stock=True, **options)
    assert not made.ok or not home.run(launcher_entry_scenes.load_standalone_referring, path=path, stock=True).ok, made


@PLACE
def test_mega_cache_with_launchers_is_loaded(home, place):
    path = str(home.base / "artifacts")
    made = home.run(launcher_entry_scenes.save_mega_cache_referring, place=place, path=path)
    assert made.ok and made.warnings == [], made
    answer = home.run(
        launcher_entry_scenes.load_mega_cache_referring,
        path=path,
        env={"TORCHINDUCTOR_CACHE_DIR": str(home.base / "other")},
    )
    assert answer.ok and answer.hits == WARM, answer
    assert_launchers_work(answer.result)


@PLACE_AND_WHAT
def test_ahead_of_time_compile_with_a_launcher_is_saved_and_loaded(home, place, what):
    path = str(home.base / "compiled")
    made = home.run(launcher_entry_scenes.save_aot_compiled, place=place, path=path, what=what)
    assert made.ok and made.warnings == [], made
    answer = home.run(launcher_entry_scenes.load_aot_compiled, path=path)
    assert answer.ok, answer
    assert_launchers_work(answer.result)


def test_stock_ahead_of_time_compile_with_a_launcher_fails(home):
    made = home.run(launcher_entry_scenes.save_aot_compiled, place="aot", path=str(home.base / "compiled"), stock=True)
    assert not made.ok, made
