"""A launcher that was pickled, plainly, launches its kernel in another process."""

from __future__ import annotations

import pytest

pytest.importorskip("triton")

KIND = pytest.mark.parametrize("static", [True, False], ids=["static", "ordinary"])


@KIND
def test_launcher_launches_in_another_process(home, static):
    path = str(home.base / "launcher.pkl")
    made = home.run("dump_launcher", path=path, static=static)
    assert made.ok, made
    answer = home.run("launch_pickled", path=path)
    assert answer.ok, answer
    assert answer.result["loaded before"] == [], "unpickling must not touch the GPU"
    (launched,) = answer.result["launched"]
    assert launched[:7] == [8, 1, 1, 5, "in", "out", 1000]
    assert answer.result["qualname"] == made.result["qualname"]


@KIND
def test_stock_launcher_does_not_pickle(home, static):
    answer = home.run("dump_launcher", path=str(home.base / "launcher.pkl"), static=static, stock=True)
    assert answer.error == "PicklingError" and "launcher" in answer.messages[0], answer
