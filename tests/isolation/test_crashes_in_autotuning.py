"""Autotuners skip the configurations that crash, find the best of the rest, and say why there is none."""

from __future__ import annotations

import pytest

SOUND, DEADLY, DEADLY_TOO = 0, 1, 2


def test_triton_autotune_skips_what_crashes_and_finds_the_best_of_the_rest(home):
    answer = home.run("tune", kinds=[DEADLY, SOUND, DEADLY_TOO, 3])
    assert answer.result["timings"] == {"1": "inf", "0": "1.0", "2": "inf", "3": "0.5"}
    assert answer.result["best"] == 3


def test_only_configuration_that_crashes_is_the_users_error(home):
    assert home.run("tune", kinds=[DEADLY]).result["error"] == "TritonCompileCrash"


def test_inductor_skips_what_crashes(home):
    assert home.run("precompile", kinds=[DEADLY, SOUND, DEADLY_TOO, 3]).result == {"kept": [SOUND, 3]}


@pytest.mark.parametrize("kinds", [[DEADLY], [DEADLY, DEADLY_TOO]], ids=["one", "two"])
def test_inductor_says_the_crash_where_nothing_is_left(home, kinds):
    told = home.run("precompile", kinds=kinds).result
    assert (
        told["error"] == "NoTritonConfigsError"
        and "TritonCompileCrash: safecache: Triton's compiler crashed" in told["text"]
    )
