"""A directory below a cache does what every tier has to do."""

from __future__ import annotations

import os
import shutil

import pytest
from helpers.stored import Files, away, instead

from safecache.ports import Tiers
from safecache.reporting.kinds import Kind
from safecache.settings import config
from safecache.testing.tiers import Held, TierTests
from safecache.upkeep import eviction, inventory
from safecache.upkeep.copies import Directory

# Entries are read where they lie.
COPIED = (Kind.KERNEL, Kind.NATIVE_CODE, Kind.AUTOTUNING, Kind.PGO_STATE)


class TestDirectory(TierTests):
    @pytest.fixture
    def held(self, tmp_path, monkeypatch):
        layer, cache = tmp_path / "layer", tmp_path / "cache"
        monkeypatch.setenv("SAFECACHE_LOWER", str(layer))
        config.reload()
        ways = {"away": lambda: away(layer), "file": lambda: instead(layer, lambda path: path.write_bytes(b""))}
        ways["fifo"] = lambda: instead(layer, os.mkfifo)
        ways["link"] = lambda: instead(layer, lambda path: path.symlink_to("nowhere"))

        def forget(ref):
            """As the command gc does."""
            path = os.path.join(layer, os.path.relpath(ref.path, cache))
            going = [group for group in inventory.take_inventory(str(layer)).groups if path in group.paths]
            return any(eviction.remove_group(group, str(layer)) for group in going)

        return Held(
            Tiers(),
            Files(layer),
            kinds=COPIED,
            fill=lambda refs: shutil.copytree(cache, layer, dirs_exist_ok=True),
            failures=ways,
            source=lambda: Directory(str(layer)),
            forget=forget,
        )
