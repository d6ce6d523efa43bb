"""Compile workers: what their parent knows of the remote comes with each job, so that none of them waits for it too."""

from __future__ import annotations

import pytest

from . import scenes
from .liars import Liar

pytest.importorskip("redis")
pytest.importorskip("zstandard")


def test_remote_that_has_failed_for_the_parent_is_not_asked_by_a_worker(home, tmp_path):
    server, before, after = Liar("silent"), str(tmp_path / "before"), str(tmp_path / "after")
    environment, told = {"SAFECACHE_REMOTE": server.url}, []
    for scene, arguments in (
        (scenes.hand_out_jobs, {"before": before, "after": after}),
        (scenes.take_job, {"job": after}),
        (scenes.take_job, {"job": before}),
    ):
        answer = home.run(scene, env=environment, **arguments)
        assert answer.ok, answer
        told.append((server.asked, "".join(answer.warnings).count("no answer within")))
    server.close()
    # A worker whose parent had not asked yet asks for itself.
    assert told == [(1, 1), (1, 0), (2, 1)]
