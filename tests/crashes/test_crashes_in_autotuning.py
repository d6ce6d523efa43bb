"""Autotuners skip the configurations that crash, find the best of the rest, and say why there is none."""

from __future__ import annotations

from crashes import crash_scenes

SOUND, DEADLY, DEADLY_TOO, SOUND_TOO = 0, 1, 2, 3


def test_triton_autotune_skips_what_crashes_and_finds_the_best_of_the_rest(home):
    answer = home.run(crash_scenes.tune, kinds=[DEADLY, SOUND, DEADLY_TOO, SOUND_TOO])
    assert answer.result["timings"] == {"1": "inf", "0": "1.0", "2": "inf", "3": "0.5"}
    assert answer.result["best"] == SOUND_TOO


def test_only_configuration_that_crashes_is_the_users_error(home):
    assert home.run(crash_scenes.tune, kinds=[DEADLY]).result["error"] == "TritonCompileCrash"


def test_inductor_skips_what_crashes_and_says_so_where_nothing_is_left(home):
    kinds = [[DEADLY, SOUND, DEADLY_TOO, SOUND_TOO], [DEADLY], [DEADLY, DEADLY_TOO]]
    told = home.run(crash_scenes.tune_with_inductor, choices=["sound", "unknown-operand"], kinds=kinds).result
    assert told["max-autotune"] == {"sound": "1.0", "unknown-operand": "inf"}
    some, *none = told["precompile"]
    assert some == [SOUND, SOUND_TOO]
    for failed in none:
        assert failed["error"] == "NoTritonConfigsError"
        assert "TritonCompileCrash: safecache: " in failed["text"] and "SIGABRT" in failed["text"]
