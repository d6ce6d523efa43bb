"""After safecache.deactivate() torch's launchers are its own again, and those that were pickled still work."""

from __future__ import annotations

import pytest
from scenes import launcher_scenes

pytest.importorskip("triton")


def test_new_launchers_are_plain_functions_and_old_ones_work(home):
    answer = home.run(launcher_scenes.deactivate)
    assert answer.ok, answer
    assert answer.result["plain"] == [True, True] and answer.result["names"] == ["launcher"] * 2
    assert answer.result["attributes"] == [], "nothing of ours is on torch's own"
    assert answer.result["failures"] == [None] * 3 and answer.result["launched"] == 3


def test_what_was_pickled_works_where_safecache_is_not_active(home):
    path = str(home.base / "launcher.pkl")
    assert home.run(launcher_scenes.dump_launcher, path=path).ok
    answer = home.run(launcher_scenes.launch_pickled, path=path, stock=True)
    assert answer.ok and len(answer.result["launched"]) == 1, answer
