"""The patch picklable-launchers: launchers of Inductor pickle without safecache, and launch in another process."""

from __future__ import annotations

import pickle

import pytest
from conftest import TESTS
from scenes import autotuner_scenes, launcher_entry_scenes, launcher_scenes
from scenes.model_scenes import PLACES

from patches.conftest import MADE_BY_HAND, needs_triton

pytestmark = needs_triton
KIND = pytest.mark.parametrize("static", [True, False], ids=["static", "ordinary"])
KINDS = pytest.mark.parametrize("kind", ["static", "ordinary", "store_cubin"])
FIRST = [8, 1, 1, 5, "in", "out", 1000]


@pytest.fixture
def release(home):
    """The major and minor version."""
    return tuple(int(part) for part in home.zygote.torch.split(".")[:2])


@KIND
def test_launcher_launches_in_another_process(home, stock, static):
    path = str(home.base / "launcher.pkl")
    refused = stock.run(launcher_scenes.dump_launcher, path=path, static=static)
    assert refused.error == "PicklingError", refused
    made = home.run(launcher_scenes.dump_launcher, path=path, static=static)
    assert made.ok, made
    answer = home.run(launcher_scenes.launch_pickled, path=path)
    assert answer.ok and answer.result["loaded before"] == [], answer
    assert [launched[:7] for launched in answer.result["launched"]] == [FIRST], answer


def test_launcher_of_a_kernel_from_a_compile_worker_launches_in_another_process(home):
    path = str(home.base / "launcher.pkl")
    made = home.run(launcher_scenes.dump_launcher_of_a_worker, path=path)
    assert made.ok, made
    answer = home.run(launcher_scenes.launch_pickled, path=path)
    assert answer.ok and [launched[:7] for launched in answer.result["launched"]] == [FIRST], answer


@pytest.mark.parametrize("pickler", ["pickle", "cloudpickle"])
@KINDS
def test_launcher_pickles_inside_of_other_objects_with_every_protocol(home, kind, pickler):
    pytest.importorskip(pickler)
    path = str(home.base / "launchers.pkl")
    made = home.run(launcher_scenes.dump_containers, path=path, name=kind, pickler=pickler)
    assert made.ok, made
    answer = home.run(launcher_scenes.launch_contained, path=path)
    assert answer.ok and len(answer.result) == 8, answer
    for container, pickles in answer.result.items():
        assert len(pickles) == pickle.HIGHEST_PROTOCOL - 1
        for told in pickles:
            assert told["loaded"] == [0, 1] and told["one"], container
            assert [launched[:7] for launched in told["launched"]] == [FIRST], container


@KINDS
def test_copies_of_a_launcher_are_the_launcher(home, kind):
    answer = home.run(launcher_scenes.copy_launcher, name=kind)
    assert answer.ok and answer.result == [True] * 9, answer


@KINDS
def test_attributes_are_there_before_anything_is_loaded(home, kind):
    answer = home.run(launcher_scenes.attributes_in_pickle, name=kind)
    assert answer.ok and answer.result["different"] == [] and answer.result["loaded"] == 0, answer
    assert {"config", "n_regs", "n_spills", "shared", "cache_hash", "store_cubin"} <= set(answer.result["names"])


@pytest.mark.parametrize("kind", ["static", "ordinary"])
def test_first_calls_from_many_threads_load_once(home, kind):
    answer = home.run(launcher_scenes.first_calls, name=kind, threads=8)
    assert answer.ok, answer
    result = answer.result
    assert result["loaded"] == 1 and len(result["launched"]) == 8, result
    assert [launched[:7] for launched in result["later"]] == [FIRST] * 2
    assert result["parameters"][:3] == ["in_ptr0", "out_ptr0", "xnumel"] and result["parameters"][-1] == "stream"
    assert result["note"] == ["kept"] and result["noted"] == ["kept"]


def test_child_that_is_forked_in_the_middle_of_a_load_can_load(home):
    answer = home.run(launcher_scenes.fork_while_loading)
    assert answer.ok and answer.result == 0, answer


def test_launcher_that_keeps_its_binary_has_it_after_a_pickle_too(home):
    answer = home.run(launcher_scenes.kept_binary)
    assert answer.ok and all(answer.result["asm"].values()), answer
    assert answer.result["hash"] and answer.result["again"] and answer.result["loaded"] == 1, answer


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("how", ["deleted", "changed"])
def test_launcher_loads_the_binary_that_it_was_made_with(home, how, when):
    """Whatever has become of Triton's cache since."""
    answer = home.run(launcher_scenes.load_with_cubin, how=how, when=when)
    assert answer.ok and answer.result["failure"] is None and answer.result["again"] is None, answer
    assert answer.result["loaded"] == answer.result["original"] and answer.result["descriptors"] == 0, answer


@pytest.mark.parametrize(
    ("state", "static"),
    [
        *(("launchers", True), ("launchers", False), ("run", False), ("triton", True), ("reloaded", False)),
        *(("cached", False), ("fast", True)),
    ],
)
def test_autotuner_with_launchers_pickles_and_works_elsewhere(home, stock, release, static, state):
    if state in ("cached", "fast") and release < (2, 13):
        pytest.skip("torch 2.13 has it first")
    path = str(home.base / "autotuner.pkl")
    if state == "launchers":
        refused = stock.run(autotuner_scenes.dump_autotuner, path=path, state=state, static=static)
        assert refused.error == "AssertionError", refused
    made = home.run(autotuner_scenes.dump_autotuner, path=path, state=state, static=static)
    assert made.ok and made.result["untouched"] and made.result["again"] and made.result["lock"], made
    answer = home.run(autotuner_scenes.load_autotuner, path=path)
    assert answer.ok, answer
    (told,) = answer.result
    assert told["launched"] == [FIRST, [4, *FIRST[1:]]][: made.result["results"]] and told["ran"] == FIRST, answer


