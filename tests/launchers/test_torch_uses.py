"""torch's own code uses launchers as it uses the functions that they stand for."""

from __future__ import annotations

import pytest
from scenes import autotuner_scenes

pytest.importorskip("triton")

KIND = pytest.mark.parametrize("static", [True, False], ids=["static", "ordinary"])


@pytest.mark.parametrize("fast", [True, False], ids=["fast", "plain"])
@pytest.mark.parametrize("configs", [1, 2])
@KIND
def test_autotuner_runs_as_in_stock_torch(home, release, static, configs, fast):
    ours = home.run(autotuner_scenes.run_autotuner, static=static, configs=configs, fast=fast)
    stock = home.run(autotuner_scenes.run_autotuner, static=static, configs=configs, fast=fast, stock=True)
    assert ours.ok and stock.ok, (ours, stock)
    assert stock.result["launcher"] == "function" and ours.result["launcher"] == "Launcher"
    for name in ("launched", "unloaded", "results", "best", "reasons"):
        assert ours.result[name] == stock.result[name], name
    assert len(ours.result["launched"]) == (3 if configs == 1 else 5)
    if release >= (2, 13):
        # A function either way: torch's fast one, or the launcher's own.
        assert ours.result["cached"] == [True, not (static and fast)], ours
    else:
        assert ours.result["cached"] is None


@KIND
def test_launcher_that_spills_registers_is_a_failure_with_a_reason(home, release, static):
    ours = home.run(autotuner_scenes.run_autotuner, static=static, configs=2, spills=True)
    stock = home.run(autotuner_scenes.run_autotuner, static=static, configs=2, spills=True, stock=True)
    assert ours.ok and stock.ok, (ours, stock)
    assert ours.result["best"] == stock.result["best"] == 256
    assert ours.result["reasons"] == stock.result["reasons"]
    if release >= (2, 12):
        assert ours.result["reasons"] == [[0, "REGISTER_SPILLING"]]


def test_kernels_of_losing_launchers_are_unloaded_and_can_be_loaded_again(home, since):
    since(2, 13)
    answer = home.run(autotuner_scenes.close_launchers)
    assert answer.ok, answer
    result = answer.result
    assert result["unloaded by one that was not loaded"] == 0
    assert result["unloaded by one that was loaded"] == 1
    assert result["unloaded in all"] == 2, "the first of two, too"
    assert result["launched"] == [8, 4, 8]


def test_autotuner_lets_go_of_launchers_after_a_benchmark(home, since):
    since(2, 13)
    answer = home.run(autotuner_scenes.release_artifacts)
    assert answer.ok and answer.result == {"left": [[], [], 0, None], "unloaded": 2}, answer


def test_too_many_arguments_are_explained(home, since):
    since(2, 13)
    answer = home.run(autotuner_scenes.check_arguments)
    assert answer.ok and len(answer.result) == 3, answer
    assert all("too many positional arguments" in text for text in answer.result), answer


def test_launchers_are_keys_by_identity(home):
    answer = home.run(autotuner_scenes.launchers_as_keys)
    assert answer.ok and answer.result == {"found": [float(n) for n in range(6)], "best": 0.0}, answer


@pytest.mark.parametrize("fast", [True, False], ids=["fast", "plain"])
@KIND
def test_function_for_the_fast_path_is_saved_and_launches(home, since, static, fast):
    since(2, 13)
    answer = home.run(autotuner_scenes.build_fast_launcher, static=static, fast=fast)
    assert answer.ok, answer
    for told in answer.result:
        assert told["function"] and told["same"] and told["qualname"], answer
        assert told["own"] is not (static and fast), answer
        assert told["launched"] == [[8, 1, 1, 5, "in", "out", 1000]] * 2, answer
