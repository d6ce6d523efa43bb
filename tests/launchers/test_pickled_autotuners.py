"""An autotuner with launchers pickles, stays as it is, and makes launchers that work in another process."""

from __future__ import annotations

import pytest
from scenes import autotuner_scenes

pytest.importorskip("triton")

KIND = pytest.mark.parametrize("static", [True, False], ids=["static", "ordinary"])
STATES = {
    "launchers": (2, 11),
    "run": (2, 11),
    "triton": (2, 11),
    "reloaded": (2, 11),
    "reasons": (2, 12),
    "cached": (2, 13),
    "fast": (2, 13),
}
LAUNCHES = [[8, 1, 1, 5, "in", "out", 1000], [4, 1, 1, 5, "in", "out", 1000]]


def assert_works_elsewhere(home, path, results=2):
    answer = home.run(autotuner_scenes.load_autotuner, path=path)
    assert answer.ok, answer
    (told,) = answer.result
    assert told["launched"] == LAUNCHES[:results] and told["ran"] == LAUNCHES[0], answer
    assert told["state"] == [[], None], answer
    return told


@pytest.mark.parametrize("state", STATES)
@KIND
def test_autotuner_with_launchers_pickles_and_works_elsewhere(home, since, static, state):
    since(*STATES[state])
    path = str(home.base / "autotuner.pkl")
    made = home.run(autotuner_scenes.dump_autotuner, path=path, state=state, static=static)
    assert made.ok, made
    assert made.result["untouched"], "the live autotuner must stay as it was"
    assert made.result["launched"] == (1 if state == "run" else 2)
    assert made.result["again"] and made.result["lock"], made
    assert assert_works_elsewhere(home, path, made.result["results"])["reasons"] == []


@KIND
def test_stock_autotuner_with_launchers_does_not_pickle(home, static):
    answer = home.run(
        autotuner_scenes.dump_autotuner, path=str(home.base / "a"), state="launchers", static=static, stock=True
    )
    assert answer.error == "AssertionError", answer


@pytest.mark.parametrize(("state", "static"), [(state, number % 2 == 0) for number, state in enumerate(STATES)])
def test_autotuner_pickles_with_the_pickler_of_vllm_and_sglang(home, since, static, state):
    since(*STATES[state])
    path = str(home.base / "autotuner.pkl")
    made = home.run(autotuner_scenes.dump_autotuner, path=path, state=state, static=static, serving=True)
    assert made.ok, made
    assert_works_elsewhere(home, path, made.result["results"])


def test_autotuner_of_the_release_candidate_is_put_aside_and_works_elsewhere(home):
    path = str(home.base / "autotuner.pkl")
    made = home.run(autotuner_scenes.bundle_autotuner, path=path)
    assert made.ok, made
    assert made.result == {"restored": True, "names": ["triton_poi_scale"], "launched": 2}, made
    assert assert_works_elsewhere(home, path)["reasons"] == ["failed"]


def test_stock_autotuner_of_the_release_candidate_does_not_pickle(home):
    answer = home.run(autotuner_scenes.bundle_autotuner, path=str(home.base / "autotuner.pkl"), stock=True)
    assert answer.error == "PicklingError", answer


def test_autotuner_that_cannot_be_copied_is_left_out_with_one_warning(home):
    answer = home.run(autotuner_scenes.put_aside_uncopyable, what="lock")
    assert answer.ok, answer
    assert answer.result["raised"] is None
    assert len(answer.warnings) == 1 and "obstacle" in answer.warnings[0], answer
    assert "triton_poi_scale" in answer.warnings[0], answer
    assert answer.result["restored"] and answer.result["lock"] and answer.result["launched"] == 2, answer
    assert answer.result["collected"] == ["other key"], "the bundle must go on with the others"


def test_autotuner_that_cannot_be_copied_is_an_error_in_strict_mode(home):
    answer = home.run(autotuner_scenes.put_aside_uncopyable, what="lock", strict=True)
    assert answer.ok, answer
    name, text = answer.result["raised"]
    assert name == "UnpicklableEntryError" and "obstacle" in text, answer
    assert answer.result["restored"] and answer.result["lock"] and answer.result["launched"] == 2, answer


@pytest.mark.parametrize("strict", [False, True])
def test_interrupt_of_a_copy_passes_through_and_leaves_the_autotuner_as_it_was(home, strict):
    answer = home.run(autotuner_scenes.put_aside_uncopyable, what="interrupt", strict=strict)
    assert answer.ok and answer.warnings == [], answer
    assert answer.result["raised"][0] == "PrivateInterrupt"
    assert answer.result["restored"] and answer.result["lock"] and answer.result["launched"] == 2, answer


def test_stock_torch_leaves_an_autotuner_stripped_that_cannot_be_copied(home):
    answer = home.run(autotuner_scenes.put_aside_uncopyable, what="lock", goes_on=False, stock=True)
    assert answer.ok and answer.result["raised"][0] == "TypeError", answer
    assert not answer.result["restored"] and answer.result["launched"] == 0, answer
