"""A cache of its own for every test of the store, and no waiting between two tries."""

from __future__ import annotations

import pytest
from helpers.in_process import isolated, settings

from faults.store.faulty import Calls
from safecache.fs import filesystem

__all__ = ["calls", "isolated", "settings", "waits"]


@pytest.fixture
def waits(monkeypatch):
    """The waits between tries, in seconds; none takes place."""
    waits: list[float] = []
    monkeypatch.setattr(filesystem, "sleep", waits.append)
    return waits


@pytest.fixture
def calls(monkeypatch, waits):
    """Every call of the store to the file system, but those that are made once in a process."""
    filesystem._has_openat2()
    return Calls(monkeypatch)
