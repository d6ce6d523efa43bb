"""A pack does what every tier has to do."""

from __future__ import annotations

import os

import pytest
from helpers.stored import Files, away, instead

from safecache import packs
from safecache.settings import config
from safecache.testing.tiers import Held, TierTests
from safecache.upkeep import packing


class TestPack(TierTests):
    @pytest.fixture
    def held(self, tmp_path, monkeypatch):
        pytest.importorskip("zstandard")
        directory = tmp_path / "packs"
        directory.mkdir()
        path = directory / "model.safecache"
        monkeypatch.setenv("SAFECACHE_LOWER", str(path))
        config.reload()
        ways = {"away": lambda: away(path), "directory": lambda: instead(path, os.mkdir)}
        ways["fifo"] = lambda: instead(path, os.mkfifo)
        return Held(
            packs,
            Files(directory),
            fill=lambda refs: packing.pack([str(tmp_path / "cache")], str(path), lambda *_: None),
            failures=ways,
            source=lambda: packing._Pack(str(path)),
        )
