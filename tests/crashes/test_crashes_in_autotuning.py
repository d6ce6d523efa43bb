"""Inductor's loops skip the configurations that crash, find the best of the rest, and say why there is none."""

from __future__ import annotations

from crashes import crash_scenes

SOUND, DEADLY, DEADLY_TOO, SOUND_TOO = 0, 1, 2, 3


def test_inductor_skips_what_crashes_and_says_so_where_nothing_is_left(home, zygote):
    kinds = [[DEADLY, SOUND, DEADLY_TOO, SOUND_TOO], [DEADLY], [DEADLY, DEADLY_TOO]]
    arguments = {"choices": ["sound", "unknown-operand"], "kinds": kinds}
    answer = zygote.run(crash_scenes.tune_with_inductor, home.environment, **arguments)
    assert answer.ok, answer
    told = answer.result
    assert told["max-autotune"] == {"sound": "1.0", "unknown-operand": "inf"}
    some, *none = told["precompile"]
    assert some == [SOUND, SOUND_TOO]
    for failed in none:
        assert failed["error"] == "NoTritonConfigsError"
        assert "TritonCompileCrash: safecache: " in failed["text"] and "SIGABRT" in failed["text"]
