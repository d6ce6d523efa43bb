"""The README's first command: its work is done in processes of their own."""

from __future__ import annotations

import pytest

from safecache.cli import demo

pytest.importorskip("torch")


def test_work_is_compiled_and_then_found(tmp_path):
    cold = {}
    for stock in (True, False):
        cache = demo.Cache(tmp_path / f"{stock}", stock=stock)
        cache.directory.mkdir(parents=True)
        cold[stock] = cache.run("--layers", "1")
        assert cold[stock].error is None and not cold[stock].is_hit and len(cache.list_entries("aotautograd")) == 1, (
            cold
        )
    warm = cache.run("--layers", "1")
    assert warm.error is None and warm.is_hit and warm.answer["stats"]["verified"] == 3, warm
    assert "stats" not in cold[True].answer and cold[False].answer["stats"]["sealed"] == 3, cold