def test_autotuner_of_the_release_candidate_works_elsewhere(home, stock):
    """Its failure reasons have launchers as keys: what stopped vLLM's move to torch 2.12."""
    path = str(home.base / "autotuner.pkl")
    assert stock.run(autotuner_scenes.bundle_autotuner, path=path).error == "PicklingError"
    made = home.run(autotuner_scenes.bundle_autotuner, path=path)
    assert made.ok and made.result["restored"], made
    answer = home.run(autotuner_scenes.load_autotuner, path=path)
    assert answer.ok and answer.result[0]["reasons"] == ["failed"], answer


@KIND
@pytest.mark.parametrize("fast", [True, False], ids=["fast", "plain"])
def test_autotuner_runs_as_in_stock_torch(home, stock, release, static, fast):
    arguments = {"static": static, "configs": 2, "fast": fast}
    ours = home.run(autotuner_scenes.run_autotuner, **arguments)
    theirs = stock.run(autotuner_scenes.run_autotuner, **arguments)
    assert ours.ok and theirs.ok, (ours, theirs)
    for name in ("launched", "unloaded", "results", "best", "reasons"):
        assert ours.result[name] == theirs.result[name], name
    if release >= (2, 13):
        # From the second launch on a plain function: torch's fast one, or the launcher's own.
        assert ours.result["cached"] == [True, not (static and fast)], ours


@pytest.mark.parametrize(
    "scene", [autotuner_scenes.close_launchers, autotuner_scenes.check_arguments, autotuner_scenes.launchers_as_keys]
)
def test_torch_uses_launchers_as_functions(home, release, scene):
    if scene != autotuner_scenes.launchers_as_keys and release < (2, 13):
        pytest.skip("torch 2.13 has it first")
    answer = home.run(scene)
    assert answer.ok, answer
    if scene == autotuner_scenes.close_launchers:
        assert answer.result["unloaded by one that was not loaded"] == 0, answer
        assert answer.result["unloaded in all"] == 2 and answer.result["launched"] == [8, 4, 8], answer
    elif scene == autotuner_scenes.check_arguments:
        assert len(answer.result) == 3, answer
    else:
        assert answer.result == {"found": [float(n) for n in range(6)], "best": 0.0}, answer


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    "functorch",
    [{}, {"strict_autograd_cache": True}, {"bundled_autograd_cache": True}],
    ids=["torch-lax", "torch-strict", "bundled"],
)
def test_entry_that_refers_to_a_launcher_is_hit_in_the_next_process(home, place, functorch):
    cold = home.run(launcher_entry_scenes.save_referring, place=place, **functorch)
    assert cold.ok and cold.torch_warnings == [] and cold.result["aot"]["saved"] == 1, cold
    answer = home.run(launcher_entry_scenes.hit_referring, **functorch)
    assert answer.ok and answer.torch_warnings == [], answer
    assert answer.result["aot"]["hit"] == 1 and answer.result["fx"]["miss"] == 0, answer
    assert answer.result["revived"] >= 1 and answer.result["launched"] == answer.result["revived"], answer
    assert answer.result["loaded before"] == 0, answer


def test_stock_entry_that_refers_to_a_launcher_is_not_saved(stock):
    cold = stock.run(launcher_entry_scenes.save_referring, place="aot")
    assert cold.ok and cold.result["aot"]["saved"] == 0, cold


@pytest.mark.parametrize(
    ("save", "load"),
    [
        (launcher_entry_scenes.save_standalone_referring, launcher_entry_scenes.load_standalone_referring),
        (launcher_entry_scenes.save_aot_compiled, launcher_entry_scenes.load_aot_compiled),
    ],
    ids=["standalone", "aot_compiled"],
)
@pytest.mark.parametrize("place", PLACES)
def test_artifact_with_a_launcher_is_saved_and_loaded(home, save, load, place):
    path = str(home.base / "artifact")
    made = home.run(save, place=place, path=path)
    assert made.ok and made.torch_warnings == [], made
    answer = home.run(load, path=path)
    assert answer.ok and answer.result["launched"] == answer.result["revived"] >= 1, answer


def test_launcher_of_patched_torch_is_left_as_it_is_by_safecache(patched, tmp_path):
    code = f"""
import json, pickle, sys
sys.path.insert(0, {str(TESTS)!r})
import safecache
from scenes import autotuners
with autotuners.driver() as driver:
    made = [autotuners.compiled(static=static).launchers[0] for static in (True, False)]
    for launcher in pickle.loads(pickle.dumps(made)):
        autotuners.launch(launcher)
print(json.dumps([[type(launcher).__name__ for launcher in made], [launched[:7] for launched in driver.launched]]))
"""
    assert patched(*MADE_BY_HAND).said(code, tmp_path) == [["_Launcher"] * 2, [FIRST] * 2]
