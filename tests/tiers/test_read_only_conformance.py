"""A directory below a cache that is mounted read-only does what every tier has to do."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from conftest import needs_root
from helpers.stored import Files

from safecache.ports import Tiers
from safecache.settings import config
from safecache.testing.tiers import Held, TierTests
from safecache.upkeep.copies import Directory

from .test_conformance import COPIED


@needs_root
class TestReadOnlyDirectory(TierTests):
    @pytest.fixture
    def held(self, tmp_path, monkeypatch):
        """Mounted so, and changed by whoever serves it."""
        server, layer = tmp_path / "server", tmp_path / "layer"
        for directory in (server, layer):
            directory.mkdir()
        subprocess.run(["mount", "--bind", server, layer], check=True)
        subprocess.run(["mount", "-o", "remount,bind,ro", layer], check=True)
        monkeypatch.setenv("SAFECACHE_LOWER", str(layer))
        config.reload()
        yield Held(
            Tiers(),
            Files(server),
            kinds=COPIED,
            fill=lambda refs: shutil.copytree(tmp_path / "cache", server, dirs_exist_ok=True),
            source=lambda: Directory(str(layer)),
        )
        subprocess.run(["umount", "-l", layer], check=True)
