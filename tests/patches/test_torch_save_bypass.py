"""The patch save-bypass: an entry that cannot be saved never fails the compile, and nothing is half saved."""

from __future__ import annotations

import pytest
from scenes import model_scenes
from scenes.model_scenes import PLACES

from patches import saving_scenes

pytestmark = pytest.mark.xdist_group("save bypass")

LAX = pytest.param({}, id="torch-lax")
STRICT = pytest.param({"strict_autograd_cache": True}, id="torch-strict")
FUNCTORCH = pytest.mark.parametrize("functorch", [LAX, STRICT])


@pytest.mark.parametrize(
    ("what", "place", "strict"),
    [
        *(("lambda", "fx", True), ("launcher", "fx", False), ("launcher", "aot", False), ("lock", "aot", True)),
        *(("getstate", "fx", False), ("recursion", "aot", True)),
    ],
)
def test_compile_goes_on_with_a_warning_for_each_entry_that_says_what_and_why(home, what, place, strict):
    answer = home.run(model_scenes.compile_with, injection=what, place=place, strict_autograd_cache=strict)
    assert answer.ok, answer
    # compile_with compiles twice: one AOTAutograd entry each time, or the graphs of the forward and the backward.
    assert len(answer.torch_warnings) == (2 if place == "aot" else 4), answer
    attribute, why = "runtime_metadata" if place == "aot" else "injected", WHY[what]
    for said in answer.torch_warnings:
        assert f"not saved: {attribute} cannot be pickled: {why}" in said, answer
    assert home.aot_entries == [], "an entry that refers to a graph that was not saved would miss for ever"
    assert len(home.fx_entries) == (2 if place == "aot" else 0)


WHY = {
    "lambda": "",
    "launcher": "PicklingError: Can't pickle <function launcher",
    "lock": "TypeError: cannot pickle '_thread.lock' object",
    "getstate": "RuntimeError: this object does not want to be saved",
    "recursion": "RecursionError: ",
}


def test_stock_torch_fails_the_compile_where_it_is_strict(stock):
    answer = stock.run(model_scenes.compile_with, injection="launcher", place="aot", strict_autograd_cache=True)
    assert not answer.ok, answer


def test_stock_torch_saves_an_entry_whose_graphs_are_not_there(stock):
    answer = stock.run(model_scenes.compile_with, injection="launcher", place="fx")
    assert answer.ok and stock.aot_entries and not stock.fx_entries, answer


@FUNCTORCH
def test_graph_that_cannot_be_prepared_is_not_saved(home, stock, functorch):
    refused = stock.run(model_scenes.compile_with, injection="lambda", place="prepare", **functorch)
    assert not refused.ok and "cannot be prepared" in refused.messages[-1], refused
    answer = home.run(model_scenes.compile_with, injection="lambda", place="prepare", **functorch)
    assert answer.ok and len(answer.torch_warnings) == 4, answer
    assert all("cannot be prepared: RuntimeError: cannot be prepared" in said for said in answer.torch_warnings)
    assert home.aot_entries == home.fx_entries == []


@pytest.mark.parametrize("place", PLACES)
def test_an_interrupt_passes_through_untouched(home, place):
    """vLLM ends a compile with StopCompiling(BaseException)."""
    answer = home.run(model_scenes.compile_with, injection="interrupt", place=place)
    assert answer.error == "PrivateInterrupt" and answer.torch_warnings == [], answer


def test_entry_that_can_be_saved_is_hit_as_ever(home):
    assert home.run(model_scenes.compile_model).ok
    answer = home.run(model_scenes.compile_model)
    assert answer.ok and answer.hits == (1, 2) and answer.torch_warnings == [], answer


def test_graph_that_is_saved_later_after_all_is_no_obstacle(home):
    answer = home.run(saving_scenes.save_after_failure)
    assert answer.ok and answer.result["aot"]["saved"] == 1, answer
    assert len(home.aot_entries) == 1 and len(home.fx_entries) == 2


@pytest.mark.parametrize("place", PLACES)
def test_ahead_of_time_compile_goes_on(home, stock, place):
    """torch.compile(...).aot_compile turns torch's strict mode on by itself."""
    if place == "aot":
        assert stock.run(model_scenes.aot_compile, injection="launcher", place=place).error == "PicklingError"
    answer = home.run(model_scenes.aot_compile, injection="launcher", place=place)
    assert answer.ok and len(answer.torch_warnings) == 1 and "launcher" in answer.torch_warnings[0], answer


@pytest.mark.parametrize("aot", [True, False], ids=["one-bundle", "artifact"])
@pytest.mark.parametrize("place", PLACES)
def test_standalone_compile_goes_on_where_torch_is_strict(home, place, aot):
    options = {"aot": True} if aot else {}
    functorch = {"strict_autograd_cache": True}
    answer = home.run(model_scenes.standalone, injection="launcher", place=place, functorch=functorch, **options)
    assert answer.ok and len(answer.torch_warnings) == 1, answer
    assert not answer.result["saveable"], "an artifact without its graph would be saved, and fail where it is loaded"


def test_uncacheable_graph_is_no_failure_where_torch_is_strict(home, stock):
    assert not stock.run(model_scenes.compile_uncacheable, strict_autograd_cache=True).ok
    answer = home.run(model_scenes.compile_uncacheable, strict_autograd_cache=True)
    assert answer.ok and len(answer.torch_warnings) == 1 and "declined" in answer.torch_warnings[0], answer


def test_uncacheable_graph_stays_silent_by_default(home):
    answer = home.run(model_scenes.compile_uncacheable)
    assert answer.ok and answer.torch_warnings == [], answer


def test_remote_cache_that_refuses_is_a_warning(home, stock):
    assert not stock.run(model_scenes.compile_with_remote).ok
    answer = home.run(model_scenes.compile_with_remote)
    assert answer.ok and answer.result["aot"]["saved"] == 1, answer
    assert any("AOTAutograd cache entry not sent: ValueError: no reply" in said for said in answer.torch_warnings)


@pytest.mark.parametrize("kind", PLACES)
def test_full_disk_is_a_warning_where_torch_is_strict_and_leaves_nothing_half_saved(home, kind):
    answer = home.run(saving_scenes.save_to_full_disk, kind=kind, strict_autograd_cache=True)
    assert answer.ok, answer
    assert answer.torch_warnings and all("No space left" in said for said in answer.torch_warnings), answer
    assert home.aot_entries == [] and len(home.fx_entries) == (2 if kind == "aot" else 0)
