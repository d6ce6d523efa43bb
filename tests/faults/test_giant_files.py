"""Where each file of a cache has become a sparse one of a terabyte, a compile goes on as without a cache."""

from __future__ import annotations

import os

import pytest
from conftest import WARM

from faults import damage


def swell(home):
    """All but locks and the like, which are not read."""
    swollen = [path for path in home.base.rglob("*") if path.is_file() and path.is_relative_to(home.cache)]
    swollen = [path for path in swollen if path.suffix != ".lock"]
    for path in swollen:
        damage.swollen(path)
    return swollen


@pytest.mark.parametrize("trusted", ["signed", "private"])
def test_cache_of_giants_is_none_and_heals(warm, trusted):
    env = {"SAFECACHE_TRUST": trusted}
    swollen = swell(warm)
    assert len(swollen) > 10 and {".py", ".so"} <= {path.suffix for path in swollen}
    first = warm.run(env=env)
    assert first.ok and first.hits == (0, 0) and first.stats["too large"] >= 3, first
    second = warm.run(env=env)
    assert second.ok and second.hits == WARM, second


def test_giant_is_an_error_that_names_it_in_strict_mode(warm):
    swell(warm)
    answer = warm.run(strict=True)
    assert "EntryRefusedError" in answer.errors and any("1.1 TB" in text for text in answer.messages), answer


def test_quarantine_does_not_hold_more_than_the_holes(warm):
    """What was moved there has the size that it had, and costs the disk what it did."""
    swell(warm)
    assert warm.run().ok
    sizes = [os.stat(path).st_blocks * 512 for path in warm.quarantined if path.is_file()]
    assert sizes and sum(sizes) < 64 << 20
