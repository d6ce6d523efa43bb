"""A cache with a bundle of each kind, and a pack of it."""

from __future__ import annotations

import json

import pytest
from helpers import filled
from helpers.in_process import isolated, run, settings

__all__ = ["isolated", "run", "settings"]

pytest.importorskip("zstandard")


@pytest.fixture
def cache(tmp_path):
    return filled.fill(tmp_path / "cache")


@pytest.fixture
def pack(run, cache, tmp_path):
    """The pack of that cache."""
    path = tmp_path / "model.safecache"
    assert run("pack", cache, "-o", path).code == 0
    return path


@pytest.fixture
def counted(run):
    """Run a command; its exit code, and what it says became of groups."""

    def ask(*arguments):
        said = run(*arguments, "--json")
        found = json.loads(said.out) if said.out else {}
        what = ("copied", "already_there", "refused", "failed")
        return said.code, {name: found[name] for name in what if found.get(name)}

    return ask
