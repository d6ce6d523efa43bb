"""A wait for who holds a lock, and what of it counts."""

from __future__ import annotations

import os

import pytest
from helpers.in_process import isolated

from safecache.fs import holders

__all__ = ["isolated"]


def test_seconds_before_a_failure_count(tmp_path):
    """Whoever holds the lock may have made them pass."""
    watch = holders.Watch(os.stat(tmp_path))

    def fail(left):
        raise OSError(left)

    with pytest.raises(OSError, match="5"):
        watch.wait(fail, 5.0, lambda: None)
    assert watch.waited > 0
